"""Deciding: one snapshot in, one decision out, and the state for the next.

    step(state, snapshot, plan, observed) -> (state, decision)

The steps. Each knows nothing of what comes after it:

    1. results      what became of earlier commands goes into the state               tidegate.engine.results
    2. window       the snapshot joins the window; a discontinuity starts a new one   tidegate.engine.window
                    and the arrivals, which tell how long records have waited         tidegate.engine.delay
    3. evidence     the window is summed up; unknown stays unknown                    tidegate.engine.evidence
    4. proposal     the supervisor (should the job run at all?), else the policy      tidegate.engine.supervisor
    5. disposal     the guards change or stop the proposed size, each with a reason   tidegate.engine.disposal
    6. decision     status, explanation, reasons, command, and sometimes a keyframe

`step` is pure: it reads no clock and keeps nothing. Whatever else a decision depends on is in `observed`, which is
recorded inside the decision, so a recording gives the same bytes when it is decided again. A keyframe carries the state
before the decision and the spec in force; a replay can start at any of them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from tidegate.engine.case import Case, Proposal
from tidegate.engine.costs import FELL_BACK
from tidegate.engine.disposal import Outcome, dispose
from tidegate.engine.emission import planned_emission
from tidegate.engine.evidence import gather
from tidegate.engine.history import FAILED, STOPPED, note_gain, note_order, note_proposal, note_restart, resumed
from tidegate.engine.memory import Recorded, UnreadableMemory, read_memory
from tidegate.engine.plan import Plan
from tidegate.engine.results import take_results
from tidegate.engine.state import InFlight, JobState, Slice, to_wire
from tidegate.engine.supervisor import supervise
from tidegate.engine.upgrade import compare
from tidegate.engine.ways import ADVERBS, way_to
from tidegate.engine.window import observe
from tidegate.engine.zero import evidence_at_zero, is_at_zero, note_capacity, note_stop, observe_zero, wake
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Decision, Keyframe, Observed, Status, decision_id
from tidegate.events.job import JobSpec, ManualScale, Mode
from tidegate.events.snapshot import ALIVE, DEAD, MetricSnapshot
from tidegate.events.way import Way
from tidegate.events.wire import LONGEST_SECONDS

ENGINE_VERSION = "35"
"""Part of every decision's id. Every change that can make a decision differ raises it."""

KEYFRAME_EVERY: Final = 100
STEADY_SECONDS: Final = 600.0
"""A run that lasted this long ended for a new reason: earlier failures no longer count."""

HALTS = {Status.STOPPED_STATE_LIMIT: STOPPED, Status.FAILED_STATE_LIMIT: FAILED}


class AlreadyDecided(ValueError):
    """The snapshot is not newer than the last one decided: a duplicate, or late."""


def step(state: JobState, snapshot: MetricSnapshot, plan: Plan, observed: Observed) -> tuple[JobState, Decision]:
    """Decide on one snapshot; return the new state and the decision.

    Raises `AlreadyDecided` when the snapshot's sequence is not above the state's. Nothing is changed then.
    """
    if snapshot.sequence <= state.last_sequence:
        raise AlreadyDecided(f"sequence {snapshot.sequence} of {snapshot.job_id} is not above {state.last_sequence}")
    before, policy = state, plan.policy
    state = take_results(state, observed, plan.spec)
    state = _adopt_spec(state, plan)
    state = observe_zero(state, snapshot, plan.spec)
    state, newest, delay = observe(state, snapshot, policy.window_seconds)
    if newest is not None and _mixes_sizes(state, snapshot):
        newest = Slice(newest.at, newest.arrived, newest.committed)
        state = state._replace(window=(*state.window[:-1], newest))
    state = _note_free_slots(state, snapshot)
    state, current = _current_size(state, snapshot)
    state = _count_end(state, snapshot)
    evidence = gather(state, snapshot, current, delay)
    state = note_capacity(state, evidence, current)
    measured_at, decided_at = snapshot.observed_at.timestamp(), observed.at.timestamp()
    manual = _open_request(state, plan.spec, snapshot)
    case = Case(snapshot, plan.spec, observed, state, evidence, current, measured_at, decided_at, manual, newest)
    at_zero = is_at_zero(state) and snapshot.state in DEAD
    if at_zero:
        case = case._replace(evidence=evidence_at_zero(case))
    supervised = supervise(case)
    if supervised is not None:
        by, proposal = supervised
    elif at_zero:
        own = plan.wakes
        by, proposal = ("supervisor", wake(case)) if own is None else (own.name, own.wake(case, state.memory))
    else:
        by, proposal = policy.name, policy.propose(case, state.memory)
        if state.in_flight is None:  # meanwhile, the policy looks at a size that is about to go
            history = note_proposal(state.history, proposal.size, current, case.measured_at)
            if history is not state.history:
                case = case._replace(state=state._replace(history=history))
    outcome = dispose(case, by, proposal, plan, supervised=supervised is not None)
    return _conclude(before, case, plan, proposal, outcome)


def _adopt_spec(state: JobState, plan: Plan) -> JobState:
    """Return the state under the spec in force, with the memory as the policy's own type.

    A policy starts without memory after a change of policy or of the engine: what another version remembers may mean
    something else. A new version of the spec resets the failure count.
    """
    spec, memory = plan.spec, state.memory
    if (state.policy, state.engine_version) != (spec.scaling.policy, ENGINE_VERSION):
        memory = Recorded()
    if isinstance(memory, Recorded):
        state = state._replace(policy=spec.scaling.policy, memory=_read(plan.policy.Memory, memory))
    if _is_new_spec(state, plan):
        closed = tuple([each for each in state.changes.closed if each.code != FELL_BACK])
        changes = state.changes._replace(closed=closed)
        history = resumed(state.history, active=spec.scaling.mode is Mode.ACTIVE)
        state = compare(state._replace(failures=0, history=history, changes=changes), spec)
    return state


def _is_new_spec(state: JobState, plan: Plan) -> bool:
    """Whether the last decision was by another spec. One that was applied again may have the same version."""
    return state.spec_version != plan.spec.version or state.spec_digest not in (None, plan.spec_digest)


def _read(kind: type, memory: Recorded) -> object:
    """Return a recorded memory as its policy's type; a new one if another version of the policy wrote it."""
    try:
        return read_memory(kind, memory.values)
    except UnreadableMemory:
        return kind()


def _current_size(state: JobState, snapshot: MetricSnapshot) -> tuple[JobState, int]:
    """Return the current size: what the results say about this run, else what the master has granted."""
    if snapshot.state in DEAD:
        return state, 0
    if state.parallelism is None and snapshot.state in ALIVE and snapshot.slots_granted:
        state = state._replace(parallelism=snapshot.slots_granted)
    return state, state.parallelism or 0


def _mixes_sizes(state: JobState, snapshot: MetricSnapshot) -> bool:
    """Whether batches of a snapshot ran while the size changed in place: they show neither size."""
    if not snapshot.batches:
        return False
    if state.in_flight is not None:
        return state.in_flight.way is Way.IN_PLACE
    resized_at = state.changes.resized_at
    return resized_at > 0 and snapshot.batches[0].started_at.timestamp() < resized_at


def _note_free_slots(state: JobState, snapshot: MetricSnapshot) -> JobState:
    """Return the state with the free slots that the pool showed after it gave fewer than ordered."""
    shortfall, pool = state.changes.shortfall, snapshot.pool
    if shortfall is None or shortfall.free is not None or pool is None:
        return state
    seen = shortfall._replace(free=pool.slots_total - pool.slots_used)
    return state._replace(changes=state.changes._replace(shortfall=seen))


def _count_end(state: JobState, snapshot: MetricSnapshot) -> JobState:
    """Count an end that nobody ordered, once per run; a run that has committed a batch ends the count."""
    if state.failures and snapshot.batches and snapshot.incarnation == state.incarnation:
        state = state._replace(failures=0)
    if snapshot.state not in DEAD or state.incarnation is None:
        return state
    if state.in_flight is not None:
        return state
    if is_at_zero(state) and state.zero is not None and state.incarnation == state.zero.stopped_run:
        return state._replace(incarnation=None, run_since=None)
    lasted = snapshot.observed_at.timestamp() - (state.run_since or 0.0)
    failures = (0 if lasted >= STEADY_SECONDS else state.failures) + 1
    return state._replace(failures=failures, incarnation=None, run_since=None)


def _open_request(state: JobState, spec: JobSpec, snapshot: MetricSnapshot) -> ManualScale | None:
    """Return an operator's request that has not been served yet."""
    request = spec.manual
    can_be_served = snapshot.state in ALIVE or (snapshot.state in DEAD and is_at_zero(state))
    is_open = request is not None and request.request_id != state.manual_done and can_be_served
    return request if is_open else None


def _conclude(
    before: JobState, case: Case, plan: Plan, proposal: Proposal[Any], outcome: Outcome
) -> tuple[JobState, Decision]:
    """Return the state after the decision, and the decision."""
    spec, snapshot, observed = case.spec, case.snapshot, case.observed
    identity = decision_id(spec.job_id, snapshot.snapshot_id, spec.version, ENGINE_VERSION)
    kind = outcome.kind
    way = way_to(case, outcome.final) if kind is CommandKind.RESCALE else None
    explanation = _explanation(case, proposal, outcome, way)
    command = None
    if kind is not None and not outcome.withheld:
        command = ScalingCommand(
            command_id=identity,
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            snapshot_id=snapshot.snapshot_id,
            spec_version=spec.version,
            kind=kind,
            from_parallelism=case.current,
            to_parallelism=outcome.final,
            epoch=snapshot.sequence,
            issued_at=observed.at,
            expires_at=observed.at + timedelta(seconds=spec.scaling.command_ttl_seconds),
            reason=explanation,
            way=way,
            first_batch_seconds=_first_batch_seconds(case, proposal, outcome.final)
            if kind is CommandKind.RESCALE or (outcome.final and proposal.expectation is not None)
            else None,
            manual=case.manual is not None,
        )
    keyframe = None
    changed = before.engine_version != ENGINE_VERSION or _is_new_spec(before, plan)
    if changed or before.decisions % KEYFRAME_EVERY == 0:
        keyframe = Keyframe(state=to_wire(before), spec=spec)
    decision = Decision.trusted(
        decision_id=identity,
        job_id=spec.job_id,
        pipeline_id=spec.pipeline_id,
        snapshot_id=snapshot.snapshot_id,
        sequence=snapshot.sequence,
        decided_at=observed.at,
        engine_version=ENGINE_VERSION,
        spec_version=spec.version,
        policy=spec.scaling.policy,
        status=outcome.status,
        current_parallelism=case.current,
        proposed_parallelism=proposal.size,
        final_parallelism=outcome.final,
        sentence=explanation,
        trail=outcome.reasons,
        evidence=case.evidence,
        expectation=proposal.expectation if outcome.final == proposal.size else None,
        command=command,
        observed=observed,
        keyframe=keyframe,
        emits=planned_emission(case, proposal, outcome.final, withheld=outcome.withheld),
    )
    return _after(case, plan, proposal, outcome, command), decision


def _after(
    case: Case, plan: Plan, proposal: Proposal[Any], outcome: Outcome, command: ScalingCommand | None
) -> JobState:
    """Return the state to remember."""
    state = case.state
    memory = state.memory if proposal.memory is None else proposal.memory
    in_flight, last_action_at, manual_done = state.in_flight, state.last_action_at, state.manual_done
    history = note_gain(state.history, case.current, case.evidence.true_processing_rate)
    if command is not None:
        in_flight = InFlight(
            command.command_id,
            command.kind.value,
            command.to_parallelism,
            case.decided_at,
            command.expires_at.timestamp(),
            way=command.way,
        )
        if command.kind is CommandKind.RESCALE:
            last_action_at = case.decided_at
            if outcome.final != case.current:
                rate = case.evidence.true_processing_rate
                history = note_order(history, case.decided_at, case.current, outcome.final, rate)
                if case.manual is None:
                    memory = plan.policy.ordered(case, memory, proposal, outcome.final)
            if command.way is Way.RESTART:
                history = note_restart(history, case.decided_at)
        elif command.kind is CommandKind.STOP and outcome.status in HALTS:
            history = replace(history, halt=HALTS[outcome.status])
        elif command.kind is CommandKind.STOP and case.spec.running:
            state = note_stop(state, case)
            last_action_at = case.decided_at
            history = note_restart(note_order(history, case.decided_at, case.current, 0, None), case.decided_at)
        elif is_at_zero(state):
            last_action_at = case.decided_at
    if case.manual is not None and (command is not None or not outcome.waits):
        manual_done = case.manual.request_id
    return state._replace(
        decisions=state.decisions + 1,
        last_sequence=case.snapshot.sequence,
        engine_version=ENGINE_VERSION,
        spec_version=case.spec.version,
        spec_digest=plan.spec_digest,
        memory=memory,
        history=history,
        in_flight=in_flight,
        last_action_at=last_action_at,
        manual_done=manual_done,
    )


def _first_batch_seconds(case: Case, proposal: Proposal[Any], size: int) -> float | None:
    """Return how long the first batch of a size should last: what waits then over capacity; None if unknown.

    A size that the guards have changed is assumed to scale linearly.
    """
    expected, evidence = proposal.expectation, case.evidence
    if expected is not None and expected.lag_seconds is not None:
        return min(LONGEST_SECONDS, expected.lag_seconds * proposal.size / size)
    capacity = proposal.capacity or evidence.true_processing_rate
    if not capacity or evidence.lag_records is None:
        return None
    return min(LONGEST_SECONDS, max(0, evidence.lag_records) / capacity * case.current / size)


def _explanation(case: Case, proposal: Proposal[Any], outcome: Outcome, way: Way | None) -> str:
    """Return the whole decision in one plain sentence."""
    current, final, kind = case.current, outcome.final, outcome.kind
    if kind is None:
        is_stopped = case.snapshot.state in DEAD and proposal.code != "JOB_RESTARTING"
        head = f"Stay at {_slots(current)}" if current else "Stay stopped" if is_stopped else "Wait"
        if proposal.size not in (current, 0):
            head += f" although {proposal.size} {'is' if proposal.size == 1 else 'are'} proposed"
    elif kind is CommandKind.START:
        head = f"Start with {_slots(final)}"
    elif kind is CommandKind.STOP:
        head = "Stop the job"
    elif final == current and way is not None:
        head = f"Start the new application with {_slots(final)} {ADVERBS[way]}"
    else:
        head = f"Scale {'up' if final > current else 'down'} from {current} to {_slots(final)}"
        head += f" {ADVERBS[way]}" if way is not None else ""
    return head + ": " + "; but ".join([reason.sentence for reason in outcome.reasons]) + "."


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"
