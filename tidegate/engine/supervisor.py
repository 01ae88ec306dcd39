"""The supervisor decides before any policy is asked: should the job run, does it run, can it be judged?

`LADDER` is all of it. It is read from top to bottom, and the first rung that fits proposes a size: the cluster must say
one of the rung's states, and its condition must hold. The policy is asked only if no rung fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.guards.timing import under_way
from tidegate.engine.reasons import Reason
from tidegate.engine.upgrade import UPGRADE, is_due
from tidegate.engine.zero import ZERO_REASONS, is_at_zero
from tidegate.events.decision import Figure
from tidegate.events.snapshot import ALIVE, DEAD, ClusterState

MAX_FAILURES: Final = 3
"""After this many failed starts in a row a person has to look."""

SUPERVISOR_REASONS: Mapping[str, Reason] = {
    "JOB_STOPPED": Reason("the job is stopped, as its spec says"),
    "JOB_TO_STOP": Reason("the spec says that the job should not run"),
    "JOB_STATE_UNKNOWN": Reason(
        "the cluster did not say whether the job is running",
        "the collector's log names what it cannot read: the cluster (the Spark master on its web port, the Kubernetes "
        "API server, or YARN), or the job's event_log_dir",
    ),
    "JOB_RESTARTING": Reason(
        "the job is changing to {to} slots, ordered {age_seconds:.0f} s ago ({phase}), so there is nothing to measure"
    ),
    "NEEDS_A_HUMAN": Reason(
        "the job ended {failures} times in a row and committed no batch in between, so it is not started again",
        "read the driver's log and fix the cause, then run `tidegate resume JOB` or apply a new version of the spec",
    ),
    "JOB_NOT_RUNNING": Reason("the job should be running and is {state}, so it starts with {size} slots"),
    **ZERO_REASONS,
    "MANUAL": Reason("an operator asked for {size} slots: {reason}"),
    UPGRADE: Reason("the spec names another application (script, settings or executors) than the one that runs"),
    "JOB_STARTING": Reason("the job is starting, and there is nothing to measure yet"),
    "SIZE_UNKNOWN": Reason(
        "the job is running, but its cluster has not said yet on how many slots",
        "check the collector's log for the source that does not answer",
    ),
    "NO_EVIDENCE": Reason("there are too few measurements to judge the job yet ({snapshots} snapshots)"),
}


class Rung(NamedTuple):
    """One rung: when it fits, the size it proposes, and the values that explain it."""

    code: str
    states: Collection[ClusterState]
    when: Callable[[Case], bool]
    size: Callable[[Case], int]
    values: Callable[[Case], Mapping[str, Figure]] = lambda _: {}
    by: str = "supervisor"


def _always(_: Case) -> bool:
    return True


def _unwanted(case: Case) -> bool:
    return not case.spec.running


def _nothing(_: Case) -> int:
    return 0


def _current(case: Case) -> int:
    return case.current


def _start_size(case: Case) -> int:
    return case.state.parallelism or case.spec.scaling.initial_parallelism or case.spec.smallest_size


def _asked(case: Case) -> bool:
    return case.manual is not None


def _asked_size(case: Case) -> int:
    return case.manual.parallelism if case.manual is not None else case.current


def _request(case: Case) -> Mapping[str, Figure]:
    return {"size": case.manual.parallelism, "reason": case.manual.reason} if case.manual is not None else {}


def _command(case: Case) -> Mapping[str, Figure]:
    command = case.state.in_flight
    return under_way(command, case.decided_at) if command is not None else {}


LADDER: tuple[Rung, ...] = (
    # The job should not run.
    Rung("JOB_STOPPED", DEAD, _unwanted, _nothing),
    Rung("JOB_TO_STOP", tuple(ClusterState), _unwanted, _nothing),
    # It should run, and it does not, or nobody knows.
    Rung("JOB_STATE_UNKNOWN", (ClusterState.UNKNOWN,), _always, _current),
    Rung("JOB_RESTARTING", DEAD, lambda case: case.state.in_flight is not None, _nothing, _command),
    Rung(
        "NEEDS_A_HUMAN",
        DEAD,
        lambda case: case.state.failures >= MAX_FAILURES,
        _nothing,
        lambda case: {"failures": case.state.failures},
    ),
    # It was scaled to zero. Without a request, `tidegate.engine.zero` or the policy says when it starts.
    Rung("MANUAL", DEAD, _asked, _asked_size, _request, by="operator"),
    Rung(
        "JOB_NOT_RUNNING",
        DEAD,
        lambda case: not is_at_zero(case.state),
        _start_size,
        lambda case: {"state": case.snapshot.state.value, "size": _start_size(case)},
    ),
    # It runs. An operator's request comes before the policy.
    Rung("JUST_STOPPED", ALIVE, lambda case: is_at_zero(case.state) and case.state.in_flight is None, _current),
    Rung("MANUAL", ALIVE, _asked, _asked_size, _request, by="operator"),
    Rung(UPGRADE, (ClusterState.RUNNING,), is_due, _current),
    # It runs, and there is nothing to judge it by.
    Rung("JOB_STARTING", (ClusterState.STARTING,), _always, _current),
    Rung("SIZE_UNKNOWN", (ClusterState.RUNNING,), lambda case: case.current == 0, _current),
    Rung(
        "NO_EVIDENCE",
        (ClusterState.RUNNING,),
        lambda case: case.evidence.snapshots == 0,
        _current,
        lambda case: {"snapshots": case.evidence.snapshots},
    ),
)

_BY_STATE = {state: tuple(rung for rung in LADDER if state in rung.states) for state in ClusterState}


def supervise(case: Case) -> tuple[str, Proposal[Any]] | None:
    """Return who proposes and what, or None if it is the policy's turn, or the job is scaled to zero."""
    for rung in _BY_STATE[case.snapshot.state]:
        if rung.when(case):
            return rung.by, Proposal(rung.size(case), rung.code, rung.values(case))
    return None
