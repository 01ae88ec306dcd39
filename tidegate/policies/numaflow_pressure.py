"""Back pressure as `numaflow` sees it: the mean lag of each job downstream, over the lookback of the job that asks.

Numaflow averages the pending messages of a vertex before it compares them with the buffer. A decision sees only the
newest lag of a job downstream, so the policy remembers those that earlier decisions saw.

Source: numaproj/numaflow `hasBackPressure` in `pkg/reconciler/vertex/scaling/scaling.go`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidegate.events.decision import Neighbour

MAX_SUMS = 16
"""Sums kept per job downstream; with more lags in the lookback, each sum is of several."""


class LagSum(NamedTuple):
    """The sum of some lags that were seen one after the other, the last at `at` (epoch seconds)."""

    at: float
    records: int
    snapshots: int = 1


class DownstreamLag(NamedTuple):
    """What was seen of the lag of one job downstream."""

    job_id: str
    sums: tuple[LagSum, ...]

    @property
    def mean(self) -> int:
        """The mean lag, in whole records."""
        return sum(lag.records for lag in self.sums) // sum(lag.snapshots for lag in self.sums)


def remember(
    before: Iterable[DownstreamLag], neighbours: Iterable[Neighbour], at: float, lookback: float
) -> tuple[DownstreamLag, ...]:
    """Return what is known of the jobs downstream within the lookback, the lags seen now included."""
    known = {seen.job_id: seen.sums for seen in before}
    found: dict[str, tuple[LagSum, ...]] = {}
    for neighbour in neighbours:
        if neighbour.upstream:
            continue
        sums = [lag for lag in known.get(neighbour.job_id, ()) if lag.at >= at - lookback]
        lag = None if neighbour.evidence is None else neighbour.evidence.lag_records
        if lag is not None:
            sums.append(LagSum(at, max(0, lag)))
        if len(sums) > MAX_SUMS:
            sums = [_joined(sums[i : i + 2]) for i in range(0, len(sums), 2)]
        if sums:
            found[neighbour.job_id] = tuple(sums)
    return tuple(DownstreamLag(job_id, sums) for job_id, sums in found.items())


def _joined(sums: list[LagSum]) -> LagSum:
    return LagSum(sums[-1].at, sum(lag.records for lag in sums), sum(lag.snapshots for lag in sums))
