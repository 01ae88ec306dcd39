"""Accounting for every record: each output names the partition and offset of the record it came from."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from demo.watch import end_offset, partitions_of
from tidegate.client import ClientSettings


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

    def first_missing(self, count: int = 3) -> list[str]:
        """Return the first records without output, as `partition/offset`."""
        found = [f"{p}/{o}" for p, marks in sorted(self.seen.items()) for o, mark in enumerate(marks) if not mark]
        return found[:count]


def audit_records(settings: ClientSettings, source: str, sink: str, timeout_seconds: float = 90.0) -> RecordAudit:
    """Read the whole sink and return the audit; raises `TimeoutError` if that takes too long."""
    consumer = Consumer(
        {
            **settings.kafka(),
            "group.id": "tidegate-demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        audit = RecordAudit({p.partition: end_offset(consumer, p) for p in partitions_of(consumer, source)})
        unread = {p.partition for p in partitions_of(consumer, sink) if end_offset(consumer, p)}
        consumer.assign([TopicPartition(sink, p, OFFSET_BEGINNING) for p in unread])
        deadline = time.monotonic() + timeout_seconds
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f"reading {sink} to its end took more than {timeout_seconds:g} s")
            for message in consumer.consume(5000, timeout=0.5):
                error = message.error()
                if error is None:
                    audit.add_output(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
        return audit
    finally:
        consumer.close()
