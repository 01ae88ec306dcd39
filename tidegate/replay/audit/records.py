"""Where the records come from: a broker's topics, the files of a recording, or an archive.

The records of every source have the same columns: `topic` (string, without prefix), `partition` (int), `offset` (long),
`timestamp_ms` (long), `key` and `value` (binary), `headers` (array of {key: string, value: binary}).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive.read import pattern, read_archive
from tidegate.archive.store import is_archive, load
from tidegate.events.topics import TOPICS
from tidegate.replay.files import BadRecording, TopicFile, damaged, read_manifest
from tidegate.replay.source import read_topics
from tidegate.runtime.consumer import LATEST_TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEADER_BYTES = "transform(headers, h -> struct(h[0] AS key, {value} AS value))"
LINE = (
    "partition INT, offset BIGINT, timestamp BIGINT, key STRING, key_base64 STRING, value STRING, value_base64 STRING,"
    " headers ARRAY<ARRAY<STRING>>"
)


@dataclass(frozen=True, slots=True)
class AuditRecords:
    """The records of all topics, and what is known of their source."""

    frame: DataFrame
    name: str
    """What the source is, for the report."""
    prefix: str
    """The topics' prefix."""
    one_job: str | None = None
    """The job, if the others' records were left out."""
    files: Mapping[str, str | None] | None = None
    """The files of a recording by topic, each with what is wrong with it; None for another source."""


def of_broker(spark: SparkSession, servers: str, prefix: str, options: Mapping[str, str]) -> AuditRecords:
    """Return the records in a broker's topics, from the first to the current end of each."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (seconds to import)

    read = read_topics(spark, servers, [topic.named(prefix) for topic in TOPICS], {"includeHeaders": "true", **options})
    frame = read.select(
        f.substring(read.topic, len(prefix) + 1, 100).alias("topic"),
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "headers",
    )
    return AuditRecords(_held(frame), f"the topics {prefix}* at {servers}", prefix)


def of_recording(spark: SparkSession, directory: Path) -> AuditRecords:
    """Return the records of a recording; raises `BadRecording` if it is none."""
    manifest = read_manifest(directory)
    harm = {line.partition(": ")[0]: line for line in damaged(directory, manifest)}
    frames = [_of_file(spark, directory, entry) for entry in manifest.files if (directory / entry.file).is_file()]
    if not frames:
        raise BadRecording(f"{directory} holds none of the files that its manifest lists")
    frame = frames[0]
    for more in frames[1:]:
        frame = frame.unionByName(more)
    files = {entry.topic: harm.get(str(directory / entry.file)) for entry in manifest.files}
    return AuditRecords(_held(frame), f"the recording {directory}", manifest.topic_prefix, manifest.job, files)


def of_archive(spark: SparkSession, directory: Path) -> AuditRecords:
    """Return the records of an archive; raises `BadArchive` if it is none."""
    return AuditRecords(_held(read_archive(spark, directory)), f"the archive {directory}", load(directory).topic_prefix)


def of_directory(spark: SparkSession, directory: Path) -> AuditRecords:
    """Return the records of a recording or an archive; raises `BadRecording` or `BadArchive`."""
    return (of_archive if is_archive(directory) else of_recording)(spark, directory)


def _held(frame: DataFrame) -> DataFrame:
    """Hold the records: every check must see the same ones, although topics grow.

    Kafka lets a timestamp be any number. One that no calendar has becomes the nearest.
    """
    from pyspark import StorageLevel  # noqa: PLC0415  (seconds to import)
    from pyspark.sql import functions as f  # noqa: PLC0415

    nearest = f.greatest(f.lit(0), f.least(f.lit(int(1000 * LATEST_TIMESTAMP)), f.col("timestamp_ms")))
    return frame.withColumn("timestamp_ms", nearest).persist(StorageLevel.DISK_ONLY)


def _of_file(spark: SparkSession, directory: Path, entry: TopicFile) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    lines = spark.read.schema(LINE).json(pattern(directory / entry.file))
    packed = "h[1] LIKE '{\"base64\":%'"
    text = f"CASE WHEN {packed} THEN unbase64(get_json_object(h[1], '$.base64')) ELSE CAST(h[1] AS BINARY) END"
    return lines.where("offset IS NOT NULL").select(
        f.lit(entry.topic).alias("topic"),
        "partition",
        "offset",
        f.col("timestamp").alias("timestamp_ms"),
        f.coalesce(f.unbase64("key_base64"), f.col("key").cast("binary")).alias("key"),
        f.coalesce(f.unbase64("value_base64"), f.col("value").cast("binary")).alias("value"),
        f.expr(HEADER_BYTES.format(value=text)).alias("headers"),
    )
