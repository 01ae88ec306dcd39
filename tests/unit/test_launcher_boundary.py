"""The stop of a query at a batch boundary, on a stand-in for Spark's engine."""

# ruff: noqa: D102, N802 - the methods are the JVM's

from __future__ import annotations

import threading
import types
from typing import Any

import pytest

from tests.support.fake_time import fake_time
from tidegate.launcher.spark.between_batches import between_batches
from tidegate.launcher.spark.boundary import end_at_boundary, stop_at_boundary

PLANNING = "MicroBatchExecution.runBatch, TriggerExecutor.execute"
ADDING_BATCH = "x.SQLExecution$.withNewExecutionId, MicroBatchExecution.runBatch, TriggerExecutor.execute"


class Engine:
    """A MicroBatchExecution whose running batch ends at some instant; then it looks at its state."""

    def __init__(self, batch_ends_at: float) -> None:
        self.batch_ends_at = batch_ends_at
        self.now = 0.0
        self.stopped_at: float | None = None
        self._state = "ACTIVE"
        self.streamingQuery = lambda: self
        self.held = False
        lock = types.SimpleNamespace(lock=lambda: self._hold(True), unlock=lambda: self._hold(False))
        self.awaitProgressLock = lambda: lock

    def _hold(self, held: bool) -> None:
        self.held = held

    def sleep(self, _seconds: float) -> None:
        self.now += 0.1

    def getClass(self) -> Any:
        def load(name: str) -> Any:
            state = State(name.removeprefix("o.a.s.").removesuffix("$"))
            return types.SimpleNamespace(getField=lambda _name: types.SimpleNamespace(get=lambda _of: state))

        loader = types.SimpleNamespace(loadClass=load)
        return types.SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution", getClassLoader=lambda: loader)

    def state(self) -> Any:
        return types.SimpleNamespace(get=lambda: State(self._state), compareAndSet=self._set)

    def _set(self, _old: State, new: State) -> bool:
        assert self.held, "it may move on, and look at its state, meanwhile"
        self._state = new.name
        return True

    def queryExecutionThread(self) -> Any:
        alive = (self.now < self.batch_ends_at or self._state == "ACTIVE") and self.stopped_at is None
        return types.SimpleNamespace(isAlive=lambda: alive, getStackTrace=lambda: ADDING_BATCH)

    def stop(self) -> None:
        self.stopped_at = self.now


class State:
    """One of the engine's states."""

    def __init__(self, name: str) -> None:
        self.name = name

    def toString(self) -> str:
        return self.name

    def getClass(self) -> Any:
        return types.SimpleNamespace(getName=lambda: f"o.a.s.{self.name}$")


@pytest.fixture(autouse=True)
def _stacks_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM describes a stack as one text; the stand-in's is one already."""
    monkeypatch.setattr("tidegate.launcher.spark.query_loop._describer", lambda _engine: str)


@pytest.mark.parametrize(
    ("batch_ends_at", "extension", "clean", "asked"),
    [(5.0, 0.0, True, 0), (12.0, 0.0, False, 1), (12.0, 5.0, True, 1), (20.0, 5.0, False, 1)],
    ids=["in time", "too late", "nearly done", "not so nearly"],
)
def test_a_batch_at_the_deadline_may_be_given_more_time(
    monkeypatch: pytest.MonkeyPatch, batch_ends_at: float, extension: float, clean: bool, asked: int
) -> None:
    """The extension is asked for once, at the deadline; when it is over, the batch is cut off."""
    engine = Engine(batch_ends_at)
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    asks: list[float] = []

    def extend() -> float:
        asks.append(engine.now)
        return extension

    query = types.SimpleNamespace(_jsq=engine)
    assert stop_at_boundary(query, 10.0, extend) is clean
    assert len(asks) == asked
    assert engine.stopped_at == pytest.approx(min(batch_ends_at, 10.0 + extension), abs=0.2)


@pytest.mark.parametrize(("batch_ends_at", "ended"), [(5.0, True), (12.0, False)], ids=["in time", "too late"])
def test_a_pause_breaks_no_batch(monkeypatch: pytest.MonkeyPatch, batch_ends_at: float, ended: bool) -> None:
    """A query whose batch does not end before the deadline goes on as if it had never been asked."""
    engine = Engine(batch_ends_at)
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0) is ended
    assert engine.state().get().name == ("TERMINATED" if ended else "ACTIVE")
    assert (engine.stopped_at is not None) is ended
    assert not engine.held


class PlanningEngine(Engine):
    """It plans its batch for a second, and would interrupt itself if it were asked to end meanwhile."""

    def queryExecutionThread(self) -> Any:
        if self.now >= 1.0:
            return super().queryExecutionThread()
        return types.SimpleNamespace(isAlive=lambda: True, getStackTrace=lambda: PLANNING)

    def _set(self, old: State, new: State) -> bool:
        assert self.now >= 1.0
        return super()._set(old, new)


def test_a_query_that_plans_its_batch_is_asked_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch then ends, and the query with it."""
    engine = PlanningEngine(5.0)
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert stop_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0)
    assert engine.stopped_at == pytest.approx(5.0, abs=0.2)


class SleepyEngine(Engine):
    """It finds no new data, sleeps for a moment, and looks at its state; to end, it needs the lock."""

    def __init__(self) -> None:
        super().__init__(batch_ends_at=1e9)

    def queryExecutionThread(self) -> Any:
        ends = self._state == "TERMINATED"
        frames = "ReentrantLock.lock, StreamExecution.runStream" if self.held else ""
        sleeps = "java.lang.Thread.sleep, MicroBatchExecution.executeOneBatch, TriggerExecutor.execute"
        alive = self.held or not ends
        return types.SimpleNamespace(isAlive=lambda: alive, getStackTrace=lambda: frames if ends else sleeps)


def test_a_query_that_ends_at_once_gets_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wake up before we look again, and is then out of its loop, waiting for the lock that we hold."""
    engine = SleepyEngine()
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0)
    assert not engine.held


class WaitingEngine(SleepyEngine):
    """It waits for its next trigger, for an hour, whatever its state."""

    def queryExecutionThread(self) -> Any:
        waits = "SystemClock.waitTillTime, ProcessingTimeExecutor.execute, TriggerExecutor.execute"
        return types.SimpleNamespace(isAlive=lambda: self.stopped_at is None, getStackTrace=lambda: waits)


def test_a_query_that_waits_for_its_next_trigger_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing to end."""
    engine = WaitingEngine()
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0)
    assert engine.stopped_at == 0.0


class RacingEngine(SleepyEngine):
    """It has checked its state just before it is asked to end, and goes on to construct a batch; then it rests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.places = iter(["MicroBatchExecution.executeOneBatch, TriggerExecutor.execute"])

    def _set(self, old: State, new: State) -> bool:
        self.asked += new.name == "TERMINATED"
        return super()._set(old, new)

    def queryExecutionThread(self) -> Any:
        if self._state == "TERMINATED" and self.asked == 1:
            return types.SimpleNamespace(isAlive=lambda: True, getStackTrace=lambda: next(self.places, CONSTRUCTING))
        return super().queryExecutionThread()


def test_a_query_that_constructs_its_next_batch_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would interrupt the batch: so its state is set back until it is at a boundary, and its lock is given back."""
    engine = RacingEngine()
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0)
    assert engine.asked == 2
    assert not engine.held


@pytest.mark.parametrize(("batch_ends_at", "ended"), [(0.0, True), (5.0, False)], ids=["it has ended", "it is stopped"])
def test_a_query_that_ends_by_itself_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, batch_ends_at: float, ended: bool
) -> None:
    """A pause counts a query that has ended as ended, and one that somebody else is stopping as running."""
    engine = Engine(batch_ends_at)
    engine._state = "TERMINATED"
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0) is ended
    assert (engine.now, engine.stopped_at) == (0.0, None)


def test_a_query_that_still_starts_is_asked_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is ACTIVE it would overwrite the state."""
    engine = SleepyEngine()
    engine._state = "INITIALIZING"

    def sleep(seconds: float) -> None:
        engine.sleep(seconds)
        if engine._state == "INITIALIZING" and engine.now > 1.0:
            engine._state = "ACTIVE"

    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0)
    assert engine.now > 1.0


class AsyncEngine(Engine):
    """Of a query with the option `asyncProgressTrackingEnabled`: a MicroBatchExecution of another name."""

    def getClass(self) -> Any:
        of = super().getClass()
        name = "AsyncProgressTrackingMicroBatchExecution"
        return types.SimpleNamespace(getSimpleName=lambda: name, getClassLoader=of.getClassLoader)


def test_a_query_that_tracks_its_progress_asynchronously_has_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at a boundary as any other: its loop, its states and its lock are the same."""
    engine = AsyncEngine(5.0)
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    assert stop_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0)
    assert engine.stopped_at == pytest.approx(5.0, abs=0.2)


class ContinuousEngine(Engine):
    """A ContinuousExecution, which has no batches and none of their locks."""

    def __init__(self, batch_ends_at: float) -> None:
        super().__init__(batch_ends_at)
        del self.awaitProgressLock

    def getClass(self) -> Any:
        return types.SimpleNamespace(getSimpleName=lambda: "ContinuousExecution")


def test_a_continuous_query_has_no_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop stops it plainly, a pause leaves it alone, and nothing is done between its batches."""
    engine = ContinuousEngine(1e9)
    fake_time(monkeypatch, "tidegate.launcher.spark.boundary", monotonic=lambda: engine.now, sleep=engine.sleep)
    query = types.SimpleNamespace(_jsq=engine)
    assert not end_at_boundary(query, 10.0)
    assert between_batches([query], 10.0, pytest.fail, NEVER) is None
    before = engine.stopped_at
    assert not stop_at_boundary(query, 10.0)
    assert (before, engine.stopped_at) == (None, engine.now)
    assert engine._state == "ACTIVE"


CONSTRUCTING = "ReentrantLock.lock, MicroBatchExecution.constructNextBatch, TriggerExecutor.execute"
CONSTRUCTED = "ReentrantLock.unlock, MicroBatchExecution.constructNextBatch, TriggerExecutor.execute"
"""It has given its lock away, and has not come further yet: it is about to run the batch."""
COMMITTING = "ReentrantLock.lock, MicroBatchExecution.runBatch, TriggerExecutor.execute"


class BusyQuery:
    """A query whose batches follow one another, and the lock that it needs to construct and to commit each of them."""

    def __init__(self, clock: Clock, seconds: float, first: float) -> None:
        self.clock, self.seconds, self.ends_at = clock, seconds, first
        self.held, self.waits = False, ""
        self.commits: list[float] = []
        self._jsq = self
        self.awaitProgressLock = lambda: self

    def getClass(self) -> Any:
        field = types.SimpleNamespace(get=lambda _of: None)
        found = types.SimpleNamespace(getField=lambda _name: field)
        loader = types.SimpleNamespace(loadClass=lambda _name: found)
        return types.SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution", getClassLoader=lambda: loader)

    def queryExecutionThread(self) -> Any:
        return types.SimpleNamespace(getStackTrace=self._stack)

    def _stack(self) -> str:
        self._go_on()
        return self.waits or ADDING_BATCH

    def _go_on(self) -> None:
        """Go on as far as time and lock allow."""
        while True:
            if self.waits == CONSTRUCTING:
                if self.held:
                    return
                self.waits, self.ends_at = "", max(self.ends_at, self.clock.now) + self.seconds
            elif self.clock.now < self.ends_at:
                return
            elif self.held:
                self.waits = COMMITTING
                return
            else:
                self.commits.append(self.clock.now)
                self.waits = CONSTRUCTING

    def tryLock(self, _milliseconds: int, _unit: object) -> bool:
        self.clock.now += 0.001
        if self.waits == COMMITTING:  # it was let go to commit, and the lock is fair
            self.commits.append(self.clock.now)
            self.waits = CONSTRUCTING
        else:
            self._go_on()
        self.held = True
        return True

    def unlock(self) -> None:
        self.held = False


class Clock:
    """Simulated time."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock that the module goes by."""
    found = Clock()
    fake_time(monkeypatch, "tidegate.launcher.spark.between_batches", monotonic=lambda: found.now, sleep=found.sleep)
    return found


@pytest.mark.parametrize("seconds", [(0.4, 0.7), (1.5, 1.9), (0.3, 3.7), (2.0, 2.0, 2.3)], ids=str)
def test_queries_that_never_rest_are_held_at_one_moment(clock: Clock, seconds: tuple[float, ...]) -> None:
    """Each is held at its own boundary until the last one comes to its own, and none is held for longer than that."""
    queries = [BusyQuery(clock, each, 0.3 * place) for place, each in enumerate(seconds)]
    running: list[int] = []
    held = between_batches(queries, 30.0, lambda: running.extend(not query.waits for query in queries), NEVER)
    assert running == [False] * len(queries)
    assert held is not None
    assert held <= max(seconds) + 0.1
    assert clock.now < 15.0
    assert all(query.waits == CONSTRUCTING and not query.held for query in queries)


def test_queries_go_on_if_one_comes_to_no_boundary(clock: Clock) -> None:
    """A batch of minutes does not stop the other query for as long: it is held for a while and then goes on."""
    short, long = BusyQuery(clock, 0.5, 0.0), BusyQuery(clock, 300.0, 300.0)
    assert between_batches([short, long], 20.0, pytest.fail, NEVER) is None
    assert clock.now == pytest.approx(20.0, abs=1.0)
    assert len(short.commits) >= 5
    assert not short.held
    assert not long.held


def test_a_query_that_has_just_given_its_lock_away_is_about_to_run(clock: Clock) -> None:
    """Whoever gets that lock waits for the next boundary, although the query is still where it constructs batches."""
    query = BusyQuery(clock, 0.5, 0.0)
    stacks = iter([CONSTRUCTED] * 3)
    query._stack = lambda: next(stacks, "") or BusyQuery._stack(query)  # type: ignore[method-assign]
    query.waits = ""
    query.ends_at = 0.5
    commits: list[int] = []
    assert between_batches([query], 30.0, lambda: commits.append(len(query.commits)), NEVER) is not None
    assert commits == [1], "after the batch that was about to run"


def test_a_stop_is_not_kept_waiting(clock: Clock) -> None:
    """Whoever waits for a moment between batches gives up once the queries are being stopped, and lets them go on."""
    stopping = threading.Event()
    stopping.set()
    short, long = BusyQuery(clock, 0.5, 0.0), BusyQuery(clock, 300.0, 300.0)
    assert between_batches([short, long], 30.0, pytest.fail, stopping) is None
    assert clock.now < 1.0
    assert not short.held


def test_without_queries_every_moment_is_between_batches() -> None:
    """There is nothing to wait for."""
    acts: list[int] = []
    assert between_batches([], 30.0, lambda: acts.append(1), NEVER) == 0.0
    assert acts == [1]


def test_an_act_that_fails_holds_no_query(clock: Clock) -> None:
    """The error goes to the caller, and the batches go on."""
    query = BusyQuery(clock, 0.5, 0.0)

    def fail() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        between_batches([query], 30.0, fail, NEVER)
    assert not query.held


NEVER = threading.Event()
