"""Dead letters: what could not be read is kept with its bytes, and a flood of it stops the service.

If every record is bad, the fault is ours (a wrong topic, a wrong version): draining the topic into the dead letters
would only hide it, so past a limit of unreadable records in a row `TooManyDeadLetters` ends the service.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from datetime import datetime

from tidegate.events.dead_letter import DeadLetter, letter_id
from tidegate.events.envelope import Unreadable


class TooManyDeadLetters(RuntimeError):
    """Nothing on the topic can be read; a person must look."""


class DeadLetterLimit:
    """Counts unreadable records in a row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row = 0

    def bad(self) -> None:
        """Count an unreadable record; raise `TooManyDeadLetters` past the limit."""
        self._in_a_row += 1
        if self._in_a_row > self._limit:
            raise TooManyDeadLetters(f"{self._in_a_row} unreadable records in a row, at most {self._limit} are buried")

    def good(self) -> None:
        """A record was read: the count starts again."""
        self._in_a_row = 0


def dead_letter(
    error: Unreadable,
    *,
    consumer: str,
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
    seen_at: datetime,
) -> DeadLetter:
    """Return the dead letter of a record, with its bytes as they came."""

    def kept(raw: bytes | None) -> bytes | None:
        return None if raw is None else b64encode(raw)

    return DeadLetter(
        letter_id=letter_id(topic, partition, offset, consumer),
        topic=topic,
        partition=partition,
        offset=offset,
        consumer=consumer,
        code=error.code,
        error=error.detail,
        seen_at=seen_at,
        key=kept(key),
        value=kept(value),
        headers=tuple((name, kept(raw)) for name, raw in headers or ()),
    )


def bare(letter: DeadLetter) -> DeadLetter:
    """Return a dead letter without the record's bytes, for when base64 makes it larger than the broker may take.

    The record still lies where the letter says.
    """
    error = f"{letter.error} (bytes left out: too large for this topic)"
    return letter.model_copy(update={"key": None, "value": None, "headers": (), "error": error})
