"""Properties of the policies: bounds, more lag never asks for less, unknown values never scale down, the same bytes.

`flip271` is held to them too where its rule promises them. Where a rule does not promise a property it stands in a
table here, with the reason, and a test shows that the reason is true.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cases import case, decide, evidence, propose
from tests.support.engine import OURS, check_spec
from tests.support.events import job, snapshot, steady
from tidegate.engine.case import Proposal
from tidegate.engine.decide import KEYFRAME_EVERY
from tidegate.engine.reasons import explained
from tidegate.engine.state import from_wire, to_wire
from tidegate.events.decision import Decision, Evidence
from tidegate.events.envelope import decode, value_of
from tidegate.events.snapshot import Part
from tidegate.installed import engine
from tidegate.policies import numaflow_rules as rules
from tidegate.policies.threshold import ThresholdMemory

NAMES = [p.name for p in OURS if p.name not in {"flip271", "tide"}]
"""The policies that judge by one case; flip271 and tide look at a whole window and have tests of their own."""

NOT_MONOTONE = {
    "learning": "it does what it learned, and may have learned otherwise",
    "hpa": "utilization alone does not see lag; with a lag target it is (see LAG_OPTIONS)",
    "threshold": "batch time does not see lag; with `lag_up_seconds` it is",
    "numaflow": "a size beyond 32 bits overflows and becomes 1; with `fix_pending_overflow` it is",
}
LAG_OPTIONS: dict[str, dict[str, Any]] = {
    "hpa": {"target_lag_records_per_slot": 1000},
    "threshold": {"lag_up_seconds": 30.0},
    "numaflow": {"fix_pending_overflow": True},
}
"""Options with which more lag never asks such a policy for less."""

PRESENT = {"threshold": ThresholdMemory(looked_at=0.0)}
"""Memory with which a policy judges at once."""

rates = st.floats(0.0, 1e6)
lags = st.integers(0, 10**9)
sizes = st.integers(1, 40)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Draw the evidence of any job; every figure may be unknown."""
    figures: dict[str, Any] = {
        "arrival_rate": draw(st.none() | rates),
        "processing_rate": draw(st.none() | rates),
        "true_processing_rate": draw(st.none() | st.floats(1e-3, 1e6)),
        "utilization": draw(st.none() | st.floats(0.0, 1.0)),
        "lag_records": draw(st.none() | lags),
        "lag_trend": draw(st.none() | st.floats(-1e6, 1e6)),
        "batch_seconds": draw(st.none() | st.floats(1e-3, 1e4)),
        "slots_granted": draw(st.none() | sizes),
    }
    return evidence(**figures)


def ask(name: str, seen: Evidence, current: int, *, low: int = 1, high: int = 40, **options: Any) -> Proposal[Any]:
    """Return what a policy proposes for a case of that evidence."""
    spec = job(min_parallelism=low, max_parallelism=high)
    shot = snapshot(
        0,
        arrived=None if seen.lag_records is None else 1_000_000 + seen.lag_records,
        committed=1_000_000,
        partitions=64,
        slots=seen.slots_granted,
    )
    return propose(name, case(seen, spec=spec, current=current, shot=shot), PRESENT.get(name), **options)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(seen=evidences(), current=sizes, low=st.integers(1, 20), more=st.integers(0, 20))
def test_a_size_stays_within_the_bounds(name: str, seen: Evidence, current: int, low: int, more: int) -> None:
    """Whatever the evidence, the size is the current one or within the bounds, and its explanation can be written."""
    proposal = ask(name, seen, current, low=low, high=low + more)
    assert proposal.size == current or low <= proposal.size <= low + more
    said = explained(engine().reasons, name, proposal.code, current, proposal.size, proposal.numbers)
    assert "?" not in said.sentence or None in proposal.numbers.values()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_MONOTONE or name in LAG_OPTIONS])
@settings(max_examples=60)
@given(seen=evidences(), current=sizes, lag=lags, more=lags)
def test_more_lag_never_asks_for_less(name: str, seen: Evidence, current: int, lag: int, more: int) -> None:
    """Of two cases that differ only in their lag, the one with more gets at least the size of the other."""
    figures = {field: getattr(seen, field) for field in Evidence.__dataclass_fields__}
    del figures["lag_seconds"]
    options = LAG_OPTIONS.get(name, {})
    less = ask(name, evidence(**(figures | {"lag_records": lag})), current, **options)
    most = ask(name, evidence(**(figures | {"lag_records": lag + more})), current, **options)
    assert most.size >= less.size, (less, most)


def test_what_is_not_promised_is_not_so() -> None:
    """Numaflow's buffer rule asks for less once it switches from time to buffer, and at the full buffer again."""
    desired = partial(
        rules.desired_replicas,
        [100.0],
        target_processing_seconds=20,
        ready_replicas=4,
        source=False,
        buffer_length=30_000,
        buffer_length_limit=24_000,
        target_available_length=15_000,
        replicas=4,
        replicas_per_scale_up=2,
        wrap_pending=True,
    )
    by_time, by_buffer, nearly_full, full = (desired([lag]) for lag in (15_000, 15_001, 23_999, 24_000))
    assert (by_time, by_buffer) == (30, 7)
    assert nearly_full > full == 6


@pytest.mark.parametrize(("options", "want"), [({}, 33), (LAG_OPTIONS["numaflow"], 37)])
def test_numaflow_asks_for_less_where_its_size_overflows(options: dict[str, Any], want: int) -> None:
    """71,582,789 records at 0.06/s ask for more than 2^31 slots: one step down, or one step up with the fix."""
    seen = evidence(lag_records=71_582_789, processing_rate=0.0625, slots_granted=None)
    assert ask("numaflow", seen, 35, **options).size == want


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(seen=evidences(), current=sizes, lost=st.sampled_from(["lag_records", "utilization", "rates"]))
def test_the_unknown_never_scales_down(name: str, seen: Evidence, current: int, lost: str) -> None:
    """A policy without a value it needs keeps the size or scales up, whatever the other values say."""
    needs = {
        "lag_records": set(NAMES) - {"hpa", "threshold"},
        "utilization": {"hpa", "varga", "threshold", "learning"},
        "rates": {"pid", "queueing", "forecast", "cost"},
    }
    if name not in needs[lost]:
        return
    names = ("arrival_rate", "true_processing_rate") if lost == "rates" else (lost,)
    figures = {field: getattr(seen, field) for field in Evidence.__dataclass_fields__} | dict.fromkeys(names)
    del figures["lag_seconds"]
    blind = evidence(**figures)
    proposal = ask(name, blind, current)
    if name == "numaflow":
        blind_window = case(blind, current=current, window=())
        proposal = propose(name, blind_window)
    assert proposal.size >= current


@pytest.mark.parametrize("name", [p.name for p in OURS])
@pytest.mark.parametrize("part", [Part.END_OFFSETS, Part.COMMITTED_OFFSETS, Part.PROGRESS])
def test_a_missing_part_never_scales_down(name: str, part: Part) -> None:
    """A job that looks idle in forty snapshots with a missing part keeps its size (I12)."""
    known = None if part is Part.END_OFFSETS else 1000
    done = None if part is Part.COMMITTED_OFFSETS else 1000
    shots = [snapshot(n, arrived=known, committed=done, missing=[part]) for n in range(40)]
    spec = job(policy=name, policy_options={})
    state = None
    for shot in shots:
        state, decision = decide(spec, [shot], state=state)
        assert decision.command is None
        assert decision.final_parallelism == 4


@pytest.mark.parametrize("name", [p.name for p in OURS])
def test_the_state_stays_small(name: str) -> None:
    """After hours of a busy job with 50 partitions the whole state is at most 4 kB of JSON."""
    spec = job(policy=name, policy_options={"exclude_persistent_lag": True} if name == "keda" else {})
    assert check_spec(spec) == []
    state = None
    for shot in steady(400, rate=123_456, capacity=100_000, partitions=50, lag=5_000_000):
        state, _ = decide(spec, [shot], state=state)
    assert state is not None
    assert len(json.dumps(to_wire(state), separators=(",", ":"))) <= 4096


@pytest.mark.parametrize("name", [p.name for p in OURS])
def test_a_replay_from_a_keyframe_decides_the_same(name: str) -> None:
    """The memory of policies and guards survives the wire: from a keyframe on, the same decisions follow."""
    spec = job(policy=name, policy_options={}, guards={})
    shots = steady(KEYFRAME_EVERY + 60, rate=800, capacity=400, lag=100)
    state, decisions = None, []
    for shot in shots:
        state, decision = decide(spec, [shot], state=state)
        decisions.append(decision)
    frame = decode(Decision, value_of(decisions[KEYFRAME_EVERY])).keyframe
    assert frame is not None
    state = from_wire(frame.state)
    for shot, before in zip(shots[KEYFRAME_EVERY:], decisions[KEYFRAME_EVERY:], strict=True):
        state, again = decide(frame.spec, [shot], state=state)
        assert value_of(again) == value_of(before)


DIGEST = """
import hashlib
from tests.support.engine import OURS
from tidegate.events.envelope import value_of
from tests.support.cases import decide
from tests.support.events import job, steady
digest = hashlib.sha256()
for policy in OURS:
    state, spec = None, job(policy=policy.name, policy_options={})
    for rate, first in ((300, 0), (800, 40), (40, 80)):
        for shot in steady(40, rate=rate, capacity=400, first=first, lag=7 * first):
            state, decision = decide(spec, [shot], state=state)
            digest.update(value_of(decision))
print(digest.hexdigest())
"""


def test_all_processes_decide_the_same() -> None:
    """Every process writes the same bytes, whatever its hash seed."""
    root = Path(__file__).resolve().parent.parent.parent
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=root,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
