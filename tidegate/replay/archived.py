"""A topic's records from an archive, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from tidegate.archive.store import BadArchive, load
from tidegate.replay.files import KafkaRecord

_COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value")


def archived(folder: Path, topic: str) -> Iterator[KafkaRecord]:
    """Yield the records of a topic (without prefix), without their headers.

    One day after the other, and on each day by partition and offset. Raises `BadArchive` if the folder is not an
    archive, or one of its files cannot be read.
    """
    import pyarrow as pa  # noqa: PLC0415 - few commands need it, and it takes long to import
    from pyarrow import parquet  # noqa: PLC0415

    files = sorted(load(folder).of([topic]), key=attrgetter("day"))
    for _, of_day in groupby(files, key=attrgetter("day")):
        paths = [folder / file.path for file in of_day]
        try:
            day = pa.concat_tables(parquet.ParquetFile(path).read(columns=list(_COLUMNS)) for path in paths)
        except (OSError, pa.ArrowException) as error:
            advice = "`tidegate chain verify` names damaged files"
            raise BadArchive(f"{folder}: {topic} cannot be read: {error} ({advice})") from None
        for row in day.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
            yield KafkaRecord(**row)
