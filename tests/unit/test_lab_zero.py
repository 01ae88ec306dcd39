"""Scaling to zero on the twin: a silent job gives its slots back, and its first records wait for a start only."""

from __future__ import annotations

import pytest

from tidegate.events.command import CommandKind
from tidegate.events.decision import Status
from tidegate.events.result import Phase
from tidegate.lab.simulate import JobRecording, simulate
from tidegate.lab.zero import first_ages, scenario, zero_score
from tidegate.twin.load import Load
from tidegate.twin.world import Truth


def tick(at: float, arrived: float, lag: int) -> Truth:
    """Return the truth of one moment."""
    return Truth(
        at=at,
        arrived=arrived,
        lag_records=lag,
        slots=1,
        running=True,
        core_seconds=at,
        state_bytes=0.0,
        age_seconds=0.0,
    )


def test_the_age_of_first_records() -> None:
    """From the last tick without a record of the burst to the first at which one is committed."""
    ticks = [tick(0, 500, 0), tick(10, 900, 390), tick(20, 2000, 1490), tick(30, 2000, 900), tick(40, 2000, 0)]
    assert first_ages([*ticks, tick(50, 2100, 0), tick(60, 2100, 0)]) == [30.0, 10.0]


def played(least: int, policy: str = "tide") -> JobRecording:
    """Return an hour: five minutes of records, fifty of silence, five of records."""
    load = Load([600.0] * 60 + [0.0] * 600 + [600.0] * 60, 5.0)
    return next(iter(simulate(scenario(load, least=least, policy=policy)).values()))


@pytest.mark.parametrize("policy", ["tide", "threshold"])
def test_a_silence_costs_few_slots_and_the_first_records_a_start(policy: str) -> None:
    """The job is stopped once and started once, and nothing is left behind."""
    kept, zero = played(1, policy), played(0, policy)
    kinds = [command.kind for command in zero.commands if command.kind is not CommandKind.RESCALE]
    assert kinds == [CommandKind.STOP, CommandKind.START]
    assert {r.phase for r in zero.results if r.kind is not CommandKind.RESCALE and r.phase.terminal} == {Phase.VERIFIED}
    scores = zero_score(kept), zero_score(zero)
    assert scores[1].slot_hours < 0.8 * scores[0].slot_hours
    assert scores[0].longest_age < scores[1].longest_age < 90.0
    assert zero.ticks[-1].lag_records < 600 * 30
    asleep = [d for d in zero.decisions if d.trail[0].code == "SCALED_TO_ZERO"]
    assert len(asleep) > 100
    assert {d.status for d in asleep} == {Status.FINE}
