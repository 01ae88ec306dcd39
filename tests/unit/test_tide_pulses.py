"""tide: arrivals in pulses, as from another micro-batch job, count by the mean of a whole cycle."""

from __future__ import annotations

import math
import random

import pytest

from tests.support.plant import Plant
from tidegate.engine.state import Slice
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.pulses import MIN_CYCLES, NO_PULSES, Pulses, newest_rate
from tidegate.events.way import Way

OBJECTIVE, INTERVAL = 60.0, 10.0


def pulses(rate: float, cycle: int, cycles: int, base: float = 0.0) -> list[float]:
    """Return the rates of intervals, of which every `cycle`-th has most of the records; their mean is `rate`."""
    quiet = rate * base
    return ([quiet + rate * (1.0 - base) * cycle] + [quiet] * (cycle - 1)) * cycles


def fed(rates: list[float | None], found: Pulses = NO_PULSES) -> tuple[Pulses, list[float]]:
    """Return the pulses after rates of one interval each, and the rates they gave; None: a lost snapshot."""
    at, arrived, given = 1000.0, 0.0, list[float]()
    before = Slice(at, 0, 0)
    for rate in rates:
        at += INTERVAL
        arrived += INTERVAL * (2000.0 if rate is None else rate)
        if rate is None:
            continue
        newest = newest_rate((before, Slice(at, int(arrived), 0)))
        assert newest is not None
        after = found.after(newest, before, OBJECTIVE, INTERVAL)
        measured = after.rate_since(found, newest)
        if measured is not None:
            given.append(measured.rate)
        found, before = after, Slice(at, int(arrived), 0)
    return found, given


@pytest.mark.parametrize("base", [0.0, 0.3])
@pytest.mark.parametrize("cycle", [2, 3, 6])
def test_pulses_give_one_rate_per_cycle(cycle: int, base: float) -> None:
    """From the third regular cycle on, each gives its mean."""
    found, given = fed([*pulses(100.0, cycle, 12, base)])
    assert found.are_seen
    assert found.seconds == cycle * INTERVAL
    once_seen = given[-6:]
    assert once_seen == pytest.approx([100.0] * 6, rel=1e-3)
    assert len(given) <= (MIN_CYCLES + 2) * cycle + 12


def test_a_pulse_that_two_intervals_share_begins_once() -> None:
    """The small part of it before the end of an interval is no pulse, and no end of one."""
    found, given = fed([50.0, 450.0, 0.0, 0.0, 0.0] * 12)
    assert found.seconds == 5 * INTERVAL
    assert given[-1] == pytest.approx(100.0)


def test_a_lost_snapshot_is_no_end_of_pulses() -> None:
    """The records of a pulse that nobody saw are counted in the cycle before it."""
    before, lost, after = pulses(100.0, 6, 8), [None, *pulses(100.0, 6, 1)[1:]], pulses(100.0, 6, 3)
    found, given = fed([*before, *lost, *after])
    assert found.are_seen
    assert given[-1] == pytest.approx(100.0)
    assert all(rate > 50.0 for rate in given[-3:])


def test_a_topic_that_was_made_again_begins_anew() -> None:
    """Its offsets start at 0, so nothing can be said of the cycle that was running."""
    seen, _ = fed([*pulses(100.0, 3, 8)])
    before, after = Slice(5000.0, 0, 0), Slice(5010.0, 10, 0)
    newest = newest_rate((before, after))
    assert newest is not None
    assert seen.after(newest, before, OBJECTIVE, INTERVAL) == Pulses(5010.0, 10)


@pytest.mark.parametrize("then", [0.0, 100.0, 600.0], ids=["silence", "an even load", "a high load"])
def test_without_a_next_pulse_every_interval_counts_again(then: float) -> None:
    """It is known after a cycle as long as the lag objective, or two if the mean stays as it was."""
    found, given = fed([*pulses(100.0, 3, 8), *[then] * 24])
    assert not found.are_seen
    assert given[-8:] == [then] * 8


def test_noise_is_no_pulse() -> None:
    """Neither a load that varies by a third, nor rare records that come at any time, have regular cycles for long."""
    draw = random.Random(3)
    varied = [100.0 * math.exp(draw.gauss(0.0, 0.35)) for _ in range(2000)]
    assert len(fed([*varied])[1]) == len(varied)
    rare = [float(sum(draw.random() < 0.02 for _ in range(100))) for _ in range(2000)]
    _, given = fed([*rare])
    assert len(given) > 0.7 * len(rare)
    assert sum(given) / len(given) == pytest.approx(2.0, rel=0.15)


def test_a_cycle_longer_than_the_objective_is_not_averaged() -> None:
    """The size for its mean would be late in every cycle."""
    rates = pulses(100.0, 12, 10)
    assert fed([*rates])[1] == rates


@pytest.mark.parametrize("way", [Way.RESTART, Way.IN_PLACE])
@pytest.mark.parametrize("cycle", [3, 6])
def test_pulses_alone_change_no_size(cycle: int, way: Way) -> None:
    """Two slots do 200 records/s: enough for a mean of 150, whatever a single interval says."""
    plant = Plant(slots=2, way=way)
    plant.run(pulses(150.0, cycle, 12))
    settled = len(plant.decisions)
    assert plant.run(pulses(150.0, cycle, 40)) == []
    later = plant.decisions[settled:]
    assert all((each.evidence.delay_seconds or 0.0) <= 60.0 for each in later)
    assert isinstance(plant.state.memory, TideMemory)
    assert plant.state.memory.forecast.level == pytest.approx(150.0, rel=0.02)
    assert later[-1].trail[0].numbers["cycle_seconds"] == cycle * INTERVAL


def test_larger_pulses_are_answered_with_the_size_for_their_mean() -> None:
    """350 records/s in pulses need four slots of 100. Only what waits may need more for a while."""
    plant = Plant(slots=2)
    plant.run(pulses(150.0, 3, 20))
    ordered = plant.run(pulses(350.0, 3, 20))
    assert 1 <= len(ordered) <= 2
    assert plant.slots == 4
    assert plant.run(pulses(350.0, 3, 40)) == []
    assert (plant.decisions[-1].evidence.delay_seconds or 0.0) <= 60.0
