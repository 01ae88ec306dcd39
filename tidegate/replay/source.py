"""Spark for replay, archive, audit and backtest, and a broker's topics as a data frame."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.events.topics import DECISIONS, SNAPSHOTS
from tidegate.interrupts import deferred, handlers_kept, uninterrupted
from tidegate.runtime.meanwhile import meanwhile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONGEST_ANSWER = 60.0  # seconds; of a JVM that shall end
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


class NoSpark(RuntimeError):
    """Spark does not start; the text says where, and why."""


def start_session(master: str, jars: Sequence[str | Path] = ()) -> SparkSession:
    """Return a Spark session for replay, archive, audit and backtest. Raises `NoSpark`."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (takes seconds to import)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    options = {
        "spark.master": master,
        "spark.app.name": "tidegate",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        # Up to some 400,000 decisions, C2 takes longer to compile than its code saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.files.maxPartitionBytes": "16m",
        # Partitions small enough to be sorted in memory, and several per core, whatever the length of the history.
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4m",
    }
    if master.startswith("local"):
        # Use the loopback address, whatever the host name resolves to, and for the workers this Python, not PATH's.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if jars:
        options["spark.jars"] = ",".join(map(str, jars))
    logging.getLogger().addFilter(_is_no_interrupt)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its errors are raised, too
    conf = SparkConf().setAll(list(options.items()))
    try:
        with deferred():  # a JVM that PySpark does not know yet would stay for ever
            SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001
        # These tell with a stack what the error tells as well, to whoever waits for a task or for the start.
        for name in ("SparkContext", "executor.Executor", "scheduler.TaskSetManager"):
            _silence(SparkContext._jvm, f"org.apache.spark.{name}")  # noqa: SLF001
        with handlers_kept():  # PySpark's would ask the JVM while the answer to another question is being read
            SparkContext.getOrCreate(conf)
        session: SparkSession = SparkSession.builder.config(map=options).getOrCreate()
    except KeyboardInterrupt:  # cuts off what starts in the JVM, which would tell of it in stacks
        with suppress(Exception):
            _from_another_thread(lambda: _silence(SparkContext._jvm))  # noqa: SLF001
        raise
    except Exception as error:
        said = spark_said(error).rstrip(".")
        raise NoSpark(f"Spark does not start on the master {master}: {said}. It may have said more above") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a line of the log is not py4j's stack of a Ctrl-C, which ends the command in words."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def stop_session(session: SparkSession) -> None:
    """Stop a session; what its machines would say of the tasks that this cuts off is nothing to act on."""

    def stop() -> None:
        with suppress(Exception):  # the JVM may have ended
            _silence(session.sparkContext._jvm)  # noqa: SLF001
        session.stop()

    _from_another_thread(stop)


def _from_another_thread(work: Callable[[], object]) -> None:
    """Ask the JVM on a new connection; Ctrl-C may have left this thread's with half an answer."""
    with uninterrupted(), suppress(TimeoutError):
        meanwhile(work).result(LONGEST_ANSWER)


def _silence(jvm: Any, logger: str = "") -> None:
    """Turn off a logger of the JVM; by default the root, whose level all others have that were given none."""
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def spark_said(error: Exception) -> str:
    """Return what an error of Spark's says, in one line, without the stacks of its machines."""
    text = str(error)
    if missing := NO_MODULE.search(text):
        return (
            f"Spark's workers run a Python without {missing[1]}. Install tidegate[replay] on each, and set"
            " PYSPARK_PYTHON to the Python that has it"
        )
    lines = [line.strip(": ") for line in text.splitlines()]
    return next((line for line in lines if line and not line.startswith("An error occurred")), repr(error))[:500]


def read_topics(spark: SparkSession, servers: str, names: Iterable[str], options: Mapping[str, str]) -> DataFrame:
    """Return the records in topics, from the first to the current end of each, as Spark's Kafka source has them."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", ",".join(names))
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .options(**dict(options))
        .load()
    )


def from_kafka(spark: SparkSession, servers: str, prefix: str, options: Mapping[str, str]) -> DataFrame:
    """Return both topics' records with columns kind (0 snapshot, 1 decision), partition, offset, value (bytes)."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = [topic.named(prefix) for topic in (SNAPSHOTS, DECISIONS)]
    read = read_topics(spark, servers, names, options)
    kind = (f.col("topic") == names[1]).cast("int").alias("kind")
    return read.select(kind, "partition", "offset", "value")
