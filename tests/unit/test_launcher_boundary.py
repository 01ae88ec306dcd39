"""The stop of a query at a batch boundary, on a stand-in for Spark's engine."""

# ruff: noqa: D102, N802 - the methods are the JVM's

from __future__ import annotations

import types
from typing import Any

import pytest

from tidegate.launcher.boundary import end_at_boundary, stop_at_boundary

ADDING_BATCH = "x.SQLExecution$.withNewExecutionId, MicroBatchExecution.runBatch, TriggerExecutor.execute"


class Engine:
    """A MicroBatchExecution whose running batch ends at some instant; then it looks at its state."""

    def __init__(self, batch_ends_at: float) -> None:
        self.batch_ends_at = batch_ends_at
        self.now = 0.0
        self.stopped_at: float | None = None
        self._state = "ACTIVE"
        self.streamingQuery = lambda: self
        lock = types.SimpleNamespace(lock=lambda: None, unlock=lambda: None)
        self.awaitProgressLock = lambda: lock

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
        self._state = new.name
        return True

    def queryExecutionThread(self) -> Any:
        alive = self.now < self.batch_ends_at and self.stopped_at is None
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
    monkeypatch.setattr("tidegate.launcher.boundary._describer", lambda _engine: str)


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
    monkeypatch.setattr("tidegate.launcher.boundary.time.monotonic", lambda: engine.now)
    monkeypatch.setattr("tidegate.launcher.boundary.time.sleep", engine.sleep)
    asks: list[float] = []

    def extend() -> float:
        asks.append(engine.now)
        return extension

    query = types.SimpleNamespace(_jsq=engine, stop=engine.stop)
    assert stop_at_boundary(query, 10.0, extend) is clean
    assert len(asks) == asked
    assert engine.stopped_at == pytest.approx(min(batch_ends_at, 10.0 + extension), abs=0.2)


@pytest.mark.parametrize(("batch_ends_at", "ended"), [(5.0, True), (12.0, False)], ids=["in time", "too late"])
def test_a_pause_breaks_no_batch(monkeypatch: pytest.MonkeyPatch, batch_ends_at: float, ended: bool) -> None:
    """A query whose batch does not end before the deadline goes on as if it had never been asked."""
    engine = Engine(batch_ends_at)
    monkeypatch.setattr("tidegate.launcher.boundary.time.monotonic", lambda: engine.now)
    monkeypatch.setattr("tidegate.launcher.boundary.time.sleep", engine.sleep)
    assert end_at_boundary(types.SimpleNamespace(_jsq=engine), 10.0) is ended
    assert engine.state().get().name == ("TERMINATED" if ended else "ACTIVE")
    assert (engine.stopped_at is not None) is ended
