"""Deciding: one snapshot in, one decision out, and the state for the next.

    step(state, snapshot, plan, observed) -> (state, decision)

The steps, each a function below and each blind to what comes after it:

    1. results      what became of earlier commands is taken into the state          tidegate.engine.results
    2. window       the snapshot is taken into the window, discontinuities cut it     tidegate.engine.window
    3. evidence     the window is summed up; unknown stays unknown                    tidegate.engine.evidence
    4. proposal     supervisor (should it run at all?), operator, or the policy       engine.policies
    5. disposal     the guards bend or stop the wish, in order, each with its reason  tidegate.engine.guards
    6. decision     status, sentence, trail, command, and now and then a keyframe

`step` is pure: it reads no clock and keeps nothing. Whatever else a decision depends on is in `observed`, which is
recorded inside the decision, so feeding a recording back gives the same bytes. A keyframe carries the state before
the decision and the spec in force; a replay can begin at any of them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from tidegate.engine.case import Case, Policy, Proposal
from tidegate.engine.evidence import gather
from tidegate.engine.guards.limits import Bounds
from tidegate.engine.guards.timing import under_way
from tidegate.engine.history import FAILED, STOPPED, note_order, note_wish, resumed
from tidegate.engine.memory import Recorded, UnreadableMemory, read_memory
from tidegate.engine.plan import Plan
from tidegate.engine.reasons import entry
from tidegate.engine.results import take_results
from tidegate.engine.state import InFlight, JobState, to_wire
from tidegate.engine.window import observe
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Decision, Keyframe, Observed, Status, TrailEntry, decision_id
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import ClusterState, MetricSnapshot

ENGINE_VERSION = "5"
"""Part of every decision's id: raised by each change that can make a decision differ."""

KEYFRAME_EVERY = 100
MAX_FAILURES = 3
"""Starts in a row that came to nothing before a person must look."""

STEADY_SECONDS = 600.0
"""A run that lasted this long ended for a new reason: earlier failures no longer count."""

ALIVE = (ClusterState.RUNNING, ClusterState.STARTING)
DEAD = (ClusterState.STOPPED, ClusterState.FAILED)
HALTS = {Status.STOPPED_STATE_LIMIT: STOPPED, Status.FAILED_STATE_LIMIT: FAILED}


class AlreadyDecided(ValueError):
    """The snapshot is not newer than the last one decided: a duplicate, or late."""


def step(state: JobState, snapshot: MetricSnapshot, plan: Plan, observed: Observed) -> tuple[JobState, Decision]:
    """Decide on one snapshot; return the new state and the decision.

    Raises `AlreadyDecided` when the snapshot's sequence is not above the state's. Nothing is changed then.
    """
    if snapshot.sequence <= state.last_sequence:
        raise AlreadyDecided(f"sequence {snapshot.sequence} of {snapshot.job_id} is not above {state.last_sequence}")
    spec = plan.spec
    before = state
    state = take_results(state, observed)
    state = _turn_to(state, plan)
    state, newest = observe(state, snapshot, plan.policy.window_seconds)
    state, current = _size(state, snapshot)
    state = _count_end(state, snapshot)
    case = Case(
        snapshot=snapshot,
        spec=spec,
        observed=observed,
        state=state,
        evidence=gather(state, snapshot, current),
        current=current,
        measured_at=snapshot.observed_at.timestamp(),
        decided_at=observed.at.timestamp(),
        manual=_asked_for(state, spec, snapshot),
        newest=newest,
    )
    by, proposal = _propose(case, plan.policy)
    if by == plan.policy.name:
        history = note_wish(state.history, proposal.size, current, case.measured_at)
        if history is not state.history:
            case = case._replace(state=state._replace(history=history))
    outcome = _dispose(case, by, proposal, plan)
    return _conclude(before, case, plan.policy, proposal, outcome)


def _turn_to(state: JobState, plan: Plan) -> JobState:
    """Return the state under the spec in force, with the memory as the policy's own type.

    A policy starts without memory after a change of policy or of the engine: what another version remembers may mean
    something else. A new version of the spec resets the failure count.
    """
    spec, memory = plan.spec, state.memory
    if (state.policy, state.engine_version) != (spec.scaling.policy, ENGINE_VERSION):
        memory = Recorded()
    if isinstance(memory, Recorded):
        state = state._replace(policy=spec.scaling.policy, memory=_read(plan.policy.Memory, memory))
    if state.spec_version != spec.version:
        state = state._replace(failures=0, history=resumed(state.history))
    return state


def _read(kind: type, memory: Recorded) -> object:
    """Return a recorded memory as its policy's type; a new one if another version of the policy wrote it."""
    try:
        return read_memory(kind, memory.values)
    except UnreadableMemory:
        return kind()


def _size(state: JobState, snapshot: MetricSnapshot) -> tuple[JobState, int]:
    """Return the present size: what the results say of this run, else what the master has granted it."""
    if snapshot.state in DEAD:
        return state, 0
    if state.parallelism is None and snapshot.state in ALIVE and snapshot.slots_granted:
        state = state._replace(parallelism=snapshot.slots_granted)
    return state, state.parallelism or 0


def _count_end(state: JobState, snapshot: MetricSnapshot) -> JobState:
    """Count an end that nobody ordered, once per run."""
    if snapshot.state not in DEAD or state.incarnation is None:
        return state
    if state.in_flight is not None:
        return state
    lasted = snapshot.observed_at.timestamp() - (state.run_since or 0.0)
    failures = (0 if lasted >= STEADY_SECONDS else state.failures) + 1
    return state._replace(failures=failures, incarnation=None, run_since=None)


def _asked_for(state: JobState, spec: JobSpec, snapshot: MetricSnapshot) -> bool:
    """Whether an operator's request is open."""
    return spec.manual is not None and spec.manual.request_id != state.manual_done and snapshot.state in ALIVE


def _propose(case: Case, policy: Policy[Any]) -> tuple[str, Proposal[Any]]:
    """Return who proposes and what: supervisor, operator or policy."""
    spec, state, cluster = case.spec, case.state, case.snapshot.state
    if not spec.running:
        return "supervisor", Proposal(0, "JOB_STOPPED" if cluster in DEAD else "JOB_TO_STOP")
    if cluster is ClusterState.UNKNOWN:
        return "supervisor", Proposal(case.current, "JOB_STATE_UNKNOWN")
    if cluster in DEAD and state.in_flight is not None:
        return "supervisor", Proposal(0, "JOB_RESTARTING", under_way(state.in_flight, case.decided_at))
    if cluster in DEAD:
        if state.failures >= MAX_FAILURES:
            return "supervisor", Proposal(0, "NEEDS_A_HUMAN", {"failures": state.failures})
        size = state.parallelism or spec.scaling.initial_parallelism or spec.scaling.min_parallelism
        return "supervisor", Proposal(size, "JOB_NOT_RUNNING", {"state": cluster.value, "size": size})
    if case.manual and spec.manual is not None:
        wish = spec.manual
        return "operator", Proposal(wish.parallelism, "MANUAL", {"size": wish.parallelism, "reason": wish.reason})
    if cluster is ClusterState.STARTING:
        return "supervisor", Proposal(case.current, "JOB_STARTING")
    if case.current == 0 or case.evidence.snapshots == 0:
        return "supervisor", Proposal(case.current, "NO_EVIDENCE", {"snapshots": case.evidence.snapshots})
    return policy.name, policy.propose(case, state.memory)


class _Outcome(NamedTuple):
    """What the guards left of a wish."""

    final: int
    trail: tuple[TrailEntry, ...]
    status: Status
    withheld: bool
    waits: bool
    """Whether the wish was only put off."""


def _dispose(case: Case, by: str, proposal: Proposal[Any], plan: Plan) -> _Outcome:
    """Let the forcing guards ask for more, then ask all in order; each sees the wish as the ones before left it."""
    current = case.current
    wish = proposal.size
    trail = [entry(by, proposal.code, current, wish, proposal.numbers)]
    scaling = case.spec.scaling
    if wish == current and current and not scaling.min_parallelism <= current <= scaling.max_parallelism:
        wish = min(max(current, scaling.min_parallelism), scaling.max_parallelism)
        code = "AT_MINIMUM" if wish > current else "AT_MAXIMUM"
        trail.append(entry(Bounds.name, code, current, wish, {"limit": wish}))
    status: Status | None = None
    withheld = waits = False
    for force in plan.forces if by == plan.policy.name else ():
        verdict = force.force(wish, case)
        if verdict is not None:
            trail.append(entry(force.name, verdict.code, wish, verdict.size, verdict.numbers))
            wish, status = verdict.size, verdict.status or status
    direction = wish - current
    for guard in plan.guards:
        if wish == current:
            break
        kind = _kind(current, wish).value
        if kind not in guard.covers or (case.manual and not guard.binds_manual):
            continue
        verdict = guard.dispose(wish, case)
        if verdict is None:
            continue
        trail.append(entry(guard.name, verdict.code, wish, verdict.size, verdict.numbers))
        direction = wish - current
        wish = verdict.size
        status = verdict.status or status
        withheld = withheld or verdict.withhold
        waits = guard.waits if wish == current else waits
    if wish not in (current, 0) and wish < scaling.min_parallelism:
        # I7: what the guards have left of a growth may be less than the spec's minimum. Then nothing is done.
        trail.append(entry(Bounds.name, "MINIMUM_OUT_OF_REACH", wish, current, {"limit": scaling.min_parallelism}))
        wish = current
    if status is None:
        status = _status(case, direction if wish != current or waits else 0)
    return _Outcome(wish, tuple(trail), status, withheld, waits)


def _status(case: Case, direction: int) -> Status:
    """Return the status of a wish in a direction, or of the command still under way."""
    command = case.state.in_flight
    if direction == 0 and command is not None:
        direction = command.to_parallelism - (case.current or case.state.parallelism or 0)
        if direction == 0 and case.current == 0:
            direction = command.to_parallelism  # started again at its size
    if direction == 0:
        return Status.FINE
    return Status.PENDING_SCALE_UP if direction > 0 else Status.PENDING_SCALE_DOWN


def _kind(current: int, size: int) -> CommandKind:
    """Return what it takes to get from one size to another."""
    if current == 0:
        return CommandKind.START
    return CommandKind.STOP if size == 0 else CommandKind.RESCALE


def _conclude(
    before: JobState, case: Case, policy: Policy[Any], proposal: Proposal[Any], outcome: _Outcome
) -> tuple[JobState, Decision]:
    """Return the state after the decision, and the decision."""
    spec, snapshot, observed = case.spec, case.snapshot, case.observed
    identity = decision_id(spec.job_id, snapshot.snapshot_id, spec.version, ENGINE_VERSION)
    sentence = _sentence(case, proposal, outcome)
    command = None
    if outcome.final != case.current and not outcome.withheld:
        command = ScalingCommand(
            command_id=identity,
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            snapshot_id=snapshot.snapshot_id,
            spec_version=spec.version,
            kind=_kind(case.current, outcome.final),
            from_parallelism=case.current,
            to_parallelism=outcome.final,
            epoch=snapshot.sequence,
            issued_at=observed.at,
            expires_at=observed.at + timedelta(seconds=spec.scaling.command_ttl_seconds),
            reason=sentence,
            manual=case.manual,
        )
    keyframe = None
    turned = (before.engine_version, before.spec_version) != (ENGINE_VERSION, spec.version)
    if turned or before.decisions % KEYFRAME_EVERY == 0:
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
        sentence=sentence,
        trail=outcome.trail,
        evidence=case.evidence,
        expectation=proposal.expectation if outcome.final == proposal.size else None,
        command=command,
        observed=observed,
        keyframe=keyframe,
    )
    return _after(case, policy, proposal, outcome, command), decision


def _after(
    case: Case, policy: Policy[Any], proposal: Proposal[Any], outcome: _Outcome, command: ScalingCommand | None
) -> JobState:
    """Return the state to remember."""
    state = case.state
    memory = state.memory if proposal.memory is None else proposal.memory
    in_flight, last_action_at, manual_done = state.in_flight, state.last_action_at, state.manual_done
    history = state.history
    if command is not None:
        in_flight = InFlight(
            command.command_id,
            command.kind.value,
            command.to_parallelism,
            case.decided_at,
            command.expires_at.timestamp(),
        )
        if command.kind is CommandKind.RESCALE:
            last_action_at = case.decided_at
            rate = case.evidence.true_processing_rate
            history = note_order(history, case.decided_at, case.current, outcome.final, rate)
            if not case.manual:
                memory = policy.ordered(case, memory, proposal, outcome.final)
        elif command.kind is CommandKind.STOP and outcome.status in HALTS:
            history = replace(history, halt=HALTS[outcome.status])
    if case.manual and case.spec.manual is not None and (command is not None or not outcome.waits):
        manual_done = case.spec.manual.request_id
    return state._replace(
        decisions=state.decisions + 1,
        last_sequence=case.snapshot.sequence,
        engine_version=ENGINE_VERSION,
        spec_version=case.spec.version,
        memory=memory,
        history=history,
        in_flight=in_flight,
        last_action_at=last_action_at,
        manual_done=manual_done,
    )


def _sentence(case: Case, proposal: Proposal[Any], outcome: _Outcome) -> str:
    """Return the whole decision in one plain sentence."""
    current, final = case.current, outcome.final
    if final == current:
        stopped = "Wait" if proposal.code == "JOB_RESTARTING" else "Stay stopped"
        head = f"Stay at {_slots(current)}" if current else stopped
        if proposal.size not in (current, 0):
            head += f" although {proposal.size} {'is' if proposal.size == 1 else 'are'} wanted"
    elif current == 0:
        head = f"Start with {_slots(final)}"
    elif final == 0:
        head = "Stop the job"
    else:
        head = f"Scale {'up' if final > current else 'down'} from {current} to {_slots(final)}"
    return head + ": " + "; but ".join([step.sentence for step in outcome.trail]) + "."


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"
