from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from services.actuator.backends import BackendRefused, BackendUnreachable, DriverState, Submission
from services.actuator.backends.standalone import Standalone
from tests.support.events import job, with_application
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import Token


def _spec() -> JobSpec:
    return with_application(job(), rest_url="http://master:6066/", master_ui_url="http://master:8080")


def _answering(answer: Any, asked: list[httpx.Request] | None = None) -> Standalone:
    def handle(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(200, json=answer)

    return Standalone(transport=httpx.MockTransport(handle))


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("SUBMITTED", DriverState.PENDING),
        ("RELAUNCHING", DriverState.PENDING),
        ("UNKNOWN", DriverState.PENDING),
        ("RUNNING", DriverState.RUNNING),
        ("FINISHED", DriverState.ENDED),
        ("KILLED", DriverState.ENDED),
        ("FAILED", DriverState.ENDED),
        ("ERROR", DriverState.ENDED),
    ],
)
def test_states_of_drivers(said: str, state: DriverState) -> None:
    """Every state of Spark's DriverState is known; a driver that may still start counts as alive (I4)."""
    answer = {"action": "SubmissionStatusResponse", "success": True, "driverState": said}
    assert _answering(answer).state(_spec(), "driver-1-1") is state
    with_reason = {**answer, "message": "Exception from the cluster: ..."}
    assert _answering(with_reason).state(_spec(), "driver-1-1") is state


def test_a_driver_the_master_does_not_know() -> None:
    """Only a plain "not found" means that the driver is absent."""
    answer = {"action": "SubmissionStatusResponse", "success": False, "submissionId": "driver-1-1"}
    assert _answering(answer).state(_spec(), "driver-1-1") is DriverState.ABSENT


@pytest.mark.parametrize(
    "answer",
    [
        {"action": "SubmissionStatusResponse", "success": False, "message": "Current state is not alive: RECOVERING."},
        {"action": "ErrorResponse", "message": "boom"},
        {"action": "SubmissionStatusResponse", "success": True},
        {"action": "SubmissionStatusResponse", "success": True, "driverState": None},
        {},
        ["?"],
        httpx.ConnectError("refused"),
        httpx.InvalidURL("Invalid port: '6o66'"),
        httpx.ReadTimeout("slow"),
    ],
)
def test_a_master_that_cannot_tell_does_not_mean_absent(answer: Any) -> None:
    """A recovering, failing or silent master is unreachable, so nothing is started (I4, F29)."""
    with pytest.raises(BackendUnreachable):
        _answering(answer).state(_spec(), "driver-1-1")


def test_an_id_from_a_topic_stays_within_its_path() -> None:
    """The id of a driver is read from the results of commands; no other action of the gateway can be made of it."""
    asked: list[httpx.Request] = []
    answer = {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
    master = _answering(answer, asked)
    master.state(_spec(), "../killall")
    master.kill(_spec(), "../killall?x")
    paths = [request.url.raw_path for request in asked]
    assert paths == [b"/v1/submissions/status/..%2Fkillall", b"/v1/submissions/kill/..%2Fkillall%3Fx"]


def test_a_standby_master_knows_nothing() -> None:
    """Only a master that is ALIVE is asked who is alive."""
    with pytest.raises(BackendUnreachable, match="RECOVERING"):
        _answering({"status": "RECOVERING", "activeapps": []}).applications(_spec())
    alive = {
        "status": "ALIVE",
        "activeapps": [
            {"id": "app-1", "name": "rates", "state": "WAITING"},
            {"id": "app-2", "name": "rates", "state": "FINISHED"},
            {"id": "app-3", "name": "orders", "state": "RUNNING"},
        ],
    }
    assert _answering(alive).applications(_spec()) == {"app-1": "rates", "app-3": "orders"}


@pytest.mark.parametrize(
    "listed", [{}, {"activeapps": None}, {"activeapps": [None]}, {"activeapps": [{"name": "rates"}]}, {"activeapps": 7}]
)
def test_a_master_that_tells_half_of_it_does_not_mean_that_nothing_runs(listed: dict[str, Any]) -> None:
    """What is not in its answer would count as ended (I4); and an answer of another kind must not end the actuator."""
    whole: dict[str, Any] = {"activedrivers": [{}], "completeddrivers": [], "workers": []}
    half = _answering({"status": "ALIVE", **whole, **listed})
    for ask in (
        lambda: half.applications(_spec()),
        lambda: half.granted(_spec(), "app-1"),
        lambda: half.live_drivers(_spec()),
        lambda: half.log_tail(_spec(), "driver-1-1", Token(1)),
    ):
        with pytest.raises(BackendUnreachable):
            ask()


def test_a_master_says_what_it_has_granted() -> None:
    """The slots of an application are those granted to it now; of one that is not listed, nothing is known."""
    alive = {"status": "ALIVE", "activeapps": [{"id": "app-1", "name": "rates", "state": "RUNNING", "cores": 3}]}
    assert _answering(alive).granted(_spec(), "app-1") == 3
    assert _answering(alive).granted(_spec(), "app-2") is None
    with pytest.raises(BackendUnreachable, match="RECOVERING"):
        _answering({"status": "RECOVERING", "activeapps": []}).granted(_spec(), "app-1")


def test_a_submission_carries_script_and_size() -> None:
    """A submission runs the launcher with the user's script and the size; a refusal keeps the master's message."""
    asked: list[httpx.Request] = []
    run = Submission(_spec(), Token(7, 1), 4)
    cluster = _answering({"success": True, "submissionId": "driver-1-1"}, asked)
    assert cluster.submit(run) == "driver-1-1"
    assert asked[0].url == "http://master:6066/v1/submissions/create"
    body = json.loads(asked[0].content)
    assert body["mainClass"] == "org.apache.spark.deploy.SparkSubmit"
    assert "spark.dynamicAllocation.initialExecutors=4" in body["appArgs"]
    assert body["appArgs"][-1] == "/jobs/rates.py"
    with pytest.raises(BackendRefused, match="no more drivers"):
        _answering({"success": False, "message": "no more drivers"}).submit(run)


def test_files_that_a_setting_lists_come_too() -> None:
    """`spark-submit` ignores `spark.jars` next to `--jars`: with Kafka's jars listed, Delta's would be missing."""
    conf = {"spark.jars": "/lib/delta.jar, /lib/kafka.jar", "spark.submit.pyFiles": "/lib/delta.zip"}
    spec = with_application(job(), jars=("/lib/kafka.jar",), py_files=("/lib/own.zip",), conf=conf)
    words = Submission(spec, Token(4), 6).submit_args(spec.application.master)
    assert words[words.index("--jars") + 1] == "/lib/kafka.jar,/lib/delta.jar"
    assert words[words.index("--py-files") + 1] == "/lib/own.zip,/lib/delta.zip"


def test_the_drivers_jvm_gets_the_options_of_the_spec() -> None:
    """The worker starts that JVM, so it must know them; those of executors are for the application alone."""
    asked: list[httpx.Request] = []
    conf = {"spark.driver.extraJavaOptions": "-Xss4m -Dx=y", "spark.executor.extraJavaOptions": "-Xss8m"}
    spec = with_application(_spec(), conf=conf)
    _answering({"success": True, "submissionId": "d"}, asked).submit(Submission(spec, Token(7), 4))
    properties = json.loads(asked[0].content)["sparkProperties"]
    assert properties["spark.driver.extraJavaOptions"] == "-Xss4m -Dx=y"
    assert "spark.executor.extraJavaOptions" not in properties
    assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in properties["spark.driver.defaultJavaOptions"].split()


def test_missing_addresses_are_named() -> None:
    """A spec without an address that the backend needs is refused, with the name of the field."""
    with pytest.raises(BackendRefused, match=r"application\.rest_url"):
        _answering({}).state(job(), "driver-1-1")
    with pytest.raises(BackendRefused, match=r"application\.master_ui_url"):
        _answering({}).live_drivers(job())


def test_the_log_of_a_driver_is_read_from_its_worker() -> None:
    """The master says which worker ran the driver, even if it has ended; the worker has the log."""
    asked: list[httpx.URL] = []
    state = {
        "status": "ALIVE",
        "workers": [{"id": "worker-1", "webuiaddress": "http://w1:8081"}],
        "activedrivers": [],
        "completeddrivers": [{"id": "driver-1-1", "worker": "worker-1"}, {"id": "driver-1-2", "worker": "worker-9"}],
    }

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url)
        if request.url.host == "master":
            return httpx.Response(200, json=state)
        return httpx.Response(200, text=f"boom on {request.url.params['logType']}")

    cluster = Standalone(transport=httpx.MockTransport(handle))
    assert cluster.log_tail(_spec(), "driver-1-1", Token(1)) == "boom on stderr\nboom on stdout"
    assert (asked[-1].host, asked[-1].path) == ("w1", "/log/")
    assert {"driverId": "driver-1-1", "logType": "stdout"}.items() <= dict(asked[-1].params).items()
    assert cluster.log_tail(_spec(), "driver-1-2", Token(1)) == "", "its worker is gone"
    assert cluster.log_tail(_spec(), "driver-1-3", Token(1)) == "", "the master does not know it"


def test_a_worker_that_does_not_answer_has_no_log() -> None:
    """An error page is no log."""
    state = {
        "status": "ALIVE",
        "workers": [{"id": "worker-1", "webuiaddress": "http://w1:8081"}],
        "activedrivers": [{"id": "driver-1-1", "worker": "worker-1"}],
        "completeddrivers": [],
    }

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=state) if request.url.host == "master" else httpx.Response(500, text="boom")

    with pytest.raises(BackendUnreachable, match="w1"):
        Standalone(transport=httpx.MockTransport(handle)).log_tail(_spec(), "driver-1-1", Token(1))
