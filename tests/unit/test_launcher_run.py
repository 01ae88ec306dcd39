"""One run inside its driver, without Spark: how its queries start, what the watch does, and how a stop ends it."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.control import stopped
from tests.support.fake_queries import FakeContext, FakeQuery, FakeWriter
from tests.support.fake_time import fake_time
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import SUBMISSION_ID, Control, HandoverOrder, Token
from tidegate.launcher.handover import turn
from tidegate.launcher.queries.query_start import Fenced, PendingQuery, QueryStart
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.progress import RunProgress
from tidegate.launcher.run import launch, starting, stopping
from tidegate.launcher.run.launch import Launch
from tidegate.runtime.poll import wait_until

RUN = Token(5, 1)


class FakeProgram:
    """A program that notes what is asked of it. `started` are the queries that it starts by itself, call by call."""

    waits = False

    def __init__(self, *, hands_over: bool = True) -> None:
        self.hands_over = hands_over
        self.started: list[list[Any]] = []
        self.asked: list[str] = []

    def context(self) -> None:
        """Say that there is no application."""

    def run(self, launch: Launch) -> None:
        """Do nothing."""

    def new_queries(self) -> list[Any]:
        """Return what has started since the last call."""
        return self.started.pop(0) if self.started else []

    def prepare_to_stop(self) -> None:
        """Note the call."""
        self.asked.append("prepare to stop")

    def stopped(self) -> None:
        """Note the call."""
        self.asked.append("stopped")

    def end(self, code: int) -> None:
        """Note the exit code."""
        self.asked.append(f"end with {code}")


class Driver:
    """A driver with a program."""

    def __init__(self, folder: Path, program: FakeProgram) -> None:
        self.control = Control.at(folder, "job")
        self.said: list[str] = []
        self.program = program
        log = DriverLog(self.said.append)
        self.run = DriverRun(self.control, RUN, 2, log, hands_over=program.hands_over)
        self.launch = Launch(self.control, self.run, program, log)

    def start(self, query: Any, writer: FakeWriter | None = None) -> Any:
        """Start a query as a script does."""
        return self.launch.start_query(lambda _writer: query, writer or FakeWriter("/ck"))

    def pause(self) -> Token:
        """Order the driver to pause its queries."""
        order = HandoverOrder(Token(6, 1), self.run.submission_id, 60.0)
        Claims(self.control).raise_fence(order.token, "a")
        self.control.request_hold(order)
        return order.token

    def stop(self) -> None:
        """Ask this run to stop, and watch until it has."""
        self.control.request_stop(Token(7, 1), "c", 60.0)
        self.launch.watch()


@pytest.fixture
def program() -> FakeProgram:
    """Return the program of a driver that can hand over."""
    return FakeProgram()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: FakeProgram) -> Driver:
    """Return a driver whose queries reach every boundary at once, and which leaves at once."""
    monkeypatch.setattr(turn, "end_at_boundary", lambda _query, deadline: deadline > time.monotonic())
    monkeypatch.setattr(stopping, "stop_at_boundary", lambda _query, deadline, _more: deadline > time.monotonic())
    monkeypatch.setattr(launch, "_WATCH_SECONDS", 0.001)
    monkeypatch.setattr(launch, "_LEAVE_SECONDS", 0.0)
    return Driver(tmp_path, program)


def running(id_: str = "q") -> FakeQuery:
    """Return a query that runs, with the JVM's side of it."""
    query = FakeQuery(id_)
    query._jsq.isActive = lambda: query.isActive
    return query


def test_a_driver_that_was_submitted_twice_runs_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actuator that got no answer does not know of the first one. Both would write the same control files."""
    driver.launch.starter.arrive()
    driver.launch.starter.arrive()  # the API server may not have answered the first time
    first = driver.control.running(RUN) or {}
    monkeypatch.setenv(SUBMISSION_ID, "driver-1-9")
    second = Driver(Path(driver.control.place).parent, driver.program)
    with pytest.raises(Fenced) as refused:
        second.launch.starter.arrive()
    assert refused.value.text == f"run 5-1 must not start: driver {first['submission_id']} is that run"
    assert driver.control.running(RUN) == first


@pytest.mark.parametrize("waits", [True, False])
def test_a_driver_says_that_it_waits_until_it_was_let_go(driver: Driver, program: FakeProgram, *, waits: bool) -> None:
    """The actuator may end one that waits for a handover that is over."""
    program.waits = waits
    one = Driver(Path(driver.control.place).parent, program)
    one.launch.starter.arrive()
    assert ("waits" in (driver.control.running(RUN) or {})) is waits
    one.run.adopt(Token(6, 1))
    one.run.report(idle_at="now")
    assert "waits" not in (driver.control.running(Token(6, 1)) or {"waits": True})


def test_a_run_that_is_being_stopped_starts_no_query(driver: Driver) -> None:
    """The stop would miss it. A script that tries again and again does not fill the log."""
    driver.run.stopping.set()
    for _ in range(2):
        with pytest.raises(Fenced, match="75"):
            driver.start(running())
    assert driver.said == ["run 5-1 is being stopped and must not start another query"]
    assert driver.launch.queries.known() == []


def test_a_query_that_was_started_is_paused_by_an_order(driver: Driver) -> None:
    """The driver knows it, and how to start it again."""
    driver.start(running())
    order = driver.pause()
    driver.launch.turn.look()
    assert driver.control.paused(order) == {"paused": True, "queries": {"q": None}}


def test_a_query_is_not_started_while_the_others_are_held(driver: Driver) -> None:
    """Another driver may run them; the script's start takes until they are resumed."""
    driver.launch.turn.holding = True
    got: list[Any] = []
    query = running()
    thread = threading.Thread(target=lambda: got.append(driver.start(query)), daemon=True)
    thread.start()
    time.sleep(0.3)
    assert driver.launch.queries.known() == []
    driver.launch.turn.holding = False
    thread.join(20)
    assert got == [query]


def test_a_query_that_failed_goes_on_from_its_checkpoint(driver: Driver) -> None:
    """Without a name, it gets its place again: another one is empty, and the next driver would look at the first."""
    writers: list[FakeWriter] = []

    def start(query: FakeQuery, plan: str) -> FakeQuery:
        writers.append(FakeWriter("/ck", plan=plan))
        driver.start(query, writers[-1])
        return query

    first, other = start(running("a"), "Kafka[value#1L] KafkaTable@1f"), start(running("b"), "Kafka[value#7L], [other]")
    for failed in (first, other):
        failed.isActive, failed.failure = False, "boom"
    start(running("a"), "Kafka[value#9L] KafkaTable@2c")
    start(running("c"), "Kafka[value#9L] KafkaTable@2c")  # the first one runs
    places = [writer.options["checkpointLocation"] for writer in writers]
    assert places == ["/ck", "/ck/query-2", "/ck", "/ck/query-3"]


@pytest.mark.parametrize("is_second", [False, True])
def test_a_start_waits_for_the_order_that_comes_with_a_newer_fence(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, is_second: bool
) -> None:
    """In a handover the fence rises first: a script that ended would cut off the batches of its other queries.

    The handover may take as long as a batch: whoever is paused, or has not had its turn, waits for its end.
    """
    now = [0.0]
    fake_time(monkeypatch, "tidegate.launcher.run.starting", monotonic=lambda: now[0], sleep=time.sleep)
    driver.start(running("a"))
    got: list[Any] = []
    query = running("b")
    Claims(driver.control).raise_fence(Token(6, 1), "a")
    thread = threading.Thread(target=lambda: got.append(driver.start(query)), daemon=True)
    thread.start()
    time.sleep(0.3)
    if is_second:
        driver.launch.turn.waits = True
    else:
        order = driver.pause()
        driver.launch.turn.look()
        assert driver.control.paused(order) == {"paused": True, "queries": {"a": None}}
    now[0] = 2 * starting.ORDER_SECONDS
    time.sleep(0.3)
    assert thread.is_alive()
    driver.run.adopt(Token(7, 1))  # the other driver has failed or paused, and this one goes on
    driver.launch.turn.holding = driver.launch.turn.waits = False
    thread.join(20)
    assert got == [query]


def test_a_start_does_not_wait_for_an_order_for_ever(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may know of this driver any more, and a newer one runs the job."""
    monkeypatch.setattr(starting, "ORDER_SECONDS", 0.3)
    driver.start(running("a"))
    Claims(driver.control).raise_fence(Token(6, 1), "a")
    with pytest.raises(Fenced):
        driver.start(running("b"))


def test_a_driver_that_was_forgotten_may_start_a_query(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence of the handover that nobody ended stays; a query that fails later can be started again."""
    monkeypatch.setattr(turn, "FORGOTTEN_SECONDS", 0.0)
    monkeypatch.setattr(starting, "ORDER_SECONDS", 0.0)
    driver.start(running("a"))
    driver.pause()
    driver.launch.turn.look()
    driver.launch.turn.look()
    assert not driver.launch.turn.holding
    query = running("b")
    assert driver.start(query) is query
    Claims(driver.control).raise_fence(Token(6, 2), "a")  # a successor goes on with the handover
    with pytest.raises(Fenced):
        driver.start(running("c"))


def test_a_start_that_waits_when_the_driver_is_to_end_is_fenced(driver: Driver) -> None:
    """Another driver has taken the queries over."""
    driver.launch.turn.holding = True
    driver.launch.turn.end()
    with pytest.raises(Fenced):
        driver.start(running())
    assert driver.said == ["run 5-1 must not start a query: its turn has not come"]


def test_a_query_is_started_behind_the_handle_that_the_script_has(driver: Driver) -> None:
    """Whatever the script asks of its handle is asked of the query."""
    query = running()
    how = QueryStart(lambda _writer: query, FakeWriter("/ck"), (), {})
    handle = PendingQuery(how, pytest.fail)
    driver.run.report(queries=[])
    assert driver.launch.starter.start(how, handle) is handle
    assert handle._jsq is query._jsq
    assert driver.launch.queries.known() == [handle]


def test_a_stop_ends_each_query_that_the_program_has_started(driver: Driver, program: FakeProgram) -> None:
    """Also one that appears only now; the program cannot end the driver meanwhile, and it ends in the end."""
    program.started = [[running("late")]]
    driver.start(running("q"))
    driver.stop()
    facts = stopped(driver.control, RUN) or {}
    assert facts["clean"]
    assert facts["queries"].keys() == {"q", "late"}
    assert program.asked == ["prepare to stop", "stopped", "end with 0"]
    assert driver.run.stopping.is_set()


def test_a_program_is_given_time_to_end_by_itself(
    driver: Driver, program: FakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its queries have ended it may have work to finish; a program that goes on after that is ended."""
    asked: list[str] = []
    sleep = time.sleep

    def slept(seconds: float) -> None:
        if seconds == 7.0:
            asked.append(program.asked[-1])
        else:  # another thread's
            sleep(seconds)

    monkeypatch.setattr(launch, "_LEAVE_SECONDS", 7.0)
    monkeypatch.setattr(time, "sleep", slept)
    driver.stop()
    assert asked == ["stopped"]
    assert program.asked[-1] == "end with 0"


def test_a_stop_leaves_queries_that_another_driver_runs(driver: Driver) -> None:
    """They have ended at their boundary before; and whoever waits for them is released."""
    driver.start(running())
    driver.pause()
    driver.launch.turn.look()
    driver.stop()
    assert (stopped(driver.control, RUN) or {})["queries"] == {}
    assert driver.launch.turn.over


@pytest.mark.parametrize("hands_over", [True, False])
def test_only_a_program_that_hands_over_obeys_orders_to_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands_over: bool
) -> None:
    """A main class cannot: its queries could not be resumed."""
    monkeypatch.setattr(launch, "_LEAVE_SECONDS", 0.0)
    driver = Driver(tmp_path, FakeProgram(hands_over=hands_over))
    order = driver.pause()
    watch = threading.Thread(target=driver.launch.watch, daemon=True)
    watch.start()
    answered = wait_until(lambda: driver.control.paused(order) is not None, 30 if hands_over else 0.5)
    driver.control.request_stop(Token(7, 1), "c", 60.0)
    watch.join(20)
    assert bool(answered) is hands_over


def test_queries_that_the_program_starts_by_itself_are_reported(driver: Driver, program: FakeProgram) -> None:
    """And how far they have come, and that they are idle."""
    query = running()
    query.status = {"message": "Waiting for data to arrive", "isTriggerActive": False}
    driver.run.report(queries=[])
    driver.launch.starter.context = FakeContext(finished=[3])
    program.started = [[query]]
    watch = threading.Thread(target=driver.launch.watch, daemon=True)
    watch.start()
    assert wait_until(lambda: driver.control.progress(RUN), 20)
    driver.control.request_stop(Token(7, 1), "c", 60.0)
    watch.join(20)
    facts = driver.control.running(RUN) or {}
    assert [one["id"] for one in facts["queries"]] == ["q"]
    assert "idle_at" in facts
    assert (driver.control.progress(RUN) or {})["finished_tasks"] == 3


def test_progress_is_looked_at_now_and_then(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before the first query: then the driver asks its application, and says which queries have failed."""
    looks: list[Any] = []
    monkeypatch.setattr(RunProgress, "look", lambda _progress, context, queries: looks.append((context, len(queries))))
    due = [True, True, False]
    monkeypatch.setattr(RunProgress, "due", property(lambda _progress: due.pop(0)))
    driver.launch._report_progress()
    assert not looks
    first, other = running("first"), running("other")
    writer = FakeWriter("/ck")
    for query in (first, other):
        driver.launch.start_query(lambda _writer, query=query: query, writer)
    first.isActive, first.failure = False, "x.YException: no such topic"
    for _ in range(3):
        driver.launch._report_progress()
    assert looks == [(writer._spark.sparkContext, 1)] * 2
    assert driver.run.get("error") == "x.YException: no such topic"


def test_a_driver_that_goes_on_as_a_newer_run_reports_again(driver: Driver) -> None:
    """The newer run has not been idle, nor committed; the older run's files stay as they are."""
    driver.start(running())
    driver.launch.starter.context = FakeContext(finished=[3])
    driver.launch._report_progress()
    driver.run.report(idle_at="then")
    driver.run.adopt(Token(6, 1))
    driver.launch._report_progress()
    assert (driver.control.progress(Token(6, 1)) or {})["finished_tasks"] == 3
    facts = driver.control.running(Token(6, 1)) or {}
    assert (facts["epoch"], facts["run"]) == (6, 1)
    assert "idle_at" not in facts
    assert (driver.control.running(RUN) or {})["idle_at"] == "then"


def test_a_program_that_ends_waits_for_a_stop_in_progress(driver: Driver) -> None:
    """Or the exit would cut off the batch."""
    driver.run.stopping.set()
    finish = threading.Thread(target=driver.launch.finish, daemon=True)
    finish.start()
    finish.join(0.2)
    assert finish.is_alive()
    driver.stop()
    finish.join(20)
    assert not finish.is_alive()


def test_a_stop_that_fails_ends_the_driver_all_the_same(driver: Driver, program: FakeProgram) -> None:
    """The driver's JVM may be gone, and with it all that a paused query can be asked."""
    query = running()
    driver.start(query)
    driver.pause()
    driver.launch.turn.look()
    del query.id
    watch = threading.Thread(target=driver.stop, daemon=True)
    watch.start()
    watch.join(20)
    finish = threading.Thread(target=driver.launch.finish, daemon=True)
    finish.start()
    finish.join(20)
    assert not finish.is_alive()
    assert program.asked[-1:] == ["end with 0"]
    assert any(said.startswith("cannot stop the queries: ") for said in driver.said)


def test_a_run_without_queries_is_not_idle(driver: Driver) -> None:
    """The program may not have come to its first start, or one of its queries works. The instant is reported once."""
    driver.launch.queries.report_idle()
    assert driver.run.get("idle_at") is None
    query = running()
    query.status = {"message": "Waiting for next trigger", "isTriggerActive": False}
    at_work = running("at work")
    for each in (query, at_work):
        driver.start(each)
    driver.launch.queries.report_idle()
    assert driver.run.get("idle_at") is None
    at_work.status = query.status
    driver.launch.queries.report_idle()
    since = driver.run.get("idle_at")
    driver.launch.queries.report_idle()
    assert since is not None
    assert driver.run.get("idle_at") == since


def test_the_event_log_is_flushed_until_the_stop(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log sees tasks as they end."""
    flushes: list[int] = []

    def flush() -> None:
        flushes.append(1)
        if len(flushes) == 3:
            driver.run.stopping.set()

    monkeypatch.setattr(launch, "EventLogFlusher", lambda *_: types.SimpleNamespace(flush=flush))
    driver.launch.flush_log()
    assert len(flushes) == 3


def test_a_problem_that_lasts_is_told_once() -> None:
    """The launcher looks ten times a second; another problem in between makes it news again."""
    said: list[str] = []
    log = DriverLog(said.append)

    def fail(text: str) -> None:
        raise OSError(text)

    for problem in ("a", "a", "b", "a"):
        assert log.attempt("write", fail, problem) is None
    assert said == ["cannot write: a", "cannot write: b", "cannot write: a"]


def test_a_stop_waits_for_each_query_and_says_how_it_has_ended(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was given more time for its batch has it, also if that is longer than the stop waits for late ones."""
    now, asked = [0.0], threading.Event()

    def sleep(_seconds: float) -> None:
        time.sleep(0.001)
        now[0] = min(26.0, now[0] + asked.is_set())

    def stop_at_boundary(query: FakeQuery, _deadline: float, extension: Callable[[], float]) -> bool:
        if query.id == "nearly done":
            assert extension() == 20.0
            asked.set()
            return bool(wait_until(lambda: now[0] == 26.0, 30))
        if query.id == "broken":
            raise ConnectionRefusedError("no JVM")
        return query.id != "cut off"

    fake_time(monkeypatch, "tidegate.launcher.run.stopping", monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(stopping, "stop_at_boundary", stop_at_boundary)
    monkeypatch.setattr(stopping.Stop, "_extension_of", lambda *_: 20.0)
    stop = stopping.Stop(0.0, driver.run, None, DriverLog(print))
    queries = [running(id_) for id_ in ("failed", "nearly done", "broken", "cut off")]
    queries[0].failure = "boom"
    queries[1].lastProgress = {"batchId": 7}
    stop.end(queries)
    assert stop.facts["queries"] == {
        "failed": {"clean": True, "error": "boom", "last_batch_id": None},
        "nearly done": {"clean": True, "error": None, "last_batch_id": 7},
        "broken": {"clean": False, "error": "ConnectionRefusedError: no JVM", "last_batch_id": None},
        "cut off": {"clean": False, "error": None, "last_batch_id": None},
    }
    assert stop.facts["clean"] is False


def test_a_query_that_does_not_end_is_left_and_the_stop_is_not_clean(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the stop must hear of it: the driver says so and ends, some seconds after the deadline."""
    never, began = threading.Event(), time.monotonic()
    monkeypatch.setattr(stopping, "stop_at_boundary", lambda query, *_: query.id == "ends" or never.wait(30))
    stop = stopping.Stop(60.0, driver.run, None, DriverLog(print))
    fake_time(monkeypatch, stopping.__name__, monotonic=lambda: began + 80.0 * bool(stop.facts["queries"]))
    stop.end([running("ends"), running("hangs")])
    assert stop.facts["clean"] is False
    assert {id_: facts["clean"] for id_, facts in stop.facts["queries"].items()} == {"ends": True}
    never.set()


@pytest.mark.parametrize(
    ("failure", "explained"),
    [
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.", True),
        ("java.lang.NoClassDefFoundError: io/delta/storage/LogStore", True),
        ("TypeError: 'JavaPackage' object is not callable", True),
        ("ZeroDivisionError: division by zero", False),
    ],
)
def test_a_jar_that_a_script_asked_for_too_late_explains_why_it_failed(
    tmp_path: Path, failure: str, explained: bool
) -> None:
    """The reason of a failed start says what to do if a class is missing, and nothing else if it is not that."""
    control = Control.at(tmp_path, "job")
    said: list[str] = []
    run = DriverRun(control, RUN, 2, DriverLog(said.append))
    run.explain_missing("The program itself sets spark.jars.packages.")
    run.report_failure(failure)
    facts = control.running(RUN)
    assert facts is not None
    assert facts["error"] == failure + (" The program itself sets spark.jars.packages." if explained else "")
    assert said == ["The program itself sets spark.jars.packages."]
