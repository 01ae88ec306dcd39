"""Dead letters: an unreadable record is kept with its bytes, and a flood of them stops the service.

If every record is bad, the fault is ours (a wrong topic or version), and draining the topic into the dead letters would
hide it. So too many unreadable records in a row raise `TooManyDeadLetters`, which ends the service.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar

from tidegate.events.dead_letter import DeadLetter, letter_id
from tidegate.events.envelope import Unreadable

Sent_co = TypeVar("Sent_co", covariant=True)


class TooManyDeadLetters(RuntimeError):
    """Nothing on the topic can be read; a person must look."""


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """One record as it came from Kafka."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class SendsLetter(Protocol[Sent_co]):
    """A function that publishes a dead letter, or a coroutine function that does."""

    def __call__(self, event: DeadLetter, *, key: bytes | None) -> Sent_co:
        """Publish the letter under the key of the unreadable record."""
        ...


class DeadLetterLimit:
    """Counts unreadable records in a row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row = 0

    def bad(self) -> None:
        """Count an unreadable record; raise `TooManyDeadLetters` past the limit."""
        self._in_a_row += 1
        if self._in_a_row > self._limit:
            raise TooManyDeadLetters(f"{self._in_a_row} unreadable records in a row; the limit is {self._limit}")

    def good(self) -> None:
        """Restart the count: a record was readable."""
        self._in_a_row = 0


def send_to_dead_letters(
    send: SendsLetter[Sent_co], record: ConsumedRecord, error: Unreadable, *, consumer: str, seen_at: datetime
) -> Sent_co:
    """Publish a record to the dead letters with its bytes unchanged; return what `send` returns."""
    letter = DeadLetter(
        letter_id=letter_id(record.topic, record.partition, record.offset, consumer),
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        consumer=consumer,
        code=error.code,
        error=error.detail,
        seen_at=seen_at,
        key=_encoded(record.key),
        value=_encoded(record.value),
        headers=tuple((name, _encoded(raw)) for name, raw in record.headers),
    )
    return send(letter, key=record.key)


def without_bytes(letter: DeadLetter) -> DeadLetter:
    """Return a dead letter without the record's bytes, for when base64 makes it too large for its topic.

    The letter still says where the record is.
    """
    error = f"{letter.error} (bytes left out: too large for this topic)"
    return letter.model_copy(update={"key": None, "value": None, "headers": (), "error": error})


def _encoded(raw: bytes | None) -> bytes | None:
    return None if raw is None else b64encode(raw)
