"""The table of Spark's versions: what is in it is pinned, recorded and told by `doctor`."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.eventlogs import VERSIONS
from tests.support.events import job, with_application
from tests.support.http_server import AnswersOk, serving, set_dead_proxy
from tidegate.cli.doctor.clusters import spark_of_jobs, yarn_of_jobs
from tidegate.events.job import JobSpec
from tidegate.stack.errors import StackError
from tidegate.stack.jars import CONNECTORS, spark_kafka
from tidegate.stack.versions import SPARK_VERSIONS, SparkVersion, known

ALL = "3.5, 4.0, 4.1, 4.2"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", SPARK_VERSIONS, ids=lambda version: version.minor)
def test_every_version_is_pinned_and_recorded(version: SparkVersion) -> None:
    """The release that was tried is pinned and has a connector; the oldest and the newest have event logs."""
    lock = ROOT / ("requirements.lock" if version.minor == "4.2" else f"deploy/requirements/spark-{version.minor}.lock")
    assert f"pyspark=={version.tried} " in lock.read_text()
    connector = CONNECTORS[version.minor].artifacts[0]
    assert (connector.name, connector.version) == (f"spark-sql-kafka-0-10_{version.scala}", version.tried)
    assert (VERSIONS / version.tried).is_dir() or version.minor not in ("3.5", "4.2")


def test_a_release_is_found_by_its_version() -> None:
    """Another patch release of a version has its line; a version that nobody tried has none."""
    found = known("3.5.99")
    assert found is not None
    assert found.minor == "3.5"
    assert known("3.4.1") is None
    assert known("4.20.0") is None


def test_an_unknown_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector of another version would fail somewhere in Spark; the message names both sides."""
    monkeypatch.setattr("tidegate.stack.jars.spark_version", lambda: "3.4.1")
    with pytest.raises(StackError, match=re.escape("pyspark 3.4.1 is installed, but Tidegate runs on Spark 3.5, 4.0")):
        spark_kafka()


def _spec(name: str, url: str) -> JobSpec:
    return with_application(job(job_id=name), rest_url=url)


def test_the_doctor_names_the_spark_of_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of one master share a line; what the version lacks is in it, and a master that is away is a warning."""
    answers = {"http://old:6066": "3.5.7", "http://new:6066": "4.2.0", "http://other:6066": "3.4.1"}
    asked: list[str] = []

    def get(url: str, **_: Any) -> httpx.Response:
        asked.append(url)
        base = url.partition("/v1/")[0]
        if base not in answers:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"success": False, "serverSparkVersion": answers[base]})

    monkeypatch.setattr(httpx, "get", get)
    places = {
        "a": "http://old:6066",
        "b": "http://old:6066/",
        "c": "http://new:6066",
        "d": "http://other:6066",
        "e": "http://away:6066",
    }
    lines = list(spark_of_jobs({name: _spec(name, url) for name, url in places.items()}))
    assert len(asked) == 4
    told = {line.what: (line.verdict, line.found, line.remedy) for line in lines}
    assert told["Spark of a, b"][0] == "ok"
    assert "3.5.7 at http://old:6066. Spark 3.5 lacks: jobs in Scala or Java" in told["Spark of a, b"][1]
    assert told["Spark of c"][:2] == ("ok", "4.2.0 at http://new:6066")
    assert told["Spark of d"] == (
        "warn",
        "3.4.1 at http://other:6066",
        "Tidegate is tested on Spark 3.5, 4.0, 4.1, 4.2",
    )
    assert told["Spark of e"][0] == "warn"
    assert "refused" in told["Spark of e"][1]


def test_the_doctor_asks_several_masters_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred clusters may have their jobs here, and each one that hangs takes its whole time limit."""
    together = threading.Barrier(4)

    def get(_url: str, **_: Any) -> httpx.Response:
        together.wait(30)
        raise httpx.ConnectTimeout("no answer")

    monkeypatch.setattr(httpx, "get", get)
    specs = {name: _spec(name, f"http://{name}:6066") for name in "dacb"}
    assert [line.what for line in spark_of_jobs(specs)] == [f"Spark of {name}" for name in "abcd"]


def test_the_doctor_asks_masters_without_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the services do: the doctor would warn of masters that they reach."""

    class Master(AnswersOk):
        body = b'{"serverSparkVersion": "4.2.0"}'

    set_dead_proxy(monkeypatch)
    with serving(Master) as server:
        [line] = spark_of_jobs({"a": _spec("a", f"http://127.0.0.1:{server.server_port}")})
    assert line.verdict == "ok", line.found


def test_the_doctor_names_an_address_that_is_none() -> None:
    """A spec may have one: what it checks is only which characters there are."""
    [line] = spark_of_jobs({"a": _spec("a", "http://master:6o66")})
    assert (line.verdict, line.what) == ("warn", "Spark of a")
    assert "Invalid port: '6o66'" in line.found


def test_the_doctor_asks_no_resourcemanager_for_its_spark() -> None:
    """YARN has none: each job brings its own. It is asked for its own version."""
    on_yarn = with_application(job(), backend="yarn", master="yarn", rest_url="http://127.0.0.1:1", master_ui_url=None)
    assert not list(spark_of_jobs({"a": on_yarn}))
    [line] = yarn_of_jobs({"a": on_yarn})
    assert (line.verdict, line.what, line.remedy) == ("warn", "YARN of rates", "docs/how-to/yarn.md")
    assert "ConnectError" in line.found
