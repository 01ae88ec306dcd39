"""How the launcher holds the ordered size, against simulated executors and queries."""

from __future__ import annotations

import json
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_executors import FakeSpark
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, SizeOrder, Token
from tidegate.launcher.programs.script import Script
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.run.launch import Launch
from tidegate.launcher.run.sizing import IDLE_SECONDS, SizeKeeper
from tidegate.launcher.spark.between_batches import between_batches
from tidegate.launcher.spark.executors import size_limits

RUN = Token(5, 1)


class FakeQuery:
    """A streaming query whose engine is always between two batches."""

    isActive = True  # noqa: N815 - PySpark's name

    def __init__(
        self, batch: int = 3, message: str = "Processing new data", *, run: str = "run-1", stateful: bool = False
    ) -> None:
        self.runId = run
        self.lastProgress = {"batchId": batch, "stateOperators": [{}] if stateful else []}
        self.status = {"message": message}


@dataclass
class Driver:
    """A run with its executors; each look comes a second after the one before."""

    control: Control
    spark: FakeSpark = field(default_factory=FakeSpark)
    queries: list[Any] = field(default_factory=lambda: [FakeQuery()])
    seconds: float = 0.0
    at_boundary: bool = True
    in_long_batch: str = ""
    """The run of a query that comes to no boundary."""
    orders: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.keeper = self.restart()

    def restart(self) -> SizeKeeper:
        """Return what a driver that starts has."""
        return SizeKeeper(self.control, lambda: self.spark, lambda: self.queries, self.stopping, lambda: self.seconds)

    def order(self, parallelism: int, for_run: Token = RUN) -> None:
        """Order a size, as a newer command than before."""
        self.orders += 1
        assert Claims(self.control).order_size(SizeOrder(Token(5 + self.orders), "a", for_run, parallelism), "c")

    def look(self, count: int = 1) -> dict[str, Any]:
        """Let time pass; return what the driver reports."""
        for _ in range(count):
            self.keeper.look(RUN)
            self.spark.tick()
            self.seconds += 1
        self.keeper.look(RUN)
        return self.control.sized(RUN) or {}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver with two executors."""
    driver = Driver(Control.at(tmp_path, "job"))

    def between(
        queries: list[Any], seconds: float, act: Callable[[], None], _stopping: threading.Event
    ) -> float | None:
        if not driver.at_boundary or any(query.runId == driver.in_long_batch for query in queries):
            driver.seconds += seconds
            return None
        act()
        return 0.01

    monkeypatch.setattr("tidegate.launcher.run.sizing.between_batches", between)
    return driver


def test_without_an_order_nothing_is_asked(driver: Driver) -> None:
    """A run keeps the size it was started with, also if there is an order for another run."""
    assert driver.look(3) == {}
    driver.order(4, for_run=Token(4, 1))
    assert driver.look(3) == {}
    assert driver.spark.asked == []


@pytest.mark.parametrize("busy", [True, False])
def test_a_thousand_executors_do_not_fill_the_control_files(driver: Driver, busy: bool) -> None:
    """A ConfigMap holds 1 MiB for the files of twenty runs; how many have worked is told of all of them."""
    driver.spark.limit = driver.spark.free = 2000
    driver.spark.busy = busy
    driver.queries = [FakeQuery(message="Processing new data" if busy else "Waiting for data to arrive")]
    driver.order(1500)
    told = driver.look(20)
    assert len(json.dumps(told)) < 10_000
    assert (told["slots"], "working_at" in told) == (1500, True)
    assert told["worked"] == (1500 if busy else 0)


def test_a_size_is_reported_as_it_comes(driver: Driver) -> None:
    """First the order is obeyed, then the executors have registered, then each has finished a task."""
    driver.order(4)
    told = driver.look()
    assert (told["epoch"], told["run"], told["parallelism"], told["slots"]) == (6, 1, 4, 2)
    assert "registered_at" not in told
    told = driver.look(2)
    assert told["slots"] == 4
    assert "registered_at" in told
    assert "working_at" not in told
    told = driver.look(3)
    assert "working_at" in told
    assert (told["idle"], told["unused"], told["error"], told["lost"]) == (False, [], None, {})
    assert set(told["executors"]) == {"0", "1", "2", "3"}
    assert driver.spark.asked == [4]
    driver.spark.busy = False
    driver.look(20)
    (Path(driver.control.place) / f"sized-{RUN}.json").unlink()
    assert driver.look(20) == {}, "what has not changed is not written again"


def test_executors_that_the_batch_has_no_tasks_for_count_after_a_whole_batch(driver: Driver) -> None:
    """With fewer tasks than slots, the size works once a batch began and ended with all executors there."""
    driver.spark.busy = False
    driver.order(4)
    assert "working_at" not in driver.look(6)
    driver.queries[0].lastProgress["batchId"] += 1  # it may have started before they came
    assert "working_at" not in driver.look()
    driver.queries[0].lastProgress["batchId"] += 1
    told = driver.look()
    assert "working_at" in told
    assert "3" in told["unused"]
    assert told["idle"] is False


def test_idle_queries_need_no_tasks(driver: Driver) -> None:
    """If the queries have had nothing to do for some time, that counts as work, and the report says so."""
    driver.spark.busy = False
    driver.queries = [FakeQuery(message="Waiting for data to arrive")]
    driver.order(4)
    assert "working_at" not in driver.look(4)
    told = driver.look(int(IDLE_SECONDS) + 1)
    assert told["idle"] is True


def test_the_newest_executors_leave(driver: Driver) -> None:
    """Of executors that hold equally little the newest leave, between two batches, and none comes back."""
    driver.order(6)
    driver.look(8)
    driver.order(3)
    told = driver.look(3)
    assert set(told["executors"]) == {"0", "1", "2"}
    assert told["lost"] == {}, "they left in good order"
    assert told["held_seconds"] == 0.01
    assert driver.spark.decommissioned == {"3", "4", "5"}
    assert set(driver.look(20)["executors"]) == {"0", "1", "2"}


def test_executors_leave_inside_a_batch_that_does_not_end(driver: Driver) -> None:
    """If no moment between two batches comes soon, executors leave all the same: their tasks end first."""
    driver.at_boundary = False
    driver.order(1)
    told = driver.look(3)
    assert told["slots"] == 1
    assert told["held_seconds"] == 0


def test_executors_that_come_after_the_order_was_lowered_leave_again(driver: Driver) -> None:
    """A grant that crosses a lower order does not make the job bigger than ordered."""
    driver.order(6)
    driver.keeper.look(RUN)
    driver.order(3)
    told = driver.look(12)
    assert told["slots"] == 3
    assert driver.spark.granted == 3


def test_a_dead_executor_is_reported_and_replaced(driver: Driver) -> None:
    """The report says why it died, and the size counts again once the next one has registered."""
    driver.order(4)
    driver.look(4)
    driver.spark.kill("3", "out of memory")
    told = driver.look()
    assert told["lost"] == {"3": "out of memory"}
    assert "registered_at" not in told
    assert set(driver.look(4)["executors"]) == {"0", "1", "2", "4"}


def test_executors_that_die_for_weeks_do_not_fill_the_control_files(driver: Driver) -> None:
    """A run leaves less than 10 kB, whatever its cluster says of dead executors: a ConfigMap has 1 MiB for all runs."""
    driver.order(4)
    driver.look(4)
    for number in range(100):
        newest = max(driver.spark.ages, key=int)
        driver.spark.kill(newest, f"{number}: {'The API gave these container statuses. ' * 50}")
        driver.look(4)
    told = driver.look()
    assert len(told["lost"]) == 100
    assert told["lost"]["102"].startswith("99: The API gave")
    assert len((Path(driver.control.place) / f"sized-{RUN}.json").read_text()) < 10_000


def test_state_is_spread_once_all_executors_are_there(driver: Driver) -> None:
    """Stateful queries forget where their state is when executors have come, between two batches, and not else."""
    driver.queries = [FakeQuery(stateful=True), FakeQuery(run="run-2"), FakeQuery(run="run-3", stateful=True)]
    driver.at_boundary = False
    driver.order(4)
    driver.look(8)
    assert driver.spark.spread == []
    driver.at_boundary, driver.in_long_batch = True, "run-3"
    driver.look(8)
    assert driver.spark.spread == ["run-1"]
    driver.in_long_batch = ""
    driver.look(8)
    assert driver.spark.spread == ["run-1", "run-3"]
    driver.spark.kill("3")
    driver.look(8)
    assert driver.spark.spread == ["run-1", "run-3"] * 2, "the new one has none of it"
    driver.order(2)
    driver.look(8)
    assert driver.spark.spread == ["run-1", "run-3"] * 2


def test_a_driver_that_starts_again_comes_back_with_the_last_size(driver: Driver) -> None:
    """A driver that Spark restarts begins with the size of its command line and reads the last order."""
    driver.order(5)
    driver.look(8)
    driver.spark = FakeSpark(application_id="app-2")
    driver.keeper = driver.restart()
    assert driver.look(8)["slots"] == 5


def test_a_new_session_of_the_script_gets_the_ordered_size(driver: Driver) -> None:
    """A script may stop its session and start another, which begins with the size of the command line."""
    driver.order(5)
    driver.look(8)
    driver.spark = FakeSpark(application_id="app-2")
    assert driver.look(12)["slots"] == 5


@pytest.mark.parametrize(
    ("changes", "size", "error"),
    [
        ({"limit": None}, 1, "was not started so that its executors can be changed"),
        ({}, 9, "within 8 slots"),
        ({"cores": 2}, 3, "not whole executors of 2"),
        ({"takes_requests": False}, 1, "did not take the request"),
    ],
)
def test_an_order_that_cannot_be_obeyed_is_answered(
    driver: Driver, changes: dict[str, Any], size: int, error: str
) -> None:
    """The report says why, no executor has to leave, and the next order is obeyed again."""
    for name, value in changes.items():
        setattr(driver.spark, name, value)
    driver.order(size)
    assert error in driver.look(2)["error"]
    assert not driver.spark.decommissioned
    driver.spark.limit, driver.spark.cores, driver.spark.takes_requests = 8, 1, True
    driver.order(3)
    told = driver.look(8)
    assert (told["error"], told["slots"]) == (None, 3)


def test_an_older_order_is_not_obeyed(driver: Driver) -> None:
    """An actuator that was overtaken writes an old order over the newer one: the driver stays at the newer one."""
    driver.order(4)
    driver.look(8)
    (Path(driver.control.place) / "size").write_text(
        '{"epoch": 5, "run": 9, "owner": "z", "for_epoch": 5, "for_run": 1, "parallelism": 1}'
    )
    driver.look(10)
    assert driver.spark.granted == 4


def test_errors_of_spark_do_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong while the size is held, it is reported once, and the driver looks again."""
    said: list[str] = []
    control = Control.at(tmp_path, "job")
    program = Script("script.py", [])
    log = DriverLog(said.append)
    launch = Launch(control, DriverRun(control, RUN, 2, log), program, log)
    looks: list[int] = []

    def broken() -> None:
        looks.append(1)
        if len(looks) == 3:
            launch.run.stopping.set()
        raise RuntimeError("the gateway is gone")

    monkeypatch.setattr("tidegate.launcher.run.launch.LOOK_SECONDS", 0.001)
    monkeypatch.setattr(program, "context", broken)
    Claims(control).order_size(SizeOrder(Token(6), "a", RUN, 4), "c")
    launch.hold_size()
    assert len(looks) == 3
    assert said == ["cannot hold the ordered size: RuntimeError: the gateway is gone"]


def test_a_spark_of_another_kind_has_no_limits() -> None:
    """A context that does not have what the launcher looks for is one of a fixed size, and nothing is raised."""
    assert size_limits(types.SimpleNamespace(applicationId="x")) == {}


class _Lock:
    def __init__(self, held: list[str], name: str, *, free: bool = True) -> None:
        self.held, self.name, self.free = held, name, free

    def tryLock(self, _time: int, _unit: object) -> bool:  # noqa: N802 - Java's name
        if self.free:
            self.held.append(self.name)
        return self.free

    def unlock(self) -> None:
        self.held.remove(self.name)


def _query(name: str, held: list[str], places: list[str], *, free: bool = True) -> Any:
    """Return a query whose thread is at each of `places` in turn, and stays at the last."""

    def frames() -> str:
        return places.pop(0) if len(places) > 1 else places[0]

    fields = {"MILLISECONDS": "ms", "MODULE$": types.SimpleNamespace(stringOf=str)}

    def field_of(name: str) -> Any:
        return types.SimpleNamespace(get=lambda _of: fields[name])

    loader = types.SimpleNamespace(loadClass=lambda _name: types.SimpleNamespace(getField=field_of))
    kind = types.SimpleNamespace(getSimpleName=lambda: "MicroBatchExecution", getClassLoader=lambda: loader)
    engine = types.SimpleNamespace(
        getClass=lambda: kind,
        awaitProgressLock=lambda: _Lock(held, name, free=free),
        queryExecutionThread=lambda: types.SimpleNamespace(getStackTrace=frames),
    )
    return types.SimpleNamespace(_jsq=engine)


BETWEEN = "Array(ProcessingTimeExecutor.execute(a.scala:1))"
LOCKED = "Array(java.util.concurrent.locks.ReentrantLock.lock(a.java:1), MicroBatchExecution.constructNextBatch(a:1))"
RUNNING = "Array(SQLExecution$.withNewExecutionId(a.scala:1), MicroBatchExecution.runBatch(a.scala:1))"
COMMITS = "Array(java.util.concurrent.locks.ReentrantLock.lock(a.java:1), MicroBatchExecution.runBatch(a.scala:1))"
FINISHES = "Array(MicroBatchExecution.executeOneBatch(a:1), ProcessingTimeExecutor.execute(a.scala:1))"


@pytest.mark.parametrize(
    ("first", "second", "acts"),
    [
        ([BETWEEN], [BETWEEN], True),
        ([LOCKED], [BETWEEN], True),
        ([RUNNING, COMMITS, FINISHES, LOCKED], [BETWEEN], True),
        ([RUNNING, RUNNING, BETWEEN], [LOCKED], True),
        ([RUNNING], [BETWEEN], False),
        ([COMMITS], [RUNNING], False),
    ],
)
def test_queries_are_held_between_two_batches(first: list[str], second: list[str], acts: bool) -> None:
    """The act happens while all queries are held and none runs a batch; else it does not happen, and all go on."""
    held: list[str] = []
    seen: list[list[str]] = []
    queries = [_query("a", held, list(first)), _query("b", held, list(second))]
    seconds = between_batches(queries, 0.3, lambda: seen.append(sorted(held)), threading.Event())
    assert seen == ([["a", "b"]] if acts else [])
    assert (seconds is not None) is acts
    assert held == []
    blocked = _query("a", held, [BETWEEN], free=False)
    assert between_batches([blocked], 0.05, lambda: seen.append([]), threading.Event()) is None
    assert held == []
