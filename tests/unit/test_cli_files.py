"""What `doctor` and `apply` say about files that are not on the services' machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner
from typing_extensions import override

from tests.support.clusters import on_kubernetes
from tests.support.events import job, snapshot, with_application
from tests.support.fake_webhdfs import fake_webhdfs
from tidegate.cli import app
from tidegate.cli.doctor import command
from tidegate.cli.doctor.clusters import spark_of_jobs
from tidegate.cli.doctor.files import files_of_jobs, other_checkpoints
from tidegate.cli.doctor.finding import Finding
from tidegate.cli.doctor.jobs import refused_specs, warnings_about
from tidegate.cli.specs import show_shared_pool, show_unreadable
from tidegate.events.job import Application, JobSpec
from tidegate.events.snapshot import SnapshotWarning, WarningCode
from tidegate.remote.files import Files, Place


def _spec(checkpoint: str, logs: str, **application: Any) -> JobSpec:
    settings: dict[str, Any] = {"backend": "local", "master": "local[2]", "script": "/job.py"}
    settings |= {"checkpoint_location": checkpoint, "event_log_dir": logs} | application
    return JobSpec(job_id="rates", sources=("in",), application=Application(**settings))


def test_doctor_names_what_snapshots_warn_of() -> None:
    """A topic that does not exist, or a clock that is wrong, is found without a look into the logs."""
    warned = snapshot(1, warnings=(SnapshotWarning(code=WarningCode.TOPIC_UNKNOWN, topics=("gone",)),))
    (found,) = warnings_about({"other": snapshot(1, job_id="other"), "rates": warned})
    assert (found.verdict, found.what) == ("warn", "measurement of rates")
    assert "Kafka does not have gone" in found.found
    assert found.remedy


def test_doctor_says_once_what_many_snapshots_warn_of() -> None:
    """A collector that does not know the cluster of 200 jobs is one line; what only one of them has is another."""
    known = tuple(SnapshotWarning(code=code) for code in (WarningCode.KAFKA_UNKNOWN, WarningCode.SOURCE_WAITS))
    newest = {f"job-{number}": snapshot(1, job_id=f"job-{number}", warnings=known[:1]) for number in range(1, 6)}
    newest["rates"] = snapshot(1, job_id="rates", warnings=known)
    found = list(warnings_about(newest))
    assert [each.what for each in found] == ["measurement of job-1, job-2, job-3 and 3 more", "measurement of rates"]
    assert "does not know the Kafka cluster" in found[0].found
    assert "its source waits" in found[1].found


def test_what_ends_the_checks_does_not_cost_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is gone in the middle: what was found so far is shown, then the error."""

    def gone(*_args: object) -> Iterator[Finding]:
        yield Finding("ok", "Kafka", "1 broker")
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))

    monkeypatch.setattr(command, "servers", gone)
    ran = CliRunner().invoke(app, ["doctor", "-b", "127.0.0.1:1"])
    assert ran.exit_code == 2
    assert "1 broker" in ran.stdout
    assert ran.stderr.startswith("error: Kafka: ")


def test_doctor_names_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Redis in the settings, and of a Spark master in a spec; the other checks go on."""
    monkeypatch.setenv("TIDEGATE_REDIS_URL", "redis://127.0.0.1:port/0")
    ran = CliRunner().invoke(app, ["doctor", "-b", "127.0.0.1:1"])
    assert (ran.exit_code, ran.stderr) == (1, "")
    assert "redis://127.0.0.1:port/0: Port could not be cast" in ran.stdout
    spec = with_application(job(), rest_url="http://[::1")
    (found,) = spark_of_jobs({"rates": spec})
    assert (found.verdict, "http://[::1" in found.found) == ("warn", True)


def test_doctor_names_what_the_engine_refuses() -> None:
    """An option that is gone is found before the services are upgraded, and not in the dead letters afterwards."""
    old = job(policy="tide", policy_options={"level_seconds": 60.0})
    (found,) = refused_specs({"other": job("other"), "rates": old}, {})
    assert (found.verdict, found.what) == ("fail", "spec of rates")
    assert "level_seconds" in found.found


def test_doctor_looks_for_the_files_of_jobs() -> None:
    """A missing folder of event logs is named with what to do; a checkpoint may be still to come."""
    with fake_webhdfs() as hdfs:
        files, spec = Files({"hdfs": {"url": hdfs.url}}), _spec("hdfs://nn/ck", "hdfs://nn/events")
        hdfs.put("/data/a", b"")
        (missing,) = files_of_jobs({"rates": spec}, files, {})
        assert (missing.verdict, missing.what) == ("fail", "event_log_dir of rates")
        assert missing.remedy == "make the folder: hdfs dfs -mkdir -p hdfs://nn/events"
        hdfs.put("/events/.made", b"")
        assert [finding.verdict for finding in files_of_jobs({"rates": spec}, files, {})] == ["ok"]
        hdfs.put("/ck/metadata", b"")
        assert [finding.verdict for finding in files_of_jobs({"rates": spec}, files, {})] == ["ok", "ok"]
        hdfs.forbidden = True
        assert "Permission denied" in next(files_of_jobs({"rates": spec}, files, {})).found
    assert list(files_of_jobs({"rates": _spec("/ck", "file:/events", control_dir="/control")}, files, {})) == []


def test_doctor_names_a_checkpoint_of_another_query(tmp_path: Path) -> None:
    """Before a job is taken over: from a checkpoint that is not its own, it would begin again."""
    specs = {"rates": _spec(f"{tmp_path}/ck", f"{tmp_path}/events", control_dir="/control")}
    (tmp_path / "events").mkdir()

    def found() -> list[tuple[str, bool]]:
        seen = {"rates": snapshot(1, query_id="q-2")}
        return [(each.verdict, "q-1, q-3" in each.found) for each in other_checkpoints(specs, seen, Files(), {})]

    assert found() == []  # this machine does not see the job's files
    (tmp_path / "events" / "app-1").touch()
    assert found() == [("warn", False)]
    for query in ("q-1", "q-3"):
        folder = tmp_path / "ck" / query
        folder.mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": query}))
    assert found() == [("fail", True)]
    (tmp_path / "ck" / "broken").mkdir()
    (tmp_path / "ck" / "broken" / "metadata").write_text("[]")
    (tmp_path / "ck" / "q-1" / "metadata").write_text(json.dumps({"id": "q-2"}))
    assert found() == []


def test_doctor_asks_for_the_checkpoints_of_a_silent_file_system_once(tmp_path: Path) -> None:
    """And not at all if it was silent before, or if nobody knows the job's query."""
    asked = []

    class AskedFiles(Files):
        @override
        def place(self, location: str) -> Place:
            asked.append(location)
            return super().place(location)

    files = AskedFiles({"hdfs": {"url": "http://127.0.0.1:1", "timeout_seconds": 0.2}})
    specs = {name: _spec(f"hdfs://gone/{name}", "hdfs://gone/events") for name in "abc"}
    seen = {"a": snapshot(1), "b": snapshot(1, query_id="q"), "c": snapshot(1, query_id="q")}
    silent: dict[str, str] = {}
    assert list(other_checkpoints(specs, seen, files, silent)) == []
    assert asked == ["hdfs://gone/b"]
    assert list(silent) == ["hdfs://gone"]
    assert list(other_checkpoints(specs, seen, files, silent)) == []
    assert asked == ["hdfs://gone/b"]
    elsewhere = {"b": _spec(f"{tmp_path}/ck", "hdfs://gone/events", control_dir="/control")}
    assert list(other_checkpoints(elsewhere, {"b": seen["b"]}, files, silent)) == []
    assert asked[1:] == [f"{tmp_path}/ck"]


def test_doctor_asks_a_silent_file_system_once() -> None:
    """Every further question would last as long as its time limit; other file systems are asked."""
    with fake_webhdfs() as hdfs:
        hdfs.put("/events/.made", b"")
        silent = {"url": "http://127.0.0.1:1", "timeout_seconds": 0.2}
        files = Files({"hdfs://gone": silent, "hdfs://nn": {"url": hdfs.url}})
        specs = {"a": _spec("hdfs://gone/a", "hdfs://gone/events"), "b": _spec("hdfs://gone/b", "hdfs://nn/events")}
        logs, checkpoint, good, other = files_of_jobs(specs, files, {})
    assert (logs.verdict, "127.0.0.1:1" in logs.found) == ("fail", True)
    assert checkpoint.found == "hdfs://gone/a: not looked for; see event_log_dir of rates"
    assert good.verdict == "ok"
    assert (other.verdict, other.found) == ("fail", "hdfs://gone/b: not looked for; see event_log_dir of rates")


def test_doctor_sums_up_by_file_system() -> None:
    """A line for each of hundreds of jobs hides the one that something is wrong with."""
    with fake_webhdfs() as hdfs:
        for number in range(5):
            hdfs.put(f"/events/{number}/.made", b"")
        silent = {"url": "http://127.0.0.1:1", "timeout_seconds": 0.2}
        files = Files({"hdfs://gone": silent, "hdfs://nn": {"url": hdfs.url}})
        specs = {f"{number}": _spec(f"hdfs://gone/{number}", f"hdfs://nn/events/{number}") for number in range(6)}
        logs, unreachable, left, missing = files_of_jobs(specs, files, {})
    assert (logs.verdict, logs.what, logs.found) == ("ok", "event_log_dir of 5 jobs", "hdfs://nn")
    assert "127.0.0.1:1" in unreachable.found
    assert (missing.verdict, "events/5" in missing.remedy) == ("fail", True)
    assert left.what == "checkpoint_location of 5 jobs"
    assert left.found == "hdfs://gone: not looked for; see checkpoint_location of rates"


def test_apply_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """A location that nobody could read is named with what to set; others are not."""
    show_unreadable(_spec("hdfs:///ck", "/events"), Files())
    said = " ".join(capsys.readouterr().out.split())
    assert "hdfs:///ck: nothing says where its NameNode is: set TIDEGATE_FILES" in said
    assert "collector and actuator need the same" in said
    show_unreadable(_spec("hdfs://nn/ck", "/events"), Files())
    assert capsys.readouterr().out == ""


def test_apply_says_that_two_clusters_share_a_pool(capsys: pytest.CaptureFixture[str]) -> None:
    """Their reservations would be one count. Namespaces of Kubernetes may be on one cluster, and other pools are."""
    here, there = job("here"), with_application(job("there"), master="spark://there:7077")
    show_shared_pool(there, [there, here])
    assert "here runs on another cluster and has pool_id default too" in " ".join(capsys.readouterr().out.split())
    other, elsewhere = on_kubernetes(job("a")), on_kubernetes(job("b"), namespace="elsewhere")
    for spec, others in (
        (here, [here, job("neighbour")]),
        (other, [elsewhere]),
        (there.model_copy(update={"pool_id": "t"}), [here]),
    ):
        show_shared_pool(spec, others)
        assert capsys.readouterr().out == ""


def test_control_files_are_next_to_a_checkpoint_elsewhere() -> None:
    """A job whose checkpoint is a path has to say where they are."""
    assert _spec("hdfs://nn:8020/a/ck/", "/e").application.control_place == "hdfs://nn:8020/a/tidegate-control"
    assert _spec("hdfs://nn/ck", "/e").application.control_place == "hdfs://nn/tidegate-control"
    assert _spec("hdfs://nn/ck", "/e", control_dir="/c").application.control_place == "/c"
    for checkpoint in ("/ck", "file:///ck"):
        with pytest.raises(ValueError, match="needs control_dir"):
            _spec(checkpoint, "/e")
