"""What `tidegate archive show` says: a row per topic, from `archive.json` alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from tidegate.archive.manifest import Gap, Manifest


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """What an archive holds of one topic."""

    topic: str
    """Without its prefix."""
    first_day: date | None
    last_day: date | None
    files: int
    bytes: int
    records: int
    offsets: tuple[tuple[int, int, int], ...]
    """Partition, first and last offset that is there."""
    expired: tuple[tuple[int, int], ...]
    """Partition, and the offset before which everything has expired."""
    gaps: tuple[Gap, ...]


def summary(manifest: Manifest) -> list[TopicSummary]:
    """Return a summary per topic that the archive knows, sorted by name."""
    found = []
    for topic in sorted(manifest.positions):
        files = manifest.of([topic])
        days = [file.day for file in files]
        ends: dict[int, tuple[int, int]] = {}
        for file in files:
            for partition, span in file.spans.items():
                first, last = ends.get(partition, (span.first, span.last))
                ends[partition] = min(first, span.first), max(last, span.last)
        found.append(
            TopicSummary(
                topic,
                min(days, default=None),
                max(days, default=None),
                len(files),
                sum(file.bytes for file in files),
                sum(file.records for file in files),
                tuple((partition, *ends[partition]) for partition in sorted(ends)),
                tuple(sorted(manifest.expired.get(topic, {}).items())),
                tuple(gap for gap in manifest.gaps if gap.topic == topic),
            )
        )
    return found
