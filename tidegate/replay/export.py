"""An archive, or some days of it, as a recording: the same records in the form that replay reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive.read import COLUMNS, read_files
from tidegate.archive.store import load
from tidegate.events.topics import JOBS, TOPICS, Topic
from tidegate.replay.files import KafkaRecord, RecordingManifest, TopicFile
from tidegate.replay.record import PROGRESS_RECORDS, OnProgress, write_recording

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def export(
    spark: SparkSession,
    archive: Path,
    directory: Path,
    *,
    topics: Sequence[Topic] = TOPICS,
    first_day: date | None = None,
    last_day: date | None = None,
    compress: bool = False,
    on_progress: OnProgress = lambda _topic, _done, _total: None,
) -> RecordingManifest:
    """Write what an archive holds now as a recording, each topic sorted by partition and offset; return its manifest.

    Args:
        spark: the session to read with.
        archive: the archive.
        directory: must be absent or empty, and not the current directory.
        topics: what to export.
        first_day: the first UTC day, by the records' Kafka timestamps. The `jobs` topic is a table: all of it.
        last_day: the last UTC day.
        compress: write `.ndjson.gz`.
        on_progress: see `OnProgress`.

    Raises:
        BadArchive: there is no archive.
        CannotRecord: the directory is in use.
    """
    held = load(archive)

    def of(topic: Topic) -> Iterator[KafkaRecord]:
        since = None if topic is JOBS else first_day
        files = held.of([topic.suffix], since, last_day)
        sorted_records = read_files(spark, archive, files).select(*COLUMNS).sort("partition", "offset")
        done, total = 0, sum(file.records for file in files)
        on_progress(topic.suffix, done, total)
        for row in sorted_records.toLocalIterator():
            yield _record(row)
            done += 1
            if done % PROGRESS_RECORDS == 0:
                on_progress(topic.suffix, done, total)
        on_progress(topic.suffix, done, total)

    def described(files: tuple[TopicFile, ...]) -> RecordingManifest:
        return RecordingManifest(topic_prefix=held.topic_prefix, recorded_at=datetime.now(UTC), files=files)

    return write_recording(directory, ((topic, of(topic)) for topic in topics), described, compress=compress)


def _record(row: Row) -> KafkaRecord:
    return KafkaRecord(
        partition=row["partition"],
        offset=row["offset"],
        timestamp_ms=row["timestamp_ms"],
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=tuple((header["key"], _bytes(header["value"])) for header in row["headers"]),
    )


def _bytes(raw: bytearray | None) -> bytes | None:
    return None if raw is None else bytes(raw)
