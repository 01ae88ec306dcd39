"""From the topics to the archive, by Structured Streaming: every offset once, whatever is killed and when.

Each micro-batch is written next to the archive, and then enters it together with the positions after it, by one change
of `archive.json`. These positions are where the next run starts. Spark's own checkpoint is needed only while the query
runs, and is new for every run: there is one truth, not two that may differ after a kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive import store
from tidegate.archive.manifest import ArchivedAlready, Gap, Manifest
from tidegate.archive.read import day_of, location
from tidegate.events.topics import TOPICS
from tidegate.interrupts import check, uninterrupted
from tidegate.runtime.consumer import offset_ranges, spark_offsets
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import check_topics, topic_ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_RECORDS = 200_000
"""Most records of one micro-batch: bounds the memory and the size of a file."""
COMPRESSION = "zstd"
SORTED_BY = ("topic", "day", "partition", "offset")
LATE = timedelta(hours=1)
"""A day's last records are archived by then, unless they are very late."""


@dataclass(frozen=True, slots=True)
class Archived:
    """One micro-batch that is in the archive now."""

    records: int
    gaps: tuple[Gap, ...]
    """Found with this batch."""


OnBatch = Callable[[Archived], None]
OnDay = Callable[[date], None]
"""Called with the first UTC day that may not be complete."""


class CannotArchive(RuntimeError):
    """The topics cannot be archived; the text says why."""


def waiting(settings: ServiceSettings, folder: Path) -> int:
    """Return how many offsets the topics hold that are not archived."""
    check_topics(settings)
    manifest = store.load_or_create(folder, settings.topic_prefix).of_topics(topic_ids(settings))
    return sum(max(0, end - max(start, first)) for _, _, start, first, end in _partitions(settings, manifest))


def archive(
    spark: SparkSession,
    settings: ServiceSettings,
    folder: Path,
    *,
    once: bool = False,
    every_seconds: float = 60.0,
    kafka_options: Mapping[str, str] | None = None,
    batch_records: int = BATCH_RECORDS,
    on_batch: OnBatch = lambda _archived: None,
    on_day: OnDay = lambda _day: None,
) -> None:
    """Archive all topics, until interrupted or, with `once`, up to their current end.

    Args:
        spark: a session with Spark's Kafka connector.
        settings: where the broker is, and the topics' prefix.
        folder: the archive; made if it is new or empty.
        once: stop at the offsets that are the end now.
        every_seconds: time between the starts of two micro-batches.
        kafka_options: more options of Spark's Kafka source, such as `kafka.security.protocol`.
        batch_records: most records of one micro-batch.
        on_batch: called after each micro-batch, from another thread.
        on_day: called at the start, and an hour after each day (UTC), while micro-batches go on.

    Raises:
        BadArchive: the folder cannot be used.
        InUse: another process archives into the folder.
        ArchivedAlready: a topic was deleted and created again.
        TopicsDoNotFit: a topic is missing at the broker.
        CannotArchive: Spark cannot read the topics.
    """
    check_topics(settings)
    store.load_or_create(folder, settings.topic_prefix)
    with store.alone(folder, "run"):
        store.sweep(folder, datetime.now(UTC))
        manifest = _without_dropped(settings, folder)
        checkpoint = folder / store.CHECKPOINT
        shutil.rmtree(checkpoint, ignore_errors=True)
        sink = _Sink(folder, settings.topic_prefix, on_batch)
        stream = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.bootstrap_servers)
            .option("subscribe", ",".join(topic.named(settings.topic_prefix) for topic in TOPICS))
            .option("startingOffsets", _starts(settings, manifest))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "false")  # we find gaps ourselves and name them, instead of stopping for ever
            .option("maxOffsetsPerTrigger", str(batch_records))
            .options(**dict(kafka_options or {}))
            .load()
        )
        trigger = {"availableNow": True} if once else {"processingTime": f"{round(every_seconds * 1000)} milliseconds"}
        query = (
            stream.writeStream.foreachBatch(sink.take)
            .option("checkpointLocation", location(checkpoint))
            .trigger(**trigger)
            .start()
        )
        day: date | None = None
        ended = False
        try:
            while not ended:
                ended = query.awaitTermination(1)
                check()
                before, day = day, (datetime.now(UTC) - LATE).date()
                if day != before:
                    on_day(day)
        except Exception as error:
            raise sink.failure or CannotArchive(first_line(error)) from error
        finally:
            with uninterrupted():
                query.stop()


def first_line(error: Exception) -> str:
    """Return what an error of Spark says, without the stack of its JVM."""
    text, *_ = str(error).strip().split("\n")
    return text[:500]


class _Sink:
    """Takes micro-batches into the archive."""

    def __init__(self, folder: Path, prefix: str, on_batch: OnBatch) -> None:
        self._folder, self._prefix, self._on_batch = folder, prefix, on_batch
        self.failure: Exception | None = None
        """Why the query has failed: Spark passes on only its text."""

    def take(self, batch: DataFrame, _batch_id: int) -> None:
        """Archive one micro-batch."""
        try:
            with store.staging_folder(self._folder, "run") as staging:
                write(records_of(batch, self._prefix), staging)
                archived = _enter(self._folder, staging)
        except Exception as error:
            self.failure = error
            raise
        self._on_batch(archived)


def records_of(read: DataFrame, prefix: str) -> DataFrame:
    """Return records from Spark's Kafka source with the archive's columns and `day`."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (takes seconds to import)

    none = f.array().cast("array<struct<key: string, value: binary>>")
    timestamp_ms = f.unix_millis("timestamp")
    return read.select(
        f.expr(f"substring(topic, {len(prefix) + 1})").alias("topic"),
        day_of(timestamp_ms).alias("day"),
        *("partition", "offset"),
        timestamp_ms.alias("timestamp_ms"),
        *("key", "value"),
        f.coalesce("headers", none).alias("headers"),
    )


def write(records: DataFrame, staging: Path) -> None:
    """Write records as Parquet to `staging`: one file per topic and day, sorted by partition and offset."""
    parallelism = records.sparkSession.sparkContext.defaultParallelism
    (
        records.repartition(parallelism, "topic", "day")
        .sortWithinPartitions(*SORTED_BY)
        .write.mode("overwrite")
        .partitionBy("topic", "day")
        .option("compression", COMPRESSION)
        .parquet(location(staging))
    )


def _enter(folder: Path, staging: Path) -> Archived:
    """Move a batch into the archive; return what it was."""
    staged = store.staged_files(staging)
    runs, now = store.runs(staged), datetime.now(UTC)
    known = 0

    def entered(manifest: Manifest) -> Manifest:
        nonlocal known
        known = len(manifest.gaps)
        manifest.extended((), runs, now)  # raises before any file is moved
        return manifest.extended(store.adopt(folder, manifest.version, staged), runs, now)

    after = store.change(folder, entered, now)
    return Archived(sum(file.records for file in staged), after.gaps[known:])


def _without_dropped(settings: ServiceSettings, folder: Path) -> Manifest:
    """Name as gaps what the broker has dropped since the last run; return the manifest."""
    now, ids = datetime.now(UTC), topic_ids(settings)

    def changed(manifest: Manifest) -> Manifest:
        manifest = manifest.of_topics(ids)
        for topic, partition, _, first, _ in _partitions(settings, manifest):
            manifest = manifest.without_records_before(topic, partition, first, now)
        return manifest

    return store.change(folder, changed, now)


def _starts(settings: ServiceSettings, manifest: Manifest) -> str:
    """Return Spark's starting offsets: each partition's position."""
    found = _partitions(settings, manifest)
    return spark_offsets({(settings.topic_prefix + topic, partition): start for topic, partition, start, *_ in found})


def _partitions(settings: ServiceSettings, manifest: Manifest) -> Sequence[tuple[str, int, int, int, int]]:
    """Return (topic without prefix, partition, position, first offset at the broker, end at the broker)."""
    names = [topic.named(settings.topic_prefix) for topic in TOPICS]
    found = []
    for (name, partition), (first, end) in offset_ranges(settings, names).items():
        topic = name.removeprefix(settings.topic_prefix)
        position = manifest.position(topic, partition) or 0
        if position > end:
            raise ArchivedAlready(
                f"{topic}, partition {partition} ends at offset {end}, but everything before {position} is archived:"
                " the topic was deleted and created again. Archive it into another folder"
            )
        found.append((topic, partition, position, first, end))
    return found
