"""A main class under the launcher, without a JVM: what it asks of the launch, and what it does with the answers."""

# ruff: noqa: N802 - the JVM's names

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

from services.actuator.backends import LAUNCHER, Submission
from tests.support.cases import case
from tests.support.events import job
from tests.support.fake_drivers import FakeJava
from tests.support.fake_queries import JavaOption
from tests.support.fake_time import fake_time
from tidegate.engine.ways import open_ways
from tidegate.events.job import Application, JobSpec
from tidegate.events.way import Way
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.main import parse
from tidegate.launcher.programs import gate, main_class
from tidegate.launcher.programs.main_class import MainClass
from tidegate.launcher.queries.checkpoints import CheckpointPlaces
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.run.launch import Launch
from tidegate.runtime.poll import wait_until


class FakeSession:
    """A session of the JVM, with the queries that run in it."""

    def __init__(self, location: str | None = "/ck") -> None:
        self._location = location
        self.queries: list[Any] = []

    def sparkContext(self) -> Any:
        """Return the application."""
        return types.SimpleNamespace(applicationId=lambda: "app-1")

    def conf(self) -> Any:
        """Return the settings."""
        return types.SimpleNamespace(get=lambda _key, _default: self._location)

    def streams(self) -> Any:
        """Return the manager of its queries."""
        return types.SimpleNamespace(active=lambda: self.queries)


class FakeContext:
    """What the launcher sees of the application."""

    def __init__(self, _jvm: Any, spark: Any) -> None:
        self.applicationId = spark.applicationId()
        self.stopped = False
        self.master = "local[2]"
        self._conf: dict[str, str] = {}

    def getConf(self) -> Any:
        """Return no settings."""
        return types.SimpleNamespace(getAll=list)


def statement(name: str | None = None, place: str | None = None, sink: str = "Console", mode: str = "Append") -> Any:
    """Return the start of a query as Spark analyzes it."""
    described = types.SimpleNamespace(getSimpleName=lambda: sink)
    return types.SimpleNamespace(
        userSpecifiedName=lambda: JavaOption(name),
        userSpecifiedCheckpointLocation=lambda: JavaOption(place),
        sink=lambda: types.SimpleNamespace(getClass=lambda: described),
        outputMode=lambda: types.SimpleNamespace(toString=lambda: mode),
    )


def running(id_: str) -> Any:
    """Return a query that runs."""
    query: Any = FakeJava(id_)
    query.runId = lambda: types.SimpleNamespace(toString=lambda: f"run-{id_}")
    return query


class Driver:
    """A driver that runs a main class."""

    def __init__(self, folder: Path) -> None:
        self.control = Control.at(folder, "job")
        self.said: list[str] = []
        self.program = MainClass("x.Main", [], self.said.append)
        log = DriverLog(self.said.append)
        self.launch = Launch(self.control, DriverRun(self.control, Token(5), 2, log), self.program, log)

    def start(self, session: Any, started: Any) -> str | None:
        """Ask as the gate does."""
        return self.program._before_start(self.launch, session, started)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver whose JVM is simulated."""
    monkeypatch.setattr(main_class, "DriverContext", FakeContext)
    return Driver(tmp_path)


def test_the_application_is_known_before_the_first_query_starts(driver: Driver) -> None:
    """The control directory names the application, and does not say that this driver can hand over."""
    assert driver.program.context() is None
    assert driver.start(FakeSession(), statement()) == "/ck"
    facts = driver.control.running(Token(5)) or {}
    assert facts["application_id"] == "app-1"
    assert "hands_over" not in facts


def test_queries_of_all_sessions_are_seen_once(driver: Driver) -> None:
    """A program may have several sessions, each with queries of its own."""
    first, second = FakeSession(), FakeSession()
    for session, name in ((first, "a"), (second, "b"), (first, "c")):
        driver.start(session, statement(name))
        session.queries.append(running(name))
    assert [query.id for query in driver.program.new_queries()] == ["a", "c", "b"]
    assert driver.program.new_queries() == []
    second.queries.append(running("d"))
    assert [query.id for query in driver.program.new_queries()] == ["d"]


def test_a_fenced_driver_starts_no_query_and_ends(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets an error instead of a query; if it goes on all the same, the driver ends with 75 (I4)."""
    ended: list[int] = []
    monkeypatch.setattr("tidegate.launcher.run.launch._LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(driver.program, "end", ended.append)
    Claims(driver.control).raise_fence(Token(6), "someone")
    with pytest.raises(RuntimeError, match="run 5-1 must not start a query"):
        driver.start(FakeSession(), statement())
    assert wait_until(lambda: ended == [75], 20, 0.01)


def test_every_query_has_a_checkpoint_that_stays() -> None:
    """Those without a name are told apart by their order; a memory sink cannot be continued, unless it is complete."""
    places, session = CheckpointPlaces(), FakeSession()
    assert places.of_statement(session, statement()) == "/ck"
    assert places.of_statement(session, statement(place="/mine")) is None
    assert places.of_statement(session, statement(name="a")) is None, "Spark makes /ck/a of it"
    assert places.of_statement(session, statement()) == "/ck/query-2"
    temporary = places.of_statement(session, statement(name="m", sink="MemorySink")) or ""
    assert temporary.startswith("file:///")
    Path(temporary.removeprefix("file://")).rmdir()
    assert places.of_statement(session, statement(name="m", sink="MemorySink", mode="Complete")) is None
    assert places.of_statement(FakeSession(None), statement()) is None


@pytest.mark.parametrize("failure", [Py4JError("Answer from Java side is empty"), ConnectionRefusedError("refused")])
def test_a_program_that_ends_the_jvm_is_reported(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Python only sees that the JVM is gone; the exit code is the JVM's own."""

    def run(_name: str, _args: Any) -> None:
        raise failure

    gate = types.SimpleNamespace(open=lambda _answers: None, run=run)
    gateway = types.SimpleNamespace(
        jvm=types.SimpleNamespace(java=types.SimpleNamespace(lang=types.SimpleNamespace(String=str))),
        new_array=lambda _kind, size: [None] * size,
    )
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", lambda: None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", gateway)
    monkeypatch.setattr(main_class, "ensure_callback_server_started", lambda _gateway: None)
    monkeypatch.setattr(main_class, "load_gate", lambda _jvm: gate)
    with pytest.raises(SystemExit):
        driver.program.run(driver.launch)
    assert (driver.control.running(Token(5)) or {})["error"] == "x.Main ended the driver's JVM, as System.exit does"


def test_a_stop_waits_for_a_query_that_was_just_allowed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the answer and the query there is a moment; meanwhile the program cannot end the JVM."""
    calls: list[str] = []
    driver.program._gate = types.SimpleNamespace(
        hold=lambda: calls.append("hold"), release=lambda: calls.append("release")
    )
    session, slept = FakeSession(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        session.queries.append(running("a"))

    fake_time(monkeypatch, main_class.__name__, monotonic=lambda: 100.0, sleep=sleep)
    driver.start(session, statement("a"))
    driver.program.prepare_to_stop()
    assert slept == [main_class._START_SECONDS]
    assert [query.id for query in driver.program.new_queries()] == ["a"]
    driver.program.stopped()
    assert calls == ["hold", "release"]


def test_a_main_class_is_no_second_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher refuses to warm one up."""
    jar = tmp_path / "x.jar"
    jar.write_text("")
    base = ["--control-dir", "c", "--job-id", "j", "--epoch", "1", "--parallelism", "2", "--main-class", "x.Main"]
    assert parse([*base, str(jar), "--handover"]).args == ["--handover"]
    with pytest.raises(SystemExit):
        parse([*base, "--handover", str(jar)])
    assert "x.Main cannot take over" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse([*base, str(tmp_path / "no.jar")])
    assert "jar '" in capsys.readouterr().err


def _jvm_job(**application: Any) -> JobSpec:
    spec = job()
    known = spec.application.model_dump() | {"script": "/jobs/rates.jar", "main_class": "x.Main"} | application
    return spec.model_copy(update={"application": Application.model_validate(known)})


def test_a_main_class_is_refused_where_it_cannot_be_fenced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 3.5 has no place for the gate: the launcher ends before anything runs, and says which version is needed."""
    (tmp_path / "job.jar").write_bytes(b"")
    monkeypatch.setattr("tidegate.launcher.main.SPARK_VERSION", "3.5.7")
    words = ["--control-dir", str(tmp_path), "--job-id", "j", "--epoch", "1", "--parallelism", "2"]
    with pytest.raises(SystemExit) as raised:
        parse([*words, "--main-class", "x.Job", str(tmp_path / "job.jar")])
    assert raised.value.code == 2
    assert (
        "--main-class x.Job: jobs in Scala or Java need Spark 4.0 or later, and this is 3.5.7"
        in capsys.readouterr().err
    )


def test_the_jar_is_on_the_class_path() -> None:
    """Of the driver and the executors, before the jars that it needs; the class is told to the launcher."""
    words = Submission(_jvm_job(jars=("/jobs/lib.jar",), args=("in",)), Token(7), 2).submit_args("spark://m")
    assert words[words.index("--jars") + 1] == "/jobs/rates.jar,/jobs/lib.jar"
    assert words[words.index(str(LAUNCHER)) :][-4:] == ["--main-class", "x.Main", "/jobs/rates.jar", "in"]


def test_a_main_class_is_never_handed_over() -> None:
    """Neither the engine nor the actuator tries it: it is not among the ways of such a job."""
    spec = _jvm_job()
    assert spec.application.ways == (Way.IN_PLACE, Way.RESTART)
    assert open_ways(case(spec=spec, outdated=True)) == (Way.RESTART,), "a new version of the jar is a restart"


@pytest.mark.parametrize(
    ("application", "said"),
    [
        ({"main_class": None}, "'/jobs/rates.jar' is a jar: name the class to run in main_class"),
        ({"script": "/jobs/rates.py"}, "'x.Main' needs its jar as script, found '/jobs/rates.py'"),
        ({"py_files": ("/jobs/x.py",)}, "'x.Main' takes no py_files"),
        ({"rescale": (Way.IN_PLACE, Way.HANDOVER)}, "leave handover out of rescale, found in_place, handover"),
        ({"main_class": "x Main"}, "main_class"),
    ],
)
def test_a_spec_that_mixes_both_kinds_is_refused(application: dict[str, Any], said: str) -> None:
    """The error names the fields, the values and what to do."""
    with pytest.raises(ValueError, match=said):
        _jvm_job(**application)


def test_the_gate_is_where_spark_looks_for_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, queries would start without a look at the fence."""
    loaded: list[Any] = []
    monkeypatch.setattr(gate, "load_java", lambda *args: loaded.append(args))
    jvm = types.SimpleNamespace(tidegate=types.SimpleNamespace(Gate="the class"))
    assert gate.load_gate(jvm) == "the class"
    ((into, source, files),) = loaded
    assert into is jvm
    assert source.is_file()
    assert files == {"META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider": b"tidegate.Gate\n"}
    assert "class Gate" in source.read_text()


def test_the_application_of_a_main_class_looks_like_one_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher asks it for its id, its master and its settings, and whether it was stopped."""
    monkeypatch.setattr(gate, "SparkConf", lambda *, _jconf: f"SparkConf of {_jconf}")
    stopped = [False]
    spark = types.SimpleNamespace(
        applicationId=lambda: "app-1", master=lambda: "yarn", getConf=lambda: "conf", isStopped=lambda: stopped[0]
    )
    jvm = types.SimpleNamespace(
        JavaSparkContext=types.SimpleNamespace(fromSparkContext=lambda of: types.SimpleNamespace(sc=lambda: of))
    )
    context = gate.DriverContext(jvm, spark)
    assert (context.applicationId, context.master, context.getConf()) == ("app-1", "yarn", "SparkConf of conf")
    assert not context.stopped
    stopped[0] = True
    assert context.stopped
