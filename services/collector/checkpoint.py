"""The committed offsets as a job's checkpoint has them, for a job whose event log does not tell them.

A job that was scaled to zero may sleep for weeks. Its log may be deleted meanwhile, and the log of a run that processed
nothing has no offsets. The checkpoint stays: `commits/<n>` says that batch n is committed, and `offsets/<n>` where it
ended, one line per source after the version and the metadata (Spark's `OffsetSeqLog`):

    v1
    {"batchWatermarkMs":0, ...}
    {"orders":{"0":120,"1":96}}

In version `v2`, which Spark 4.2 writes if `spark.sql.streaming.offsetLog.formatVersion` is 2, each line begins with the
source's name and a colon.

A query that has committed nothing began at the offsets in `sources/<n>/0`: a zero byte, `v1`, and one line as above. A
progress event comes only with the end of a batch, and the first batch of a job with a backlog may last for minutes.

Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from tidegate.remote.checkpoints import candidates
from tidegate.remote.files import Place, contents, names
from tidegate.sparklog.events import PartitionOffsets


def checkpoint_offsets(root: Place, topics: Collection[str]) -> PartitionOffsets:
    """Return the lowest committed offset of each partition of `topics` over the queries.

    Their checkpoints are `root` or folders in it.

    Raises `OSError` or `ValueError` if a checkpoint is there and cannot be read.
    """
    lowest: dict[str, dict[int, int]] = {}
    for folder in candidates(root):
        for topic, partition, offset in _committed(folder):
            if topic in topics:
                of_topic = lowest.setdefault(topic, {})
                of_topic[partition] = min(offset, of_topic.get(partition, offset))
    return lowest


def _committed(folder: Place) -> Iterable[tuple[str, int, int]]:
    """Yield (topic, partition, end offset) of a query's newest committed batch, or where its first batch began."""
    batches = [int(name) for name in names(folder / "commits") if name.isdigit()]
    if batches:
        version, _, *sources = contents(folder / "offsets" / str(max(batches))).decode().splitlines()
        if version == "v2":
            sources = [line.partition(":")[2] for line in sources]
    else:
        begins = (folder / "sources" / name / "0" for name in sorted(names(folder / "sources")))
        sources = [contents(path).lstrip(b"\0").partition(b"\n")[2].decode() for path in begins if path.is_file()]
    for line in sources:
        # The first batch of a file source has a line for each file.
        yield from _offsets(json.loads(line) if line.startswith("{") and "\n" not in line.rstrip() else None)


def _offsets(source: Any) -> Iterable[tuple[str, int, int]]:
    """Yield the offsets of a source if it is Kafka; other sources have other offsets."""
    for topic, partitions in source.items() if isinstance(source, dict) else ():
        if isinstance(partitions, dict):
            for partition, offset in partitions.items():
                if partition.isdecimal() and isinstance(offset, int):
                    yield topic, int(partition), offset
