"""tide: how much batches vary, headroom for it, and what a slow batch says about the capacity."""

from __future__ import annotations

import random

import pytest

from tests.support.events import batch
from tests.support.plant import Plant
from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.tide.capacity import SizeFit, fit, learn
from tidegate.engine.tide.memory import TideMemory
from tidegate.engine.tide.variation import (
    FURTHEST,
    NO_VARIATION,
    PRIOR_BATCHES,
    SLOW,
    Variation,
    fit_of,
    without_slow,
)
from tidegate.events.snapshot import MicroBatch
from tidegate.events.way import Way

KNOWN = SizeFit(4, BatchSums(10, 10_000, 110.0, 10_000_000, 110_000.0), overhead=1.0, cost=0.01)
"""What a size has shown whose batches last a second, and 10 ms a record."""


def batch_of(records: int, seconds: float) -> MicroBatch:
    """Return a batch of so many records that lasted so long."""
    return batch(1, 1, records, seconds)


def sums_of(batches: list[MicroBatch]) -> BatchSums:
    """Return the sums over these batches."""
    pairs = [(each.input_records, each.duration_seconds) for each in batches]
    return BatchSums(
        len(pairs),
        sum(n for n, _ in pairs),
        sum(d for _, d in pairs),
        sum(n * n for n, _ in pairs),
        sum(n * d for n, d in pairs),
    )


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.4])
def test_the_coefficient_is_that_of_the_batches(spread: float) -> None:
    """A thousand batches of any number of records, with normal noise."""
    noise = random.Random(7)
    found = NO_VARIATION
    for _ in range(1000):
        records = noise.randrange(100, 5000)
        found = found.after([batch_of(records, (1.0 + 0.01 * records) * max(0.0, noise.gauss(1.0, spread)))], KNOWN)
    assert found.coefficient == pytest.approx(spread, rel=0.1)


def test_a_batch_that_hung_counts_little() -> None:
    """One of a hundred batches lasted an hour."""
    found = NO_VARIATION.after([batch_of(1000, 11.0)] * 99 + [batch_of(1000, 3600.0)], KNOWN)
    assert found.coefficient < FURTHEST / 10


def test_batches_without_records_do_not_count() -> None:
    """An idle trigger says nothing about records."""
    assert NO_VARIATION.after([batch_of(0, 30.0)], KNOWN) == NO_VARIATION
    idle = [batch_of(0, 30.0)]
    assert without_slow(sums_of(idle), idle, KNOWN) == sums_of(idle)


def test_a_slow_batch_does_not_bend_the_line() -> None:
    """A slow batch of few records, and the large one after it: the overhead stays about what it was."""
    usual = [batch_of(n, 1.0 + 0.01 * n) for n in (900, 1000, 1100, 1000) * 5]
    slow = [batch_of(1000, 44.0), batch_of(4000, 41.0)]
    bent = fit(sums_of(usual + slow), 1.0)
    straight = fit(sums_of(usual).add(without_slow(sums_of(slow), slow, KNOWN)), 1.0)
    assert bent[0] > 2.0
    assert straight[0] == pytest.approx(1.0, abs=0.4)
    assert straight[1] == pytest.approx(0.01, rel=0.06)
    assert without_slow(sums_of(slow[1:]), slow[1:], KNOWN) == sums_of(slow[1:]), "a large batch is not a slow one"


def test_a_slow_batch_counts_for_at_most_so_much() -> None:
    """Its records count in full, its seconds up to `SLOW` times the expected ones."""
    slow = [batch_of(1000, 44.0)]
    assert without_slow(sums_of(slow), slow, KNOWN) == BatchSums(1, 1000, SLOW * 11.0, 1_000_000, SLOW * 11_000.0)


def test_a_size_must_be_known_first() -> None:
    """Batches are compared with those of the present size, once there are some."""
    assert fit_of((KNOWN,), 4) == KNOWN
    assert fit_of((KNOWN,), 5) is None
    assert fit_of((KNOWN._replace(sums=BatchSums(3, 3000, 33.0, 3_000_000, 33_000.0)),), 4) is None
    assert fit_of((), 4) is None


def size_for(rate: float, variation: float, **options: bool) -> int:
    """Return the size that a job of two slots grows to at a rate, if its batches have varied so much."""
    plant = Plant(slots=2, way=Way.IN_PLACE, **options)
    plant.run([150.0] * 20)
    memory = plant.state.memory
    assert isinstance(memory, TideMemory)
    many = 500.0
    seen = Variation(many, variation**2 * (many + PRIOR_BATCHES))
    plant.state = plant.state._replace(memory=memory._replace(variation=seen))
    sizes = plant.run([rate] * 12)
    return sizes[-1] if sizes else 2


def test_the_more_batches_vary_the_more_is_kept_free() -> None:
    """370 records/s fill 4 slots to 93 %: enough for batches that are all alike, not where some last far longer."""
    assert size_for(370.0, 0.0) == 4
    assert size_for(370.0, 0.8) == 8
    assert size_for(370.0, 0.8, catch_up=False) == 4, "for arrivals alone, as in DS2"


@pytest.mark.parametrize("way", [Way.RESTART, Way.IN_PLACE])
def test_what_varies_is_learned_across_changes(way: Way) -> None:
    """Batches of the plant last what their records need, so nothing varies, whatever the size was."""
    plant = Plant(slots=2, way=way)
    plant.run([120.0] * 20 + [350.0] * 30 + [120.0] * 60)
    memory = plant.state.memory
    assert isinstance(memory, TideMemory)
    assert memory.variation.batches > 30
    assert memory.variation.coefficient < 0.05


def test_batches_that_vary_little_show_an_overhead_that_no_event_tells() -> None:
    """6 s of each batch go into a commit within `addBatch`; the events tell 0.5 s of overhead besides."""
    noise, found = random.Random(5), NO_VARIATION
    sizes: tuple[SizeFit, ...] = ()
    for _ in range(200):
        records = round(noise.gauss(2000, 300))
        seen = [batch_of(records, (6.5 + 0.002 * records) * noise.gauss(1.0, 0.03))]
        if (known := fit_of(sizes, 4)) is not None:
            found = found.after(seen, known)
        sizes = learn(sizes, 4, sums_of(seen), 0.5, found.noise)
    assert 26.0 < sizes[0].lasts(10_000) < 32.0, "26.5 s in truth"


def test_until_batches_are_known_to_vary_little_they_count_as_noisy() -> None:
    """The noise falls with each batch that is as expected, and is back after batches that are not."""
    quiet = NO_VARIATION.after([batch_of(1000, 11.0)] * 50, KNOWN)
    assert NO_VARIATION.noise == 1.0
    assert quiet.noise < 0.15
    assert quiet.after([batch_of(1000, 16.5), batch_of(1000, 5.5)] * 50, KNOWN).noise == 1.0


def test_no_batch_lasts_less_than_the_events_tell_besides_its_records() -> None:
    """Batches that got slower as they got larger point below the told overhead: it stays at that."""
    seen = [batch_of(1000, 11.0), batch_of(2000, 30.0)] * 20
    own, cost = fit(sums_of(seen), 1.0, 0.01)
    assert own == 1.0
    assert cost == pytest.approx(19.5 / 1500)
