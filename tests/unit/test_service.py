"""How services start and end: every log line is in the chosen format, and the last one says how the service ended."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.events import job, overloaded
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.fake_streaming_jobs import FakeJobs
from tests.support.fake_world import FakeWorld
from tests.support.token_endpoint import TokenEndpoint, login_by
from tests.unit.test_decider_handler import Bench
from tidegate.events.way import Way
from tidegate.launcher.kubernetes.access import ApiAccess
from tidegate.runtime.dead_letters import TooManyDeadLetters
from tidegate.runtime.logs import Repeats, about, configure
from tidegate.runtime.poll import wait_until
from tidegate.runtime.reach import ask
from tidegate.runtime.service import run_service
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import TopicsDoNotFit
from tidegate.stack.processes import inherited

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Restores what a service changes in its process: log handlers, signal handlers, the hook for threads."""
    root, hook = logging.getLogger(), threading.excepthook
    before = (root.level, list(root.handlers))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    threading.excepthook = hook
    logging.captureWarnings(False)
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for number, handler in handlers.items():
        signal.signal(number, handler)


def lines(text: str) -> list[dict[str, str]]:
    """Return the lines of a JSON log."""
    return [json.loads(line) for line in text.splitlines()]


def told_to_end(service: str) -> tuple[float, int, list[dict[str, str]]]:
    """Send SIGTERM to a service that finds no broker; return how long it took to end, its exit code and its log."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"services.{service}"],
        cwd=ROOT,
        env=inherited() | {"TIDEGATE_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        seen = [process.stderr.readline()]
        while "librdkafka" not in seen[-1]:
            seen.append(process.stderr.readline())
        asked = time.monotonic()
        process.terminate()
        rest = process.communicate(timeout=60)[1]
        return time.monotonic() - asked, process.returncode, lines("".join(seen) + rest)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("service", ["collector", "decider", "actuator"])
def test_a_service_without_a_broker_logs_json_and_stops_at_sigterm(service: str) -> None:
    """Also librdkafka's own lines are JSON; SIGTERM ends the start within its grace, and the last line says so."""
    took: list[float] = []
    while min(took, default=60.0) >= 10 and len(took) < 3:  # the machine may have stood still, but not each time
        seconds, code, logged = told_to_end(service)
        took.append(seconds)
        assert code == 0
        assert any("Connection refused" in line["message"] for line in logged if line["logger"] == "librdkafka")
        assert (logged[-1]["logger"], logged[-1]["message"]) == (service, "stopped by a signal, exit code 0")
    assert min(took) < 10, took


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--bootstrap-servers", 2)])
@pytest.mark.parametrize("service", ["collector", "decider", "actuator", "operator", "keda", "console"])
def test_a_service_that_is_given_arguments_does_not_start(service: str, argument: str, code: int) -> None:
    """It says where its settings come from."""
    ran = subprocess.run(
        [sys.executable, "-m", f"services.{service}", argument],
        cwd=ROOT,
        env=inherited() | {"TIDEGATE_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == code
    assert (ran.stdout or ran.stderr).startswith(f"usage: python -m services.{service}")


@pytest.mark.parametrize(
    ("service", "package", "extra"),
    [
        ("collector", "zstandard", "collector"),
        ("decider", "faust", "decider"),
        ("actuator", "redis", "actuator"),
        ("operator", "confluent_kafka", "operator"),
        ("keda", "grpc", "keda"),
        ("console", "uvicorn", "console-service"),
    ],
)
def test_without_its_packages_a_service_says_what_to_install(service: str, package: str, extra: str) -> None:
    """In one sentence, whatever is missing first, with the exit code of a wrong set-up."""
    program = (
        f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_module('services.{service}', None, '__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2
    said = f'{service}: the package {package} is not installed: in the checkout, pip install ".[{extra}]"\n'
    assert ran.stderr == said


@pytest.mark.parametrize(
    ("error", "code", "explained"),
    [
        (TopicsDoNotFit("topics x do not exist"), 2, True),
        (TooManyDeadLetters("11 unreadable records in a row"), 1, True),
        (KafkaException("no broker"), 1, True),
        (TimeoutError("could not read the topic"), 1, True),
        (ZeroDivisionError("a fault of ours"), 1, False),
    ],
)
def test_an_error_is_logged_before_the_last_line(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, explained: bool
) -> None:
    """However a service ends, its log says why; only an unexpected error is logged with its traceback."""

    def run(_: ServiceSettings) -> int:
        raise error

    assert run_service("collector", ServiceSettings, run) == code
    *_, why, last = lines(capsys.readouterr().err)
    assert (why["level"], str(error) in why["message"]) == ("CRITICAL", True)
    assert ("exception" not in why) == explained
    assert last["message"] == f"stopped by an error, exit code {code}"


class FakeFeed(FakeJobs):
    """A feed without a thread."""

    def __init__(self, state: str) -> None:
        super().__init__()
        self.state = state

    def start(self) -> None:
        """Have nothing to start."""

    def close(self) -> None:
        """Have nothing to close."""


def main_of(service: str, feed: FakeFeed, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return the main function of a service that has this feed in place of Kafka, and this API server."""
    main = importlib.import_module(f"services.{service}.__main__")
    monkeypatch.setattr(main, "Feed", lambda *_: feed)
    monkeypatch.setattr(main, "check_topics", lambda _: None)
    monkeypatch.setattr(main, "kafka_probe", lambda _: lambda: None)
    monkeypatch.setattr(ApiAccess, "find", lambda: server.api.access)
    monkeypatch.setattr(main, "Api", lambda *_, **__: server.api, raising=False)
    if service == "keda":
        monkeypatch.setenv("TIDEGATE_KEDA_PORT", "0")
    run: Callable[[], int] = main.main
    return run


@pytest.mark.parametrize("service", ["keda", "operator"])
def test_a_service_that_can_no_longer_read_the_topics_says_so(
    service: str, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence, the same in each, and with the exit code of an error that a new start may help against."""
    assert main_of(service, FakeFeed("no right to read"), server, monkeypatch)() == 1
    why, last = lines(capsys.readouterr().err)[-2:]
    assert (why["message"], why["level"]) == ("cannot continue: cannot read the topics: no right to read", "CRITICAL")
    assert "exception" not in why
    assert last["message"] == "stopped by an error, exit code 1"


def test_the_operator_ends_at_once_although_it_watches(server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server would end the watch only after a minute, and Kubernetes kills a pod after half of that."""
    asked = []

    def terminate() -> None:
        wait_until(lambda: server.watches, 30, 0.01)
        asked.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    def watches() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "watch"} - before

    before = set(threading.enumerate())
    thread = threading.Thread(target=terminate)
    thread.start()
    assert main_of("operator", FakeFeed("live"), server, monkeypatch)() == 0
    thread.join()
    assert server.watches
    assert time.monotonic() - asked[0] < 25
    assert all(each.daemon for each in watches())
    server.cut()
    assert wait_until(lambda: not watches(), 30, 0.05)


def test_an_error_of_kafkas_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Its text is a dump of its fields; the log says what is wrong, and where."""

    def run(_: ServiceSettings) -> int:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "Failed while waiting for controller"))

    assert run_service("decider", ServiceSettings, run) == 1
    why = lines(capsys.readouterr().err)[-2]["message"]
    assert why == "cannot continue: Kafka at 127.0.0.1:9092: Failed while waiting for controller"


def test_a_number_of_partitions_that_is_none_is_an_error_of_one_line() -> None:
    """What creates the topics names the variable, and exits as for every wrong set-up."""
    program = Path(__file__).parents[2] / "deploy" / "kafka" / "create_topics.py"
    environment = {**inherited(), "PARTITIONS": "eight"}
    ran = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    last = json.loads(ran.stderr.splitlines()[-1])
    assert (ran.returncode, last["level"]) == (2, "CRITICAL")
    assert "PARTITIONS" in last["message"]
    assert "'eight'" in last["message"]


def test_a_service_that_is_never_let_in_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Not only that no broker answered. It tries for a while, since the provider may be about to come back."""
    asked_until = 0.0
    with TokenEndpoint().serve() as url, socket.create_server(("127.0.0.1", 0)) as broker:

        def run(_: ServiceSettings) -> int:
            nonlocal asked_until
            address = f"127.0.0.1:{broker.getsockname()[1]}"
            settings = ServiceSettings(bootstrap_servers=address, **login_by(url, "hunter2"))
            asked_until = time.monotonic() + 1.5
            ask(settings, seconds=1.5, try_login_again=True)
            return 0

        assert run_service("decider", ServiceSettings, run) == 1
    assert time.monotonic() >= asked_until
    text = capsys.readouterr().err
    assert re.match(r"cannot continue: cannot log in to Kafka at .*Invalid client credent", lines(text)[-2]["message"])
    assert "Traceback" not in text
    assert "hunter2" not in text


def test_a_library_that_tries_again_and_again_does_not_flood_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Faust's client logs two errors for each of ten tries a second to reach a broker. Our own lines are all there."""
    seconds = [1000.0]
    configure("decider", ServiceSettings())
    logging.getLogger().handlers[0].filters[:] = [Repeats(lambda: seconds[0])]
    capsys.readouterr()
    for _ in range(310):  # 31 s
        for node in (2, 3):
            logging.getLogger("aiokafka.consumer.fetcher").error("Failed fetch messages from %s: no answer", node)
        seconds[0] += 0.1
    for _ in range(3):
        logging.getLogger("services.decider").info("ours")
    assert [line["message"] for line in lines(capsys.readouterr().err)] == [
        "Failed fetch messages from 2: no answer",
        "Failed fetch messages from 3: no answer",
        "Failed fetch messages from 2: no answer (and 299 times more in the last 30 s)",
        "Failed fetch messages from 3: no answer (and 299 times more in the last 30 s)",
        "ours",
        "ours",
        "ours",
    ]


def test_librdkafka_does_not_flood_the_log_either(capsys: pytest.CaptureFixture[str]) -> None:
    """It tries again for as long as nobody gives it a token; only the time that each try took differs."""
    seconds = [1000.0]
    configure("decider", ServiceSettings())
    logging.getLogger().handlers[0].filters[:] = [Repeats(lambda: seconds[0])]
    capsys.readouterr()
    said = "FAIL [rdkafka#%s]: SASL authentication error: invalid_token (after %dms in state AUTH_REQ)"
    for number in range(310):
        for client in ("producer-1", "consumer-2"):
            logging.getLogger("librdkafka").error(said, client, number)
        seconds[0] += 0.1
    assert [line["message"] for line in lines(capsys.readouterr().err)] == [
        said % ("producer-1", 0),
        said % ("consumer-2", 0),
        said % ("producer-1", 300) + " (and 299 times more in the last 30 s)",
        said % ("consumer-2", 300) + " (and 299 times more in the last 30 s)",
    ]


@pytest.mark.parametrize(("code", "how"), [(0, "a signal"), (75, "an error")])
def test_the_exit_code_of_a_service_is_kept(capsys: pytest.CaptureFixture[str], code: int, how: str) -> None:
    """Whether a service returns its exit code or raises it, the process has it and the last line names it."""

    def leave(_: ServiceSettings) -> int:
        raise SystemExit(code)

    assert run_service("actuator", ServiceSettings, lambda _: code) == code
    assert lines(capsys.readouterr().err)[-1]["message"] == f"stopped by {how}, exit code {code}"
    assert run_service("actuator", ServiceSettings, leave) == code
    assert lines(capsys.readouterr().err)[-1]["message"] == f"stopped by {how}, exit code {code}"


def test_warnings_and_errors_of_threads_are_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Python would write both as raw text, which a reader of JSON logs cannot parse."""

    def fail() -> None:
        raise RuntimeError("the thread failed")

    configure("collector", ServiceSettings())
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    warnings.showwarning("a warning", UserWarning, "file.py", 1)
    logged = lines(capsys.readouterr().err)
    assert "the thread failed" in logged[-2]["exception"]
    assert "UserWarning: a warning" in logged[-1]["message"]


def test_a_line_names_the_job_and_the_decision_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    """Every line within `about` has the ids, whoever writes it; other threads and tasks, and later lines, do not."""
    configure("decider", ServiceSettings())
    capsys.readouterr()
    with about(job_id="rates"):
        logging.getLogger("librdkafka").warning("a line of another library")
        with about(decision_id="d"):
            logging.getLogger("services.decider").info("both")
            thread = threading.Thread(target=lambda: logging.getLogger("other").info("elsewhere"))
            thread.start()
            thread.join()
    logging.getLogger("services.decider").info("neither")
    named = [(line["message"], line.get("job_id"), line.get("decision_id")) for line in lines(capsys.readouterr().err)]
    assert named == [
        ("a line of another library", "rates", None),
        ("both", "rates", "d"),
        ("elsewhere", None, None),
        ("neither", None, None),
    ]


def test_the_lines_of_a_change_name_its_job_and_decision(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """From the order in the decider to the last phase in the actuator, each line can be found by the decision's id."""
    configure("decider", ServiceSettings())
    capsys.readouterr()
    bench = Bench(job(rescale=(Way.RESTART,)))
    bench.take(*overloaded(7))
    (ordered,) = bench.commands()
    world = FakeWorld(tmp_path, rescale=(Way.RESTART,))
    world.start(4)
    world.seconds += (ordered.issued_at - world.now()).total_seconds() + 1
    world.carry(ordered)
    logged = lines(capsys.readouterr().err)
    assert all(line["job_id"] == "rates" for line in logged)
    of_change = [line["message"] for line in logged if line.get("decision_id") == ordered.command_id]
    assert of_change[0].startswith(f"rescale ordered, to size {ordered.to_parallelism}. ")
    assert of_change[-1].startswith(f"job rates: verified at size {ordered.to_parallelism}. ")


def test_the_deciders_lines_about_a_job_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A snapshot that is not decided on is logged with its job."""
    configure("decider", ServiceSettings())
    capsys.readouterr()
    bench = Bench(job("other"))
    bench.take(*overloaded(1))
    (line,) = lines(capsys.readouterr().err)
    assert (line["job_id"], "go to the dead letters" in line["message"]) == ("rates", True)
