"""Where a query begins that has not committed anything yet: Spark keeps the offsets in its checkpoint.

    <checkpoint>/sources/<n>/0     a zero byte, `v1`, and the offsets as JSON, by topic and partition

A progress event, which tells the committed offsets, comes only with the end of a batch. The first batch of a job with a
backlog lasts for minutes, and without committed offsets its lag is unknown all that time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from services.collector.events import PartitionOffsets
from services.collector.parse import offsets_of

_PLACES = (".", "*")
"""A location is the checkpoint of one query, or holds those of several."""


def first_offsets(checkpoint_location: str) -> PartitionOffsets:
    """Return the lowest first offset of each partition.

    Nothing if a later batch than the first is committed, or if the checkpoint cannot be read from here.
    """
    root = local_path(checkpoint_location)
    with contextlib.suppress(OSError, ValueError):
        commits = [path.name for place in _PLACES for path in root.glob(f"{place}/commits/*")]
        if max((int(name) for name in commits if name.isdecimal()), default=0) == 0:
            return offsets_of(list(_begins(root)))
    return {}


def _begins(root: Path) -> Iterator[str]:
    for place in _PLACES:
        for path in sorted(root.glob(f"{place}/sources/*/0")):
            yield path.read_bytes().lstrip(b"\0").partition(b"\n")[2].decode()


def local_path(location: str) -> Path:
    """Return the path of a directory, given as a path or a `file:` URL."""
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(location)
