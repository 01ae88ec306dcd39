"""A topic's records from an archive, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import reduce
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive.store import BadArchive, load
from tidegate.replay.files import KafkaRecord

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value")


BATCH_ROWS = 4096
"""Rows that are read at once."""


def archived(
    folder: Path, topic: str, names: Collection[bytes] | None = None, *, in_order: bool = True
) -> Iterator[KafkaRecord]:
    """Yield the records of a topic (without prefix), without their headers.

    One day after the other, and on each day by partition and offset; without `in_order`, as they are in the files. With
    `names`, only records whose value holds one of them: a day of all jobs may be larger than the memory, and to put it
    in order takes all of it. Raises `BadArchive` if the folder is not an archive, or one of its files cannot be read.
    """
    import pyarrow as pa  # noqa: PLC0415 - few commands need it, and it takes long to import

    files = sorted(load(folder).of([topic]), key=attrgetter("day"))
    for _, of_day in groupby(files, key=attrgetter("day")):
        try:
            parts = _parts([folder / file.path for file in of_day], names)
            for part in _in_order(parts) if in_order else parts:
                for row in part.to_pylist():
                    yield KafkaRecord(**row)
        except (OSError, pa.ArrowException) as error:
            advice = "`tidegate chain verify` names damaged files"
            raise BadArchive(f"{folder}: {topic} cannot be read: {error} ({advice})") from None


def _parts(paths: Iterable[Path], names: Collection[bytes] | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files, a few at a time."""
    import pyarrow.compute as pc  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    for path in paths:
        for part in parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=list(_COLUMNS)):
            if names is None:
                yield part
                continue
            held = [pc.match_substring(part["value"], name) for name in names]
            yield part.filter(reduce(pc.or_, held))


def _in_order(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield all rows, by partition and offset."""
    import pyarrow as pa  # noqa: PLC0415

    held = [part for part in parts if part.num_rows]
    if held:
        yield pa.Table.from_batches(held).sort_by([("partition", "ascending"), ("offset", "ascending")])
