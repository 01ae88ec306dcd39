"""A second driver before its turn, without Spark: it takes the script's queries, and starts them when it is let go."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.fake_drivers import DRIVER, LOG, OLD, FakeJava, FakeManager, driver_run
from tests.support.fake_queries import FakeWriter
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, HandoverOrder, Token
from tidegate.launcher.handover import second_driver, warm_up
from tidegate.launcher.handover.second_driver import SecondDriver
from tidegate.launcher.handover.turn import Turn
from tidegate.launcher.handover.warm_up import WarmUp
from tidegate.launcher.programs.waits import patch_waits
from tidegate.launcher.queries.checkpoints import SETTING, has_committed
from tidegate.launcher.queries.query_start import Fenced, PendingQuery, QueryStart
from tidegate.runtime.poll import wait_until

NEW = Token(6, 1)


class SecondScript:
    """A script in a second driver. Its queries have committed before, unless their names are in `new`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.control = Control.at(folder, "job")
        self.run = driver_run(self.control)
        self.turn = Turn(self.control, self.run, LOG, waits=True)
        self.preparation = WarmUp(self.control, self.run, self.turn, LOG)
        self.left: list[str] = []
        self.second = SecondDriver(
            self.turn, self.preparation, self._start, lambda failure: self.left.append(str(failure)), LOG
        )
        self.new: set[str] = set()
        self.rehearsed: list[str] = []
        self.started: list[str] = []
        self.got: list[Any] = []
        self.fails_at = ""
        self.executors = 2
        self.master = "spark://m"
        self.settings: dict[str, str] = {}
        self.jvm_is_gone = False
        self.rehearsal_error: Exception | None = None
        self.state_error: Exception | None = None
        monkeypatch.setattr(second_driver, "has_committed", lambda how: how.kwargs["queryName"] not in self.new)
        monkeypatch.setattr(warm_up, "rehearse", self._rehearse)
        monkeypatch.setattr(warm_up, "load_state", self._load_state)
        monkeypatch.setattr(QueryStart, "on_its_own", lambda how: how)
        monkeypatch.setattr(warm_up, "QUIET_SECONDS", 0.3)

    def query(self, name: str, source: str = "kafka") -> PendingQuery | None:
        """Start a query as the script does."""
        store = types.SimpleNamespace(getExecutorMemoryStatus=self._executors)
        context = types.SimpleNamespace(
            master=self.master, getConf=lambda: self.settings, _jsc=types.SimpleNamespace(sc=lambda: store)
        )
        writer = types.SimpleNamespace(_spark=types.SimpleNamespace(sparkContext=context))
        return self.second.take(QueryStart(DataStreamWriter.start, writer, (), {"queryName": name, "format": source}))

    def _executors(self) -> Any:
        if self.jvm_is_gone:
            raise ConnectionRefusedError("no JVM")
        return types.SimpleNamespace(size=lambda: 1 + self.executors)

    def _rehearse(self, how: QueryStart, _folder: Path, _still: Callable[[], bool]) -> int:
        if self.rehearsal_error is not None:
            self.jvm_is_gone = isinstance(self.rehearsal_error, ConnectionResetError)
            raise self.rehearsal_error
        self.rehearsed.append(how.kwargs["queryName"])
        return 2

    def _load_state(self, _how: QueryStart, slots: int) -> int:
        if self.state_error is not None:
            raise self.state_error
        return slots

    def _start(self, how: QueryStart, handle: PendingQuery) -> None:
        if how.kwargs["queryName"] == self.fails_at:
            raise RuntimeError("no topic")
        self.started.append(how.kwargs["queryName"])
        handle._jsq = FakeJava(how.kwargs["queryName"])

    def in_background(self, act: Callable[[], Any]) -> threading.Thread:
        """Let the script do something that may wait; `got` has what came of it."""

        def note() -> None:
            try:
                self.got.append(act())
            except BaseException as failure:  # noqa: BLE001 - the tests look at it
                self.got.append(failure)

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        return thread

    def ready(self) -> dict[str, Any]:
        """Return what the driver says once it is ready."""
        found = wait_until(lambda: self.control.ready(OLD), 30)
        assert found is not None
        return found

    def let_go(self, driver: str = DRIVER) -> None:
        """Permit a driver to start its queries."""
        Claims(self.control).raise_fence(NEW, "a")
        self.control.let_go(HandoverOrder(NEW, driver))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecondScript]:
    """A script in a second driver, until the end of the test."""
    script = SecondScript(tmp_path, monkeypatch)
    yield script
    script.turn.end()


def test_all_queries_are_rehearsed_before_the_handover_and_start_together(
    script: SecondScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is let past each start; once it waits, all its queries are known. Nothing starts before its turn."""
    monkeypatch.setattr(warm_up, "QUIET_SECONDS", 60.0)
    first, other = script.query("a"), script.query("b")
    assert first is not None
    waiting = script.in_background(lambda: first.id)
    ready = script.ready()
    assert (ready["slots"], ready["batches"], ready["queries"]) == (2, 4, 2)
    assert ready["submission_id"] == DRIVER
    assert script.rehearsed == ["a", "b"]
    script.let_go("driver-9-9")
    time.sleep(0.2)
    assert not script.started
    script.control.let_go(HandoverOrder(Token(6, 2), DRIVER))
    waiting.join(20)
    assert script.started == ["a", "b"]
    assert script.got == ["a"]
    assert other is not None
    assert other.isActive
    assert script.run.token == Token(6, 2)
    assert script.query("c") is None, "its turn has come: the script starts the query itself"


def test_a_script_that_waits_for_nothing_is_ready_after_a_while(script: SecondScript) -> None:
    """It may sleep, or do other work; a query that comes later is not rehearsed, but starts with the others."""
    script.query("a")
    assert script.ready()["queries"] == 1
    script.query("b")
    script.let_go()
    assert wait_until(lambda: script.started == ["a", "b"], 20)
    assert script.rehearsed == ["a"]


def test_queries_that_the_script_starts_one_after_another(script: SecondScript) -> None:
    """It waits for what the first query does before it starts the next: the second one starts in the new run."""
    first = script.query("a")
    assert first is not None
    waiting = script.in_background(lambda: (first.id, script.query("b")))
    assert script.ready()["queries"] == 1
    script.let_go()
    waiting.join(20)
    assert script.got == [("a", None)]
    assert script.started == ["a"]


@pytest.mark.parametrize("how", ["no commit", "memory", "no copy"])
def test_a_script_is_not_let_past_a_query_that_makes_something(
    script: SecondScript, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A table may be missing until the query has started; so the script waits, as it would for a slow start."""
    script.new = {"a"} if how == "no commit" else set()
    if how == "no copy":
        monkeypatch.setattr(QueryStart, "on_its_own", None)
    waiting = script.in_background(lambda: script.query("a", "memory" if how == "memory" else "kafka"))
    assert script.ready()["queries"] == 1
    assert not script.got
    script.let_go()
    waiting.join(20)
    (query,) = script.got
    assert query.id == "a"


def test_a_query_that_cannot_start_fails_the_script(script: SecondScript) -> None:
    """The handles raise the reason, no other query is started, and the driver ends."""
    script.fails_at = "a"
    queries = [script.query("a"), script.query("b")]
    script.ready()
    script.let_go()
    assert wait_until(lambda: script.left == ["no topic"], 20)
    assert not script.started
    for query in queries:
        assert query is not None
        with pytest.raises(RuntimeError, match="no topic"):
            query.awaitTermination()


def test_a_driver_that_is_let_go_too_late_starts_nothing(script: SecondScript) -> None:
    """The first driver was forgotten and goes on: the permission counts no more."""
    query = script.query("a")
    script.ready()
    assert script.control.take_turn(NEW, "driver-0-0")
    script.let_go()
    assert wait_until(lambda: script.left, 20)
    assert not script.started
    assert script.run.token == OLD
    assert query is not None
    with pytest.raises(Fenced) as told:
        query.stop()
    assert "its turn has not come" in told.value.text


def test_a_driver_that_nobody_lets_go_ends(script: SecondScript, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actuator that submitted it may be gone for good."""
    monkeypatch.setattr(second_driver, "WAIT_SECONDS", 0.1)
    script.query("a")
    assert wait_until(lambda: script.left, 20)
    assert not script.started


def test_a_stop_releases_the_script(script: SecondScript) -> None:
    """The driver is to end: whoever waits for a query that will not start is told so."""
    query = script.query("a")
    assert query is not None
    waiting = script.in_background(query.awaitTermination)
    script.ready()
    script.turn.end()
    waiting.join(20)
    assert isinstance(script.got[0], Fenced)


def test_a_driver_that_cannot_warm_up_takes_over_all_the_same(script: SecondScript) -> None:
    """A failed rehearsal is reported, and nothing else."""
    script.rehearsal_error = RuntimeError("no such topic")
    script.query("a")
    assert script.ready()["error"] == "RuntimeError: no such topic"
    script.let_go()
    assert wait_until(lambda: script.started == ["a"], 20)


def test_each_slot_loads_a_part_of_the_state(script: SecondScript) -> None:
    """The first load of an executor is slow."""
    script.query("a")
    assert script.ready()["state_partitions"] == script.run.parallelism


def test_state_that_cannot_be_read_is_noted(script: SecondScript) -> None:
    """The driver has rehearsed, so it is warm."""
    script.state_error = ValueError("no such store")
    script.query("a")
    ready = script.ready()
    assert (ready["batches"], ready["state_partitions"], ready["state_error"]) == (2, 0, "ValueError: no such store")
    assert "error" not in ready


def test_a_driver_that_has_lost_its_jvm_is_not_ready(script: SecondScript) -> None:
    """Its rehearsal fails, but nobody may hand over to what is left of it."""
    script.rehearsal_error = ConnectionResetError()
    script.query("a")
    assert wait_until(lambda: script.left == ["no JVM"], 20)
    assert script.control.ready(OLD) is None


def test_without_all_its_executors_a_driver_does_not_rehearse(
    script: SecondScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how many slots have come, and is not let go."""
    monkeypatch.setattr(warm_up, "EXECUTORS_SECONDS", 0.1)
    script.executors = 1
    script.query("a")
    assert script.ready()["slots"] == 1
    assert not script.rehearsed


@pytest.mark.parametrize(
    ("master", "executors", "cores"), [("spark://m", 1, {"spark.executor.cores": "2"}), ("local[2]", 0, {})]
)
def test_slots_are_what_a_driver_waits_for(
    script: SecondScript, master: str, executors: int, cores: dict[str, str]
) -> None:
    """An executor has as many as it has cores; a local application has its slots at once."""
    script.master, script.executors, script.settings = master, executors, cores
    script.query("a")
    assert script.ready()["slots"] == 2
    assert script.rehearsed == ["a"]


def test_a_driver_waits_for_executors_that_come_late(script: SecondScript) -> None:
    """It rehearses on all of them."""
    script.executors = 1
    script.query("a")
    time.sleep(0.3)
    assert not script.rehearsed
    script.executors = 2
    assert script.ready()["slots"] == 2
    assert script.rehearsed == ["a"]


def test_a_permission_that_cannot_be_read_is_looked_for_again(
    script: SecondScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may be away for a moment, or a file be half written by hand."""
    monkeypatch.setattr(second_driver, "_TRY_SECONDS", 0.01)
    script.query("a")
    script.ready()
    (Path(script.control.place) / "go").write_text("{")
    time.sleep(0.2)
    assert not script.left
    (Path(script.control.place) / "go").unlink()
    script.let_go()
    assert wait_until(lambda: script.started == ["a"], 20)


def test_rehearsals_without_a_shared_directory_are_in_the_checkpoint_location(script: SecondScript) -> None:
    """All executors see it."""
    script.control.folder = None
    how: Any = QueryStart(DataStreamWriter.start, FakeWriter("/ck"), (), {})
    assert script.preparation._place(how) == Path("/ck/.tidegate")


def test_what_a_killed_driver_has_left_of_its_rehearsals_is_removed(script: SecondScript) -> None:
    """Nobody else does it, and it may hold state: in a year, many a second driver is ended before it is warm."""
    folder = Path(script.control.place)
    for name in ("warm-4-2", "warm-5-1", "warm-6-1", "warm-up", "other"):
        (folder / name / "state").mkdir(parents=True)
    script.query("a")
    script.ready()
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"warm-5-1", "warm-6-1", "warm-up", "other"}


def test_waiting_for_any_query_waits_for_the_start(script: SecondScript, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsals end, which must not look like the end of a query; before there is a query, looking at them works."""
    for cls, names in (
        (StreamingQuery, ("awaitTermination", "stop", "isActive")),
        (StreamingQueryManager, ("awaitAnyTermination", "active")),
        (SparkContext, ("stop",)),
    ):
        for name in names:
            monkeypatch.setattr(cls, name, getattr(cls, name))
    patch_waits(script.turn, script.second, lambda: None)
    java = FakeManager()
    manager: Any = StreamingQueryManager(java)
    assert manager.active == []
    java.terminated = True
    waiting = script.in_background(lambda: manager.awaitAnyTermination(5))
    script.query("a")
    listing = script.in_background(lambda: manager.active)
    assert script.ready()["queries"] == 1
    assert not script.got
    script.let_go()
    waiting.join(20)
    listing.join(20)
    assert len(script.got) == 2
    assert script.started == ["a"]


def test_what_a_query_has_committed_is_in_its_checkpoint(tmp_path: Path) -> None:
    """Where Spark would look for it: the option, an argument of `start`, or a folder of the query's name."""

    def start(writer: FakeWriter, **kwargs: str) -> QueryStart:
        return QueryStart(DataStreamWriter.start, writer, (), kwargs)

    (tmp_path / "name" / "commits").mkdir(parents=True)
    places = [
        start(FakeWriter(options={"checkpointLocation": f"file://{tmp_path}/name"})),
        start(FakeWriter(), checkpointLocation=f"{tmp_path}/name"),
        start(FakeWriter(str(tmp_path)), queryName="name"),
    ]
    assert not any(has_committed(how) for how in places)
    (tmp_path / "name" / "commits" / "0").touch()
    assert all(has_committed(how) for how in places)
    assert not has_committed(start(FakeWriter(str(tmp_path)), queryName="other"))
    assert not has_committed(start(FakeWriter()))


def test_a_checkpoint_is_where_the_settings_of_the_start_say(tmp_path: Path) -> None:
    """The script may set another place for its next query while this one is rehearsed."""
    (tmp_path / "name" / "commits").mkdir(parents=True)
    (tmp_path / "name" / "commits" / "0").touch()
    of_start: Any = types.SimpleNamespace(session=types.SimpleNamespace(conf=lambda: {SETTING: str(tmp_path)}))
    how = QueryStart(DataStreamWriter.start, FakeWriter("/elsewhere"), (), {"queryName": "name"})
    assert not has_committed(how)
    assert has_committed(replace(how, surroundings=of_start))
