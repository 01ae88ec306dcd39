"""The actuator's loop: which commands run side by side, in rebalances and shutdowns too."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from services.actuator.consumer import MOST_OPEN, SPEC_SECONDS
from services.actuator.task import Abandoned
from tests.support.clusters import on_kubernetes
from tests.support.events import START, command, job, result, with_application
from tests.support.fake_consumer import TOPIC, ActuatorRun, FakeMessage, HeldRunner, NoResults
from tests.support.set_clock import SetClock
from tidegate.events.envelope import encode
from tidegate.events.result import Phase
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.dead_letters import TooManyDeadLetters
from tidegate.runtime.poll import wait_until
from tidegate.runtime.producer import NotDelivered

NOT_DELIVERED = NotDelivered("no broker")


@pytest.fixture(autouse=True)
def _no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.actuator.consumer.TopicReader", NoResults)


def test_a_partition_that_comes_back_waits_for_the_command_that_still_runs() -> None:
    """A partition is lost and comes back while a command's thread is busy: the command does not run twice at once."""
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.consumer.assign(0)
        run.consumer.deliver(0, 5, command(command_id="a"))
        run.settle()
        run.consumer.revoke(0)
        run.consumer.assign(0)
        run.consumer.deliver(0, 5, command(command_id="a"))
        run.settle()
        assert runner.started == ["a"]
        runner.end("a")
        run.settle()
        assert runner.started == ["a", "a"]
        assert runner.most == {"rates": 1}
        assert run.consumer.stored == {0: 6}


def test_commands_of_a_job_in_two_partitions_are_carried_out_one_after_the_other() -> None:
    """A job that moves to another pipeline has commands in two partitions; the later one waits."""
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.consumer.assign(0, 1)
        run.consumer.deliver(0, 5, command(command_id="a", pipeline_id="old"))
        run.settle()
        run.consumer.deliver(1, 9, command(command_id="b", epoch=8, pipeline_id="new"))
        run.settle()
        assert runner.started == ["a"]
        runner.end("a")
        runner.end("b")
        run.settle()
        assert runner.started == ["a", "b"]
        assert runner.most == {"rates": 1}
        assert run.consumer.stored == {0: 6, 1: 10}


def test_jobs_that_were_removed_long_ago_are_forgotten() -> None:
    """As Kafka forgets their results: jobs that come and go must not fill the memory of an actuator in a year."""
    runner, days = HeldRunner(), 24 * 360
    now = (datetime.now(UTC) - START) // timedelta(seconds=10)
    for job_id, number in (("long-gone", now - 31 * days), ("gone", now - 29 * days), ("rates", now - 31 * days)):
        runner.log.add(result(f"of-{job_id}", Phase.VERIFIED, number, job_id=job_id))
    run = ActuatorRun(runner)
    run.specs |= {"gone": None, "long-gone": None}
    with run:
        assert wait_until(lambda: run.beats > 2, 20)
    assert [runner.log.job(job_id).epoch for job_id in ("long-gone", "gone", "rates")] == [-1, 1, 1]


def test_a_long_results_topic_does_not_make_the_process_look_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a month of results takes longer than the main loop may be silent: a restart would begin all over."""
    beats: list[int] = []

    class Results(NoResults):
        def read_to_end(self, **given: Any) -> Any:
            if self.after:
                return []

            def read() -> Iterator[FakeMessage]:
                for number in range(3):
                    beats.append(run.beats)
                    assert not given["stop"]()  # asked all the time, also while nothing comes
                    yield FakeMessage(0, number, result(f"c{number}", Phase.REJECTED, number))

            return read()

    monkeypatch.setattr("services.actuator.consumer.TopicReader", Results)
    run = ActuatorRun(HeldRunner())
    with run:
        run.consumer.assign(0)
        run.settle()
    assert beats == [beats[0], beats[0] + 1, beats[0] + 2]


@pytest.mark.parametrize("speaks", [True, False])
def test_a_stop_does_not_wait_for_the_end_of_the_results(monkeypatch: pytest.MonkeyPatch, *, speaks: bool) -> None:
    """A month of them, or a partition whose leader is away, takes longer than whoever stops a service waits."""
    began = threading.Event()

    class Results(TopicReader):
        def __init__(self, *_: object, **__: object) -> None:
            self._unread = {("tidegate.results", 0)}

        def poll(self, _seconds: float = 0.0) -> Any:
            began.set()
            time.sleep(0.001)
            return FakeMessage(0, 7, result("c", Phase.REJECTED)) if speaks else None

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr("services.actuator.consumer.TopicReader", Results)
    with ActuatorRun(HeldRunner()) as run:
        assert began.wait(10)
        run.actuator.stop()
        assert wait_until(lambda: bool(run.code), 10, 0.005)
    assert run.code == [0]


def test_waiting_for_a_leader_does_not_make_the_process_look_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after a minute with the partition's name: a supervisor that ended it before would say nothing."""

    class Results(TopicReader):
        def __init__(self, *_: object, **__: object) -> None:
            self._unread = {("tidegate.results", 0)}

        def poll(self, _seconds: float = 0.0) -> Any:
            time.sleep(0.001)

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr("services.actuator.consumer.TopicReader", Results)
    with ActuatorRun(HeldRunner()) as run:
        before = run.beats
        assert wait_until(lambda: run.beats > before + 10, 10, 0.005)


def test_more_commands_than_threads_start_in_the_order_in_which_they_came() -> None:
    """Those that wait count as waiting; after a stop none of them starts."""
    runner = HeldRunner()
    with ActuatorRun(runner, concurrent_commands=2) as run:
        run.consumer.assign(0, 1)
        for number in range(6):
            order = command(command_id=f"c{number}", job_id=f"job-{number}", pipeline_id="p")
            run.consumer.deliver(number % 2, number, order)
            run.settle()  # or the second thread may be the first to say that it has started
        metrics = run.actuator.metrics
        assert (metrics.running._value.get(), metrics.waiting._value.get()) == (2, 4)
        runner.end("c0")
        run.settle()
        runner.end("c1")
        run.settle()
        assert runner.started == ["c0", "c1", "c2", "c3"]
        run.actuator.stop()
        runner.end("c2")
    assert runner.started == ["c0", "c1", "c2", "c3"]


def test_clusters_take_turns() -> None:
    """All jobs of a large cluster may have to start at once; a job elsewhere waits for one of them, not for all."""
    runner = HeldRunner()
    with ActuatorRun(runner, concurrent_commands=2) as run:
        for number in range(6):
            run.specs[f"job-{number}"] = with_application(job(f"job-{number}"), master_ui_url="http://large:8080")
        run.specs["small"] = with_application(job("small"), master_ui_url="http://small:8080")
        run.consumer.assign(0)
        for number in range(6):
            run.consumer.deliver(0, number, command(command_id=f"c{number}", job_id=f"job-{number}"))
            run.settle()  # or the second thread may be the first to say that it has started
        run.consumer.deliver(0, 6, command(command_id="other", job_id="small"))
        run.settle()
        for ended in ("c0", "c1", "c2"):
            runner.end(ended)
            run.settle()
        assert runner.started == ["c0", "c1", "other", "c2", "c3"]


def test_a_cluster_that_does_not_answer_leaves_threads_to_the_others() -> None:
    """Its commands wait until their deadlines: those of other clusters start all the same, even if a second one hangs.

    Namespaces of Kubernetes have one API server, so they are one cluster.
    """
    runner = HeldRunner()
    with ActuatorRun(runner, concurrent_commands=4) as run:
        kinds = {"hangs": "http://a:8080", "too": "http://b:8080", "well": "http://c:8080"}
        for name, page in kinds.items():
            for number in range(9):
                run.specs[f"{name}-{number}"] = with_application(job(f"{name}-{number}"), master_ui_url=page)
        for number in range(9):
            run.specs[f"pods-{number}"] = on_kubernetes(job(f"pods-{number}"), namespace=f"n{number}")
        run.consumer.assign(0)

        offsets = itertools.count()

        def newly(name: str, ordered: int) -> int:
            before = len(runner.started)
            for number in range(ordered):
                order = command(command_id=f"{name}-{number}", job_id=f"{name}-{number}")
                run.consumer.deliver(0, next(offsets), order)
            run.settle()
            return len(runner.started) - before

        assert newly("hangs", 9) == 4
        assert newly("pods", 9) == 2
        assert newly("too", 9) == 1
        assert newly("well", 1) == 1
        assert run.actuator.metrics.running._value.get() == 8
        runner.end("well-0")
        run.settle()
        assert newly("well", 2) == 2  # one after the other, as the first one ends at once


def test_a_partition_is_paused_while_too_much_of_it_is_open(caplog: pytest.LogCaptureFixture) -> None:
    """Its first command holds the offsets back, and the log says which; a dead letter in between counts as ended."""
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.consumer.assign(0)
        run.consumer.deliver(0, 0, command(command_id="c0", job_id="job-0"))
        for number in range(1, MOST_OPEN):
            runner.end(f"c{number}")
            letter = number % 50 == 0
            order = command(command_id=f"c{number}", job_id=f"job-{number}")
            run.consumer.deliver(0, number, b"garbage" if letter else order)
        run.settle()
        assert run.consumer.paused == {0}
        (line,) = (record.message for record in caplog.records if "no further command" in record.message)
        assert line.endswith("is read until the one of job job-0, at offset 0, has ended")
        assert run.consumer.stored == {}
        assert len(run.letters) == (MOST_OPEN - 1) // 50
        runner.end("c0")
        run.settle()
        assert run.consumer.paused == set()
        assert run.consumer.stored == {0: MOST_OPEN}


def test_a_lost_partition_stops_its_commands_where_they_can_be_left() -> None:
    """The next owner goes on with them (I3); those of partitions that stay are not disturbed."""
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.consumer.assign(0, 1)
        run.consumer.deliver(0, 5, command(command_id="a"))
        run.consumer.deliver(1, 5, command(command_id="b", job_id="other"))
        run.settle()
        run.consumer.revoke(0, 7)
        run.settle()
        assert {id_: gone.is_set() for id_, gone in runner.gone.items()} == {"a": True, "b": False}
        runner.end("a")
        runner.end("b")
        run.settle()
        assert run.consumer.stored == {1: 6}
    assert run.code == [0]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        # What it knows is out of date: its successor reads the results first.
        (Abandoned("another actuator has overtaken run 7-1"), os.EX_TEMPFAIL),
        (NOT_DELIVERED, NOT_DELIVERED),
    ],
    ids=["overtaken", "result not published"],
)
def test_a_command_that_cannot_be_ended_ends_the_process_and_stays_on_the_topic(
    failure: Exception, code: object
) -> None:
    """The next actuator gets the command again (I2)."""
    runner = HeldRunner()
    runner.failure = failure
    with ActuatorRun(runner) as run:
        run.consumer.assign(0)
        run.consumer.deliver(0, 5, command(command_id="a"))
        runner.end("a")
        assert wait_until(lambda: bool(run.code), 10, 0.005)
    assert run.code == [code]
    assert run.consumer.stored == {}


def test_only_an_error_that_stays_ends_the_actuator() -> None:
    """The end of a partition and an error that goes away by itself are not worth a restart; a refusal is."""
    with ActuatorRun(HeldRunner()) as run:
        run.consumer.assign(0)
        run.consumer.fail(KafkaError(KafkaError._PARTITION_EOF))
        run.consumer.fail(KafkaError(KafkaError._TRANSPORT, retriable=True))
        run.settle()
        assert run.code == []
        run.consumer.fail(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        assert wait_until(lambda: bool(run.code), 10, 0.005)
    assert isinstance(run.code[0], KafkaException)


def reads(monkeypatch: pytest.MonkeyPatch, *results: FakeMessage) -> None:
    """Have an actuator find these results when it starts, and none later."""

    class Results(NoResults):
        def read_to_end(self, **_: Any) -> Any:
            return [] if self.after else list(results)

    monkeypatch.setattr("services.actuator.consumer.TopicReader", Results)


def test_a_result_under_the_key_of_another_pipeline_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is none of an actuator's: the decider sends it to the dead letters, so no command may count as done by it."""
    stray = FakeMessage(2, 3, encode(result("ours", Phase.VERIFIED)).value, key=b"another")
    reads(monkeypatch, FakeMessage(2, 2, result("old", Phase.VERIFIED)), stray)
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.consumer.assign(0)
        run.settle()
        assert (runner.log.ended("old"), runner.log.ended("ours")) == (True, False)
        assert [letter.code for letter in run.letters] == ["WRONG_KEY"]


@pytest.mark.parametrize(
    ("key", "job_id", "doubtful"),
    [
        (b"rates", "rates", {"rates"}),
        (b"rates", None, {"rates", "next"}),
        (None, None, {"rates", "next", "other"}),
    ],
    ids=["names its job", "names its pipeline", "names nothing"],
)
def test_a_result_that_cannot_be_read_concerns_only_the_commands_it_may_belong_to(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: bytes | None,
    job_id: str | None,
    doubtful: set[str],
) -> None:
    """It may say that a driver was started (I4), so those are left alone; all others are carried out.

    Its bytes are in the dead letters once, however often partitions are assigned.
    """
    record = FakeMessage(2, 3, b"garbage", key=key, job_id=job_id)
    reads(monkeypatch, FakeMessage(2, 2, result("old", Phase.REJECTED)), record)
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.consumer.assign(0)
        run.consumer.assign(1)
        run.consumer.deliver(0, 5, command(command_id="a", job_id="other", pipeline_id="another"))
        run.settle()
        assert runner.started == ["a"]
        written = int(time.time())
        for at, left_alone in ((written - 600, doubtful), (written + 600, set())):
            found = {
                name
                for name, pipeline in (("rates", "rates"), ("next", "rates"), ("other", "another"))
                if runner.log.is_doubtful(command(epoch=at, job_id=name, pipeline_id=pipeline))
            }
            assert found == left_alone
        letters = run.actuator.metrics.dead_letters.labels("results", "NOT_JSON")
        assert letters._value.get() == 1
    (letter,) = run.letters
    assert (letter.topic, letter.offset, letter.consumer, letter.value) == (TOPIC, 3, "actuator", b"garbage")
    assert "results[2]@3: NOT_JSON" in caplog.text


def test_results_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A month of them takes long: it is read before the actuator joins its group, at an assignment only the rest."""
    asked: list[dict[Any, int]] = []

    class Results(NoResults):
        def read_to_end(self, **_: Any) -> Any:
            asked.append(self.after)
            return [FakeMessage(4, 10 + len(asked), result(f"c{len(asked)}", Phase.REJECTED))]

    monkeypatch.setattr("services.actuator.consumer.TopicReader", Results)
    runner = HeldRunner()
    with ActuatorRun(runner) as run:
        run.settle()
        assert asked == [{}]
        run.consumer.assign(0)
        run.consumer.assign(1)
        run.settle()
    assert asked == [{}, {("tidegate.results", 4): 12}, {("tidegate.results", 4): 13}]
    assert all(runner.log.ended(f"c{number}") for number in (1, 2, 3))


def test_a_topic_of_results_of_which_nothing_can_be_read_ends_the_actuator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the fault is the reader's, and the dead letters would only hide it."""

    class Results(NoResults):
        def read_to_end(self, **_: Any) -> Any:
            return [FakeMessage(0, number, b"garbage") for number in range(9)]

    monkeypatch.setattr("services.actuator.consumer.TopicReader", Results)
    with ActuatorRun(HeldRunner(), dead_letter_limit=5) as run:
        assert wait_until(lambda: bool(run.code), 10, 0.005)
    assert isinstance(run.code[0], TooManyDeadLetters)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_command_waits_a_moment_for_the_spec_that_it_was_decided_on(*, arrives: bool) -> None:
    """The decider may have read the new spec first. If it does not come, the command is refused with the old one."""
    runner, old, new, clock = HeldRunner(), job("rates", version=1), job("rates", version=2), SetClock()
    with ActuatorRun(runner) as run:
        run.actuator.clock = clock
        run.specs["rates"] = old
        run.consumer.assign(0)
        run.consumer.deliver(0, 5, command(command_id="a", spec_version=2))
        run.settle()
        assert runner.started == []
        if arrives:
            run.specs["rates"] = new
        else:
            clock.at += timedelta(seconds=SPEC_SECONDS)
        assert wait_until(lambda: bool(runner.started), 10, 0.005)
        runner.end("a")
    assert runner.specs == [new if arrives else old]


_LATE = """
import threading
from concurrent.futures import ThreadPoolExecutor
from services.actuator.__main__ import end
from services.actuator.consumer import THREADS

ThreadPoolExecutor(1, thread_name_prefix=THREADS).submit(threading.Event().wait, 600)
end(75)
"""


def test_the_process_does_not_wait_for_a_command_that_cannot_be_left() -> None:
    """Its thread may be in a call that takes minutes; whoever restarts the service waits for the process."""
    ended = subprocess.run([sys.executable, "-c", _LATE], timeout=200, check=False)
    assert ended.returncode == 75
