package example

import org.apache.spark.sql.SparkSession
import org.apache.spark.sql.streaming.Trigger

/** Copies a topic, in a query without name and checkpoint; a second query runs in a session of its own. */
object Copy {
  def main(args: Array[String]): Unit = {
    if (args.isEmpty) throw new IllegalStateException("no topic to copy", new RuntimeException("password=hunter2"))
    val options = args.grouped(2).map(pair => pair(0) -> pair(1)).toMap
    val servers = options("--bootstrap-servers")
    val spark = SparkSession.builder().appName("Copy").getOrCreate()
    val source = spark.readStream
      .format("kafka")
      .option("kafka.bootstrap.servers", servers)
      .option("subscribe", options("--input"))
      .option("startingOffsets", "earliest")
      .load()
    source
      .selectExpr("to_json(struct(partition AS source_partition, offset AS source_offset)) AS value")
      .writeStream
      .format("kafka")
      .option("kafka.bootstrap.servers", servers)
      .option("topic", options("--output"))
      .trigger(Trigger.ProcessingTime(options("--trigger")))
      .start()
    val beats = spark.newSession().readStream.format("rate").load()
    beats.writeStream.format("noop").queryName("beat").trigger(Trigger.ProcessingTime(options("--trigger"))).start()
    spark.streams.awaitAnyTermination()
    sys.exit(0) // while the other query may still run
  }
}
