"""DeadLetter: a record that could not be read, with where it was, why, and its bytes."""

from __future__ import annotations

from pydantic import Base64Bytes, Field

from tidegate.events.wire import Count, Instant, Wire, identity


class DeadLetter(Wire):
    """One unreadable record. Nothing is lost: key, value and headers are kept as they came, in base64."""

    letter_id: str
    topic: str
    partition: Count
    offset: Count
    consumer: str
    """The service that could not read it."""
    code: str
    """Reason code, one of `tidegate.events.envelope.Unreadable.CODES`."""
    error: str
    """Field, value and place in one line."""
    seen_at: Instant
    key: Base64Bytes | None = None
    value: Base64Bytes | None = None
    headers: tuple[tuple[str, Base64Bytes | None], ...] = Field(default=())


def letter_id(topic: str, partition: int, offset: int, consumer: str) -> str:
    """Return the id of the dead letter of a record: the same record read twice is one letter."""
    return identity("dead-letter", topic, partition, offset, consumer)
