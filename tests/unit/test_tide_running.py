"""tide on the tasks of a micro-batch that still runs: it grows on them early, and does nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.engine import step
from tests.support.events import START, batch, job, observed, snapshot
from tidegate.engine.running import running_work
from tidegate.engine.state import JobState, to_wire
from tidegate.events.decision import Decision
from tidegate.events.snapshot import RunningBatch

TASK_SECONDS, TASK_RECORDS = 18.4, 18_400
"""One slot reads 1,000 records/s."""


def running(at: float, *, started: float = 0.0, tasks: int = 6, slots: int = 1, **changes: Any) -> RunningBatch:
    """Return a batch of even tasks as it is `at` seconds after `START`."""
    done = min(tasks, slots * int((at - started) / TASK_SECONDS))
    figures = {
        "batch_id": 0,
        "started_at": START + timedelta(seconds=started),
        "tasks": tasks,
        "tasks_finished": done,
        "busy_seconds": done * TASK_SECONDS,
        "read_tasks": tasks,
        "read_tasks_finished": done,
        "records_read": done * TASK_RECORDS,
        "read_seconds": done * TASK_SECONDS,
        "slowest_read_seconds": TASK_SECONDS if done else 0.0,
    }
    return RunningBatch.model_validate(figures | changes)


class Job:
    """A job whose batches last 110 s: six tasks of 18 s on one slot, of records that waited when the batch began."""

    def __init__(self, rate: float, *, slots: int = 1, partitions: int = 6) -> None:
        self.spec = job(policy="tide", policy_options={}, max_parallelism=8)
        self.rate, self.slots, self.partitions = rate, slots, partitions
        self.state = JobState.new()
        self.decisions: list[Decision] = []

    def at(self, number: int, *batches: RunningBatch, ended: int = 0, **more: Any) -> Decision:
        """Return the decision on the snapshot of interval `number`; `ended` batches of 110,400 records are done."""
        size = 6 * TASK_RECORDS
        shot = snapshot(
            number,
            arrived=size + int(10 * number * self.rate),
            committed=ended * size,
            partitions=self.partitions,
            slots=self.slots,
            running=batches or None,
            current_batch_started_at=batches[0].started_at if batches else None,
            **more,
        )
        self.state, decision = step(self.state, shot, self.spec, observed(shot))
        self.decisions.append(decision)
        return decision


def first_growth(tasks_of: Job, *others: RunningBatch) -> int | None:
    """Return the interval in which the job grows, while its first batch runs."""
    for number in range(11):
        if tasks_of.at(number, running(10.0 * number), *others).command is not None:
            return number
    return None


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_running_batches_the_largest_tells_the_records(order: int) -> None:
    """A job with several queries has several batches at once, in any order."""
    work = running_work([running(40, tasks=6), running(40, tasks=60)][::order], 1)
    assert work is not None
    assert (work.records, work.reading) == (60 * TASK_RECORDS, 60)


@pytest.mark.parametrize(
    "changes",
    [{"read_tasks_finished": 0}, {"read_tasks": 0}, {"busy_seconds": 0.0, "read_tasks_finished": 6}],
    ids=["no task has read", "more finished than there are", "no work, although all is read"],
)
def test_figures_that_contradict_each_other_end_nothing(changes: dict[str, Any]) -> None:
    """Another collector may send such; each snapshot on which the engine fails is one decision less."""
    odd = running(40, **changes)
    assert odd.records_read
    assert Job(500).at(4, odd).final_parallelism >= 1


def test_a_long_batch_is_decided_on_within_two_intervals_of_its_first_task() -> None:
    """The first task of a 110-second batch ends after 18 s; at 20 s the job grows, long before the batch ends."""
    tasks_of = Job(rate=1250.0)
    assert first_growth(tasks_of) == 2
    decision = tasks_of.decisions[-1]
    assert decision.trail[0].code == "TIDE_GROW_EARLY"
    # 1,250/s need 1.25 slots, and 117,000 records wait to be read: as much as two slots do in a minute
    assert decision.final_parallelism in (2, 3)
    assert "1 of the 6 tasks of the running micro-batch have finished" in decision.sentence
    assert decision.evidence.running_rate == pytest.approx(1000.0)
    assert decision.evidence.running_left_seconds == pytest.approx(5 * TASK_SECONDS)
    assert decision.evidence.true_processing_rate is None, "no batch has ended"


def test_two_queries_of_one_topic_share_the_slot() -> None:
    """Each of them does its own work on every record, so the job does half of what one of them does."""
    tasks_of = Job(rate=1250.0)
    for number in range(3):
        tasks_of.at(number, running(10.0 * number), running(10.0 * number, batch_id=3))
    evidence = tasks_of.decisions[-1].evidence
    assert evidence.running_rate == pytest.approx(500.0)
    assert (evidence.running_tasks, evidence.running_tasks_finished) == (12, 2)


def test_what_waits_for_a_slot_is_not_zero() -> None:
    """A query of which no task has finished says nothing: neither a rate of zero, nor that it is nearly done."""
    tasks_of = Job(rate=1250.0)
    waiting = running(0.0, started=0.5)
    assert first_growth(tasks_of, waiting) == 2
    evidence = tasks_of.decisions[-1].evidence
    assert evidence.running_rate == pytest.approx(1000.0), "an upper bound, by the other query"
    assert evidence.running_left_seconds is None
    silent = Job(rate=1250.0)
    for number in range(8):
        assert silent.at(number, running(0.0)).evidence.running_rate is None
        assert silent.decisions[-1].trail[0].code == "TIDE_LEARNING"


@pytest.mark.parametrize("rate", [0.0, 50.0, 500.0])
def test_a_running_batch_never_shrinks_a_job(rate: float) -> None:
    """However little arrives, finished tasks are an upper bound of a cold run: the size stays."""
    tasks_of = Job(rate=rate, slots=6)
    for number in range(11):
        assert tasks_of.at(number, running(10.0 * number, tasks=60, slots=6)).final_parallelism == 6
        assert tasks_of.decisions[-1].trail[0].code in ("TIDE_LEARNING", "TIDE_GROW_EARLY")


def test_a_short_batch_is_waited_for() -> None:
    """A batch shorter than two intervals will soon say more than its tasks do."""
    tasks_of = Job(rate=5000.0)
    for number in range(1, 8):
        since = 10.0 * number
        shot = running(since, started=since - 19.0)
        assert tasks_of.at(number, shot).trail[0].code == "TIDE_LEARNING"


def test_nothing_of_a_running_batch_is_remembered() -> None:
    """Its figures are replaced by those of the whole batch when it ends."""
    tasks_of = Job(rate=1250.0)
    assert first_growth(tasks_of) is not None
    memory = to_wire(tasks_of.state)["memory"]
    assert isinstance(memory, dict)
    assert "sizes" not in memory


def test_later_stages_make_the_bound_tighter() -> None:
    """Once everything is read, the tasks of the later stages count for the same records."""
    tasks_of = Job(rate=100.0)
    read = running(110.4)
    for number in range(11):
        tasks_of.at(number, running(10.0 * number))
    decision = tasks_of.at(
        12, read.model_copy(update={"tasks": 9, "tasks_finished": 7, "busy_seconds": 2 * read.busy_seconds})
    )
    assert decision.evidence.running_rate == pytest.approx(500.0)


def test_skew_is_seen_before_the_batch_ends() -> None:
    """The slowest task is compared with the mean of the others as soon as there are two of them."""
    tasks_of = Job(rate=100.0)
    tasks_of.at(0)
    two: dict[str, Any] = {
        "read_tasks_finished": 2,
        "tasks_finished": 2,
        "records_read": 100,
        "slowest_read_seconds": 30.0,
    }
    decision = tasks_of.at(6, running(60.0, **two, read_seconds=40.0, busy_seconds=40.0))
    assert decision.evidence.task_skew is None
    three = two | {"read_tasks_finished": 3, "tasks_finished": 3}
    decision = tasks_of.at(7, running(70.0, **three, read_seconds=50.0, busy_seconds=50.0))
    assert decision.evidence.task_skew == pytest.approx(3.0)


def test_records_read_are_not_committed() -> None:
    """What a running batch has read changes neither the lag nor the processing rate."""
    with_tasks, without = Job(rate=100.0), Job(rate=100.0)
    for number in range(5):
        told = with_tasks.at(number, running(10.0 * number)).evidence
        silent = without.at(number, running(0.0)).evidence
        assert (told.lag_records, told.processing_rate) == (silent.lag_records, silent.processing_rate)
        assert told.utilization == silent.utilization


def decided_after(tasks_of: Job, lasting: list[float]) -> int:
    """Return after how many batches of some durations, seen only at their end, the first decision comes."""
    end = 0.0
    tasks_of.at(0)
    for count, seconds in enumerate(lasting, 1):
        end += seconds
        number = round(end / 10.0)
        decision = tasks_of.at(number, ended=count, batches=(batch(number, count, 6 * TASK_RECORDS, seconds),))
        if decision.trail[0].code != "TIDE_LEARNING":
            return count
    raise AssertionError("no decision")


@pytest.mark.parametrize(
    ("lasting", "batches"),
    [
        ([12.0] * 8, 4),  # the first one is cold, and three are needed
        ([73.0, 69.0, 185.0], 2),  # nothing else of the job is known, so even a first batch of 73 s may be cold
        ([30.0, 69.0, 185.0], 2),
        ([30.0] * 8, 4),
    ],
)
def test_long_batches_count_by_their_time(lasting: list[float], batches: int) -> None:
    """A batch counts once for each 20 s that it lasted; a job's first batch does not count."""
    assert decided_after(Job(rate=100.0), lasting) == batches


def test_the_first_batch_of_another_run_counts_if_it_is_long() -> None:
    """The cold part of a batch of 73 s is small where the job is known, and it shows as much as three batches."""
    tasks_of = Job(rate=100.0)
    decided_after(tasks_of, [30.0] * 8)
    tasks_of.at(60, ended=4, incarnation="app-2")
    decision = tasks_of.at(68, ended=5, incarnation="app-2", batches=(batch(68, 5, 6 * TASK_RECORDS, 73.0),))
    assert decision.trail[0].code != "TIDE_LEARNING"
