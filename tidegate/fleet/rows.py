"""A job as a row of figures in words, for the terminal and the browser alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tidegate.events.decision import Status
from tidegate.fleet.explain import delay
from tidegate.fleet.fleet import Fleet, FleetJob, Trouble
from tidegate.words import figure


@dataclass(frozen=True, slots=True)
class Badge:
    """A state that can be told without colour: a symbol, a word, and a tone for those who see it."""

    word: str
    symbol: str
    tone: str
    """`good`, `busy`, `bad`, or `unknown`."""


BADGES: dict[Status | Trouble, Badge] = {
    Status.FINE: Badge("fine", "✓", "good"),
    Status.UNKNOWN: Badge("unknown", "?", "unknown"),
    Status.LATE: Badge("late", "!", "bad"),
    Status.PENDING_SCALE_UP: Badge("scaling up", "↑", "busy"),
    Status.PENDING_SCALE_DOWN: Badge("scaling down", "↓", "busy"),
    Status.POOL_EXHAUSTED: Badge("pool exhausted", "!", "bad"),
    Status.STOPPED_STATE_LIMIT: Badge("stopped: state too large", "✗", "bad"),
    Status.FAILED_STATE_LIMIT: Badge("failed: state too large", "✗", "bad"),
    Trouble.SILENT: Badge("silent", "?", "unknown"),
    Trouble.FAILED: Badge("failed", "✗", "bad"),
}
NOT_MEANT_TO_RUN = Badge("stopped", "-", "unknown")
"""Of a job whose spec says `running: false`."""


@dataclass(frozen=True, slots=True)
class FleetRow:
    """The figures of one job, ready to be shown."""

    job_id: str
    badge: Badge
    slots: str
    """Such as `4`, or `4 → 6` while a change is wanted."""
    delay: str
    lag: str
    arrival: str
    capacity: str
    mode: str
    policy: str
    decided_at: datetime | None
    why: str


UNMEASURED = ("unknown", "unknown", "unknown", "unknown")
"""Delay, lag, arrival rate and capacity of a job without a decision."""


def badge_of(job: FleetJob, now: datetime) -> Badge:
    """Return the state of a job; its status counts only while it is fresh."""
    trouble = job.trouble(now)
    if trouble is Trouble.SILENT and not job.spec.running:
        return NOT_MEANT_TO_RUN
    if trouble is not None or job.decision is None:
        return BADGES[trouble or Trouble.SILENT]
    return BADGES[job.decision.status]


def row_of(job: FleetJob, now: datetime) -> FleetRow:
    """Return a job's row."""
    badge, decision = badge_of(job, now), job.decision
    policy = job.spec.scaling.policy
    if decision is None:
        return FleetRow(job.spec.job_id, badge, "unknown", *UNMEASURED, job.mode, policy, None, "No decision yet.")
    seen, current, final = decision.evidence, decision.current_parallelism, decision.final_parallelism
    slots = str(current) if current == final else f"{current} → {final}"
    return FleetRow(
        job_id=job.spec.job_id,
        badge=badge,
        slots=slots if decision.size_is_known else "unknown",
        delay=delay(seen),
        lag=figure(seen.lag_records),
        arrival=figure(seen.arrival_rate),
        capacity=figure(seen.true_processing_rate),
        mode=job.mode,
        policy=policy,
        decided_at=decision.decided_at,
        why=decision.sentence,
    )


def ranked(jobs: Iterable[FleetJob], now: datetime) -> list[FleetJob]:
    """Return the jobs, those that need an operator first, then by id."""
    return sorted(jobs, key=lambda job: (job.urgency(now), job.spec.job_id))


def counted(fleet: Fleet, now: datetime) -> list[tuple[Badge, int]]:
    """Return how many jobs are in each state, the state that needs an operator most first."""
    counts: Counter[Badge] = Counter()
    first: dict[Badge, int] = {}
    for job in fleet:
        badge = badge_of(job, now)
        counts[badge] += 1
        first[badge] = min(first.get(badge, 9), job.urgency(now))
    return sorted(counts.items(), key=lambda pair: (first[pair[0]], pair[0].word))
