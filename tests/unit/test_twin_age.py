"""The age of the oldest uncommitted record, as the twin knows it."""

from __future__ import annotations

import math

import pytest

from tests.support.twins import twin_model, twin_world
from tidegate.lab.score import late_seconds
from tidegate.twin.load import Load
from tidegate.twin.pool import SlotPool
from tidegate.twin.topic import TwinTopic, even
from tidegate.twin.world import EPOCH, World


def test_a_load_knows_when_its_records_arrive() -> None:
    """The inverse of the running sum; a record after a silence arrives after it, one that never comes never does."""
    load = Load([10.0, 0.0, 0.0, 20.0, 0.0], 5.0)
    assert load.arrives(0) == 0
    assert load.arrives(25) == pytest.approx(2.5)
    assert load.arrives(50) == pytest.approx(5.0)
    assert load.arrives(51) == pytest.approx(15.05)
    assert math.isinf(load.arrives(151))
    assert Load([10.0]).arrives(1000) == pytest.approx(100.0)


def test_a_topic_knows_when_records_were_written() -> None:
    """Records that a job wrote have their own time, and those that were there at the start are as old as the world."""
    topic = TwinTopic("linked", even(2), Load([1.0]))
    topic.written = 4
    topic.write(10, 20.0)
    assert topic.arrives(4) == 0
    assert topic.arrives(14) == pytest.approx(10.0)
    assert topic.arrives(30) == pytest.approx(20.0)
    assert topic.arrives(40) == pytest.approx(26.0)
    assert TwinTopic("empty", even(2)).oldest_at([0, 0]) == math.inf


def test_the_oldest_record_is_that_of_any_partition() -> None:
    """A partition that is left behind makes the job late, however far the others are."""
    topic = TwinTopic("in", even(2), Load([10.0]))
    assert topic.oldest_at([50, 50]) == pytest.approx(10.2)
    assert topic.oldest_at([50, 10]) == pytest.approx(2.2)


def test_the_age_falls_with_each_commit_and_is_counted_in_between() -> None:
    """At 1,000/s on four slots, a batch of 0.5 s a second takes less than a second: no record gets older than two."""
    world = twin_world(twin_model())
    world.advance(EPOCH + 100)
    job = world.job("job")
    assert 0 < world.truth("job").age_seconds < 3
    assert late_seconds(job.commits, 60.0) == 0
    oldest = [at - arrived for at, arrived in job.commits[3:]]
    assert max(oldest) == pytest.approx(sum(oldest) / len(oldest), rel=0.3)
    # Counted from the moment at which a record gets older than the objective until its commit, so nearly half the time.
    half = max(oldest) * 0.75
    assert 0.1 < late_seconds(job.commits, half) / 100 < 0.9


def test_a_job_without_records_has_no_age() -> None:
    """Silence is not lateness."""
    topic = TwinTopic("in", even(4), Load([100.0, 0.0], 50.0))
    model = twin_model()
    world = World([model], [topic], [SlotPool("default", 4)], sizes={"job": 4})
    world.advance(EPOCH + 600)
    assert world.truth("job").age_seconds == 0
    assert late_seconds([*world.job("job").commits, (600.0, world.job("job").oldest_at())], 60.0) == 0
