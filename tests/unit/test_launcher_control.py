from __future__ import annotations

import errno
import io
import json
import os
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support.control import see_no_fence, stopped
from tests.support.fake_queries import FakeContext, FakeJob, FakeQuery, FakeWriter
from tests.support.fake_time import fake_time
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, HandoverOrder, SizeOrder, Token
from tidegate.launcher.control.json_files import ControlError, JsonFile, JsonFiles
from tidegate.launcher.main import parse
from tidegate.launcher.programs.script import Script
from tidegate.launcher.queries.query_start import Fenced
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.progress import MANY_QUERIES
from tidegate.launcher.run.launch import Launch
from tidegate.launcher.run.stopping import Stop
from tidegate.launcher.spark.query_loop import Place, place_of


def test_a_fence_never_goes_back(tmp_path: Path) -> None:
    """An older run or another owner of the same run cannot take the fence; its holder can take it again."""
    control = Control.at(tmp_path, "job")
    assert Claims(control).raise_fence(Token(5, 1), "a")
    assert Claims(control).raise_fence(Token(5, 1), "a")
    assert not Claims(control).raise_fence(Token(5, 1), "b")
    assert not Claims(control).raise_fence(Token(4, 9), "b")
    assert Claims(control).raise_fence(Token(5, 2), "b")
    assert control.fence() == (Token(5, 2), "b")


def test_a_claim_holds_only_as_it_was_written(tmp_path: Path) -> None:
    """Its token is good for nothing else, and no longer for the claim itself once there is a newer one (I5)."""
    control = Control.at(tmp_path, "job")
    claims = Claims(control)

    def order(run: int, size: int) -> bool:
        return claims.order_size(SizeOrder(Token(5, run), "a", Token(4, 1), size), "c")

    assert claims.raise_fence(Token(5, 1), "a")
    assert not order(1, 4)
    assert order(2, 4)
    assert order(2, 4)
    assert not order(2, 6)
    assert not claims.raise_fence(Token(5, 1), "a")
    assert claims.newest() == (Token(5, 2), "a")


def test_a_stop_marker_names_the_first_run_that_may_stay(tmp_path: Path) -> None:
    """A later marker or order replaces an earlier one, never the other way round."""
    control = Control.at(tmp_path, "job")
    control.request_stop(Token(5, 1), "c5", 30.0)
    control.request_stop(Token(4, 1), "c4", 10.0)
    assert control.stop_marker() == (Token(5, 1), 30.0)
    newer, older = HandoverOrder(Token(5, 1), "driver-5", 30.0), HandoverOrder(Token(4, 1), "driver-4", 10.0)
    for order in (newer, older):
        control.request_hold(order)
        control.let_go(order)
    assert control.hold() == control.go() == newer


@pytest.mark.parametrize("job_id", ["", "..", "a/b", "a\nb", "A", "a..b", "x" * 64, "é"])
def test_a_job_id_cannot_leave_its_directory(tmp_path: Path, job_id: str) -> None:
    """A job id that is not a plain name is refused before it becomes a path."""
    with pytest.raises(ControlError, match="job_id"):
        Control.at(tmp_path, job_id)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "JSON object"),
        ('{"epoch": -1, "run": 1}', "epoch must be a number of at least 0, found -1"),
        ('{"epoch": true, "run": 1}', "epoch must be a number"),
        ('{"epoch": 1}', "run must be a number of at least 0, found None"),
        ('{"epoch": 1e999, "run": 1}', "epoch must be a number of at least 0, found inf"),
        ('{"epoch": NaN, "run": 1}', "epoch must be a number of at least 0, found nan"),
        ("\xff", "not text"),
    ],
)
def test_a_broken_control_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    """A broken control file is refused, with its path, the field and the value."""
    control = Control.at(tmp_path, "job")
    Path(control.place).mkdir()
    (Path(control.place) / "fence").write_bytes(text.encode("latin-1"))
    with pytest.raises(ControlError, match=r"fence: .*" + said):
        control.fence()


def test_runs_are_listed_in_order_and_tidied(tmp_path: Path) -> None:
    """Runs are sorted as numbers, other files do not count, and tidying keeps the newest runs."""
    control = Control.at(tmp_path, "job")
    for token in (Token(10, 1), Token(9, 2), Token(9, 10)):
        control.write_running(token, {"epoch": token.epoch})
        control.write_stopped(token, {})
    (Path(control.place) / "running-x.json").write_text("{}")
    assert control.runs() == [Token(9, 2), Token(9, 10), Token(10, 1)]
    control.tidy(keep=1)
    assert control.runs() == [Token(10, 1)]
    assert stopped(control, Token(9, 10)) is None
    assert [p.name for p in Path(control.place).iterdir() if p.name.startswith(".")] == [], "a temporary file was left"


def _launch(tmp_path: Path, token: Token) -> tuple[Launch, Control, list[str]]:
    said: list[str] = []
    control = Control.at(tmp_path, "job")
    log = DriverLog(said.append)
    return Launch(control, DriverRun(control, token, 2, log), Script("script.py", []), log), control, said


def test_an_older_run_may_not_start_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of a run older than the fence ends before its query starts, and prints why."""
    launch, control, said = _launch(tmp_path, Token(4, 1))
    Claims(control).raise_fence(Token(5, 1), "a")
    see_no_fence(monkeypatch)
    started: list[object] = []
    with pytest.raises(Fenced) as raised:
        launch.start_query(started.append, FakeWriter())
    assert raised.value.code == 75
    assert not started
    assert "run 4-1 must not start a query" in said[0]
    assert control.running(Token(4, 1)) is None


def test_the_newest_run_says_who_it_is_before_its_query_starts(tmp_path: Path) -> None:
    """The file that names application and process is written before the user's query starts."""
    launch, control, _ = _launch(tmp_path, Token(5, 1))
    Claims(control).raise_fence(Token(5, 1), "a")
    seen: list[object] = []
    launch.start_query(lambda _writer: seen.append(control.running(Token(5, 1))), FakeWriter())
    assert isinstance(seen[0], dict)
    assert {"application_id": "app-1", "epoch": 5, "run": 1, "parallelism": 2}.items() <= seen[0].items()


@pytest.mark.parametrize("extra", [["--epoch", "-1"], ["--run", "0"], ["--parallelism", "0"]])
def test_wrong_arguments_are_named(extra: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments end the launcher with exit code 2 and a message that shows them."""
    script = tmp_path / "s.py"
    script.write_text("")
    base = ["--control-dir", str(tmp_path), "--job-id", "j", "--epoch", "1", "--parallelism", "2", *extra, str(script)]
    with pytest.raises(SystemExit) as raised:
        parse(base)
    assert raised.value.code == 2
    assert f"{extra[0]} {extra[1]}" in capsys.readouterr().err


def test_a_script_keeps_its_own_options(tmp_path: Path) -> None:
    """Arguments after the script belong to the script, even if they look like options of the launcher."""
    script = tmp_path / "s.py"
    script.write_text("")
    argv = ["--control-dir", "c", "--job-id", "j", "--epoch", "1", "--parallelism", "2", str(script), "--epoch", "x"]
    assert parse(argv).args == ["--epoch", "x"]


_LOOP = ["o.a.s.MicroBatchExecution.executeOneBatch", "o.a.s.ProcessingTimeExecutor.execute"]
_LOOP_OF_35 = ["o.a.s.MicroBatchExecution.$anonfun$runActivatedStream$1", "o.a.s.ProcessingTimeExecutor.execute"]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (["o.a.s.SystemClock.waitTillTime", "o.a.s.ProcessingTimeExecutor.execute"], Place.BETWEEN_TRIGGERS),
        (["j.ReentrantLock.lock", "o.a.s.MicroBatchExecution.constructNextBatch", *_LOOP], Place.CONSTRUCTING),
        (["o.a.s.MicroBatchExecution.runBatch", *_LOOP], Place.ELSEWHERE),
        (["o.a.s.SQLExecution$.withNewExecutionId", "o.a.s.MicroBatchExecution.runBatch", *_LOOP], Place.ADDING_BATCH),
        (["o.a.s.ProgressContext.finishTrigger", *_LOOP], Place.ELSEWHERE),
        (["Array(java.lang.Thread.sleep(Native Method)", *_LOOP], Place.BETWEEN_TRIGGERS),
        (
            ["java.base@21/java.lang.Thread.sleep0", "java.base@21/java.lang.Thread.sleep", *_LOOP],
            Place.BETWEEN_TRIGGERS,
        ),
        (["Array(java.lang.Thread.sleep(Native Method)", "o.a.k.KafkaConsumer.poll", *_LOOP], Place.ELSEWHERE),
        (["Array(java.lang.Thread.sleep(Native Method)", *_LOOP_OF_35], Place.BETWEEN_TRIGGERS),
        (["o.a.s.ProgressReporter.finishTrigger", *_LOOP_OF_35], Place.ELSEWHERE),
        (["o.a.s.MicroBatchExecution.$anonfun$runActivatedStream$2", *_LOOP_OF_35], Place.ELSEWHERE),
        (["o.a.s.SQLExecution$.with", "o.a.s.MicroBatchExecution.runBatch", *_LOOP_OF_35], Place.ADDING_BATCH),
        (["o.a.s.StreamExecution.runStream"], Place.ELSEWHERE),
        ([], Place.ELSEWHERE),
    ],
)
def test_the_stack_tells_where_a_query_is(frames: list[str], place: Place) -> None:
    """A query may be ended only between triggers and while the sink runs."""
    assert place_of(frames) is place


class _Left(BaseException):
    """The driver's process ends here."""


def test_a_disk_that_fails_for_a_while_does_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the control directory cannot be used for a while, the driver still sees the stop marker afterwards."""
    launch, control, said = _launch(tmp_path, Token(5, 1))
    query = FakeQuery()
    query.status = {"message": "Waiting for data to arrive", "isTriggerActive": False}
    launch.start_query(lambda _writer: query, FakeWriter())
    launch.starter.context = FakeContext()
    read, write, looks = JsonFiles.read, JsonFiles.write, []
    away = OSError(errno.ESTALE, "Stale file handle")

    def reading(files: JsonFiles, name: str) -> JsonFile | None:
        looks.append(name)
        if len(looks) < 4:
            raise away
        if len(looks) == 6:
            control.request_stop(Token(5, 2), "c", 0.1)
        return read(files, name)

    def writing(files: JsonFiles, name: str, data: dict[str, object]) -> None:
        if len(looks) < 3 or name.startswith("stopped"):
            raise away
        write(files, name, data)

    def leave(code: int) -> None:
        raise _Left(code)

    monkeypatch.setattr(JsonFiles, "read", reading)
    monkeypatch.setattr(JsonFiles, "write", writing)
    monkeypatch.setattr("tidegate.launcher.programs.script.os._exit", leave)
    fake_time(monkeypatch, "tidegate.launcher.run.launch", sleep=lambda _seconds: None)
    stop = types.SimpleNamespace(end=lambda _queries: None, facts={})
    monkeypatch.setattr("tidegate.launcher.run.launch.Stop", lambda *_: stop)
    with pytest.raises(_Left):
        launch.watch()
    launch.finish()
    assert "idle_at" in (control.running(Token(5, 1)) or {}), "reported as soon as the disk was back"
    assert [line.partition(":")[0] for line in said][:2] == [
        "cannot read the stop marker",
        "cannot report that the queries are idle",
    ]
    assert len(said) < 10


def test_a_turn_counts_only_once_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut its file could be empty, and nobody could ever take it."""
    control = Control.at(tmp_path, "job")
    Claims(control).raise_fence(Token(5, 1), "a")
    on_disk: list[str] = []

    def synchronized(descriptor: int) -> None:
        on_disk.append(Path(f"/proc/self/fd/{descriptor}").read_text("utf-8"))
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synchronized)
        with pytest.raises(OSError, match="Input/output error"):
            control.take_turn(Token(5, 2), "driver-1")
    assert on_disk == ['{"submission_id": "driver-1"}']
    assert control.take_turn(Token(5, 2), "driver-2")


def test_a_turn_that_could_not_be_written_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk a file can be created, and not be written."""
    control = Control.at(tmp_path, "job")
    Claims(control).raise_fence(Token(5, 1), "a")

    class Full(io.StringIO):
        def close(self) -> None:
            if not self.closed:
                super().close()
                raise OSError(errno.ENOSPC, "No space left on device")

    opened = Path.open

    def full(path: Path, mode: str = "r", **more: Any) -> Any:
        if mode != "x":
            return opened(path, mode, **more)
        path.touch(exist_ok=False)
        return Full()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(OSError, match="No space left"):
            control.take_turn(Token(5, 2), "driver-2")
    assert control.take_turn(Token(5, 2), "driver-1")
    assert not control.take_turn(Token(5, 2), "driver-2")


def test_files_are_json_for_people(tmp_path: Path) -> None:
    """Control files are plain JSON that people can read and write."""
    control = Control.at(tmp_path, "job")
    Claims(control).raise_fence(Token(5, 2), "me")
    assert json.loads((Path(control.place) / "fence").read_text()) == {"epoch": 5, "run": 2, "owner": "me"}


def test_only_a_marker_of_a_later_run_stops_a_run(tmp_path: Path) -> None:
    """The marker that stopped one run does not stop the next; a broken marker is named."""
    control, token = Control.at(tmp_path, "job"), Token(5, 1)
    assert control.seconds_to_stop(token) is None
    control.request_stop(Token(5, 1), "c", 30.0)
    assert control.seconds_to_stop(token) is None
    control.request_stop(Token(5, 2), "c", 20.0)
    assert control.seconds_to_stop(token) == 20.0
    (Path(control.place) / "stop").write_text("{")
    with pytest.raises(ControlError, match="stop: not JSON"):
        control.seconds_to_stop(token)


def test_the_newest_application_is_reported(tmp_path: Path) -> None:
    """A script may stop its session and start another; the control directory then names the new application."""
    control = Control.at(tmp_path, "rates")
    log = DriverLog(print)
    launch = Launch(control, DriverRun(control, Token(1), 2, log), Script("script.py", []), log)
    for application in ("app-1", "app-1", "app-2"):
        launch.start_query(lambda _writer: FakeQuery(), FakeWriter(application=application))
        facts = control.running(Token(1))
        assert facts is not None
        assert facts["application_id"] == application


@pytest.mark.parametrize(
    ("done", "started", "extended"),
    [(5, 900.0, 30.0), (1, 900.0, 0.0), (0, 900.0, 0.0), (None, 900.0, 0.0)],
    ids=["20 s left", "500 s left", "nobody knows", "no batch"],
)
def test_a_stop_waits_longer_for_a_batch_that_is_nearly_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int | None, started: float, extended: float
) -> None:
    """A batch that should end within half the deadline gets that long; the control directory tells the actuator."""
    launch, control, said = _launch(tmp_path, Token(5, 1))
    fake_time(monkeypatch, "tidegate.launcher.run.stopping", time=lambda: 1000.0)
    context = FakeContext({} if done is None else {0: FakeJob(0, done, 6, started=started)})
    stop = Stop(60.0, launch.run, context, DriverLog(said.append))
    assert stop._extend(FakeQuery()) == extended
    assert (control.running(Token(5, 1)) or {}).get("stop_extended_seconds", 0.0) == extended
    assert ("5 of 6 tasks and needs about 20 s" in "".join(said)) is bool(extended)


def test_a_jvm_that_does_not_answer_does_not_keep_a_query_from_being_stopped(tmp_path: Path) -> None:
    """Without an answer there is no extension."""
    launch, _, said = _launch(tmp_path, Token(5, 1))
    assert Stop(60.0, launch.run, None, DriverLog(said.append))._extend(FakeQuery()) == 0.0
    assert "cannot tell how far the batch is" in said[0]


def test_a_run_reports_its_queries_and_their_failures(tmp_path: Path) -> None:
    """The control directory names the checkpoint of each query, and says why one failed."""
    launch, control, _ = _launch(tmp_path, Token(5, 1))
    first, second = FakeQuery("q-1", checkpoint="file:/ck"), FakeQuery("q-2", checkpoint="file:/ck/query-2")
    for query in (first, second):
        launch.start_query(lambda _writer, query=query: query, FakeWriter("/ck"))
    facts = control.running(Token(5, 1)) or {}
    assert [(q["id"], q["checkpoint"]) for q in facts["queries"]] == [("q-1", "file:/ck"), ("q-2", "file:/ck/query-2")]
    second.isActive, second.failure = False, "[STREAM_FAILED] x.YException: no password=hunter2\n=== Query ==="
    launch.finish()
    assert (control.running(Token(5, 1)) or {})["error"] == "[STREAM_FAILED] x.YException: no password=*****"


@pytest.mark.parametrize(
    ("fact", "told"), [("lastProgress", {"batchId": 3}), ("status", {"message": "Waiting for data to arrive"})]
)
def test_the_failure_of_a_query_that_works_again_is_withdrawn(tmp_path: Path, fact: str, told: dict[str, Any]) -> None:
    """A script may start it again; the reason why it failed once is not why the driver ends later."""
    launch, control, _ = _launch(tmp_path, Token(5, 1))

    def start(query: FakeQuery) -> None:
        launch.start_query(lambda _writer: query, FakeWriter("/ck"))

    def error() -> str | None:
        launch.queries.report_failures()
        return (control.running(Token(5, 1)) or {}).get("error")

    first, again = FakeQuery("q-1"), FakeQuery("q-1")
    again.runId = "run-2"
    start(first)
    first.isActive, first.failure = False, "boom"
    assert error() == "boom"
    start(again)
    assert error() == "boom", "it has not done anything yet"
    setattr(again, fact, told)
    assert error() is None
    launch.run.report(parallelism=2)
    assert error() is None, "it is written again with the next fact"
    again.isActive, again.failure = False, "boom"
    assert error() == "boom"
    launch.run.report_failure("the script failed")
    third = FakeQuery("q-1")
    third.lastProgress = {"batchId": 4}
    start(third)
    assert error() == "the script failed"


def test_a_script_may_start_a_query_again_and_again(tmp_path: Path) -> None:
    """What is kept of it does not grow: a ConfigMap holds 1 MiB, and a stop ends each query in a thread of its own."""
    launch, control, _ = _launch(tmp_path, Token(5, 1))
    sizes = []
    for number in range(20):
        query = FakeQuery("q-1")
        query.runId = f"run-{number}"
        launch.start_query(lambda _writer, query=query: query, FakeWriter("/ck"))
        query.isActive = False
        launch.queries.report_failures()
        sizes.append(len((control.running(Token(5, 1)) or {})["queries"]))
    assert sizes == [1] * 20
    assert len(launch.queries.known()) + len(launch.turn._started) <= 2


def test_a_program_may_start_ever_new_queries(tmp_path: Path) -> None:
    """What is kept of those that have ended is bounded: their sessions fill the JVM, and a file has 1 MiB at most."""
    launch, control, _ = _launch(tmp_path, Token(5, 1))
    for number in range(3 * MANY_QUERIES):
        query = FakeQuery(f"q-{number}")
        query.lastProgress = {"batchId": 0, "durationMs": {"addBatch": 1}}
        launch.start_query(lambda _writer, query=query: query, FakeWriter("/ck"))
        launch._progress.look(FakeContext(), launch.queries.known())
        query.isActive = number == 0
        launch.queries.report_failures()
    assert [started.query.id for started in launch.turn._started] == ["q-0", query.id]
    told = [one["id"] for one in (control.running(Token(5, 1)) or {})["queries"]]
    committed = (control.progress(Token(5, 1)) or {})["committed"]
    for ids in (told, list(committed)):
        assert len(ids) <= MANY_QUERIES
        assert ids[0] == "q-0", "it runs still"
        assert ids[-1] == query.id


def test_a_query_that_has_ended_does_not_keep_the_others_from_being_idle(tmp_path: Path) -> None:
    """Such as one with an AvailableNow trigger that runs first; one that has failed does."""
    launch, _control, _ = _launch(tmp_path, Token(5, 1))
    first, second = FakeQuery("q-1"), FakeQuery("q-2", checkpoint="file:/ck/query-2")
    for query in (first, second):
        launch.start_query(lambda _writer, query=query: query, FakeWriter("/ck"))
        query.status = {"message": "Waiting for data to arrive", "isTriggerActive": False}
    first.isActive, first.status = False, {"message": "Stopped", "isTriggerActive": False}
    launch.queries.report_failures()
    assert launch.run.get("error") is None
    launch.run.report_failure("boom")
    launch.queries.report_idle()
    assert launch.run.get("idle_at") is None
    launch.run.report(error=None)
    launch.queries.report_idle()
    assert launch.run.get("idle_at") is not None


def test_a_query_starts_even_if_nothing_can_be_told_about_it(tmp_path: Path) -> None:
    """A Spark whose inner parts are others than expected runs the script all the same."""
    launch, _, said = _launch(tmp_path, Token(5, 1))
    writer = FakeWriter("/ck")
    del writer._jwrite
    query = object()
    assert launch.start_query(lambda _writer: query, writer) is query
    assert [line.partition(":")[0] for line in said] == [
        "cannot give the query a checkpoint",
        "cannot remember the checkpoint",
        "cannot keep how the query was started",
        "cannot report the query",
    ]


@pytest.mark.parametrize(
    ("failure", "stopping", "code"),
    [(Fenced("too late"), False, 75), (RuntimeError("no topic"), False, 1), (Fenced("too late"), True, None)],
    ids=["its turn has not come", "a query fails", "it is being stopped"],
)
def test_a_driver_whose_queries_cannot_be_started_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, stopping: bool, code: int | None
) -> None:
    """Even if the script sleeps. The reason is reported. A stop ends the driver anyway, after its queries."""
    ended: list[int] = []
    monkeypatch.setattr("tidegate.launcher.programs.script.os._exit", ended.append)
    monkeypatch.setattr("tidegate.launcher.run.launch._LEAVE_SECONDS", 0.0)
    launch, control, _ = _launch(tmp_path, Token(5, 1))
    launch.run.report()
    if stopping:
        launch.run.stopping.set()
    launch.leave(failure)
    assert ended == ([] if code is None else [code])
    error = (control.running(Token(5, 1)) or {}).get("error")
    assert error == (None if isinstance(failure, Fenced) else "RuntimeError: no topic")
