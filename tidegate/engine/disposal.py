"""Disposal: the guards judge a proposed size, one after the other, and each says why it changes or stops it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.guard import Guard, Verdict
from tidegate.engine.guards.limits import Bounds
from tidegate.engine.lateness import is_late
from tidegate.engine.plan import Plan
from tidegate.engine.reasons import explained
from tidegate.engine.upgrade import UPGRADE
from tidegate.engine.zero import is_at_zero
from tidegate.events.command import CommandKind
from tidegate.events.decision import Status, TrailEntry
from tidegate.events.snapshot import ALIVE, ClusterState

BOUNDS = Bounds()
UNJUDGED = frozenset({"JOB_STATE_UNKNOWN", "JOB_STARTING", "WAITING_UNKNOWN"})
HALTING = (Status.STOPPED_STATE_LIMIT, Status.FAILED_STATE_LIMIT)


class Outcome(NamedTuple):
    """What the guards made of a proposed size."""

    final: int
    reasons: tuple[TrailEntry, ...]
    status: Status
    kind: CommandKind | None
    """How the job is to be changed, which may be at the same size; None if it is not."""
    withheld: bool
    """Whether the change is only shown, not ordered."""
    waits: bool
    """Whether what was asked for was only put off; a request is not served while another change is under way."""


def dispose(case: Case, by: str, proposal: Proposal[Any], plan: Plan, *, supervised: bool) -> Outcome:
    """Let the forcing guards ask for more, then ask all in order; each sees the size as the ones before left it.

    What the supervisor proposes is not for forcing guards to change.
    """
    current, size = case.current, proposal.size
    table = plan.reasons
    reasons = [explained(table, by, proposal.code, current, size, proposal.numbers)]
    status: Status | None = None
    withheld, waits = False, case.manual is not None and case.state.in_flight is not None

    def follow(guard: Guard, verdict: Verdict) -> None:
        nonlocal size, status
        reasons.append(explained(table, guard.name, verdict.code, size, verdict.size, verdict.values))
        size, status = verdict.size, verdict.status or status

    if (entering := BOUNDS.enter(size, case)) is not None:
        follow(BOUNDS, entering)
    asked = size
    for forcing in () if supervised else plan.forcing:
        if (forced := forcing.force(size, case)) is not None:
            follow(forcing, forced)
    needed = size if size > max(asked, current) else BOUNDS.needed(size, case)
    insists = _insists(case, proposal)
    requested = proposal.code == UPGRADE or case.manual is not None
    direction = size - current or -int(insists and size == 0)
    for guard in plan.guards:
        if size == current and not insists:
            break
        kind = _kind(current, size)
        if kind is CommandKind.STOP and by != "supervisor" and status not in HALTING:
            kind = CommandKind.RESCALE  # to zero is a change of size like any other
        if kind not in guard.covers or (requested and not guard.binds_manual):
            continue
        verdict = guard.dispose(size, case)
        if verdict is not None and guard.judges_worth:
            verdict = _beyond(needed, verdict, size, current)
        if verdict is not None:
            direction = size - current or direction
            follow(guard, verdict)
            withheld = withheld or verdict.withhold
            waits = guard.waits if size == current else waits
            insists = insists and size != current
    if (leaving := BOUNDS.leave(size, case)) is not None:
        follow(BOUNDS, leaving)
        insists = False
    if status is None:
        status = _status(case, proposal, size - current or (direction if waits or insists else 0))
        if status is not Status.PENDING_SCALE_UP and size == current and _is_left_late(case, proposal, plan):
            status = Status.LATE
    change = _kind(current, size) if insists or size != current else None
    return Outcome(size, tuple(reasons), status, change, withheld, waits)


def _insists(case: Case, proposal: Proposal[Any]) -> bool:
    """Whether the job is to be changed at the same size too: to a new application, or stopped at an unknown size."""
    stops = proposal.code == "JOB_TO_STOP" and case.current == 0 and case.snapshot.state in ALIVE
    return stops or proposal.code == UPGRADE


def _beyond(needed: int, verdict: Verdict, size: int, current: int) -> Verdict | None:
    """Return what a verdict on the worth of a change leaves of it, which is no less than what is needed of it."""
    least = min(size, needed) if size > current else max(size, needed)
    if (verdict.size >= least) if size > current else (verdict.size <= least):
        return verdict
    return None if least == size else verdict._replace(size=least)


def _kind(current: int, size: int) -> CommandKind:
    """Return the kind of command that leads from one size, 0 if it has none or an unknown one, to another."""
    if size == 0:
        return CommandKind.STOP
    return CommandKind.START if current == 0 else CommandKind.RESCALE


def _is_left_late(case: Case, proposal: Proposal[Any], plan: Plan) -> bool:
    """Whether the job is late, or down although it should run, and no command that is under way changes that."""
    if not case.spec.running:
        return False
    command = case.state.in_flight
    if command is not None and command.to_parallelism != case.current:
        return False
    if case.current == 0 and case.snapshot.state is not ClusterState.RUNNING:
        return proposal.code == "NEEDS_A_HUMAN" or (proposal.size > 0 and is_at_zero(case.state))
    return is_late(case, proposal.capacity, plan.policy.window_seconds)


def _status(case: Case, proposal: Proposal[Any], direction: int) -> Status:
    """Return the status of a change in a direction, or of the command that is still under way."""
    command = case.state.in_flight
    if direction == 0 and command is not None:
        before = 0 if command.kind == CommandKind.START.value else case.state.parallelism or 0
        direction = command.to_parallelism - (case.current or before)
        if direction == 0 and case.current == 0:
            direction = command.to_parallelism  # starting again at the same size
    if direction == 0:
        return Status.UNKNOWN if proposal.code in UNJUDGED else Status.FINE
    return Status.PENDING_SCALE_UP if direction > 0 else Status.PENDING_SCALE_DOWN
