"""When a job with `min_parallelism: 0` is stopped: once the silence has cost as much as a stop and a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import ForcingGuard, Verdict
from tidegate.engine.guards.metrics import NEEDED
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.engine.total import total
from tidegate.engine.zero import SHORTEST_GAP_SECONDS, duration, start_seconds, waiting_records
from tidegate.events.decision import Figure

LEARNED_FROM = 3
"""Silences after which what was learned replaces the break-even time."""
GAP_MARGIN = 1.25
"""The next silence may be longer than the longest of its kind by this factor."""


@dataclass(frozen=True, slots=True)
class Silence(ForcingGuard):
    """Stops a job with `min_parallelism: 0` after a silence, and no such job while records wait.

    Slots cost n · s in a silence of s seconds. A stop and a start cost, in the same unit, with n slots and the spec's
    maximum N:

        price · N  +  n · D  +  late_price · N · max(0, D + interval - lag objective)

    D: the longest of the last three starts, s. The silence in which the slots cost as much is the *break-even time* B.
    Whoever stops at B never pays more than twice what would have been best (Karlin et al., 1994). After three silences,
    the job stops after the time that would have cost least in them, at most 2 · B (Irani, Shukla & Gupta, 2003).
    The policies `keda` and `numaflow` have their own rules instead.
    """

    name: ClassVar = "silence"
    reasons: ClassVar[Mapping[str, Reason]] = {
        "SILENCE": Reason(
            "nothing has arrived for {silent} and nothing waits, and from {limit} on a stop and a start cost less"
        ),
        "RECORDS_STILL_WAIT": Reason("{waiting} records wait, so the job is not stopped"),
    }

    after_seconds: float | None = option(
        None, "time without records after which the job stops; worked out from the prices when absent", unit="s", gt=0
    )
    price: float = option(30.0, "price of a stop and a start per slot of the maximum size", unit="slot-seconds", ge=0)
    late_price: float = option(
        2.0, "price of each second by which a start exceeds the lag objective, per slot of the maximum size", ge=0
    )

    def force(self, size: int, case: Case) -> Verdict | None:
        """Ask for no slots once the silence has lasted long enough."""
        zero = case.state.zero
        if zero is None or zero.seen_at is None or size == 0 or case.current == 0 or waiting_records(case) != 0:
            return None
        if any(part in NEEDED for part in case.snapshot.missing):
            return None
        silent, limit = zero.seen_at - zero.silent_since, self.limit_seconds(case)
        if silent < limit:
            return None
        values: dict[str, Figure] = {"silent": duration(silent), "limit": duration(limit), "silent_seconds": silent}
        return Verdict(0, "SILENCE", values)

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Stop no job for which records wait, or may wait."""
        waiting = waiting_records(case) if size == 0 and case.spec.scaling.min_parallelism == 0 else 0
        return None if waiting == 0 else Verdict(case.current, "RECORDS_STILL_WAIT", {"waiting": waiting})

    def limit_seconds(self, case: Case) -> float:
        """Return the silence after which the present size is no longer worth its slots."""
        zero = case.state.zero
        if self.after_seconds is not None or zero is None:
            return self.after_seconds or 0.0
        start, largest = start_seconds(zero), case.spec.scaling.max_parallelism
        late = max(0.0, start + case.snapshot.interval_seconds - case.spec.scaling.lag_objective_seconds)
        break_even = start + (self.price + self.late_price * late) * largest / case.current
        return cheapest_limit(zero.gaps, max(break_even, SHORTEST_GAP_SECONDS))


def cheapest_limit(gaps: Sequence[int], break_even: float) -> float:
    """Return the time after which to stop that would have cost least in past silences; `break_even` without enough.

    Stopping after t in a silence of g seconds costs t + break-even time if g > t, else g. Of equals, the time closest
    to the break-even time is taken, and the shorter of two.
    """
    if len(gaps) < LEARNED_FROM:
        return break_even
    learned = (GAP_MARGIN * gap for gap in gaps)
    limits = {SHORTEST_GAP_SECONDS, break_even, *(limit for limit in learned if limit <= 2.0 * break_even)}

    def cost(limit: float) -> tuple[float, float, float]:
        paid = total(gap if gap <= limit else limit + break_even for gap in gaps)
        return paid, abs(limit - break_even), limit

    return min(limits, key=cost)
