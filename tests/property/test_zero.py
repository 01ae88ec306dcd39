"""A job that may be scaled to zero, in any order of arrivals, gaps in the measurement, and failing commands."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_engine_zero import QUICK, Stage, sleeper
from tidegate.engine.supervisor import MAX_FAILURES
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, Part

MISSING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "end offsets": {"arrived": None, "missing": (Part.END_OFFSETS,)},
    "committed offsets": {"committed": None, "missing": (Part.COMMITTED_OFFSETS,)},
    "state": {"state": ClusterState.UNKNOWN, "missing": (Part.JOB_STATE,)},
}
EVENTS = st.tuples(
    st.sampled_from(["silence"] * 8 + ["records"]),
    st.sampled_from(["nothing"] * 6 + sorted(MISSING)),
    st.sampled_from([Phase.VERIFIED] * 4 + [Phase.FAILED, Phase.REJECTED, None]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS, min_size=20, max_size=70))
def test_no_record_is_forgotten_and_none_is_abandoned(script: list[tuple[str, str, Phase | None]]) -> None:
    """A job is stopped only when nothing waits and all is known, and started only while it does not run.

    In the end it works on what waits, unless three starts in a row have failed.
    """
    stage = Stage(sleeper(guards=QUICK | {"silence": {"after_seconds": 30}}))
    ordered: ScalingCommand | None = None
    for arrival, missing, ending in script:
        if ordered is not None and ending is not None:
            stage.carry_out(ordered, ending)
            ordered = None
        stage.arrived += 7 if arrival == "records" else 0
        if stage.life is ClusterState.RUNNING and arrival == "silence":
            stage.committed = stage.arrived
        waiting = stage.arrived - stage.committed
        command = stage.tick(**MISSING[missing]).command
        if command is None:
            continue
        assert stage.state.in_flight is not None
        assert ordered is None or ordered.expires_at < command.issued_at
        if command.kind is CommandKind.STOP:
            assert (stage.life, waiting, missing) == (ClusterState.RUNNING, 0, "nothing")
        else:
            assert (command.kind, stage.life) == (CommandKind.START, ClusterState.STOPPED)
        ordered = command
    stage.arrived += 1
    for _ in range(20):  # longer than a lost command is waited for
        command = stage.tick().command
        if command is not None:
            stage.carry_out(command)
    assert stage.life is ClusterState.RUNNING or stage.state.failures >= MAX_FAILURES
