"""Accounting for every record: each output names the partition and offset of the record it came from."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field

from tidegate.client import ClientSettings
from tidegate.runtime.consumer import TopicReader, offset_ranges


@dataclass
class RecordAudit:
    """Compares the records of the source with those of the sink, with one mark per source offset."""

    arrived: dict[int, int]
    """End offset of each source partition; the demo's topics start at 0."""
    seen: dict[int, bytearray] = field(init=False)
    written: int = 0
    duplicates: int = 0
    unexpected: int = 0
    """Outputs that name no record of the source."""

    def __post_init__(self) -> None:
        self.seen = {partition: bytearray(end) for partition, end in self.arrived.items()}

    def add_output(self, value: bytes | None) -> None:
        """Count one record of the sink."""
        self.written += 1
        try:
            origin = json.loads(value or b"")
            partition, offset = int(origin["source_partition"]), int(origin["source_offset"])
            marks = self.seen[partition]
            known = marks[offset] if offset >= 0 else None
        except (ValueError, KeyError, TypeError, IndexError):
            known = None
        if known is None:
            self.unexpected += 1
        elif known:
            self.duplicates += 1
        else:
            marks[offset] = 1

    @property
    def total(self) -> int:
        """Records of the source."""
        return sum(self.arrived.values())

    @property
    def missing(self) -> int:
        """Records of the source that have no output."""
        return sum(marks.count(0) for marks in self.seen.values())

    def first_missing(self) -> list[str]:
        """Return the first three records without output, as `partition/offset`."""
        found = [f"{p}/{o}" for p, marks in sorted(self.seen.items()) for o, mark in enumerate(marks) if not mark]
        return found[:3]


def audit_records(settings: ClientSettings, source: str, sink: str) -> RecordAudit:
    """Read the whole sink and return the audit; raises `TimeoutError` if its end is not reached."""
    audit = RecordAudit({number: end for (_, number), (_, end) in offset_ranges(settings, [source]).items()})
    with closing(TopicReader(settings, [sink])) as reader:
        for message in reader.read_to_end():
            audit.add_output(message.value())
    return audit
