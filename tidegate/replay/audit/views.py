"""The tables that the checks query: the events of each topic, and the facts that SQL cannot tell.

An event's row has its place (`topic`, `partition`, `offset`), the time `at` of its record, and the fields that a check
or the report needs. Records that cannot be read are left out; they are in `unreadable`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.events.result import SUCCESSIONS, TERMINAL
from tidegate.events.topics import TOPICS
from tidegate.events.wire import NAMESPACE
from tidegate.replay.audit.records import AuditRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMAND = (
    "command_id STRING, job_id STRING, pipeline_id STRING, snapshot_id STRING, spec_version BIGINT, kind STRING,"
    " from_parallelism BIGINT, to_parallelism BIGINT, epoch BIGINT, issued_at TIMESTAMP, expires_at TIMESTAMP,"
    " reason STRING, way STRING, first_batch_seconds DOUBLE, manual BOOLEAN"
)
SNAPSHOT = (
    "snapshot_id STRING, job_id STRING, sequence BIGINT, interval_seconds BIGINT, observed_at TIMESTAMP, state STRING,"
    " incarnation STRING, sources ARRAY<STRUCT<topic: STRING, committed_offsets: ARRAY<BIGINT>>>,"
    " missing ARRAY<STRING>"
)
RESULT = (
    "result_id STRING, command_id STRING, job_id STRING, kind STRING, phase STRING, attempt BIGINT, epoch BIGINT,"
    " at TIMESTAMP, parallelism BIGINT, code STRING, sentence STRING, incarnation STRING, way STRING"
)
DECISION = (
    "decision_id STRING, job_id STRING, snapshot_id STRING, sequence BIGINT, decided_at TIMESTAMP,"
    " engine_version STRING, spec_version BIGINT, policy STRING, status STRING, current_parallelism BIGINT,"
    f" final_parallelism BIGINT, sentence STRING, command STRUCT<{COMMAND}>,"
    f" observed STRUCT<redis: STRING, reservation_refused: BOOLEAN, results: ARRAY<STRUCT<{RESULT}>>>,"
    " keyframe STRUCT<spec: STRING>"
)
LETTER = (
    "letter_id STRING, topic STRING, partition INT, offset BIGINT, consumer STRING, code STRING, error STRING,"
    " value STRING"
)
ENDS = ", ".join(repr(phase.value) for phase in sorted(TERMINAL))
TYPED = {
    "snapshots": (SNAPSHOT, "event.*"),
    "decisions": (
        DECISION,
        """event.* EXCEPT (observed, keyframe), coalesce(event.observed.redis, 'ok') AS redis,
        coalesce(event.observed.reservation_refused, false) AS reservation_refused, event.keyframe.spec AS spec,
        event.observed.results AS seen_results""",
    ),
    "commands": (COMMAND, "event.*, event AS command"),
    "results": (
        RESULT,
        f"""event.* EXCEPT (at, attempt), event.at AS done_at, coalesce(event.attempt, 1) AS attempt,
        event.phase IN ({ENDS}) AS terminal""",
    ),
    "letters": (
        LETTER,
        """event.letter_id, event.topic AS of_topic, event.partition AS of_partition, event.offset AS of_offset,
        event.consumer, event.code, event.error, event.value AS value_base64""",
    ),
}
"""By view: the fields of its events, and the columns made of them."""
EVENTS = tuple(view for view in TYPED if view != "letters")
"""The views of events, which say what job they are of."""
TOPIC_OF = {"letters": "dead-letters"}

TRIMMED = "INTERVAL 1 MINUTE"
"""Two records that belong together may be this far apart, one of them on this side of where the records begin."""


def create_table(name: str, frame: DataFrame) -> None:
    """Create a table that is computed once."""
    computed_once(frame).createOrReplaceTempView(name)


def computed_once(frame: DataFrame) -> DataFrame:
    """Return the same rows, which are computed once.

    A checkpoint is a short plan for all queries of it, a cache is not. But a checkpoint is lost with its executor, and
    on a cluster executors may end.
    """
    on_a_cluster = not frame.sparkSession.sparkContext.master.startswith("local")
    return frame.persist() if on_a_cluster else frame.localCheckpoint()


def create_views(
    spark: SparkSession, records: AuditRecords, unreadable: DataFrame, job: str | None, *, copied: bool
) -> None:
    """Create the tables of records and events; `job` keeps only that job's events.

    With `copied`, the records that can be read become a table: of few records, this is faster than six joins.
    """
    _identity(spark)
    create_table("unreadable", unreadable)
    records.frame.createOrReplaceTempView("records")
    readable = spark.sql(
        "SELECT /*+ BROADCAST(unreadable) */ * FROM records LEFT ANTI JOIN unreadable USING (topic, partition, offset)"
    )
    if copied:
        create_table("readable", readable)
    else:
        readable.createOrReplaceTempView("readable")
    spark.sql(
        "SELECT topic, partition, offset, timestamp_millis(timestamp_ms) AS at FROM records"
    ).createOrReplaceTempView("places")
    spark.sql(
        f"SELECT CAST({_null(records.one_job)} AS STRING) AS one_job, '{records.prefix}' AS prefix"
    ).createOrReplaceTempView("source")
    partitions = int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    for view, (fields, columns) in TYPED.items():
        typed = spark.sql(
            f"""
            SELECT topic, partition, offset, at, {columns} FROM (
              SELECT topic, partition, offset, timestamp_millis(timestamp_ms) AS at,
                from_json(CAST(value AS STRING), '{fields}') AS event
              FROM readable WHERE topic = '{TOPIC_OF.get(view, view)}' AND value IS NOT NULL
            ) WHERE event IS NOT NULL
            """  # noqa: S608  (only constants of this module)
        )
        if job is not None and view in EVENTS:
            typed = typed.where(typed.job_id == job)
        create_table(view, typed.coalesce(partitions))  # a task costs more than a few records
    _kept(spark)
    _successions(spark)


def _null(text: str | None) -> str:
    return "NULL" if text is None else f"'{text}'"


def _identity(spark: SparkSession) -> None:
    """Create the function of `tidegate.events.wire.identity`."""
    spark.sql(
        f"""
        CREATE OR REPLACE TEMPORARY FUNCTION tidegate_id(parts ARRAY<STRING>) RETURNS STRING RETURN
        transform(
          array(sha1(concat(unhex('{NAMESPACE.hex}'), CAST(array_join(parts, chr(31)) AS BINARY)))),
          h -> concat_ws('-', substr(h, 1, 8), substr(h, 9, 4), concat('5', substr(h, 14, 3)),
            concat(translate(substr(h, 17, 1), '0123456789abcdef', '89ab89ab89ab89ab'), substr(h, 18, 3)),
            substr(h, 21, 12))
        )[0]
        """
    )


def _kept(spark: SparkSession) -> None:
    """Create `kept`: per topic how many records are held, and from which time on all of them are.

    A topic that holds nothing may have lost everything, so nothing can be said to be missing from it.
    """
    names = ", ".join(f"('{topic.suffix}')" for topic in TOPICS)
    kept = spark.sql(
        f"""
        SELECT topics.topic, coalesce(sum(held.records), 0) AS records, coalesce(
          max(CASE WHEN held.first_offset > 0 THEN held.first_at + {TRIMMED} END),
          max(CASE WHEN held.records > 0 THEN timestamp_seconds(0) END),
          timestamp_seconds(253370764800)) AS complete_from
        FROM (VALUES {names} AS topics(topic)) AS topics
        LEFT JOIN (
          SELECT topic, partition, count(*) AS records, min(offset) AS first_offset, min_by(at, offset) AS first_at
          FROM places GROUP BY topic, partition
        ) AS held ON held.topic = topics.topic
        GROUP BY topics.topic
        """  # noqa: S608
    )
    create_table("kept", kept)


def _successions(spark: SparkSession) -> None:
    rows = [(before and before.value, after.value) for before, allowed in SUCCESSIONS.items() for after in allowed]
    spark.createDataFrame(rows, "before STRING, after STRING").createOrReplaceTempView("successions")
