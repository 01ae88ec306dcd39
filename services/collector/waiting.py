"""Whether a job leaves records waiting on purpose. Pure.

With the option `minOffsetsPerTrigger`, the Kafka source tells Spark that there is nothing new until enough records
wait, or until `maxTriggerDelay` is over. The event log names neither option. But a query that finds nothing new tells
it, every 10 s at most. If it does so with records that the broker had before, its source holds them back. An open
transaction looks the same to a spec without `read_committed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.events.snapshot import SourceOffsets

APART = timedelta(seconds=5)
"""How far the clocks of driver and collector may be apart; sooner, the records may have come after the look."""


@dataclass(frozen=True, slots=True)
class Waited:
    """What the broker had at an earlier snapshot: the first one at which records waited that wait still."""

    at: datetime
    sources: tuple[SourceOffsets, ...]

    def wait_still(self, now: tuple[SourceOffsets, ...]) -> bool:
        """Whether records that were there have not been committed until now."""
        done = {source.topic: source.next_offsets for source in now}
        return any(
            end is not None and reached is not None and reached < end
            for source in self.sources
            for end, reached in zip(source.end_offsets, done.get(source.topic, ()), strict=False)
        )


def waited(before: Waited | None, at: datetime, now: tuple[SourceOffsets, ...]) -> Waited:
    """Return what to remember of a snapshot for the next one."""
    return before if before is not None and before.wait_still(now) else Waited(at, now)


def holds_back(before: Waited | None, idle_at: datetime | None, now: tuple[SourceOffsets, ...]) -> bool:
    """Whether a job that found nothing new at an instant, if it did, left records that were there before."""
    if before is None or idle_at is None or idle_at < before.at + APART:
        return False
    return before.wait_still(now)
