"""Recomputing: the engine makes every recorded decision again on Spark, and the bytes are compared.

Only `decisions` and `snapshots` are read: the specs come from the keyframes. Spark groups the records by job and sorts
them by sequence; those of a recording stay in their files, and Spark sorts an index. Each job is then verified as one
stream, so a history of any length needs little memory.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING
from zipfile import PyZipFile

from tidegate.engine.engine import Engine
from tidegate.engine.plan import Policies
from tidegate.events.topics import PREFIX
from tidegate.installed import engine
from tidegate.replay.difference import Difference
from tidegate.replay.files import BadRecording, damaged, read_manifest
from tidegate.replay.index import NO_SEQUENCE, Key, files_of, sorted_records
from tidegate.replay.source import from_kafka, spark_said, start_session, stop_session
from tidegate.replay.verify import JobTally, JobVerifier
from tidegate.runtime.meanwhile import meanwhile

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

OnProgress = Callable[[int, int], None]
"""Called now and then with the tasks of Spark's present stage that are done, and how many it has."""
TOLD_SECONDS = 0.5
"""How often."""

BAD_RECORDING = re.compile(rf"{BadRecording.__module__}\.{BadRecording.__name__}: (.+)")
"""How Spark tells this error of a worker's."""

HEAD = 512
"""Tidegate writes job and sequence within this many bytes. Only records of other writers have to be parsed for them."""


NAMED = "job_id STRING, sequence BIGINT"
"""What Spark parses of a value: of a name that stands twice the last, as `decode` does; null for another type."""


class CannotRecompute(RuntimeError):
    """Recomputing is impossible; the text says why."""


@dataclass(frozen=True, slots=True)
class RecomputeResult:
    """The result of recomputing, over all jobs."""

    jobs: tuple[JobTally, ...]
    """Sorted by job id; decisions that name no job are under `?`."""
    seconds: float
    """Time to read, recompute and compare, without the start of Spark."""
    damaged: tuple[str, ...] = ()
    """Files of the recording that are missing or have changed."""

    def _sum(self, name: str) -> int:
        return sum(getattr(job, name) for job in self.jobs)

    @property
    def decisions(self) -> int:
        """Number of decision records read."""
        return self._sum("decisions")

    @property
    def identical(self) -> int:
        """Number of decisions that are identical, bit for bit."""
        return self._sum("identical")

    @property
    def differing(self) -> int:
        """Number of decisions that differ."""
        return self._sum("differing")

    @property
    def not_recomputable(self) -> Counter[str]:
        """Number of decisions that could not be recomputed, by the name of their `NotRecomputable`."""
        return sum((job.not_recomputable for job in self.jobs), Counter[str]())

    @property
    def first(self) -> Difference | None:
        """The difference with the lowest sequence of all jobs."""
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
    on_progress: OnProgress = lambda _done, _total: None,
) -> RecomputeResult:
    """Recompute the decisions in a broker's topics or in a recording; give exactly one of the two.

    Args:
        bootstrap_servers: read the topics of this broker, from the first record to the current end.
        directory: read a recording made by `tidegate.replay.record`.
        topic_prefix: prefix of the topics, with a broker.
        job: only this job.
        kafka_options: more options of Spark's Kafka source, such as `kafka.security.protocol`.
        jars: Spark's Kafka connector and its dependencies, unless the session has them.
        master: where to run if no session is given.
        spark: a session to use, which keeps running.
        on_progress: see `OnProgress`.

    Raises:
        BadRecording: the directory holds no usable recording.
        CannotRecompute: there is nothing to read, or nothing of the job, or Spark cannot read it.
    """
    if (bootstrap_servers is None) == (directory is None):
        raise CannotRecompute("give either bootstrap servers or the directory of a recording")
    # before Spark, which takes seconds to start
    recording = None if directory is None else (directory, read_manifest(directory))
    harm = None if recording is None else meanwhile(damaged, *recording)
    session = spark or start_session(master, jars)
    try:
        started = time.monotonic()
        try:
            with watched(session.sparkContext, on_progress):
                if recording is not None:
                    files = files_of(*recording)
                    ship(session.sparkContext)
                    tallies = _verified(sorted_records(session.sparkContext, files, job))
                else:
                    records = from_kafka(session, str(bootstrap_servers), topic_prefix, kafka_options or {})
                    tallies = verify(session, records, job)
        except BadRecording:
            raise
        except Exception as error:
            raise _explained(error) from error
        if job is not None and not tallies:
            raise CannotRecompute(f"there are no decisions of job {job!r} to recompute")
        tallies.sort(key=lambda tally: tally.job_id)
        found = () if harm is None else tuple(harm.result())
        return RecomputeResult(tuple(tallies), time.monotonic() - started, found)
    finally:
        if spark is None:
            stop_session(session)


@contextmanager
def watched(context: SparkContext, on_progress: OnProgress) -> Iterator[None]:
    """Tell how far Spark is, until the block ends."""
    tracker, over = context.statusTracker(), Event()

    def tell() -> None:
        while not over.wait(TOLD_SECONDS):
            with suppress(Exception):  # Spark may be ending, and says itself why
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                for stage in [stage for stage in stages if stage is not None][:1]:
                    on_progress(stage.numCompletedTasks, stage.numTasks)

    Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def verify(spark: SparkSession, records: DataFrame, job: str | None = None) -> list[JobTally]:
    """Verify the decisions among the records (columns as in `from_kafka`); return a tally per job."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    context = spark.sparkContext
    ship(context)
    told = f.from_json(f.col("value").cast("string"), NAMED)
    keyed = records.select(
        f.coalesce(_early("job_id", r'"([^"\\]*)"'), told.job_id, f.lit("?")).alias("job"),
        f.coalesce(_early("sequence", r"(\d{1,18})\b").cast("long"), told.sequence).alias("sequence"),
        *("kind", "partition", "offset"),
        f.coalesce(f.col("value").cast("binary"), f.lit(b"")).alias("value"),
    )
    if job is not None:
        keyed = keyed.where(f.col("job") == job)
    ordered = keyed.repartition("job").sortWithinPartitions("job", "sequence", "kind", "partition", "offset")
    return _verified(_frames(ordered).map(_unframed))


def _frames(ordered: DataFrame) -> RDD[bytes]:
    """Return each row as bytes, which Python reads several times as fast as rows: `_unframed` splits them."""
    from pyspark import RDD  # noqa: PLC0415
    from pyspark.serializers import NoOpSerializer  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    context = ordered.sparkSession.sparkContext
    sequence = f.coalesce("sequence", f.lit(NO_SEQUENCE))
    head = f.concat_ws(" ", sequence, "kind", "partition", "offset", f.octet_length("job"), "job")
    framed = ordered.select(f.concat(head.cast("binary"), "value"))
    # PySpark has no public name for a data set of bytes.
    encoder = context._jvm.org.apache.spark.sql.Encoders.BINARY()  # noqa: SLF001
    as_bytes = getattr(framed._jdf, "as")(encoder)  # noqa: SLF001
    return RDD(as_bytes.toJavaRDD(), context, NoOpSerializer())


def _early(name: str, pattern: str) -> Column:
    """Return the field as found at the start of the value, or null."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    head = f.substring("value", 1, HEAD).cast("string")
    found = f.regexp_extract(head, rf'"{name}"\s*:\s*{pattern}', 1)
    return f.when(found != "", found)


def _unframed(frame: bytes) -> tuple[Key, bytes]:
    """Return the key and the value of a record."""
    sequence, kind, partition, offset, length, rest = frame.split(b" ", 5)
    end = int(length)
    return (rest[:end], int(sequence), kind == b"1", int(partition), int(offset)), rest[end:]


def _verified(records: RDD[tuple[Key, bytes]]) -> list[JobTally]:
    """Verify records that are sorted, each job in one partition; return a tally per job."""
    tallies: list[JobTally] = records.mapPartitions(partial(_tallies, engine().policies)).collect()
    return tallies


def _tallies(policies: Policies, records: Iterable[tuple[Key, bytes]]) -> Iterator[JobTally]:
    """Verify the jobs of one partition, whose records are sorted by their keys."""
    engine = Engine(policies)
    for job, of_job in groupby(records, key=lambda record: record[0][0]):
        verifier = JobVerifier(job.decode(), engine)
        for (_, sequence, is_decision, partition, offset), value in of_job:
            if is_decision:
                verifier.decision(value, f"partition {partition}, offset {offset}")
            elif sequence != NO_SEQUENCE:
                verifier.snapshot(sequence, value)
        tally = verifier.tally()
        if tally.decisions or tally.undecided:
            yield tally


_shipped: set[str] = set()
"""Spark applications whose executors have been sent the code."""


def ship(context: SparkContext) -> None:
    """Send remote executors this package, once, as byte code for the same Python.

    Local ones find it where this program does, the compiled engine too.
    """
    from pyspark import SparkFiles  # noqa: PLC0415

    if context.applicationId in _shipped or context.master.startswith("local"):
        return
    folder = Path(SparkFiles.getRootDirectory()) / "tidegate"  # lives as long as the application
    folder.mkdir(exist_ok=True)
    with PyZipFile(str(folder / "tidegate.zip"), "w") as archive:
        archive.writepy(str(Path(__file__).resolve().parent.parent))
    context.addPyFile(str(folder / "tidegate.zip"))
    _shipped.add(context.applicationId)


def _explained(error: Exception) -> Exception:
    """Return the error to report for a failure in Spark."""
    if found := BAD_RECORDING.search(str(error)):
        return BadRecording(found[1])
    if "Failed to find data source: kafka" in str(error):
        return CannotRecompute("Spark has no Kafka connector; pass its jars")
    return CannotRecompute(spark_said(error))
