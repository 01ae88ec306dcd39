"""A driver's part in a handover, without Spark: orders, held queries, and what the script sees of them."""

from __future__ import annotations

import json
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.control import see_no_fence
from tests.support.fake_drivers import DRIVER, LOG, OLD, FakeJava, FakeManager, driver_run
from tests.support.fake_time import fake_time
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, HandoverOrder, Token
from tidegate.launcher.control.json_files import ControlError
from tidegate.launcher.handover import rehearsal, turn
from tidegate.launcher.handover.repeat import RECORDS, repeat_newest_batch
from tidegate.launcher.handover.second_driver import SecondDriver
from tidegate.launcher.handover.turn import StartedQuery, Turn
from tidegate.launcher.handover.warm_up import WarmUp
from tidegate.launcher.programs.waits import patch_waits
from tidegate.launcher.queries.query_start import QueryStart


class Script:
    """A script with one query, in a driver that can hand over."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.control = Control.at(folder, "job")
        self.run = driver_run(self.control)
        self.turn = Turn(self.control, self.run, LOG, waits=False)
        self.query: Any = StreamingQuery(FakeJava())
        self.manager: Any = StreamingQueryManager(FakeManager(self.query._jsq))
        self.fails = False
        self.reaches_boundary = True
        writer = types.SimpleNamespace(_spark=types.SimpleNamespace(streams=self.manager))
        self.turn.remember(StartedQuery(self.query, QueryStart(self._start, writer, (), {})))
        monkeypatch.setattr(turn, "end_at_boundary", self._end)
        self.ended: list[Any] = []
        self.stop_is_over = threading.Event()
        self.stop_is_over.set()

    def _start(self, _writer: Any) -> StreamingQuery:
        if self.fails:
            raise RuntimeError("no topic")
        new = FakeJava()
        self.manager._jsqm.queries.append(new)
        return StreamingQuery(new)

    def _end(self, query: Any, _deadline: float) -> bool:
        if self.reaches_boundary:
            query._jsq.stop()
        return self.reaches_boundary

    def order(self, run: int, *, hold: bool, driver: str = DRIVER, seconds: float = 5.0) -> Token:
        """Order something under a newer fence, and have the driver look."""
        token = Token(6, run)
        Claims(self.control).raise_fence(token, "a")
        order = HandoverOrder(token, driver, seconds)
        (self.control.request_hold if hold else self.control.let_go)(order)
        self.turn.look()
        return token

    def wait_for_stop(self) -> None:
        """Wait until a stop is over."""
        assert self.stop_is_over.wait(20)

    def wait_in_background(self, wait: Any) -> threading.Thread:
        """Let the script wait for its query; `ended` is filled when it goes on."""
        thread = threading.Thread(target=lambda: self.ended.append(wait()), daemon=True)
        thread.start()
        time.sleep(0.05)
        return thread


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A script whose waits are wrapped, until the end of the test."""
    for cls, names in (
        (StreamingQuery, ("awaitTermination", "stop", "isActive")),
        (StreamingQueryManager, ("awaitAnyTermination", "active", "get")),
        (SparkContext, ("stop",)),
    ):
        for name in names:
            monkeypatch.setattr(cls, name, getattr(cls, name))
    script = Script(tmp_path, monkeypatch)
    warm_up = WarmUp(script.control, script.run, script.turn, LOG)
    second = SecondDriver(script.turn, warm_up, lambda _how, _query: None, script.run.report_failure, LOG)
    patch_waits(script.turn, second, script.wait_for_stop)
    yield script
    script.turn.end()
    script.query._jsq.stop()


def test_a_script_does_not_notice_that_its_query_is_held(script: Script) -> None:
    """A held query looks active; once it is resumed, the same handle is the new query's, and waiting goes on."""
    assert script.manager.get("q")._jsq is script.query._jsq
    waiting = script.wait_in_background(script.query.awaitTermination)
    any_of = script.wait_in_background(script.manager.awaitAnyTermination)
    first = script.query._jsq
    token = script.order(1, hold=True)
    assert script.control.paused(token) == {"paused": True, "queries": {"q": None}}
    assert not first.active
    assert script.query.isActive
    assert [query.id for query in script.manager.active] == ["q"]
    assert script.manager.get("q").isActive
    assert script.query.awaitTermination(0.2) is False
    assert script.manager.awaitAnyTermination(0.2) is False

    token = script.order(2, hold=False)
    assert script.run.token == token
    assert script.query._jsq is not first
    assert script.query._jsq.active
    time.sleep(0.3)
    assert not script.ended, "the script went on"
    script.query._jsq.stop()
    waiting.join(20)
    any_of.join(20)
    assert len(script.ended) == 2


def test_a_script_that_is_slow_to_see_a_pause_waits_on(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query of it had ended when it looked, and runs again."""
    wait, first = FakeManager.awaitAnyTermination, iter([True])

    def slow(manager: FakeManager, milliseconds: int | None = None) -> bool:
        if not next(first, False):
            return wait(manager, milliseconds)
        script.order(1, hold=True)
        script.order(2, hold=False)
        return True

    monkeypatch.setattr(FakeManager, "awaitAnyTermination", slow)
    assert script.manager.awaitAnyTermination(0.2) is False


def test_a_second_order_to_pause_keeps_what_is_paused(script: Script) -> None:
    """A successor of the actuator orders it again; when the driver may go on, it still knows its queries."""
    script.order(1, hold=True)
    again = script.order(2, hold=True)
    assert script.control.paused(again) == {"paused": True, "queries": {"q": None}}
    assert [query.id for query in script.turn.held()] == ["q"]
    script.order(3, hold=False)
    assert script.query._jsq.active


def test_a_second_handle_follows_a_resumed_query(script: Script) -> None:
    """A handle that the script got from `spark.streams` waits for the new query too."""
    (other,) = script.manager.active
    waiting = script.wait_in_background(other.awaitTermination)
    script.order(1, hold=True)
    script.order(2, hold=False)
    waiting.join(0.5)
    assert not script.ended
    script.query._jsq.stop()
    waiting.join(20)
    assert script.ended
    assert other._jsq is script.query._jsq


def test_a_stop_releases_a_script_whose_queries_are_held(script: Script) -> None:
    """When the driver is to end, waiting for a held query ends, and so does a loop until it has."""
    waiting = script.wait_in_background(script.query.awaitTermination)
    script.order(1, hold=True)
    assert script.query.isActive
    script.turn.end()
    waiting.join(20)
    assert script.ended
    assert not script.query.isActive


def test_a_query_that_somebody_else_has_started_ends_as_ever(script: Script) -> None:
    """Such as one that the script started through the JVM: the driver does not know it."""
    other = FakeJava("other")
    other.stop()
    assert StreamingQuery(other).awaitTermination()


def test_a_driver_whose_jvm_is_gone_does_not_wait(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark kills the JVM of a driver; its Python process must not wait on for the other driver."""
    waiting = script.wait_in_background(script.query.awaitTermination)
    script.order(1, hold=True)
    monkeypatch.setattr("tidegate.launcher.handover.turn.os.getppid", lambda: 1)
    waiting.join(20)
    assert script.ended


def test_a_query_that_the_script_stops_while_it_is_held_is_not_resumed(script: Script) -> None:
    """What the script has stopped stays stopped."""
    script.order(1, hold=True)
    held = script.query._jsq
    script.query.stop()
    assert not script.query.isActive
    script.order(2, hold=False)
    assert script.query._jsq is held


def test_a_query_that_has_ended_before_the_pause_is_not_resumed(script: Script) -> None:
    """It may have failed, or the script has stopped it: it is none of those that the driver holds."""
    ended = StreamingQuery(FakeJava("ended"))
    script.turn.remember(StartedQuery(ended, QueryStart(script._start, types.SimpleNamespace(), (), {})))
    before = ended._jsq
    before.stop()
    assert script.control.paused(script.order(1, hold=True)) == {"paused": True, "queries": {"q": None}}
    script.order(2, hold=False)
    assert ended._jsq is before
    assert script.query._jsq.active


def test_a_query_that_the_script_stops_while_others_are_being_paused_is_not_resumed(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hold that fails gives back only the queries that were paused for it."""
    stopped, goes_on = script.query, StreamingQuery(FakeJava("late"))
    script.turn.remember(StartedQuery(goes_on, QueryStart(script._start, types.SimpleNamespace(), (), {})))
    first, began = stopped._jsq, time.monotonic()

    def end(query: Any, _deadline: float) -> bool:
        if query is stopped:
            stopped.stop()
        return query is stopped

    monkeypatch.setattr(turn, "end_at_boundary", end)
    fake_time(monkeypatch, turn.__name__, monotonic=lambda: began + (0.0 if first.active else 60.0))
    token = script.order(1, hold=True, seconds=30.0)
    assert script.control.paused(token) == {"paused": False, "queries": {}}
    assert not first.active
    assert stopped._jsq is first
    assert not stopped.isActive
    assert goes_on._jsq.active


def test_no_batch_is_broken_for_a_handover(script: Script) -> None:
    """If a query reaches no boundary before the deadline, it goes on, and the answer says so."""
    script.reaches_boundary = False
    token = script.order(1, hold=True, seconds=0.2)
    assert script.control.paused(token) == {"paused": False, "queries": {}}
    assert script.query._jsq.active
    assert not script.turn.holding


@pytest.mark.parametrize("order", ["go on", "stop"])
def test_an_order_to_pause_can_be_taken_back(script: Script, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """A driver that is told to go on or to stop while it waits for the end of a batch waits no longer."""

    def end(_query: Any, _deadline: float) -> bool:
        Claims(script.control).raise_fence(Token(6, 2), "a")
        if order == "stop":
            script.control.request_stop(Token(6, 2), "c", 20.0)
        else:
            script.control.let_go(HandoverOrder(Token(6, 2), DRIVER))
        return False

    monkeypatch.setattr(turn, "end_at_boundary", end)
    started = time.monotonic()
    token = script.order(1, hold=True, seconds=600.0)
    assert time.monotonic() - started < 60.0
    assert script.control.paused(token) == {"paused": False, "queries": {}}
    assert script.query._jsq.active
    assert script.run.token == (OLD if order == "stop" else Token(6, 2))


def test_orders_for_other_drivers_and_old_orders_are_not_obeyed(script: Script) -> None:
    """Only an order that names this driver, and is newer than its run, counts."""
    token = script.order(1, hold=True, driver="driver-9-9")
    assert script.control.paused(token) is None
    script.order(2, hold=False)
    assert script.run.token == Token(6, 2)
    script.control.request_hold(HandoverOrder(Token(6, 2), DRIVER, 5.0))
    script.turn.look()
    assert not script.turn.holding


def test_a_driver_with_a_newer_fence_is_not_let_go(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission under an older fence than the newest one does not count: its actuator was overtaken."""
    script.order(1, hold=True)
    Claims(script.control).raise_fence(Token(6, 3), "b")
    script.control.let_go(HandoverOrder(Token(6, 2), DRIVER))
    see_no_fence(monkeypatch)
    script.turn.look()
    assert script.turn.holding
    assert script.run.token == OLD


def test_a_driver_that_was_forgotten_goes_on(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused for longer than any second driver waits, it resumes by itself."""
    script.order(1, hold=True)
    script.turn.look()
    assert script.turn.held()
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    script.turn.look()
    assert not script.turn.holding
    assert script.query._jsq.active
    assert not script.control.take_turn(Token(6, 1), "driver-9-9"), "a second driver may still go"


def test_an_earlier_handover_does_not_keep_a_forgotten_driver_paused(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its second driver had taken that turn, and failed."""
    assert script.control.take_turn(script.order(1, hold=True), "driver-9-9")
    script.order(2, hold=False)
    script.order(3, hold=True)
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    script.turn.look()
    assert not script.turn.holding


def test_a_forgotten_driver_needs_no_orders(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on although the files of orders cannot be read, and pauses again when there is a new order."""
    script.order(1, hold=True)
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    for name in ("hold", "go", "fence"):
        (Path(script.control.place) / name).write_text("{")
    with pytest.raises(ControlError):
        script.turn.look()
    assert not script.turn.holding
    assert script.query._jsq.active
    for name in ("hold", "go", "fence"):
        (Path(script.control.place) / name).unlink()
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 60.0)
    token = script.order(2, hold=True)
    assert script.control.paused(token) == {"paused": True, "queries": {"q": None}}


def test_a_driver_whose_answer_cannot_be_written_takes_its_turn_back_once(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries ten times a second while the store is away; then the job does not wait for a request for each try."""

    def away(*_: object) -> None:
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Control, "write_paused", away)
        with pytest.raises(OSError, match="no answer"):
            script.order(1, hold=True)
        for _ in range(50):
            with pytest.raises(OSError, match="no answer"):
                script.turn.look()
    script.turn.look()
    assert script.control.paused(Token(6, 1)) == {"paused": True, "queries": {"q": None}}
    taken: list[Token] = []

    def take(_control: Control, order: Token, _submission_id: str) -> bool:
        taken.append(order)
        return True

    monkeypatch.setattr(Control, "take_turn", take)
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    script.turn.look()
    assert not script.turn.holding
    assert taken == [Token(6, 1)]


@pytest.mark.parametrize("held", [1, 2])
def test_a_turn_is_taken_once(script: Script, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """A first driver stays paused if a second one runs under any of its orders; a second one that is late ends."""
    for run in range(1, held + 1):
        script.order(run, hold=True)
    assert script.control.take_turn(Token(6, 1), "driver-9-9")
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    script.turn.look()
    assert script.turn.holding


def test_a_driver_that_has_handed_over_stays_paused(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a second driver was let go, only the actuator may tell the first one to go on."""
    token = script.order(1, hold=True)
    assert script.control.take_turn(token, "driver-9-9")
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    script.turn.look()
    assert script.turn.holding


def test_a_query_that_cannot_be_resumed_is_reported(script: Script) -> None:
    """The reason is reported, and the script goes on with an ended query."""
    waiting = script.wait_in_background(script.query.awaitTermination)
    script.order(1, hold=True)
    script.fails = True
    script.order(2, hold=False)
    assert script.run.get("error") == "RuntimeError: no topic"
    waiting.join(20)
    assert script.ended


@pytest.mark.parametrize("of", ["query", "context"])
def test_a_script_cannot_cut_off_the_batches_of_a_stop(script: Script, of: str) -> None:
    """One query has ended, and the script ends the others or its session: that waits until all have ended."""
    context = types.SimpleNamespace(_jsc=None, _callsite=None)
    stops = {"query": script.query.stop, "context": lambda: SparkContext.stop(context)}
    script.stop_is_over.clear()
    stopping = script.wait_in_background(stops[of])
    assert script.query._jsq.active
    assert not script.ended
    script.stop_is_over.set()
    stopping.join(20)
    assert script.ended


def _log(checkpoint: Path, batch: int, *sources: Any) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    settings = {"batchWatermarkMs": 77, "conf": {"spark.sql.shuffle.partitions": "3"}}
    lines = ["v1", json.dumps(settings), *map(json.dumps, sources)]
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(lines))


def test_a_rehearsal_repeats_the_newest_batch(tmp_path: Path) -> None:
    """Each partition is read again from where the newest batch began, but no more than a few records of it."""
    real, place = tmp_path / "ck", tmp_path / "warm"
    _log(real, 3, {"a": {"0": 100, "1": 5}}, {"b": {"0": 7}})
    _log(real, 4, {"a": {"0": 100_000, "1": 8}}, {"b": {"0": 7}})
    quarter, half, _, whole = repeat_newest_batch(f"file://{real}", place)
    assert (place / "sources/0/0").read_bytes() == b"\0v1\n" + json.dumps(
        {"a": {"0": 100_000 - RECORDS, "1": 5}}
    ).encode()
    parts = (quarter, 100_000 - RECORDS * 3 // 4, 5), (half, 100_000 - RECORDS // 2, 6), (whole, 100_000, 8)
    for log, first, second in parts:
        version, settings, *ends = log.splitlines()
        assert version == "v1"
        assert json.loads(settings) == {"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": "3"}}
        assert [json.loads(end) for end in ends] == [{"a": {"0": first, "1": second}}, {"b": {"0": 7}}]
    assert not (place / "offsets").exists(), "a batch is logged just before it runs"
    assert json.loads((place / "metadata").read_text())["id"]


@pytest.mark.parametrize("source", [{"logOffset": 3}, 17, {"a": {"0": "x"}}])
def test_only_kafka_batches_are_repeated(tmp_path: Path, source: Any) -> None:
    """A checkpoint of another source is left alone, and so is one without a batch."""
    place = tmp_path / "warm"
    place.mkdir()
    assert not repeat_newest_batch(str(tmp_path / "none"), place)
    _log(tmp_path / "ck", 0, source)
    assert not repeat_newest_batch(str(tmp_path / "ck"), place)
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("source", "one_batch"), [({"a": {"0": 9}}, [True] * 3 + [False]), ({"logOffset": 3}, [True] * 2)]
)
def test_only_kafka_is_asked_for_the_next_batch_of_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, one_batch: list[bool]
) -> None:
    """Any other source would learn that its first batch is committed, and may delete what was not really read."""
    _log(tmp_path / "ck", 0, source)
    asked: list[bool] = []
    monkeypatch.setattr(rehearsal, "checkpoint_of", lambda *_args: str(tmp_path / "ck"))
    monkeypatch.setattr(rehearsal, "_frame", lambda _how: None)
    monkeypatch.setattr(rehearsal, "_start", lambda _frame, _how, _place, *, one_batch: asked.append(one_batch))
    monkeypatch.setattr(rehearsal, "_wait_for", lambda *_args: 1)
    how = QueryStart(DataStreamWriter.start, None, (), {})
    assert rehearsal.rehearse(how, tmp_path / "w", lambda: True) == len(one_batch)
    assert asked == one_batch


def test_a_rehearsal_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint is removed."""
    place = tmp_path / "w"
    _log(tmp_path / "ck", 0, {"a": {"0": 9}})
    monkeypatch.setattr(rehearsal, "checkpoint_of", lambda *_args: str(tmp_path / "ck"))
    monkeypatch.setattr(rehearsal, "_frame", lambda _how: None)
    seen: list[bool] = []

    def fail(*_args: Any, **_more: Any) -> None:
        seen.append((place / "offsets/0").exists())
        raise RuntimeError("no topic")

    monkeypatch.setattr(rehearsal, "_start", fail)
    with pytest.raises(RuntimeError, match="no topic"):
        rehearsal.rehearse(QueryStart(DataStreamWriter.start, None, (), {}), place, lambda: True)
    assert seen == [True]
    assert not place.exists()
