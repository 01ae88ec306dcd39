"""The ways to change a job's size, as the engine knows them: which are possible, and what each costs.

The decision assumes the first possible way in the spec's order of preference. A way is not possible

- in place, for a job that runs inside its driver (`local[...]`): it has no executors,
- in place, for a job whose application has changed in the spec: executors alone do not bring the new one,
- as the last command found: it named this way and was carried out in another,
- by handover or restart, while the job keeps its checkpoint elsewhere than its spec says: a new run would not find it,
- by handover, while the pool has no room for both runs at once, or the running batch does not end before the first
  driver would have to pause, unless nothing else is possible.

A change has two costs, both learned from the results of commands:

    outage    time in which nothing is committed
    delay     time from the order until the new size works; before the outage, the old size still works

Sizes are whole executors once the guards have seen them, so the cores of an executor rule out no way.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from tidegate.engine.case import Case
from tidegate.engine.costs import FELL_BACK, MeasuredCost
from tidegate.engine.state import JobState
from tidegate.events.job import Application, JobSpec
from tidegate.events.result import CHECKPOINT_ELSEWHERE
from tidegate.events.way import Way, boundary_seconds

RETRY_SECONDS: Final = 3600.0
"""A way that turned out to be impossible is not assumed again for this long, even in another run."""

CHANGES = {Way.IN_PLACE: "a change in place", Way.HANDOVER: "a handover", Way.RESTART: "a restart"}
"""Each way as a noun."""

ADVERBS = {Way.IN_PLACE: "in place", Way.HANDOVER: "by handover", Way.RESTART: "by restart"}


class PlannedChange(NamedTuple):
    """How a size would be changed, and what that is expected to cost, in seconds."""

    way: Way
    outage: float
    delay: float


ASSUMED = {
    Way.IN_PLACE: PlannedChange(Way.IN_PLACE, 0.0, 15.0),
    Way.HANDOVER: PlannedChange(Way.HANDOVER, 3.0, 30.0),
}
"""Costs until one was measured. Those of a restart differ from job to job, so the policies have an option for them."""


def checksum(location: str) -> int:
    """Return a short stand-in for a checkpoint location, to see whether it has changed."""
    return crc32(location.encode())


def measured(state: JobState, way: Way) -> list[MeasuredCost]:
    """Return what the newest changes in a way have cost, oldest first."""
    return [cost for cost in state.changes.costs if cost.way is way]


def assumed(spec: JobSpec, way: Way, restart_seconds: float) -> PlannedChange:
    """Return a change in a way of which none was measured: what it has cost similar jobs, if the spec tells it.

    Otherwise `restart_seconds` is the cost of a restart.
    """
    if spec.scaling.prior is not None:
        for known in spec.scaling.prior.ways:
            if known.way is way:
                return PlannedChange(way, known.outage_seconds, known.delay_seconds)
    return PlannedChange(way, restart_seconds, restart_seconds) if way is Way.RESTART else ASSUMED[way]


def longest_change_seconds(application: Application) -> float:
    """Return how long a command needs at most once it is taken up: a stop or handover, and two starts.

    The starts are those of the ordered size and of the rollback; each part has its deadline.
    """
    boundary = boundary_seconds(application.ways, application.stop_deadline_seconds)
    return boundary + 2 * application.start_deadline_seconds


def closed_by(state: JobState, spec: JobSpec, way: Way, at: float) -> str | None:
    """Return why a way is closed; None if it is open."""
    for each in state.changes.closed:
        if each.way is not way:
            continue
        if each.code == FELL_BACK:
            if each.incarnation == state.incarnation or at < each.at + RETRY_SECONDS:
                return FELL_BACK
        elif each.incarnation == state.incarnation and each.location == checksum(spec.application.checkpoint_location):
            return each.code
    return None


def open_ways(case: Case) -> tuple[Way, ...]:
    """Return the ways that are possible for the job, in order of preference."""
    application = case.spec.application
    ways = application.ways
    if application.backend == "local" and application.master.startswith("local["):
        ways = tuple([way for way in ways if way is not Way.IN_PLACE])
    if case.state.outdated:
        ways = tuple([way for way in ways if way is not Way.IN_PLACE])
    if case.state.changes.closed:
        ways = tuple([way for way in ways if closed_by(case.state, case.spec, way, case.decided_at) is None])
    return ways


def way_to(case: Case, size: int) -> Way | None:
    """Return the way in which the running job would get another size; None if there is none.

    A job that is stopped goes on with a new run, so that counts as a restart, whatever the spec allows for other sizes.
    """
    if size == 0:
        closed = closed_by(case.state, case.spec, Way.RESTART, case.decided_at)
        return None if closed == CHECKPOINT_ELSEWHERE else Way.RESTART
    ways = open_ways(case)
    if not ways or ways[0] is not Way.HANDOVER or len(ways) == 1:
        return ways[0] if ways else None
    return ways[0] if free_slots(case) >= size and not outlasts_handover(case) else ways[1]


def outlasts_handover(case: Case) -> bool:
    """Whether the running batch still lasts longer than a handover waits for its end, as far as its tasks tell."""
    left, waits = case.evidence.running_left_seconds, case.spec.application.stop_deadline_seconds
    return left is not None and left > ASSUMED[Way.HANDOVER].delay + waits


def free_slots(case: Case) -> int:
    """Return the pool's free slots, less those promised to other jobs; none if the pool is unknown."""
    pool = case.snapshot.pool
    return 0 if pool is None else max(0, pool.slots_total - pool.slots_used - case.observed.pool_reserved)
