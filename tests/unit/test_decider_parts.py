"""The decider's smaller parts: holds from the log, stalls, reading states, dead letters, headers, settings."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, NoReturn, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec
from pydantic import ValidationError

from services.decider.app import headers_of
from services.decider.faust_app import prepare_topics
from services.decider.outbox import KafkaOutbox, Kept, States
from services.decider.settings import DeciderSettings
from services.decider.specs import CurrentSpecs, SpecBook
from services.decider.watchdog import StallDetector, Watchdog
from tests.support.engine import step
from tests.support.events import START, job, observed, result, steady
from tests.support.fake_consumer import FakeMessage
from tests.support.fake_time import fake_time
from tidegate.engine.reservations import holds_in_force
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Headers, Unreadable, decode
from tidegate.events.job import JobSpec
from tidegate.events.result import Phase
from tidegate.events.topics import TOPICS
from tidegate.installed import engine
from tidegate.operate import with_size
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.dead_letters import ConsumedRecord, send_to_dead_letters
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.poll import wait_until
from tidegate.runtime.producer import TooLarge

SPEC = job(guards={"cooldown": {"up_seconds": 60, "down_seconds": 120, "in_place": 1}, "stabilization": {"seconds": 0}})


def ordered() -> ScalingCommand:
    """Return the command for an overloaded job."""
    state = JobState.new()
    for each in steady(8, rate=800, capacity=400):
        state, decision = step(state, each, SPEC, observed(each))
        if decision.command is not None:
            return decision.command
    raise AssertionError("no command")


def test_a_cooldown_runs_from_the_commands_time() -> None:
    """I6: a rebuilt cooldown runs from the command's time in the log, and no longer."""
    command = ordered()
    book = SpecBook([SPEC])
    (hold,) = holds_in_force([command], [], book.get, command.issued_at + timedelta(seconds=1))
    assert hold.cooldown_until == command.issued_at.timestamp() + 60
    assert hold.decision_id == command.command_id
    assert hold.slots == command.to_parallelism - command.from_parallelism
    done = result(command.command_id, Phase.VERIFIED, 9)
    assert holds_in_force([command], [done], book.get, command.issued_at + timedelta(seconds=59))[0].slots_until == 0
    assert holds_in_force([command], [done], book.get, command.issued_at + timedelta(seconds=61)) == []


def test_an_open_command_holds_its_slots() -> None:
    """An open command holds its slots, and all of the job's slots while it is down, until they expire."""
    command = ordered()
    book = SpecBook([SPEC])
    down = result(command.command_id, Phase.STOPPED, 9, parallelism=command.to_parallelism)
    (hold,) = holds_in_force([command], [down], book.get, command.issued_at + timedelta(seconds=90))
    assert hold.slots == command.to_parallelism
    runs = result(command.command_id, Phase.RESIZING, 9, parallelism=command.to_parallelism)
    (more,) = holds_in_force([command], [runs], book.get, command.issued_at + timedelta(seconds=90))
    assert more.slots == command.to_parallelism - command.from_parallelism
    longest = 60.0 + 2 * 180.0  # one stop and two starts, each with its deadline
    assert hold.slots_until == command.expires_at.timestamp() + longest
    assert holds_in_force([command], [down], book.get, command.expires_at + timedelta(seconds=longest + 1)) == []


@pytest.mark.parametrize(("kind", "seconds"), [(CommandKind.START, 60), (CommandKind.RESCALE, 65)])
def test_a_start_does_not_shorten_a_cooldown(kind: CommandKind, seconds: int) -> None:
    """A start after a rescale has no cooldown of its own, and the rescale's cooldown continues; a newer one counts."""
    command = ordered()
    later = command.model_copy(
        update={
            "command_id": "later",
            "kind": kind,
            "issued_at": command.issued_at + timedelta(seconds=5),
        }
    )
    ends = [result(c.command_id, Phase.VERIFIED, 9) for c in (command, later)]
    (hold,) = holds_in_force([command, later], ends, SpecBook([SPEC]).get, command.issued_at + timedelta(seconds=30))
    assert hold.cooldown_until == command.issued_at.timestamp() + seconds


def test_a_job_without_spec_holds_nothing() -> None:
    """A removed job cannot be rescaled, so it holds nothing."""
    command = ordered()
    assert holds_in_force([command], [], SpecBook([]).get, command.issued_at) == []


def test_lag_without_progress_is_a_stall() -> None:
    """A stall is lag for the whole time limit, in which nothing was committed."""
    detector = StallDetector(60.0)
    p = ("t", 0)
    assert not detector.stalled({p: 5}, {p: 9}, 0.0)
    assert not detector.stalled({p: 5}, {p: 9}, 59.0)
    assert not detector.stalled({p: 6}, {p: 9}, 61.0)  # it moved
    assert not detector.stalled({p: 6}, {p: 9}, 120.0)
    assert detector.stalled({p: 6}, {p: 9}, 121.0)


def test_idleness_is_not_a_stall() -> None:
    """Without lag no offset has to move, and the time limit starts again with the next lag."""
    detector = StallDetector(60.0)
    p = ("t", 0)
    assert not detector.stalled({p: 9}, {p: 9}, 0.0)
    assert not detector.stalled({p: 9}, {p: 9}, 1000.0)
    assert not detector.stalled({p: 9}, {p: 10}, 2000.0)
    assert detector.stalled({p: 9}, {p: 11}, 2060.0)


def test_losing_a_partition_is_not_a_stall() -> None:
    """After a rebalance other offsets count, so the time limit starts again."""
    detector = StallDetector(60.0)
    assert not detector.stalled({("t", 0): 5}, {("t", 0): 9}, 0.0)
    assert not detector.stalled({("t", 1): 5}, {("t", 1): 9}, 60.0)


class AbsentBroker:
    """A broker with a committed offset that never moves, and that does not answer for three minutes.

    After that another one leads the partitions. A client only learns of it when it lists the topics. With `late`, the
    client does not tell in time that there is no answer, as after a pause of the process.
    """

    def __init__(self, *, late: bool) -> None:
        self.late = late
        self.seconds = 0.0
        self.knows_leader = True

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds

    def poll(self, _seconds: float) -> None:
        """Nothing is subscribed to."""

    def committed(self, places: list[TopicPartition], **_: float) -> list[TopicPartition]:
        """Return the committed offsets."""
        self._answer()
        return [TopicPartition(place.topic, place.partition, 5) for place in places]

    def list_topics(self, **_: float) -> None:
        """Tell who leads."""
        self._answer()
        self.knows_leader = True

    def list_offsets(self, asked: dict[TopicPartition, object], **_: float) -> dict[TopicPartition, Future[Any]]:
        """Return the ends of partitions, or -1001 for a leader that does not answer."""
        answers = {}
        for place, spec in asked.items():
            offset = 9 if isinstance(spec, type(OffsetSpec.latest())) else 0
            answers[place] = Future[Any]()
            if self.late and self._away:
                answers[place].set_exception(TimeoutError())  # as `result` raises if nothing comes
            else:
                answers[place].set_result(types.SimpleNamespace(offset=offset if self.knows_leader else -1001))
        return answers

    @property
    def _away(self) -> bool:
        return 30.0 <= self.seconds < 210.0

    def _answer(self) -> None:
        if self._away and not self.late:
            self.knows_leader = False
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


class Watched:
    """What a watchdog of one partition tells, and when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broker: AbsentBroker) -> None:
        self.ended = threading.Event()
        self.told: list[tuple[float, str | Exception]] = []
        self.lags: list[int] = []

        def ended(why: str | Exception) -> None:
            self.told.append((broker.seconds, why))
            self.ended.set()

        for client in ("Consumer", "AdminClient"):
            monkeypatch.setattr(f"services.decider.watchdog.{client}", lambda _settings: broker)
        fake_time(monkeypatch, "services.decider.watchdog", sleep=broker.sleep)
        clock = types.SimpleNamespace(monotonic=lambda: broker.seconds)
        Watchdog(
            settings=DeciderSettings(stall_seconds=60.0),
            clock=cast(Clock, clock),
            partitions=lambda: [("t", 0)],
            on_stall=ended,
            on_lag=self.lags.append,
            on_failure=ended,
        ).start()


@pytest.mark.parametrize("late", [False, True])
def test_a_broker_that_does_not_answer_is_not_a_stall(monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
    """Nobody can make progress meanwhile; when it is back, the time limit starts again."""
    watched = Watched(monkeypatch, AbsentBroker(late=late))
    assert watched.ended.wait(30)
    assert watched.told == [(270.0, "no progress, with lag on [('t', 0)]")]
    assert set(watched.lags) == {4}


def test_a_watchdog_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its thread would be gone, and with it the only one that notices a decider that stands still."""
    broker, error = AbsentBroker(late=False), RuntimeError("closed")

    def closed(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(broker, "committed", closed)
    watched = Watched(monkeypatch, broker)
    assert watched.ended.wait(30)
    assert watched.told == [(5.0, error)]


class NoController:
    """Brokers that serve, and have all topics, while Kafka has no controller."""

    def __init__(self, _conf: object) -> None:
        names = [topic.named("tidegate.") for topic in TOPICS] + ["tidegate.decider-state-changelog"]
        self.topics = {name: types.SimpleNamespace(partitions={0: None, 1: None}) for name in names}

    def poll(self, _seconds: float) -> None:
        """Hand over no log lines."""

    def list_topics(self, **_: float) -> NoController:
        """Return the topics."""
        return self

    def create_topics(self, *_: object, **__: object) -> dict[str, Future[None]]:
        """Fail as it does without a controller."""
        refused = Future[None]()
        refused.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "waiting for controller")))
        return {"tidegate.decider-state-changelog": refused}


def test_a_decider_starts_while_kafka_has_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the controller creates a topic, but all topics are there, and the brokers serve without it."""
    for place in ("services.decider.faust_app", "tidegate.runtime.reach"):
        monkeypatch.setattr(f"{place}.AdminClient", NoController)
    assert prepare_topics(DeciderSettings()) == 2


class FakeJobsView:
    """A jobs topic: polls see what the test has put there, or fail."""

    def __init__(self, *specs: JobSpec) -> None:
        self.specs = list(specs)
        self.unusable = {"broken"}
        self.removals = {"rates": 3}
        self.coming: list[JobSpec] = []
        self.failure: Exception | None = None
        self.closed = threading.Event()

    def load(self) -> None:
        """Read what is there."""
        if self.failure is not None:
            raise self.failure

    def poll(self) -> list[str]:
        """Read what has come since."""
        if self.failure is not None:
            raise self.failure
        came, self.coming = self.coming, []
        self.specs += came
        return [spec.job_id for spec in came]

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over the specs."""
        return iter(self.specs)

    def close(self) -> None:
        """Stop reading."""
        self.closed.set()


def test_a_version_with_the_same_scaling_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads thousands of versions where an autoscaler asks for sizes, and a check takes the longest."""
    first = job(guards={"cooldown": {"up_seconds": 60}})
    asks = with_size(first, 4, "by an autoscaler", START)
    other = job(guards={"cooldown": {"up_seconds": True}}).model_copy(update={"version": 3})
    again = first.model_copy(update={"version": 4})
    records = [FakeMessage(0, offset, spec) for offset, spec in enumerate((first, asks, other, again))]
    reader = types.SimpleNamespace(read_to_end=lambda *_, **__: iter(records), close=lambda: None)
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", lambda *_, **__: reader)
    checked: list[int] = []

    def check(spec: JobSpec) -> list[str]:
        checked.append(spec.version)
        return engine().check(spec)

    refused: list[int] = []
    jobs = JobsView(DeciderSettings(), lambda record, _: refused.append(record.offset), check=check)
    jobs.load()
    assert checked == [1, 3]
    assert refused == [2]
    assert [spec.version for spec in jobs] == [4]


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> FakeJobsView:
    """The jobs topic, with the job `rates`."""
    view = FakeJobsView(job("rates"))
    monkeypatch.setattr("services.decider.specs.JobsView", lambda *_, **__: view)
    return view


def test_a_spec_that_has_arrived_is_there_after_catching_up(
    view: FakeJobsView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits gets a poll that began after that, so a snapshot of a new job does not become a dead letter."""
    monkeypatch.setattr("services.decider.specs.CATCH_UP_SECONDS", 60.0)
    specs = CurrentSpecs(DeciderSettings(), SystemClock(), poll_seconds=0.01)
    specs.start(lambda error: pytest.fail(str(error)))
    assert [spec.job_id for spec in specs] == ["rates"]
    assert specs.get("orders") is None
    assert [specs.has("rates", id_) for id_ in ("rates", "broken", "orders")] == [True, True, False]
    assert [specs.removal(id_) for id_ in ("rates", "orders")] == [3, -1]
    view.coming.append(job("orders"))
    asyncio.run(specs.caught_up())
    assert specs.get("orders") == job("orders")
    specs.stop()
    assert view.closed.is_set()


def test_a_jobs_topic_that_does_not_come_to_its_end_is_named(
    view: FakeJobsView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process looks alive until then: a supervisor that ended it before would say nothing."""
    beats = threading.Semaphore(0)

    def load() -> None:
        assert all(beats.acquire(timeout=10) for _ in range(3))
        raise TimeoutError("tidegate.jobs[1]: nothing came for 60 s before the end")

    monkeypatch.setattr(view, "load", load)
    monkeypatch.setattr("services.decider.specs.BEAT_SECONDS", 0.01)
    specs = CurrentSpecs(DeciderSettings(), SystemClock(), poll_seconds=0.01)
    with pytest.raises(TimeoutError, match=r"^tidegate\.jobs\[1\]"):
        specs.start(lambda error: pytest.fail(str(error)), beats.release)


class FakeReader:
    """The jobs topic behind a view: what comes after it was read to its end."""

    def __init__(self) -> None:
        self.coming: list[FakeMessage] = []

    def read_to_end(self, _silence_seconds: float, **__: object) -> list[FakeMessage]:
        """Read what was there: nothing."""
        return []

    def poll(self) -> FakeMessage | None:
        """Read what has come."""
        return self.coming.pop(0) if self.coming else None

    def close(self) -> None:
        """Stop reading."""


def test_a_new_job_whose_spec_cannot_be_used_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the dead letters of its snapshots do not say that it is not on the jobs topic."""
    reader = FakeReader()
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", lambda *_: reader)
    monkeypatch.setattr("services.decider.specs.send_to_dead_letters", lambda *_, **__: None)
    monkeypatch.setattr("services.decider.specs.Publisher", lambda _settings: types.SimpleNamespace(publish=None))
    monkeypatch.setattr("services.decider.specs.CATCH_UP_SECONDS", 60.0)
    specs = CurrentSpecs(DeciderSettings(), SystemClock(), poll_seconds=0.01)
    specs.start(lambda error: pytest.fail(str(error)))
    assert not specs.has("new", "new")
    reader.coming.append(FakeMessage(0, 7, b"{}", key=b"new"))
    asyncio.run(specs.caught_up())
    assert specs.has("new", "new")
    specs.stop()


def test_the_newest_removal_of_a_job_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the job has been added again since: its state may be from before."""
    added, removed, again = FakeMessage(0, 4, job()), FakeMessage(0, 5, b"", key=b"rates"), FakeMessage(0, 6, job())
    monkeypatch.setattr(removed, "value", lambda: None)
    reader = types.SimpleNamespace(read_to_end=lambda *_, **__: iter((added, removed, again)))
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", lambda *_: reader)
    view = JobsView(DeciderSettings())
    view.load()
    assert ([spec.job_id for spec in view], view.removals) == (["rates"], {"rates": 5})


def test_specs_that_nobody_follows_any_more_end_the_decider(view: FakeJobsView) -> None:
    """It must not go on with old specs, whatever the error is."""
    failures: list[BaseException] = []
    specs = CurrentSpecs(DeciderSettings(), SystemClock(), poll_seconds=0.01)
    specs.start(failures.append)
    view.failure = RuntimeError("no broker")
    assert wait_until(lambda: bool(failures), 30, 0.005)
    assert failures == [view.failure]
    assert view.closed.wait(30)


def test_a_decider_without_specs_does_not_start(view: FakeJobsView) -> None:
    """What the jobs topic says cannot be read, so whoever starts the decider gets the error."""
    failures: list[BaseException] = []
    view.failure = RuntimeError("no broker")
    with pytest.raises(RuntimeError, match="no broker"):
        CurrentSpecs(DeciderSettings(), SystemClock(), poll_seconds=0.01).start(failures.append)
    assert failures == []
    assert view.closed.is_set()


def test_states_are_read_once_for_all_lanes() -> None:
    """Lanes that start together share one read of the states; a revocation during the read causes another one."""
    reads: list[int] = []

    def read() -> dict[bytes, Kept]:
        reads.append(len(reads))
        if reads == [0, 1]:
            states.forget()
        return {b"a/a": Kept(0, b"%d" % reads[-1])}

    async def all_lanes() -> None:
        await asyncio.gather(*[states.ready() for _ in range(4)])

    async def play() -> None:
        await all_lanes()
        assert (reads, states.found) == ([0], {b"a/a": Kept(0, b"0")})
        states.forget()
        await all_lanes()
        assert (reads, states.found) == ([0, 1, 2], {b"a/a": Kept(0, b"2")})

    states = States(read)
    asyncio.run(play())


_LATE = """
import asyncio, sys, threading
from services.decider.outbox import States

async def stopped():
    await asyncio.wait_for(States(threading.Event().wait).ready(), 0.1)

loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(stopped())
except TimeoutError:
    sys.exit(75)
"""


def test_the_process_does_not_wait_until_it_has_read_a_topic() -> None:
    """A partition's leader may be away: whoever stops the service would have to kill it."""
    ended = subprocess.run([sys.executable, "-c", _LATE], timeout=200, check=False, capture_output=True)
    assert (ended.returncode, ended.stderr) == (75, b"")


class SmallTopics:
    """A producer whose topics accept records of up to 2,000 bytes."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """What happens while the removal of a state is sent."""

    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        *,
        partition: int | None = None,
    ) -> None:
        """Keep the value, or raise `TooLarge`."""
        if len(value or b"") > 2000:
            raise TooLarge(f"{topic} key {key!r} partition {partition}: {headers}")
        self.values.append(value)
        if value is None and self.meanwhile is not None:
            await self.meanwhile()


def test_only_the_owner_removes_a_state_from_the_changelog() -> None:
    """Another decider's state leaves memory alone; after a revocation nothing is ours, and a newer state stays."""
    producer = SmallTopics()
    outbox = KafkaOutbox(DeciderSettings(), producer)

    async def play() -> None:
        for partition in (0, 1):
            await outbox.keep(partition, b"p/%d" % partition, b"state")
        outbox.states.owned = {1}
        await asyncio.gather(*[outbox.drop(b"p/%d" % partition) for partition in (0, 1)])
        assert (list(outbox.keys()), producer.values) == ([], [b"state", b"state", None])
        await outbox.keep(1, b"p/1", b"state")
        outbox.states.forget()
        await outbox.drop(b"p/1")
        assert (outbox.kept(b"p/1"), producer.values[3:]) == (None, [b"state"])
        await outbox.keep(1, b"p/1", b"state")
        outbox.states.owned = {1}
        producer.meanwhile = lambda: outbox.keep(1, b"p/1", b"newer")
        await outbox.drop(b"p/1")
        assert outbox.kept(b"p/1") == b"newer"

    asyncio.run(play())


def test_a_dead_letter_that_is_too_large_goes_without_its_bytes() -> None:
    """A poison record too large for the dead letters does not stop the service: its place and reason are kept."""
    producer = SmallTopics()
    outbox = KafkaOutbox(DeciderSettings(), producer)
    record = ConsumedRecord("tidegate.snapshots", 0, 7, b"key", b"x" * 5000)
    error = Unreadable("NOT_JSON", "no JSON")
    asyncio.run(send_to_dead_letters(outbox.publish, record, error, consumer="decider", seen_at=START))
    (value,) = producer.values
    letter = decode(DeadLetter, value)
    assert (letter.value, letter.offset, letter.code) == (None, 7, "NOT_JSON")
    assert "bytes left out" in letter.error


def test_an_event_that_is_too_large_is_an_error() -> None:
    """Only a dead letter may lose bytes; any other event that is too large raises."""
    outbox = KafkaOutbox(DeciderSettings(), SmallTopics())
    spec = job().model_copy(update={"sources": tuple(f"topic-{number}" for number in range(500))})
    with pytest.raises(TooLarge):
        asyncio.run(outbox.publish(spec))


def test_headers_come_as_list_or_mapping() -> None:
    """Headers are pairs, whether Faust gives a list, a mapping or nothing."""
    assert headers_of(None) == ()
    assert headers_of([("a", b"1"), ("a", None)]) == (("a", b"1"), ("a", None))
    assert headers_of({"a": b"1"}) == (("a", b"1"),)


def test_wrong_settings_are_named() -> None:
    """A session shorter than brokers allow is refused by name; group and changelog take the topic prefix."""
    with pytest.raises(ValidationError, match="session_timeout_seconds"):
        DeciderSettings(session_timeout_seconds=1)
    settings = DeciderSettings(topic_prefix="blue.")
    assert (settings.group, settings.changelog) == ("blue.decider", "blue.decider-state-changelog")
    assert START.tzinfo is not None
