"""One decision round: from a snapshot to a decision whose command, if any, has been reserved.

A command may go out only after its slots and its job's cooldown have been reserved where every decider sees them. The
round is the order in which that happens. It does no I/O: it is a generator that yields what it wants to know and is
sent the answer, so the decider drives it with Redis, and the lab and the tests with a table in memory.

    yields                is sent
    Look(fresh=False)     a ReservationView, which may be cached: a decision without a command needs no more
    Look(fresh=True)      a ReservationView of this moment: only such a view lets a command out
    Reserve(hold, free)   whether the hold was taken, whole

    1. Look at a view that may be cached, and decide. Without a command the round ends: this is the usual case.
    2. Look again, fresh. If the view differs, decide again; without a command the round ends.
    3. Reserve what the command needs. If the hold is taken, the round ends with the command.
    4. Refused: another decider was faster. Look once more and decide, this time knowing that the reservation was lost.
       A guard stops every change then; `BrokenPromise` is raised if a command comes out all the same.

The state that the round returns is the state after its last decision. Each decision starts from the same state, so the
ones that were dropped leave no trace. A crash anywhere in the round leads to the same decision id when the snapshot is
read again. The cooldown may then be held by this very decision, from before the crash; such a hold does not stand in
its way.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

from tidegate.engine.decide import ENGINE_VERSION, step
from tidegate.engine.plan import Plan
from tidegate.engine.reservations import Hold, ReservationView, hold_for
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed, decision_id
from tidegate.events.snapshot import MetricSnapshot


@dataclass(frozen=True, slots=True)
class Look:
    """Asks what is reserved for a job and, in its pool, for others. The answer is a `ReservationView`."""

    job_id: str
    pool_id: str
    fresh: bool
    """Whether the answer must be of this moment rather than from a cache."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Asks for a hold, whole or not at all. The answer is whether it was taken."""

    hold: Hold
    free: int | None
    """The pool's free slots as measured; None where unknown."""


Request = Look | Reserve
Reply = ReservationView | bool
Round = Generator[Request, Reply, tuple[JobState, Decision]]
"""A round under way; its value is the state to keep and the decision to publish."""


class BrokenPromise(RuntimeError):
    """The engine ordered a command although it was told that the reservation was refused."""


def decision_round(state: JobState, snapshot: MetricSnapshot, plan: Plan, known: Observed) -> Round:
    """Decide on one snapshot. `known` holds what does not come from the reservations: time, results, neighbours.

    Raises `AlreadyDecided` like `step`, and `TypeError` for an answer that does not fit the question.
    """
    view = yield from _look(plan, fresh=False)
    after, decision = step(state, snapshot, plan, _observed(known, view, snapshot, plan))
    if decision.command is not None:
        fresh = yield from _look(plan, fresh=True)
        if fresh != view:
            after, decision = step(state, snapshot, plan, _observed(known, fresh, snapshot, plan))
    command, pool = decision.command, snapshot.pool
    if command is None:
        return after, decision
    free = None if pool is None else max(0, pool.slots_total - pool.slots_used)
    if (yield from _reserve(hold_for(plan.spec, command, snapshot.slots_granted or 0), free)):
        return after, decision
    view = yield from _look(plan, fresh=True)
    refused = replace(_observed(known, view, snapshot, plan), reservation_refused=True)
    after, decision = step(state, snapshot, plan, refused)
    if decision.command is not None:
        raise BrokenPromise(f"decision {decision.decision_id} of {snapshot.job_id} has a command that nobody reserved")
    return after, decision


def _look(plan: Plan, *, fresh: bool) -> Generator[Request, Reply, ReservationView]:
    reply = yield Look(plan.spec.job_id, plan.spec.pool_id, fresh)
    if not isinstance(reply, ReservationView):
        raise TypeError(f"a look is answered with a ReservationView, not with {reply!r}")
    return reply


def _reserve(hold: Hold, free: int | None) -> Generator[Request, Reply, bool]:
    reply = yield Reserve(hold, free)
    if not isinstance(reply, bool):
        raise TypeError(f"a reservation is answered with True or False, not with {reply!r}")
    return reply


def _observed(known: Observed, view: ReservationView, snapshot: MetricSnapshot, plan: Plan) -> Observed:
    """Return everything the decision depends on besides state, snapshot and spec."""
    owner, until = view.cooldown_owner, view.cooldown_until
    if owner is not None and owner == decision_id(
        plan.spec.job_id, snapshot.snapshot_id, plan.spec.version, ENGINE_VERSION
    ):
        owner = until = None
    return replace(
        known, redis=view.redis, cooldown_until=until, cooldown_owner=owner, pool_reserved=view.pool_reserved
    )
