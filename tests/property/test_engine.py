"""What must hold of step() whatever comes in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.engine import step
from tests.support.events import START, batch, job, observed, snapshot, steady
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.events.decision import Decision, Observed, RedisView
from tidegate.events.envelope import decode, encode, value_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    MicroBatch,
    Part,
    RunningBatch,
    StageTasks,
    StateOperator,
)
from tidegate.events.wire import LONGEST_SECONDS, SHORTEST_SECONDS
from tidegate.installed import engine
from tidegate.policies.flip271_rules import round_metric

offsets = st.one_of(st.none(), st.integers(0, 10**12))


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[MetricSnapshot, Observed]]:
    """Any stream of snapshots the contract allows: gaps, resets, unknowns, restarts, odd batches."""
    pairs = []
    number = 0
    for _ in range(draw(st.integers(1, 25))):
        number += draw(st.integers(1, 4))
        state = draw(st.sampled_from(list(ClusterState)))
        batches = [
            batch(number, draw(st.integers(0, 50)), draw(st.integers(0, 10**6)), draw(st.floats(0, 100)))
            for _ in range(draw(st.integers(0, 3)))
        ]
        shot = snapshot(
            number,
            arrived=draw(offsets),
            committed=draw(offsets),
            partitions=draw(st.sampled_from([1, 8, 9])),
            slots=draw(st.one_of(st.none(), st.integers(0, 32))),
            free=draw(st.one_of(st.none(), st.integers(0, 32))),
            batches=batches,
            missing=draw(st.lists(st.sampled_from(list(Part)), unique=True, max_size=3)),
            state=state,
            incarnation=draw(st.sampled_from([None, "app-1", "app-2"])),
        )
        view = observed(shot, redis=draw(st.sampled_from(list(RedisView))), pool_reserved=draw(st.integers(0, 8)))
        pairs.append((shot, view))
    return pairs


LARGEST = 2**63 - 1
counts = st.sampled_from([0, 1, 7, 10**6, 10**12, LARGEST])
totals = st.sampled_from([0, 1, 7, 10**6, 10**12, 10**15])
times = st.sampled_from([0.0, 5e-324, SHORTEST_SECONDS, 1e-3, 0.5, 60.0, 1e5, LONGEST_SECONDS])
ages = st.sampled_from([0.0, 1e-6, 5.0, 60.0, 1e6])


@st.composite
def extremes(draw: st.DrawFn) -> list[MetricSnapshot]:
    """Snapshots that the contract allows, although nothing honest measures such figures, among ordinary ones."""
    shots, number, arrived = [], 0, 0
    for _ in range(draw(st.integers(1, 12))):
        number += draw(st.integers(1, 3))
        arrived += draw(totals)
        at = START + timedelta(seconds=10 * number)
        running = [
            RunningBatch(
                batch_id=number,
                started_at=at - timedelta(seconds=draw(ages)),
                tasks=draw(counts),
                tasks_finished=draw(counts),
                busy_seconds=draw(times),
                read_tasks=draw(counts),
                read_tasks_finished=draw(counts),
                records_read=draw(counts),
                read_seconds=draw(times),
                slowest_read_seconds=draw(times),
            )
            for _ in range(draw(st.integers(0, 1)))
        ]
        batches = [
            MicroBatch(
                batch_id=draw(st.integers(0, 50)),
                started_at=at - timedelta(seconds=draw(ages)),
                duration_seconds=draw(times),
                add_batch_seconds=draw(st.one_of(st.none(), times)),
                input_records=draw(counts),
                output_records=draw(st.one_of(st.none(), counts)),
            )
            for _ in range(draw(st.integers(0, 2)))
        ]
        stages = [
            StageTasks(
                name="stage",
                tasks=draw(st.sampled_from([1, 8, LARGEST])),
                runs=draw(st.sampled_from([1, LARGEST])),
                busy_seconds=draw(times),
                median_task_seconds=draw(times),
                slowest_task_seconds=draw(times),
                slowest_task_place=draw(st.one_of(st.none(), counts)),
            )
            for _ in range(draw(st.integers(0, 2)))
        ]
        state = StateOperator(name="s", rows=draw(counts), memory_bytes=draw(counts), partitions=8)
        shots.append(
            snapshot(
                number,
                arrived=arrived,
                committed=draw(st.sampled_from([0, arrived // 2, arrived, 10**15])),
                slots=draw(st.sampled_from([None, 0, 4, 500_000])),
                free=draw(st.sampled_from([None, 0, 8, 500_000])),
                batches=batches,
                running=tuple(running) or None,
                stages=tuple(stages),
                state_operators=(state,),
            )
        )
    return shots


@settings(max_examples=300, deadline=None)
@given(extremes(), st.sampled_from(sorted(engine().policies)))
def test_no_figure_that_the_contract_allows_ends_the_engine(shots: list[MetricSnapshot], policy: str) -> None:
    """Each of them gets a decision, which can be written and read, and so can the state."""
    spec = job(policy=policy, policy_options={}, min_parallelism=int(policy != "tide"), max_parallelism=1000)
    state, decisions = decide(spec, [(shot, observed(shot)) for shot in shots])
    assert len(decisions) == len(shots)
    from_wire(json.loads(json.dumps(to_wire(state), allow_nan=False)))
    for decision in decisions:
        json.dumps(json.loads(encode(decision).value), allow_nan=False)


def decide(spec: JobSpec, pairs: list[tuple[MetricSnapshot, Observed]]) -> tuple[JobState, list[Decision]]:
    """Return the state and decisions after a stream."""
    state, decisions = JobState.new(), []
    for shot, view in pairs:
        state, decision = step(state, shot, spec, view)
        decisions.append(decision)
    return state, decisions


@settings(max_examples=150)
@given(streams(), st.integers(1, 8), st.integers(0, 8))
def test_a_command_is_always_within_bounds(pairs: list[tuple[MetricSnapshot, Observed]], low: int, more: int) -> None:
    """Whatever is measured, a command's size lies between minimum and maximum (I7), and only with Redis answering."""
    spec = job(min_parallelism=low, max_parallelism=low + more)
    for decision in decide(spec, pairs)[1]:
        if decision.command is not None:
            assert low <= decision.command.to_parallelism <= low + more
            assert decision.command.from_parallelism != decision.command.to_parallelism
            assert decision.observed.redis is RedisView.OK


def test_a_pool_too_small_for_the_minimum_changes_nothing() -> None:
    """A job below its minimum never gets a size that is still below it: every ordered size is within bounds (I7)."""
    shots = [snapshot(n, arrived=1000, committed=1000, slots=1, free=1) for n in range(3)]
    decisions = decide(job(min_parallelism=3, max_parallelism=8), [(s, observed(s)) for s in shots])[1]
    assert [d.command for d in decisions] == [None] * 3
    assert [e.code for e in decisions[-1].trail][-2:] == ["POOL_EXHAUSTED", "MINIMUM_OUT_OF_REACH"]


@settings(max_examples=100)
@given(streams())
def test_every_decision_survives_the_wire_and_the_state_too(pairs: list[tuple[MetricSnapshot, Observed]]) -> None:
    """No input makes a decision or a state that JSON cannot carry exactly: no NaN, no infinity."""
    state, decisions = decide(job(), pairs)
    for decision in decisions:
        assert decode(Decision, value_of(decision)) == decision
    wire = json.loads(json.dumps(to_wire(state), allow_nan=False))
    assert to_wire(from_wire(wire)) == wire


@settings(max_examples=60)
@given(streams(), st.integers(0, 24))
def test_a_replay_may_stop_and_go_on_anywhere(pairs: list[tuple[MetricSnapshot, Observed]], cut: int) -> None:
    """Continuing from a state on the wire gives the same bytes as never having stopped."""
    spec = job()
    whole = [value_of(d) for d in decide(spec, pairs)[1]]
    state, first = decide(spec, pairs[:cut])
    state = from_wire(json.loads(json.dumps(to_wire(state))))
    rest = []
    for shot, view in pairs[cut:]:
        state, decision = step(state, shot, spec, view)
        rest.append(decision)
    assert [value_of(d) for d in [*first, *rest]] == whole


@settings(max_examples=80)
@given(
    st.integers(1, 5000),
    st.integers(100, 5000),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from([7, 8, 64, 99]),
)
def test_more_lag_never_asks_for_less(rate: int, capacity: int, lag: int, more: int, partitions: int) -> None:
    """Of two jobs that differ only in their lag, the one with more lag never gets the smaller size.

    The lag is that of the newest snapshot. What has been worked off before shows in other figures: how busy it was.
    """
    spec = job()
    worked_off = 7 * 10 * max(0, capacity - rate)

    def wanted(behind: int) -> int:
        shots = steady(7, rate=rate, capacity=capacity, lag=worked_off + behind, partitions=partitions)
        return decide(spec, [(s, observed(s)) for s in shots])[1][-1].proposed_parallelism

    assert wanted(lag + more) >= wanted(lag)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([Part.END_OFFSETS, Part.COMMITTED_OFFSETS, Part.PROGRESS]), min_size=1, unique=True),
    st.integers(1, 500),
)
def test_missing_figures_never_scale_down(missing: list[Part], rate: int) -> None:
    """A job that would be scaled down keeps its size when any needed figure is missing (I12)."""
    shots = []
    for shot in steady(30, rate=rate, capacity=100_000, slots=12):
        change: dict[str, Any] = {"missing": tuple(missing)}
        if Part.PROGRESS in missing:
            change["batches"] = ()
        if Part.END_OFFSETS in missing or Part.COMMITTED_OFFSETS in missing:
            change["sources"] = ()
        shots.append(shot.model_copy(update=change))
    for decision in decide(job(), [(s, observed(s)) for s in shots])[1]:
        assert decision.final_parallelism >= decision.current_parallelism


@given(st.one_of(st.floats(0, 1e12), st.integers(0, 10**9).map(lambda n: n / 10_000)))
def test_metrics_are_rounded_as_decimals(value: float) -> None:
    """The quick rounding of metrics is that of the decimal form, half up, for every number."""
    slow = float(Decimal(repr(value)).quantize(Decimal("0.001"), ROUND_HALF_UP))
    assert round_metric(value) == (slow or value)


PROGRAM = """
from hashlib import sha256
from tests.support.engine import step
from tidegate.engine.state import JobState
from tidegate.events.envelope import value_of
from tests.support.events import job, observed, steady
state, digest = JobState.new(), sha256()
for shot in steady(120, rate=811, capacity=790):
    state, decision = step(state, shot, job(), observed(shot))
    digest.update(value_of(decision))
print(digest.hexdigest())
"""


def test_decisions_do_not_depend_on_the_process() -> None:
    """Other processes with other hash seeds give the same bytes."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1
