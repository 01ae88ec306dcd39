"""The actuator on real Kafka and Redis. The cluster is a fake whose drivers start at once and are idle."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Producer

from services.actuator.app import build
from services.actuator.backends import DriverState, Submission
from services.actuator.consumer import Actuator
from services.actuator.fence import JobFence, Outfenced, RedisFence
from services.actuator.settings import ActuatorSettings
from services.decider.settings import DeciderSettings
from services.decider.specs import CurrentSpecs
from tests.support.actuator import end_of
from tests.support.events import job, with_application
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import decode
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.topics import COMMANDS, DEAD_LETTERS, JOBS, RESULTS
from tidegate.launcher.control.files import Control, Token
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.topics import ensure_topics


class IdleCluster:
    """A cluster whose drivers start at once, have no data, and end when asked. Thread-safe."""

    def __init__(self) -> None:
        self.runs: dict[str, Submission] = {}
        self.most_alive = 0
        self.submit_seconds = 0.0
        self.may_submit = threading.Event()
        self.may_submit.set()
        self._numbers = itertools.count()

    def submit(self, run: Submission) -> str:
        """Start a driver that reports at once who it is and that it is idle."""
        time.sleep(self.submit_seconds)
        self.may_submit.wait(200)
        driver = f"driver-1-{next(self._numbers)}"
        self.runs[driver] = run
        facts = {"submission_id": driver, "application_id": f"app-{driver}", "idle_at": "now"}
        control = Control.at(run.spec.application.control_place, run.spec.job_id)
        control.write_running(run.token, {**facts, "epoch": run.token.epoch, "run": run.token.run})
        self.most_alive = max(self.most_alive, len(self.live_drivers(run.spec)))
        return driver

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return ENDED once the driver was asked to stop."""
        run = self.runs.get(submission_id)
        if run is None:
            return DriverState.ABSENT
        marker = Control.at(spec.application.control_place, run.spec.job_id).stop_marker()
        return DriverState.ENDED if marker is not None and marker[0] > run.token else DriverState.RUNNING

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return nothing: no driver here fails."""
        del spec, submission_id
        return ""

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """Fail: no driver here needs force."""
        raise AssertionError(f"{spec.job_id}: {submission_id} was killed")

    def applications(self, spec: JobSpec) -> dict[str, str]:
        """Return the applications of the live drivers, named after their jobs."""
        return {f"app-{d}": self.runs[d].spec.job_id for d in self.live_drivers(spec)}

    def granted(self, spec: JobSpec, application_id: str) -> None:
        """Return None: a cluster that does not say."""
        del spec, application_id

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the drivers that were not asked to stop."""
        return frozenset(driver for driver in list(self.runs) if self.state(spec, driver).alive)

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Fail: no driver here fails."""
        raise AssertionError(f"{spec.job_id}: {submission_id} of run {token} is said to have failed")


class Shell:
    """Actuators in threads of this process, and readers of their topics."""

    def __init__(self, kafka: str, redis_url: str, folder: Path) -> None:
        tag = uuid.uuid4().hex[:8]
        self.settings = ActuatorSettings.model_validate(
            {
                "bootstrap_servers": kafka,
                "topic_prefix": f"s{tag}.",
                "redis_url": redis_url,
                "redis_prefix": f"s{tag}:",
                "actuator_group": f"s{tag}",
                "session_timeout_seconds": 6.0,
            }
        )
        ensure_topics(self.settings, partitions=2)
        self.folder = folder
        self.cluster = IdleCluster()
        self.publisher = Publisher(self.settings)
        self.redis: redis.Redis = redis.Redis.from_url(redis_url, socket_timeout=20, socket_connect_timeout=20)
        self.actuators: list[tuple[Actuator, threading.Thread, list[BaseException]]] = []

    def add_job(self, job_id: str, *, pipeline_id: str | None = None) -> JobSpec:
        """Publish a job."""
        spec = with_application(
            job(job_id, pipeline_id=pipeline_id),
            checkpoint_location=str(self.folder / job_id),
            control_dir=str(self.folder / "control"),
        )
        self.publisher.publish(spec)
        return spec

    def start(self, redis_client: redis.Redis | None = None) -> Actuator:
        """Start an actuator."""
        actuator = build(
            self.settings,
            clock=SystemClock(),
            redis_client=redis_client or self.redis,
            backends={"standalone": self.cluster},
        )
        failures: list[BaseException] = []

        def run() -> None:
            try:
                actuator.run()
            except BaseException as error:  # noqa: BLE001 - `close` checks it
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.actuators.append((actuator, thread, failures))
        return actuator

    def command(self, spec: JobSpec, kind: CommandKind, to: int, epoch: int, *, ttl: float = 600.0) -> ScalingCommand:
        """Publish a command."""
        now = datetime.now(UTC)
        command = ScalingCommand(
            command_id=str(uuid.uuid4()),
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            snapshot_id="s",
            spec_version=1,
            kind=kind,
            from_parallelism=0,
            to_parallelism=to,
            epoch=epoch,
            issued_at=now - timedelta(seconds=1),
            expires_at=now + timedelta(seconds=ttl),
            reason="r",
        )
        self.publisher.publish(command)
        return command

    def results(self) -> list[ActionResult]:
        """Return all results on the topic."""
        return [decode(ActionResult, m.value(), m.headers(), m.key()) for m in self._read(RESULTS)]

    def letters(self) -> list[DeadLetter]:
        """Return all dead letters."""
        return [decode(DeadLetter, m.value(), m.headers()) for m in self._read(DEAD_LETTERS)]

    def wait_for_end(self, command: ScalingCommand, seconds: float = 240.0) -> ActionResult:
        """Return the command's terminal result."""
        end = end_of(self.settings, command, seconds)
        assert end, f"the command did not end within {seconds:g} s: {self.results()} {self.actuators}"
        return end

    def close(self) -> None:
        """Stop the actuators; none of them may have failed."""
        for actuator, _, _ in self.actuators:
            actuator.stop()
        for _, thread, failures in self.actuators:
            thread.join(30)
            assert not thread.is_alive()
            assert not failures, failures
        self.redis.close()

    def _read(self, topic: Any) -> list[Any]:
        with closing(TopicReader(self.settings, [topic.named(self.settings.topic_prefix)])) as reader:
            return list(reader.read_to_end(30))


@pytest.fixture
def shell(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Shell]:
    """Its own topics and a fake cluster; no actuator yet."""
    shell = Shell(kafka, redis_url, tmp_path)
    yield shell
    shell.close()


def test_unreadable_commands_are_dead_lettered_and_the_others_carried_out(shell: Shell) -> None:
    """Unreadable commands become dead letters with their bytes; the commands around them are carried out (F38, I1)."""
    spec = shell.add_job("a")
    first = shell.command(spec, CommandKind.START, 2, 1)
    producer = Producer({"bootstrap.servers": shell.settings.bootstrap_servers, "partitioner": "murmur2_random"})
    poison = [b"", b"\xff\xfe", b"[]", b'{"epoch": NaN}', b"{}"]
    for value in poison:
        producer.produce(COMMANDS.named(shell.settings.topic_prefix), value, b"a")
    producer.flush(10)
    second = shell.command(spec, CommandKind.RESCALE, 4, 2)
    shell.start()
    assert shell.wait_for_end(first).phase is Phase.VERIFIED
    assert shell.wait_for_end(second).phase is Phase.VERIFIED
    assert [letter.value for letter in shell.letters()] == poison
    assert shell.cluster.most_alive == 1


def test_a_record_too_large_for_a_dead_letter_is_dead_lettered_without_its_bytes(shell: Shell) -> None:
    """If base64 makes a record too large for an event, its letter has no bytes; the next record is handled (F38)."""
    spec = shell.add_job("a")
    producer = Producer({"bootstrap.servers": shell.settings.bootstrap_servers, "partitioner": "murmur2_random"})
    producer.produce(COMMANDS.named(shell.settings.topic_prefix), b"{" + 900_000 * b"x", b"a")
    producer.produce(JOBS.named(shell.settings.topic_prefix), b"{" + 900_000 * b"x", b"b")
    producer.flush(10)
    shell.start()
    assert shell.wait_for_end(shell.command(spec, CommandKind.START, 2, 1)).phase is Phase.VERIFIED
    decider = DeciderSettings(
        bootstrap_servers=shell.settings.bootstrap_servers, topic_prefix=shell.settings.topic_prefix
    )
    specs = CurrentSpecs(decider, SystemClock(), poll_seconds=0.1)
    failures: list[BaseException] = []
    specs.start(on_failure=failures.append)
    specs.stop()
    assert not failures
    assert specs.get("a") == spec
    found = sorted((letter.topic.rpartition(".")[2], letter.value) for letter in shell.letters())
    assert found == [("commands", None), ("jobs", None)]
    assert all("too large" in letter.error for letter in shell.letters())


HEADER = """
import asyncio, sys
from aiokafka import AIOKafkaProducer

class Latin(str):
    def encode(self, *_):
        return b"caf\\xe9"

async def main(servers, *topics):
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for topic in topics:
            await producer.send_and_wait(topic, b"{}", key=b"a", headers=[(Latin("cafe"), b"1")])

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_header_whose_name_is_not_text_is_ignored(shell: Shell) -> None:
    """A record with such a header is judged by its value: here a dead letter; the next record is handled (F38)."""
    spec = shell.add_job("a")
    topics = [topic.named(shell.settings.topic_prefix) for topic in (COMMANDS, JOBS)]
    subprocess.run(
        [sys.executable, "-c", HEADER, shell.settings.bootstrap_servers, *topics],
        env={**os.environ, "AIOKAFKA_NO_EXTENSIONS": "1"},  # only its Python code can write such a header
        check=True,
        timeout=60,
    )
    shell.start()
    assert shell.wait_for_end(shell.command(spec, CommandKind.START, 2, 1)).phase is Phase.VERIFIED
    assert [letter.value for letter in shell.letters()] == [b"{}"]


def test_each_command_ends_and_is_done_once(shell: Shell) -> None:
    """Repeated, old, expired and unknown commands each have one end and cause at most one start (I2, I3)."""
    spec = shell.add_job("a")
    start = shell.command(spec, CommandKind.START, 2, 5)
    shell.publisher.publish(start)
    old = shell.command(spec, CommandKind.RESCALE, 3, 4)
    late = shell.command(spec, CommandKind.RESCALE, 3, 6, ttl=-0.5)
    unknown = shell.command(spec.model_copy(update={"job_id": "b"}), CommandKind.START, 2, 7)
    shell.start()
    ends = {c.command_id: shell.wait_for_end(c) for c in (start, old, late, unknown)}
    assert [end.code for end in ends.values()] == ["OK", "STALE_EPOCH", "EXPIRED", "NO_SUCH_JOB"]
    assert len(shell.cluster.runs) == 1
    ids = [result.result_id for result in shell.results()]
    assert len(set(ids)) == len(ids)


def test_commands_of_a_removed_job_hold_up_no_other_job(shell: Shell) -> None:
    """While a command waits for a spec that never comes, those of all other jobs are carried out (I2)."""
    specs = [shell.add_job(f"job-{number}") for number in range(8)]
    gone = shell.command(specs[0].model_copy(update={"job_id": "gone"}), CommandKind.START, 2, 1)
    others = [shell.command(spec, CommandKind.START, 2, 1) for spec in specs]
    shell.start()
    given_up = shell.wait_for_end(gone)
    assert given_up.code == "NO_SUCH_JOB"
    done = {end.command_id for end in shell.results() if end.phase is Phase.VERIFIED and end.at < given_up.at}
    assert done == {command.command_id for command in others}


def test_the_jobs_of_a_pipeline_change_at_the_same_time(shell: Shell) -> None:
    """A chain of jobs grows in one round: each command starts before the first one of the pipeline ends."""
    shell.cluster.may_submit.clear()
    specs = [shell.add_job(f"job-{number}", pipeline_id="chain") for number in range(4)]
    commands = [shell.command(spec, CommandKind.START, 2, 1) for spec in specs]
    shell.start()

    def accepted() -> set[str]:
        return {result.command_id for result in shell.results() if result.phase is Phase.ACCEPTED}

    assert wait_until(lambda: accepted() == {command.command_id for command in commands}, 100), shell.results()
    shell.cluster.may_submit.set()
    assert {shell.wait_for_end(command).phase for command in commands} == {Phase.VERIFIED}


def test_the_commands_of_a_job_wait_for_each_other(shell: Shell) -> None:
    """A job's next command starts only when the one before has ended, whatever the other jobs do (I3)."""
    shell.cluster.submit_seconds = 0.5
    specs = [shell.add_job(f"job-{number}", pipeline_id="chain") for number in range(3)]
    commands = [shell.command(spec, CommandKind.START, 2, 1) for spec in specs]
    commands += [shell.command(spec, CommandKind.RESCALE, 4, 2) for spec in specs]
    shell.start()
    for command in commands:
        assert shell.wait_for_end(command).phase is Phase.VERIFIED
    for spec in specs:
        phases = [(result.epoch, result.phase) for result in shell.results() if result.job_id == spec.job_id]
        assert phases.index((1, Phase.VERIFIED)) < phases.index((2, Phase.ACCEPTED))


def test_a_command_that_ended_before_an_earlier_one_is_not_done_again(shell: Shell) -> None:
    """Its offset waits for that command of another job; the next actuator finds it done, and goes on (I2, I3)."""
    shell.cluster.may_submit.clear()
    slow, late = (shell.add_job(name, pipeline_id="chain") for name in ("slow", "late"))
    first = shell.command(slow, CommandKind.START, 2, 1)
    second = shell.command(late, CommandKind.START, 2, 1, ttl=-0.5)
    actuator = shell.start()
    shell.wait_for_end(second)
    actuator.stop()
    left = [partition.cancelled for partition in actuator._partitions.values()]
    assert wait_until(lambda: all(each.is_set() for each in left), 30)
    assert not [result for result in shell.results() if result.command_id == first.command_id and result.phase.terminal]
    shell.start()
    shell.cluster.may_submit.set()
    assert shell.wait_for_end(first).phase is Phase.VERIFIED
    assert len(shell.cluster.runs) == 1
    ids = [result.result_id for result in shell.results()]
    assert len(set(ids)) == len(ids)


def test_redis_down_does_not_stop_the_actuator(shell: Shell) -> None:
    """Without Redis, the log and the control directory decide: they let a new command through, not an old one (F21)."""
    nowhere = redis.Redis(host="127.0.0.1", port=1, socket_timeout=0.2, socket_connect_timeout=0.2)
    spec = shell.add_job("a")
    start = shell.command(spec, CommandKind.START, 2, 5)
    old = shell.command(spec, CommandKind.RESCALE, 3, 5)
    shell.start(redis_client=nowhere)
    assert shell.wait_for_end(start).phase is Phase.VERIFIED
    assert shell.wait_for_end(old).code == "STALE_EPOCH"
    nowhere.close()


def test_redis_emptied_does_not_let_an_old_epoch_in(shell: Shell) -> None:
    """After FLUSHALL, a new actuator still refuses an epoch that was accepted before (F20, I5)."""
    spec = shell.add_job("a")
    actuator = shell.start()
    assert shell.wait_for_end(shell.command(spec, CommandKind.START, 2, 5)).phase is Phase.VERIFIED
    for key in shell.redis.scan_iter(f"{shell.settings.redis_prefix}*"):
        shell.redis.delete(key)
    actuator.stop()
    shell.start()
    assert shell.wait_for_end(shell.command(spec, CommandKind.RESCALE, 3, 4)).code == "STALE_EPOCH"
    assert shell.wait_for_end(shell.command(spec, CommandKind.RESCALE, 3, 6)).phase is Phase.VERIFIED
    assert shell.cluster.most_alive == 1


def test_two_actuators_share_the_work(shell: Shell) -> None:
    """Two actuators that start at once carry out every command once, whatever the rebalance does (F9, I3, I4)."""
    shell.cluster.submit_seconds = 0.3
    specs = [shell.add_job(f"job-{number}") for number in range(6)]
    commands = [shell.command(spec, CommandKind.START, 2, 1) for spec in specs]
    shell.start()
    shell.start()
    for command in commands:
        assert shell.wait_for_end(command).phase is Phase.VERIFIED
    assert sorted(run.spec.job_id for run in shell.cluster.runs.values()) == [spec.job_id for spec in specs]


def test_a_partition_that_comes_back_is_consumed_again(shell: Shell) -> None:
    """A partition that is lost during a command and comes back is consumed again (F14, I2)."""
    shell.cluster.submit_seconds = 3.0  # long enough for a rebalance during the submission
    specs = [shell.add_job(f"job-{number}") for number in range(6)]
    commands = [shell.command(spec, CommandKind.START, 2, 1) for spec in specs]
    shell.start()
    while len(shell.results()) < 2:
        time.sleep(0.1)
    second = shell.start()
    for command in commands:
        assert shell.wait_for_end(command).phase is Phase.VERIFIED
    second.stop()
    shell.cluster.submit_seconds = 0.0
    commands = [shell.command(spec, CommandKind.RESCALE, 4, 2) for spec in specs]
    for command in commands:
        assert shell.wait_for_end(command).phase is Phase.VERIFIED


def test_the_fence_in_redis_is_atomic_and_repairs_itself(shell: Shell, tmp_path: Path) -> None:
    """Runs of one epoch are numbered, an older epoch is refused, and garbage in the key is replaced (F24)."""
    fence = RedisFence(shell.redis, shell.settings.redis_prefix)

    def take(control: Control, epoch: int, owner: str) -> Token:
        return JobFence(fence, control, "a", epoch, owner).take()

    ours, theirs = Control.at(tmp_path / "ours", "a"), Control.at(tmp_path / "theirs", "a")
    key = f"{shell.settings.redis_prefix}fence:a"
    assert take(ours, 5, "x") == Token(5, 1)
    assert take(theirs, 5, "y") == Token(5, 2), "only Redis knew about the first run"
    with pytest.raises(Outfenced):
        take(ours, 4, "x")
    assert 0 < shell.redis.ttl(key) <= 30 * 86_400
    shell.redis.set(key, "garbage")
    assert take(theirs, 6, "y") == Token(6, 1)
    assert shell.redis.hget(key, "owner") == b"y"
    shell.redis.hset(key, mapping={"epoch": "x", "run": "y"})
    assert take(theirs, 6, "y") == Token(6, 2)
    shell.redis.hset(key, mapping={"epoch": "1e30", "run": "1"})
    assert take(theirs, 6, "y") == Token(6, 3)
    shell.redis.hset(key, mapping={"epoch": "6", "run": "inf"})
    assert take(theirs, 6, "y") == Token(6, 4)
