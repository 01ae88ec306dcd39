"""Reading an archive with Spark: only the files that `archive.json` lists, and of them only the days asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive.manifest import DataFile
from tidegate.archive.store import RECORDS, load

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
FILE_SCHEMA = (
    "partition int, offset long, timestamp_ms long, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>"
)
"""What each file holds; topic and day are in its path."""


def read_archive(
    spark: SparkSession,
    folder: Path,
    topics: Collection[str] | None = None,
    first_day: date | None = None,
    last_day: date | None = None,
) -> DataFrame:
    """Return an archive's records, with the columns `COLUMNS`, in no order.

    The data frame is of what the archive holds now: changes to the archive do not change it.

    Args:
        spark: the session to read with.
        folder: the archive.
        topics: only these, without their prefix, such as `decisions`.
        first_day: only records whose Kafka timestamp is on this UTC day or later.
        last_day: only records whose Kafka timestamp is on this UTC day or earlier.

    Raises:
        BadArchive: the folder is not an archive.
    """
    return read_files(spark, folder, load(folder).of(topics, first_day, last_day)).select(*COLUMNS)


def read_files(spark: SparkSession, folder: Path, files: Sequence[DataFile], *, damaged: bool = False) -> DataFrame:
    """Return the records of some files of an archive, with the columns `COLUMNS` and `day`.

    With `damaged`, files that are missing or cannot be read count as empty.
    """
    schema = f"{FILE_SCHEMA}, topic string, day date"
    paths = [folder / file.path for file in files]
    if damaged:
        paths = [path for path in paths if path.is_file()]
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", location(folder / RECORDS))
    return reader.option("ignoreCorruptFiles", str(damaged).lower()).parquet(*map(pattern, paths))


def day_of(timestamp_ms: Column) -> Column:
    """Return under which day a record is filed: the UTC day of its timestamp, or the nearest that `date` can be."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (takes seconds to import)

    first, last = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
    days = f.floor(timestamp_ms / 86_400_000).cast("int")
    return f.date_from_unix_date(f.greatest(f.lit(first), f.least(f.lit(last), days)))


def location(path: Path) -> str:
    """Return a path as Hadoop wants it: with its file system, and nothing escaped."""
    return f"file://{path.absolute()}"


def pattern(path: Path) -> str:
    """Return a path as Spark wants what it reads: as a pattern, which here fits nothing but the path."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", location(path))
