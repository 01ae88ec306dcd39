"""The launcher in real drivers: `spark-submit` on this machine, without a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from services.actuator.backends import Submission
from services.actuator.backends.local import Local
from services.actuator.checkpoint import holds, read_checkpoints
from services.actuator.event_logs import running_query
from tests.support.control import stopped
from tests.support.local_job import local_job
from tidegate.events.job import JobSpec
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, HandoverOrder, Token
from tidegate.remote.files import Files
from tidegate.runtime.poll import wait_until
from tidegate.stack.java import find_java

pytestmark = pytest.mark.spark

SCRIPT = """
import sys, time
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("mine").getOrCreate()

def batch(frame, batch_id):
    frame.count()
    time.sleep(float(sys.argv[2]))

rates = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
query = rates.writeStream.foreachBatch(batch).option("checkpointLocation", sys.argv[1]).start()
query.awaitTermination()
print("THE SCRIPT WENT ON", flush=True)
"""

PLACES = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rates = spark.readStream.format("rate").load()
rates.writeStream.format("noop").option("checkpointLocation", sys.argv[1] + "/own").start()
rates.writeStream.format("noop").queryName("named").start().awaitTermination()
"""
"""One query names its checkpoint, and the other one has it in the job's place."""

TASKS = """
import pathlib, sys, time
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
may_end = pathlib.Path(sys.argv[1] + "-may-end")

def batch(frame, batch_id):
    def slowly(rows):
        (number,) = rows
        time.sleep(0.5)
        while number >= 18 and not may_end.exists():
            time.sleep(0.05)
        return [number]
    spark.sparkContext.parallelize(range(20), 20).mapPartitions(slowly).count()

rates = spark.readStream.format("rate").load()
rates.writeStream.foreachBatch(batch).option("checkpointLocation", sys.argv[1]).start().awaitTermination()
"""
"""Batches of 20 tasks, of which the last two wait until they may end."""


class Drivers:
    """Local drivers of one job, which end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backend = Local(folder)
        self.control = Control.at(folder / "control", "job")
        (folder / "script.py").write_text(SCRIPT)
        self._started: list[tuple[JobSpec, str]] = []

    def spec(self, batch_seconds: float) -> JobSpec:
        """Return a job whose batches take `batch_seconds`."""
        return local_job(self.folder, args=(str(self.folder / "ck"), str(batch_seconds)))

    def start(self, token: Token, batch_seconds: float, *, handover: bool = False) -> str:
        """Start a run, return its driver's id."""
        return self.start_job(self.spec(batch_seconds), token, handover=handover)

    def start_job(self, spec: JobSpec, token: Token, *, handover: bool = False) -> str:
        """Start a run of a job, return its driver's id."""
        submission_id = self.backend.submit(Submission(spec, token, 2, handover=handover))
        self._started.append((spec, submission_id))
        return submission_id

    def wait_for_commits(self, count: int) -> None:
        """Wait until the job has committed batch number `count`."""

        def committed() -> bool:
            return any((c.newest_commit or 0) >= count for c in read_checkpoints(str(self.folder / "ck")))

        assert wait_until(committed, 150.0), self.log()

    def wait_for_end(self, submission_id: str, seconds: float = 100.0) -> None:
        """Wait until the driver has ended."""
        assert wait_until(lambda: not self.backend.state(self.spec(0), submission_id).alive, seconds), self.log()

    def facts(self, submission_id: str) -> dict[str, Any] | None:
        """Return what a driver says about itself."""
        said = (self.control.running(token) or {} for token in self.control.runs())
        return next((facts for facts in said if facts.get("submission_id") == submission_id), None)

    def pause(self, token: Token, submission_id: str) -> None:
        """Have a driver pause its queries."""
        Claims(self.control).raise_fence(token, "a")
        self.control.request_hold(HandoverOrder(token, submission_id, 60.0))
        assert wait_until(lambda: self.control.paused(token), 150), self.log()

    def log(self) -> str:
        """Return what the drivers printed."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        """Kill every driver that still runs."""
        for spec, submission_id in self._started:
            self.backend.kill(spec, submission_id)
            self.wait_for_end(submission_id, 20)


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    """A job that can run on this machine."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    drivers = Drivers(tmp_path)
    yield drivers
    drivers.close()


@pytest.mark.timeout(400)
def test_a_stop_ends_at_a_batch_boundary(drivers: Drivers) -> None:
    """A busy query ends with its newest offset committed, the script goes on, and the next run continues."""
    first = drivers.start(Token(1), 0.4)
    drivers.wait_for_commits(1)
    drivers.control.request_stop(Token(2), "c", 60.0)
    drivers.wait_for_end(first)
    told = stopped(drivers.control, Token(1))
    assert told is not None, drivers.log()
    assert told["clean"] is True, told
    (checkpoint,) = read_checkpoints(str(drivers.folder / "ck"))
    assert checkpoint.clean, checkpoint
    assert told["queries"][checkpoint.query_id]["last_batch_id"] == checkpoint.newest_commit
    assert "THE SCRIPT WENT ON" in drivers.log()
    who = drivers.control.running(Token(1))
    assert who is not None
    assert who["submission_id"] == first
    assert who["application_id"].startswith("local-")

    drivers.start(Token(2), 0.4)  # the marker that stopped run 1 must not stop run 2
    drivers.wait_for_commits((checkpoint.newest_commit or 0) + 1)
    assert stopped(drivers.control, Token(2)) is None


@pytest.mark.timeout(300)
def test_a_batch_longer_than_the_deadline_is_cut_off(drivers: Drivers) -> None:
    """If no batch ends in time, the query is cancelled, the driver ends, and the run reports an unclean stop."""
    first = drivers.start(Token(1), 60.0)

    def started_a_batch() -> bool:
        return any(c.newest_offset is not None for c in read_checkpoints(str(drivers.folder / "ck")))

    assert wait_until(started_a_batch, 120), drivers.log()
    drivers.control.request_stop(Token(2), "c", 1.0)
    drivers.wait_for_end(first, 50)
    told = stopped(drivers.control, Token(1))
    assert told is not None, drivers.log()
    assert told["clean"] is False
    assert not read_checkpoints(str(drivers.folder / "ck"))[0].clean


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_batch_that_is_nearly_done_at_the_deadline_is_not_cut_off(drivers: Drivers) -> None:
    """Of its 20 tasks 18 are done when the stop is asked for, and the others not yet 17 s later: they get more time."""
    (drivers.folder / "script.py").write_text(TASKS)
    first = drivers.start(Token(1), 0.0)

    def nearly_done() -> bool:
        found = drivers.control.progress(Token(1)) or {}
        return any((batch["done"], batch["tasks"]) == (18, 20) for batch in found.get("batches", []))

    assert wait_until(nearly_done, 150), drivers.log()
    drivers.control.request_stop(Token(2), "c", 17.0)

    def extended_by() -> Any:
        return (drivers.control.running(Token(1)) or {}).get("stop_extended_seconds")

    assert wait_until(extended_by, 60) == 8.5, drivers.log()
    (drivers.folder / "ck-may-end").touch()
    drivers.wait_for_end(first, 60)
    told = stopped(drivers.control, Token(1))
    assert told is not None, drivers.log()
    assert told["clean"] is True, (told, drivers.log())
    assert read_checkpoints(str(drivers.folder / "ck"))[0].clean


@pytest.mark.parametrize(
    "uri",
    [
        "file://{}/a b%20c#d",
        pytest.param("file:{}/a%20b", marks=pytest.mark.slow),
        pytest.param("{}/a b%20c", marks=pytest.mark.slow),
    ],
)
def test_spark_writes_where_it_is_read(drivers: Drivers, uri: str) -> None:
    """Spark decodes the URI of the event log and no other; Tidegate finds checkpoints and event log in any case."""
    (drivers.folder / "script.py").write_text(PLACES)
    place = uri.format(drivers.folder)
    logs = Files().log_place(f"{place}-log")
    assert isinstance(logs, Path)
    logs.mkdir()
    spec = local_job(
        drivers.folder, args=(f"{place}-ck",), checkpoint_location=f"{place}-ck", event_log_dir=f"{place}-log"
    )
    drivers.start_job(spec, Token(1))

    def committed() -> bool:
        found = read_checkpoints(spec.application.checkpoint_location)
        return len(found) == 2 and all(checkpoint.newest_commit is not None for checkpoint in found)

    assert wait_until(committed, 150), (list(drivers.folder.rglob("commits")), drivers.log())
    facts = drivers.control.running(Token(1)) or {}
    ids = [query["id"] for query in facts["queries"]]
    apps, place = [facts["application_id"]], spec.application.event_log_dir
    assert wait_until(lambda: running_query(place, apps, ids), 30), list(logs.parent.rglob("*"))
    reported = {query["checkpoint"] for query in facts["queries"]}
    assert len(reported) == 2
    assert all(holds(spec.application.checkpoint_location, place) for place in reported), reported


def test_an_older_run_never_touches_the_checkpoint(drivers: Drivers) -> None:
    """A driver that starts after a newer run was allowed ends with a clear message and writes nothing (I4)."""
    Claims(drivers.control).raise_fence(Token(5), "someone")
    late = drivers.start(Token(4), 0.1)
    drivers.wait_for_end(late)
    assert "run 4-1 must not start a query:" in drivers.log()
    assert not (drivers.folder / "ck").exists()


TWO_QUERIES = """
import os, pathlib, sys
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

spark = SparkSession.builder.getOrCreate()
folder = pathlib.Path(sys.argv[1])

class Listener(StreamingQueryListener):
    def onQueryStarted(self, event):
        print(f"HEARD OF {event.name}", flush=True)

    def onQueryProgress(self, event):
        pass

    def onQueryIdle(self, event):
        pass

    def onQueryTerminated(self, event):
        pass

spark.streams.addListener(Listener())

def note(name):
    def batch(frame, batch_id):
        session = frame.sparkSession
        found = session.conf.get("spark.tidegate.test"), session.sparkContext.getLocalProperty("spark.scheduler.pool")
        (folder.parent / f"seen-{name}-{os.getpid()}").write_text(" ".join(map(str, found)))
    return batch

writer = spark.readStream.format("rate").load().orderBy("timestamp").writeStream
spark.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
for name in ("a", "b"):
    spark.conf.set("spark.tidegate.test", name)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    writer = writer.queryName(name).option("checkpointLocation", str(folder / name))
    query = writer.foreachBatch(note(name)).start()
spark.conf.unset("spark.sql.streaming.unsupportedOperationCheck")
spark.conf.unset("spark.tidegate.test")
spark.sparkContext.setLocalProperty("spark.scheduler.pool", None)
print(f"STARTED {type(query).__name__}", flush=True)
spark.streams.awaitAnyTermination()
"""
"""Each query has a setting and a pool of its own, although both are made with one writer.

Spark refuses to sort a stream, unless it is told when the query starts not to check that.
"""


@pytest.mark.timeout(900)
def test_a_second_driver_starts_the_queries_that_the_script_asked_for(drivers: Drivers) -> None:
    """The script was let past its starts, and used writer and session again; each query is as it was told to be.

    So it is when the first driver resumes its queries after a pause. A rehearsal has these settings too, and the script
    hears nothing of it.
    """
    (drivers.folder / "script.py").write_text(TWO_QUERIES)

    def seen(submission_id: str) -> dict[str, str]:
        pid = (drivers.facts(submission_id) or {}).get("pid")
        return {name: path.read_text() for name in "ab" if (path := drivers.folder / f"seen-{name}-{pid}").is_file()}

    wanted = {"a": "a a", "b": "b b"}
    first = drivers.start(Token(1), 0.0)
    assert wait_until(lambda: seen(first) == wanted, 150), drivers.log()
    drivers.wait_for_commits(1)
    drivers.pause(Token(2), first)
    for path in drivers.folder.glob("seen-*"):
        path.unlink()
    Claims(drivers.control).raise_fence(Token(3), "a")
    drivers.control.let_go(HandoverOrder(Token(3), first))
    assert wait_until(lambda: seen(first) == wanted, 150), (seen(first), drivers.log())

    second = drivers.start(Token(4), 0.0, handover=True)
    ready = wait_until(lambda: drivers.control.ready(Token(4)), 150)
    assert ready is not None, drivers.log()
    assert (ready["queries"], ready["batches"], ready.get("error")) == (2, 4, None), ready
    assert drivers.log().count("STARTED PendingQuery") == 1
    assert not seen(second)

    switch = Token(5)
    drivers.pause(switch, first)
    drivers.control.let_go(HandoverOrder(switch, second))
    assert wait_until(lambda: seen(second) == wanted, 150), (seen(second), drivers.log())
    drivers.control.request_stop(switch, "c", 30.0)
    drivers.wait_for_end(first)
    assert drivers.backend.state(drivers.spec(0), second).alive, drivers.log()
    heard = re.findall(r"HEARD OF ([ab])", drivers.log())  # the JVM may write into the same line, before and after
    assert sorted(heard) == ["a"] * 3 + ["b"] * 3, "the first driver started both queries twice, the second one once"


USUAL = """
import sys, time
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[4]").appName("mine").config("spark.eventLog.enabled", "false")
spark = builder.getOrCreate()
rates = spark.readStream.format("rate").load()
for name, seconds in (("fast", 0.1), ("slow", 3.0)):
    rates.writeStream.foreachBatch(lambda frame, _, seconds=seconds: time.sleep(seconds)).queryName(name).start()
spark.streams.awaitAnyTermination()
for query in spark.streams.active:
    query.stop()
spark.stop()
print("THE SCRIPT WENT ON", flush=True)
"""
"""As scripts often are: with a master of its own, and ending everything as soon as one query has ended."""


def test_a_script_that_decides_for_itself_is_stopped_at_a_boundary(drivers: Drivers) -> None:
    """It runs on the actuator's master with an event log, and cannot cut off the batch of its slower query."""
    (drivers.folder / "script.py").write_text(USUAL)
    driver = drivers.start(Token(1), 0.0)

    def slow_batch_runs() -> bool:
        found = {c.name: c for c in read_checkpoints(str(drivers.folder / "ck"))}
        return len(found) == 2 and found["slow"].newest_commit is not None and not found["slow"].clean

    assert wait_until(slow_batch_runs, 150), drivers.log()
    drivers.control.request_stop(Token(2), "c", 60.0)
    drivers.wait_for_end(driver)
    assert (stopped(drivers.control, Token(1)) or {})["clean"] is True, drivers.log()
    assert all(checkpoint.clean for checkpoint in read_checkpoints(str(drivers.folder / "ck")))
    assert "THE SCRIPT WENT ON" in drivers.log()
    (log,) = (drivers.folder / "events").glob("eventlog_v2_local-*/events_1_*")
    with log.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as content:
        assert b'"spark.master":"local[2]"' in content.read()


FILES = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
files = spark.readStream.schema("id long").option("cleanSource", "delete").option("maxFilesPerTrigger", 1)
files.json(sys.argv[1] + "-in").writeStream.format("noop").queryName("files").start().awaitTermination()
"""


def test_a_second_driver_deletes_no_file_that_the_query_has_not_read(drivers: Drivers) -> None:
    """Its rehearsals read files from the first on, and a file source deletes what a query has committed."""
    (drivers.folder / "script.py").write_text(FILES)
    waiting = drivers.folder / "ck-in"
    waiting.mkdir()
    for number in range(5):
        (waiting / f"{number}.json").write_text('{"id": 1}')
    drivers.start(Token(1), 0.0, handover=True)
    ready = wait_until(lambda: drivers.control.ready(Token(1)), 150)
    assert ready is not None, drivers.log()
    assert ready["batches"] == 2, ready
    assert len(list(waiting.iterdir())) == 5, drivers.log()
