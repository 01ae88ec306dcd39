"""A Kafka topic: offsets per partition, filled by a load or by the jobs that write to it, optionally of finite size."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from tidegate.twin.load import Load


class TwinTopic:
    """One topic. Times are seconds since the world started."""

    __slots__ = ("_writes", "capacity_records", "load", "name", "readers", "shares", "written")

    def __init__(
        self,
        name: str,
        shares: Sequence[float],
        load: Load | None = None,
        capacity_records: int | None = None,
    ) -> None:
        """`shares` are the partitions' relative shares of the arrivals (any positive numbers).

        With `capacity_records`, the topic holds at most that many unread records and writers wait: back pressure.
        Raises `ValueError` if a share is not positive.
        """
        if not shares or not all(math.isfinite(share) and share > 0 for share in shares):
            raise ValueError(f"topic {name}: shares must be positive numbers, found {list(shares)}")
        total = math.fsum(shares)
        self.name = name
        self.shares = tuple(share / total for share in shares)
        self.load = load
        self.capacity_records = capacity_records
        self.written = 0
        """Records that jobs have written, and those that were there at the start."""
        self._writes: list[tuple[float, int]] = []
        """(second, records written by then)."""
        self.readers: list[int] = []
        """Records committed so far, one figure per reading job; the slowest reader decides how much room is left."""

    def arrived(self, at: float) -> float:
        """Return how many records have arrived by second `at`."""
        return self.written + (self.load.arrived(at) if self.load is not None else 0.0)

    def write(self, records: int, at: float) -> None:
        """Add records that a job writes now."""
        if not self._writes:
            self._writes.append((0.0, self.written))
        self.written += records
        self._writes.append((at, self.written))

    def arrives(self, records: float) -> float:
        """Return the first second by which so many records have arrived, or will; infinite if that is not known."""
        writes, load = self._writes or [(0.0, self.written)], self.load
        place = bisect_left(
            writes, records, key=lambda write: write[1] + (load.arrived(write[0]) if load is not None else 0.0)
        )
        if place == 0:
            return 0.0
        own = load.arrives(records - writes[place - 1][1]) if load is not None else math.inf
        return min(own, writes[place][0]) if place < len(writes) else own

    def oldest_at(self, committed: Sequence[int]) -> float:
        """Return when the oldest record after these offsets arrived, or will; infinite if that is not known."""
        # The same tiny offset as in `end_offsets`.
        return self.arrives(min((done + 1 - 1e-6) / share for done, share in zip(committed, self.shares, strict=True)))

    def end_offsets(self, at: float) -> list[int]:
        """Return the log end offset of each partition; it never falls."""
        total = self.arrived(at)
        # The tiny offset keeps 0.1 * 10 from losing a record to rounding.
        return [int(total * share + 1e-6) for share in self.shares]

    def room(self, at: float) -> float:
        """Return how many records a writer may add now."""
        if self.capacity_records is None:
            return math.inf
        read = min(self.readers, default=0)
        return self.capacity_records - (self.arrived(at) - read)


def even(partitions: int) -> tuple[float, ...]:
    """Return the shares of evenly filled partitions."""
    return (1.0 / partitions,) * partitions


def skewed(partitions: int, factor: float) -> tuple[float, ...]:
    """Return shares where the first partition gets `factor` times the mean."""
    hot = min(factor, partitions - 1e-9) / partitions
    return (hot, *([(1.0 - hot) / (partitions - 1)] * (partitions - 1))) if partitions > 1 else (1.0,)
