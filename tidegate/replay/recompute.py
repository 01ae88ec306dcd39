"""Recomputing: the engine makes every recorded decision again on Spark, and the bytes are compared.

Only `decisions` and `snapshots` are read: the specs come from the keyframes. Spark groups the records by job and sorts
them by sequence. Each job is then verified as one stream, so a history of any length needs the memory of one snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import PyZipFile

from tidegate.engine.engine import Engine
from tidegate.engine.plan import Policies
from tidegate.events.topics import PREFIX
from tidegate.installed import engine
from tidegate.replay.difference import Difference
from tidegate.replay.files import BadRecording
from tidegate.replay.source import from_files, from_kafka, start_session
from tidegate.replay.verify import JobTally, JobVerifier

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, Row, SparkSession

MODULES = ("__init__.py", "installed.py", "events", "engine", "policies", "replay")
"""What the executors run."""
HEAD = 512
"""Job and sequence stand this early in what Tidegate writes; only records of other writers are parsed for them."""


class CannotRecompute(RuntimeError):
    """Nothing can be recomputed; the text says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out, over all jobs."""

    jobs: tuple[JobTally, ...]
    """By job id; decisions that name no job at all are under `?`."""
    seconds: float
    """Reading, recomputing and comparing; without the start of Spark."""
    damaged: tuple[str, ...] = ()
    """Files of the recording that are missing or not as recorded."""

    def _sum(self, name: str) -> int:
        return sum(getattr(job, name) for job in self.jobs)

    @property
    def decisions(self) -> int:
        """Decision records read."""
        return self._sum("decisions")

    @property
    def identical(self) -> int:
        """Decisions that came out bit for bit the same."""
        return self._sum("identical")

    @property
    def differing(self) -> int:
        """Decisions that did not."""
        return self._sum("differing")

    @property
    def other_version(self) -> int:
        """Decisions made by another engine version."""
        return self._sum("other_version")

    @property
    def not_recomputable(self) -> dict[str, int]:
        """Decisions that could not be made again, by the name of their `tidegate.replay.verify.Reason`."""
        counts: dict[str, int] = {}
        for job in self.jobs:
            for name, count in job.not_recomputable.items():
                counts[name] = counts.get(name, 0) + count
        return counts

    @property
    def first(self) -> Difference | None:
        """The first difference: the earliest sequence of any job."""
        found = [job.first for job in self.jobs if job.first is not None]
        return min(found, key=lambda d: (d.sequence is None, d.sequence, d.job_id), default=None)

    @property
    def ok(self) -> bool:
        """Whether nothing differs and nothing is damaged."""
        return not self.differing and not self.damaged


def recompute(
    *,
    bootstrap_servers: str | None = None,
    directory: Path | None = None,
    topic_prefix: str = PREFIX,
    job: str | None = None,
    kafka_options: Mapping[str, str] | None = None,
    jars: Sequence[str | Path] = (),
    master: str = "local[2]",
    spark: SparkSession | None = None,
) -> Result:
    """Recompute what a broker's topics or a recording hold; exactly one of the two is given.

    Args:
        bootstrap_servers: read the topics of this broker, from the earliest record to the present end.
        directory: read a recording made by `tidegate.replay.record`.
        topic_prefix: prefix of the topics, with a broker.
        job: only this job.
        kafka_options: further options of Spark's Kafka source, such as `kafka.security.protocol`.
        jars: Spark's Kafka connector and what it needs, unless the session has them.
        master: where to run when no session is given.
        spark: a session to use, and to leave running.

    Raises:
        CannotRecompute: there is nothing to read, or Spark cannot read it.
    """
    if (bootstrap_servers is None) == (directory is None):
        raise CannotRecompute("give either a broker's bootstrap servers or a recording's directory")
    session = spark or start_session(master, jars)
    try:
        started = time.monotonic()
        try:
            harm: list[str] = []
            if directory is not None:
                records, harm = from_files(session, directory)
            else:
                records = from_kafka(session, str(bootstrap_servers), topic_prefix, kafka_options or {})
            tallies = verify(session, records, job)
        except Exception as error:
            raise _explained(error) from error
        tallies.sort(key=lambda tally: tally.job_id)
        return Result(tuple(tallies), time.monotonic() - started, tuple(harm))
    finally:
        if spark is None:
            session.stop()


def verify(spark: SparkSession, records: DataFrame, job: str | None = None) -> list[JobTally]:
    """Verify the decisions among the records (columns as `from_kafka` gives them); return a tally per job."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    context = spark.sparkContext
    _ship(context)
    text = f.col("value").cast("string")  # to Python far cheaper than bytes, which go there as Latin-1
    keyed = records.select(
        f.coalesce(_early("job_id", r'"([^"\\]*)"'), _parsed("job_id"), f.lit("?")).alias("job"),
        f.coalesce(_early("sequence", r"(\d{1,18})\b"), _parsed("sequence")).cast("long").alias("sequence"),
        *("kind", "partition", "offset"),
        text.alias("text"),
        f.when(text.cast("binary") != f.col("value"), f.col("value")).alias("not_utf8"),
    )
    if job is not None:
        keyed = keyed.where(f.col("job") == job)
    ordered = keyed.repartition(4 * context.defaultParallelism, "job").sortWithinPartitions(
        "job", "sequence", "kind", "partition", "offset"
    )
    # Through the RDD: the Arrow way in would need pandas, and the work is in the engine, not in the rows.
    tallies: list[JobTally] = ordered.rdd.mapPartitions(partial(_verify_rows, engine().policies)).collect()
    return tallies


def _early(name: str, pattern: str) -> Column:
    """Return the field as the head of the value spells it, or null."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    head = f.substring("value", 1, HEAD).cast("string")
    found = f.regexp_extract(head, rf'"{name}"\s*:\s*{pattern}', 1)
    return f.when(found != "", found)


def _parsed(name: str) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415

    return f.get_json_object(f.col("value").cast("string"), f"$.{name}")


def _verify_rows(policies: Policies, rows: Iterable[Row]) -> Iterator[JobTally]:
    """Verify the jobs of one partition, whose rows come sorted by job."""
    engine = Engine(policies)
    for job, records in groupby(rows, key=itemgetter(0)):
        verifier = JobVerifier(job, engine)
        for _, sequence, kind, partition, offset, text, not_utf8 in records:
            value = bytes(not_utf8) if not_utf8 is not None else text.encode() if text is not None else None
            if kind:
                verifier.decision(value or b"", f"partition {partition}, offset {offset}")
            elif sequence is not None and value is not None:
                verifier.snapshot(sequence, value)
        tally = verifier.tally()
        if tally.decisions or tally.undecided:
            yield tally


_shipped: set[str] = set()
"""Applications whose executors have the code."""


def _ship(context: SparkContext) -> None:
    """Give the executors the code they run, once: compiled, so for any cluster of the same Python."""
    from pyspark import SparkFiles  # noqa: PLC0415

    if context.applicationId in _shipped:
        return
    folder = Path(SparkFiles.getRootDirectory()) / "tidegate"  # ends with the application, not before
    folder.mkdir(exist_ok=True)
    ours = Path(__file__).resolve().parent.parent
    with PyZipFile(str(folder / "tidegate-engine.zip"), "w") as archive:
        for module in MODULES:
            archive.writepy(str(ours / module), "tidegate")
    context.addPyFile(str(folder / "tidegate-engine.zip"))
    _shipped.add(context.applicationId)


def _explained(error: Exception) -> Exception:
    """Return what to tell a person about a failure in Spark."""
    if isinstance(error, BadRecording):
        return CannotRecompute(str(error))
    text = str(error)
    if "Failed to find data source: kafka" in text:
        return CannotRecompute("Spark has no Kafka connector: give its jars with --jars")
    return CannotRecompute(text.strip().splitlines()[0][:500] if text.strip() else repr(error))
