"""Properties of `tide` over cases from the lab: whatever it has learned, more lag never leads to a smaller size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest

from tests.support.engine import step
from tests.support.events import with_application
from tidegate.engine.case import Case, Proposal
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.policy import Tide
from tidegate.events.decision import Observed
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.way import Way
from tidegate.lab.jobs import lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.simulate import Scenario, simulate
from tidegate.twin.workloads import SHAPES

SECONDS = 5400.0
EACH = 6
"""One case in this many is tested."""
LAGS = (0, *(int(50 * 1.3**step) for step in range(36)))
"""From nothing to half a million records, which takes the lab's job at least two minutes."""


def cases_of(workload: str, way: Way) -> list[tuple[Tide, Case, TideMemory]]:
    """Return cases of a simulated run whose size changes in one way, each with the policy and its memory."""
    found: list[tuple[Tide, Case, TideMemory]] = []
    propose = Tide.propose

    def noted(policy: Tide, case: Case, memory: TideMemory) -> Proposal[TideMemory]:
        if case.state.decisions % EACH == 0:
            found.append((policy, case, memory))
        return propose(policy, case, memory)

    load = SHAPES[workload](lab_peak(lab_model(), spec_for(lab_model())), SECONDS)
    with patch.object(Tide, "propose", noted):
        simulate(by_way(lab_job(load), way))
    return found


def by_way(scenario: Scenario, way: Way) -> Scenario:
    """Return a scenario under `tide` whose job may be changed in one way only."""
    (spec,) = scenario.with_policy("tide", {}, {}).specs
    return replace(scenario, specs=(with_application(spec, rescale=(way,)),))


def steps_of(workload: str) -> list[tuple[MetricSnapshot, JobSpec, Observed]]:
    """Return the snapshots of a simulated run, each with the spec and what else its decision depended on."""
    load = SHAPES[workload](lab_peak(lab_model(), spec_for(lab_model())), SECONDS)
    scenario = lab_job(load).with_policy("tide", {}, {})
    (recording,) = simulate(scenario, keep_snapshots=True).values()
    pairs = zip(recording.snapshots, recording.decisions, strict=True)
    return [(snapshot, scenario.specs[0], decision.observed) for snapshot, decision in pairs]


def sizes(policy: Tide, case: Case, memory: TideMemory) -> Iterator[tuple[int, int]]:
    """Yield (lag, proposed size) for the case with more and more lag, everything else being equal."""
    for lag in LAGS:
        seen = replace(case.evidence, lag_records=lag)
        yield lag, policy.propose(case._replace(evidence=seen), memory).size


@pytest.mark.parametrize("way", [Way.IN_PLACE, Way.RESTART])
@pytest.mark.parametrize(
    "workload", ["step", "spike", "diurnal", "outage", "noise", "decay", "flash_crowd", "sawtooth"]
)
def test_more_lag_never_leads_to_a_smaller_size(workload: str, way: Way) -> None:
    """In every case of a run the proposed size rises with the lag or stays the same."""
    found = cases_of(workload, way)
    assert len(found) > 40
    asked: set[int] = set()
    for policy, case, memory in found:
        steps = list(sizes(policy, case, memory))
        falls = [(a, b) for a, b in pairwise(steps) if b[1] < a[1]]
        assert not falls, (case.state.decisions, case.current, falls)
        asked.update(size for _, size in steps)
    assert len(asked) > 3, "the lag must have made a difference"


@pytest.mark.parametrize("workload", ["outage", "flash_crowd", "sawtooth"])
def test_a_memory_read_from_the_wire_decides_the_same(workload: str) -> None:
    """With the state written as JSON and read back at every step, the decisions are the same, byte for byte."""
    live, steps = JobState.new(), steps_of(workload)
    written = from_wire(to_wire(live))
    for snapshot, spec, observed in steps:
        live, decision = step(live, snapshot, spec, observed)
        written, again = step(from_wire(json.loads(json.dumps(to_wire(written)))), snapshot, spec, observed)
        assert value_of(again) == value_of(decision)
    assert live.changes.costs, "the run must have had changes"
