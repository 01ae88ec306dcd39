"""Facts that SQL cannot tell, as tables for the checks: each is made by the code that knows it, in Spark's workers.

| table | rows | made by |
| --- | --- | --- |
| `unreadable` | the records that are no event of their topic, and why | `events.envelope.decode` |
| `specs`, `spec_versions` | every spec on `jobs` and in a keyframe; the versions, and their times | spec and guards |
| `recomputed` | what became of the decisions made again | `replay.verify` |
| `cuts` | what became of the snapshots cut again | `replay.cut` |
| `batches` | the micro-batches in the event logs | `sparklog` |
| `recorded_files` | the files of a recording | `replay.files` |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tidegate.engine.guards.metrics import Fresh
from tidegate.engine.guards.timing import Cooldown
from tidegate.engine.options import BadOption
from tidegate.engine.plan import guard_of
from tidegate.engine.ways import longest_change_seconds
from tidegate.events.envelope import Unreadable, decode, value_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot, is_plausible
from tidegate.events.topics import JOBS, TOPICS
from tidegate.events.way import Way
from tidegate.replay.audit.records import AuditRecords
from tidegate.replay.audit.views import create_table
from tidegate.replay.cut import CutFigure, LoggedRun, PlacedSnapshot, compare_with_logs, events_of
from tidegate.replay.recompute import NAMED, ship, verify
from tidegate.replay.recomputer import NotRecomputable
from tidegate.replay.verify import JobTally
from tidegate.sparklog.events import QueryProgress
from tidegate.sparklog.rehearsals import Rehearsals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MODELS = {topic.suffix: topic.model for topic in TOPICS}
UNREADABLE = "topic STRING, partition INT, offset BIGINT, at TIMESTAMP, code STRING, detail STRING"
SPECS = (
    "job_id STRING, version BIGINT, removed BOOLEAN, text STRING, topic STRING, partition INT, offset BIGINT,"
    " at TIMESTAMP, changed_by STRING, changed_reason STRING, changed_at TIMESTAMP, manual_id STRING,"
    " manual_at TIMESTAMP, control STRING, smallest BIGINT, largest BIGINT, cores BIGINT, fresh_seconds DOUBLE,"
    " cooldowns MAP<STRING, STRUCT<up: DOUBLE, down: DOUBLE>>, holds_seconds DOUBLE"
)
RECOMPUTED = (
    "verdict STRING, job STRING, partition INT, offset BIGINT, at TIMESTAMP, found STRING, expected STRING, n BIGINT"
)
CUTS = (
    "verdict STRING, job_id STRING, partition INT, offset BIGINT, sequence BIGINT, figure STRING, recorded STRING,"
    " cut STRING"
)
BATCHES = "job_id STRING, app_id STRING, path STRING, batch_id BIGINT, started_at TIMESTAMP, finished_at TIMESTAMP"
FILES = "topic STRING, problem STRING"
PLACE = re.compile(r"partition (\d+), offset (\d+)")


def unreadable(spark: SparkSession, records: DataFrame) -> DataFrame:
    """Return the records that are not an event of their topic."""
    ship(spark.sparkContext)
    rows = records.select("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
    return spark.createDataFrame(rows.rdd.mapPartitions(_unreadable_rows), UNREADABLE)


def _unreadable_rows(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for topic, partition, offset, timestamp_ms, key, value, headers in rows:
        if topic == JOBS.suffix and value is None:
            continue  # a tombstone removes a job
        raw = None if value is None else bytes(value)
        told = [(name, None if part is None else bytes(part)) for name, part in headers or ()]
        try:
            decode(MODELS[topic], raw, told, None if key is None else bytes(key))
        except Unreadable as error:
            yield topic, partition, offset, _instant(timestamp_ms), error.code, error.detail


def create_specs(spark: SparkSession, job: str | None) -> None:
    """Create `specs` and `spec_versions`."""
    written = spark.sql(
        "SELECT topic, partition, offset, timestamp_ms, CAST(key AS STRING) AS key, CAST(value AS STRING) AS value"
        " FROM readable WHERE topic = 'jobs'"
        " UNION ALL SELECT topic, partition, offset, unix_millis(at), job_id, spec FROM decisions"
        " WHERE spec IS NOT NULL"
    )
    if job is not None:
        written = written.where(written.key == job)
    create_table("specs", spark.createDataFrame(written.rdd.mapPartitions(_spec_rows), SPECS))
    # A job that was removed and added again begins with version 1: a version may have several texts, each for a time.
    versions = spark.sql(
        """
        SELECT * EXCEPT (before, written_at), CASE WHEN before IS NULL THEN timestamp_seconds(0) ELSE at END AS since,
          coalesce(lead(at) OVER ordered, timestamp_seconds(253370764800)) AS until
        FROM (
          SELECT *, lag(text) OVER ordered AS before FROM (
            SELECT *, min(CASE WHEN topic = 'jobs' THEN at END) OVER (PARTITION BY job_id, version) AS written_at
            FROM specs WHERE NOT removed
          )
          WHERE topic = 'jobs' OR written_at IS NULL OR at < written_at
          WINDOW ordered AS (PARTITION BY job_id, version ORDER BY at, offset)
        )
        WHERE before IS NULL OR before <> text
        WINDOW ordered AS (PARTITION BY job_id, version ORDER BY at, offset)
        """
    )
    create_table("spec_versions", versions)


def _spec_rows(rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for topic, partition, offset, timestamp_ms, key, value in rows:
        place = (topic, partition, offset, _instant(timestamp_ms))
        if value is None:
            yield key, None, True, None, *place, *[None] * 12
            continue
        spec = JobSpec.model_validate_json(value, extra="ignore")
        change, manual, scaling = spec.change, spec.manual, spec.scaling
        control = [f"{scaling.min_parallelism} to {scaling.max_parallelism} slots"]
        control += [f"first {scaling.initial_parallelism}"] if scaling.initial_parallelism is not None else []
        control += [scaling.mode.value, "runs" if spec.running else "does not run"]
        control += [f"{manual.parallelism} slots by hand ({manual.request_id})"] if manual else []
        told = (change.by, change.reason, change.at) if change else (None, None, None)
        asked = (manual.request_id, manual.requested_at) if manual else (None, None)
        bounds = (spec.smallest_size, scaling.max_parallelism, spec.application.executor_cores)
        written = (value_of(spec).decode(), *place, *told, *asked)
        yield spec.job_id, spec.version, False, *written, ", ".join(control), *bounds, *times_of(spec)


def times_of(spec: JobSpec) -> tuple[float | None, dict[str, tuple[float, float]], float | None]:
    """Return how old a snapshot may be, the cooldowns by way, and how long a command can hold anything, in seconds."""
    try:
        fresh, cooldown = guard_of(Fresh, spec), guard_of(Cooldown, spec)
    except BadOption:
        return None, {}, None
    longest = spec.scaling.command_ttl_seconds + longest_change_seconds(spec.application)
    limits = {way.value: cooldown.limits(way) for way in Way}
    return float(fresh.max_age_seconds), limits, max(longest, cooldown.up_seconds, cooldown.down_seconds)


def create_recomputed(spark: SparkSession, records: DataFrame, job: str | None) -> None:
    """Create `recomputed`: the engine makes every decision again."""
    read = records.where("topic IN ('snapshots', 'decisions')").selectExpr(
        "CAST(topic = 'decisions' AS INT) AS kind", "partition", "offset", "value"
    )
    rows = [row for tally in verify(spark, read, job) for row in tally_rows(tally)]
    spark.createDataFrame(rows, RECOMPUTED).createOrReplaceTempView("recomputed")


def tally_rows(tally: JobTally) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `recomputed` for one job."""
    nowhere = (tally.job_id, None, None, None)
    if tally.identical:
        yield "ok", *nowhere, None, None, tally.identical
    if tally.other_version:
        yield "not provable", *nowhere, "made by another engine version", "this engine version", tally.other_version
    for name, count in sorted(tally.not_recomputable.items()):
        yield "not provable", *nowhere, NotRecomputable[name].value, "a decision that can be recomputed", count
    if tally.first is not None:
        first, place = tally.first, PLACE.match(tally.first.place)
        where = (int(place[1]), int(place[2])) if place else (None, None)
        at, second = None, first.sequence
        if second is not None and is_plausible(second):
            at = datetime.fromtimestamp(second, UTC)
        found = f"{first.path} is {first.recorded}" + (f" ({first.note})" if first.note else "")
        yield "finding", tally.job_id, *where, at, found, f"recomputed: {first.recomputed}", tally.differing


def create_cuts(spark: SparkSession, records: DataFrame, logs: Sequence[LoggedRun], job: str | None) -> None:
    """Create `cuts` and `batches` from event logs, which the workers read at the same places."""
    by_job = {name: list(runs) for name, runs in groupby(logs, key=lambda run: run.job_id)}
    shots = (
        records.where("topic = 'snapshots'")
        .selectExpr(
            f"from_json(CAST(value AS STRING), '{NAMED}') AS told",
            "partition",
            "offset",
            "CAST(value AS STRING) AS value",
        )
        .selectExpr("told.*", "partition", "offset", "value")
    )
    shots = shots.where("job_id IS NOT NULL" if job is None else shots.job_id == job)
    ordered = shots.repartition(2 * spark.sparkContext.defaultParallelism, "job_id").sortWithinPartitions(
        "job_id", "sequence", "partition", "offset"
    )
    create_table("cuts", spark.createDataFrame(ordered.rdd.mapPartitions(partial(_cut_rows, by_job)), CUTS))
    wanted = [run for run in logs if job in (None, run.job_id)]
    if not wanted:
        spark.createDataFrame([], BATCHES).createOrReplaceTempView("batches")
        return
    listed = spark.sparkContext.parallelize(wanted, min(len(wanted), 4 * spark.sparkContext.defaultParallelism))
    create_table("batches", spark.createDataFrame(listed.flatMap(_batch_rows), BATCHES))


def _cut_rows(logs: Mapping[str, Sequence[LoggedRun]], rows: Iterable[Row]) -> Iterator[tuple[Any, ...]]:
    for job, some in groupby(rows, key=itemgetter(0)):
        made: list[CutFigure] = []
        compare_with_logs(_placed(some), logs.get(job, ()), made.append)
        for each in made:
            place = (each.of.partition, each.of.offset, each.of.snapshot.sequence)
            yield each.verdict, job, *place, each.figure, each.recorded, each.cut


def _placed(rows: Iterable[Row]) -> Iterator[PlacedSnapshot]:
    for _, _, partition, offset, value in rows:
        try:
            yield PlacedSnapshot(decode(MetricSnapshot, value.encode()), partition, offset)
        except Unreadable:
            continue


def _batch_rows(run: LoggedRun) -> Iterator[tuple[Any, ...]]:
    """Yield the micro-batches of a log, without those of queries that only rehearse a handover."""
    rehearsals = Rehearsals()
    try:
        for event in events_of(run.path):
            rehearsal = rehearsals.has(event)
            if isinstance(event, QueryProgress) and event.add_batch_seconds is not None and not rehearsal:
                name = run.path.name
                yield run.job_id, run.app_id, name, event.batch_id, event.started_at, event.finished_at
    except OSError:
        return  # the snapshots of this run are not provable, and say why


def create_files(spark: SparkSession, records: AuditRecords) -> None:
    """Create `recorded_files`."""
    rows = list((records.files or {}).items())
    spark.createDataFrame(rows, FILES).createOrReplaceTempView("recorded_files")


def _instant(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
