from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.actuator.admission import refusal
from services.actuator.backends import Submission
from services.actuator.checkpoint import CheckpointError, read_checkpoints, read_mark
from tests.support.command_log import command_log
from tests.support.events import START, command, job, result, with_application
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import CODES, ActionResult, CheckpointMark, Phase, QueryCommit
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token

BACKENDS = frozenset({"standalone"})


def refused(
    spec: JobSpec | None = None, *, of: ScalingCommand | None = None, epoch: int = -1, seconds: float = 0
) -> str | None:
    """Return the code with which a command is refused, or None."""
    found = refusal(
        of or command(), spec or job(), epoch=epoch, backends=BACKENDS, now=START + timedelta(seconds=seconds)
    )
    if found is None:
        return None
    assert found[0] in CODES
    assert found[1].endswith(".") or found[0] == "UNREADABLE_CHECKPOINT"
    return found[0]


def test_a_new_command_in_time_and_within_bounds_starts() -> None:
    """A command that is newer than all before it, in time and within the bounds is not refused."""
    assert refused() is None
    assert refused(of=command(to=1)) is None
    assert refused(of=command(to=16)) is None


def test_a_command_of_an_old_epoch_does_not_start() -> None:
    """A command of an epoch that was already accepted, or of an older one, is refused (I5)."""
    assert refused(epoch=6) is None
    assert refused(epoch=7) == "STALE_EPOCH"
    assert refused(epoch=8) == "STALE_EPOCH"


def test_an_expired_command_does_not_begin() -> None:
    """A command is refused from the moment it expires (I8)."""
    assert refused(seconds=119.9) is None
    assert refused(seconds=120) == "EXPIRED"


@pytest.mark.parametrize("size", [0, 17, 1_000_000])
def test_a_size_outside_the_bounds_is_refused(size: int) -> None:
    """A size below the spec's minimum or above its maximum never reaches the cluster (I7)."""
    assert refused(of=command(to=size)) == "INVALID_SIZE"


def test_a_size_must_be_whole_executors() -> None:
    """With two cores per executor, an odd size is refused."""
    spec = job(executor_cores=2, min_parallelism=2)
    assert refused(spec, of=command(to=4)) is None
    assert refused(spec, of=command(to=5)) == "INVALID_SIZE"


@pytest.mark.parametrize("kind", [CommandKind.RESCALE, CommandKind.START])
@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.ADVISE])
def test_a_paused_job_is_neither_rescaled_nor_started(mode: Mode, kind: CommandKind) -> None:
    """In mode paused or advise, also if it was paused after the order; unless an operator gives the command by hand."""
    assert refused(job(mode=mode), of=command(kind)) == "PAUSED"
    assert refused(job(mode=mode), of=command(kind, manual=True)) is None


def test_a_job_that_should_not_run_is_only_stopped() -> None:
    """With `running: false`, starts and rescales are refused and a stop is not."""
    assert refused(job(running=False), of=command(CommandKind.START)) == "NOT_MEANT_TO_RUN"
    assert refused(job(running=False), of=command(CommandKind.STOP, to=0)) is None


@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.ADVISE])
def test_a_paused_job_that_is_to_run_is_stopped_only_by_hand(mode: Mode) -> None:
    """It was paused after the order to stop it for want of records; `running: false` stops it in any mode."""
    stop = command(CommandKind.STOP, to=0)
    assert refused(job(mode=mode, min_parallelism=0), of=stop) == "PAUSED"
    assert refused(job(mode=mode, min_parallelism=0), of=command(CommandKind.STOP, to=0, manual=True)) is None
    assert refused(job(mode=mode, running=False), of=stop) is None
    assert refused(job(min_parallelism=0), of=stop) is None


def test_a_job_that_may_be_scaled_to_zero_starts_with_an_executor_at_least() -> None:
    """Zero is reached by a stop, never by a start or a rescale."""
    spec = job(min_parallelism=0, executor_cores=2)
    assert refused(spec, of=command(CommandKind.START, to=2, from_parallelism=0)) is None
    assert refused(spec, of=command(CommandKind.START, to=0, from_parallelism=0)) == "INVALID_SIZE"
    assert refused(spec, of=command(to=0)) == "INVALID_SIZE"


def test_unknown_jobs_and_wrong_pipelines_are_refused() -> None:
    """A command must name a job that exists, and its pipeline."""
    found = refusal(command(), None, epoch=-1, backends=BACKENDS, now=START)
    assert found is not None
    assert found[0] == "NO_SUCH_JOB"
    assert refused(job(pipeline_id="other")) == "OTHER_PIPELINE"


def test_a_command_on_a_spec_that_is_not_known_here_is_refused() -> None:
    """The spec says what is started and from which checkpoint: that of an older version may be wrong by now."""
    assert refused(job(version=2), of=command(spec_version=3)) == "OLD_SPEC"
    assert refused(job(version=4), of=command(spec_version=3)) is None
    assert refused(job(version=2), of=command(CommandKind.STOP, spec_version=3)) is None, "it starts nothing"


def test_a_checkpoint_that_cannot_be_read_is_refused_before_anything_changes() -> None:
    """A run whose checkpoint cannot be read could not be verified, so the old one is not stopped."""
    assert refused(with_application(job(), checkpoint_location="gs://bucket/ck")) == "UNREADABLE_CHECKPOINT"


def _checkpoint(root: Path, *, offsets: list[int], commits: list[int]) -> None:
    for name, batches in (("offsets", offsets), ("commits", commits)):
        (root / name).mkdir(parents=True)
        for batch in batches:
            file = root / name / str(batch)
            file.write_text('v1\n{"conf":{}}\n{}')
            os.utime(file, (1000 + batch, 1000 + batch))
            (root / name / f".{batch}.crc").write_bytes(b"x")
    (root / "metadata").write_text('{"id":"q-1"}')


def test_a_checkpoint_tells_batches_and_query(tmp_path: Path) -> None:
    """Batch ids are compared as numbers, checksum files do not count, and an uncommitted batch makes a stop unclean."""
    _checkpoint(tmp_path / "a", offsets=[8, 9, 10], commits=[8, 9])
    (found,) = read_checkpoints(f"file://{tmp_path}/a")
    assert (found.query_id, found.newest_offset, found.newest_commit, found.clean) == ("q-1", 10, 9, False)
    assert found.first_commit_after(8) == (9, 1009.0)
    assert found.first_commit_after(None) == (8, 1008.0)
    assert found.first_commit_after(9) is None


def test_all_checkpoints_of_a_folder_are_read(tmp_path: Path) -> None:
    """A job with several queries has one checkpoint per query; before the first run there is none."""
    assert read_checkpoints(str(tmp_path / "later")) == []
    _checkpoint(tmp_path / "a", offsets=[0], commits=[0])
    _checkpoint(tmp_path / "b", offsets=[1], commits=[0])
    (tmp_path / "notes").mkdir()
    assert [c.path.name for c in read_checkpoints(str(tmp_path))] == ["a", "b"]


def test_a_mark_has_the_newest_commit_of_each_query(tmp_path: Path) -> None:
    """A result carries query id and newest batch by checkpoint folder, and the time of the last commit of all."""
    _checkpoint(tmp_path / "a", offsets=[8, 9, 10], commits=[8, 9])
    _checkpoint(tmp_path / "b", offsets=[0], commits=[])
    found, clean = read_mark(str(tmp_path))
    assert not clean
    assert found.queries == {
        "a": QueryCommit(query_id="q-1", batch_id=9),
        "b": QueryCommit(query_id="q-1", batch_id=None),
    }
    assert found.last_commit_at == datetime.fromtimestamp(1009, UTC)
    assert read_mark(str(tmp_path / "later")) == (CheckpointMark(), True)


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    """A file that Spark did not write is refused, with its path and what it holds."""
    _checkpoint(tmp_path / "a", offsets=[0], commits=[0])
    (tmp_path / "a" / "metadata").write_text("{}")
    with pytest.raises(CheckpointError, match="metadata"):
        read_checkpoints(str(tmp_path / "a"))


def _result(phase: Phase, *, of: str = "c", epoch: int = 7, size: int = 4, **more: Any) -> ActionResult:
    return result(of, phase, epoch=epoch, parallelism=size, **more)


def test_the_log_knows_epoch_and_last_good_size() -> None:
    """Only accepted commands raise the epoch, and only sizes that committed a batch are good."""
    log = command_log([_result(Phase.ACCEPTED), _result(Phase.VERIFIED), _result(Phase.REJECTED, of="d", epoch=99)])
    assert (log.job("rates").epoch, log.job("rates").last_good) == (7, 4)
    log.add(_result(Phase.ACCEPTED, of="e", epoch=8, size=9))
    log.add(_result(Phase.FAILED, of="e", epoch=8, size=9))
    assert (log.job("rates").epoch, log.job("rates").last_good) == (8, 4)
    assert log.ended("e")
    assert not log.ended("unheard of")


def test_the_log_keeps_drivers_until_the_job_is_stopped() -> None:
    """A driver submitted after the last stop may be alive; an earlier one cannot be."""
    log = command_log([_result(Phase.RUNNING, submission_id="driver-1")])
    assert log.submissions() == {"driver-1"}
    log.add(_result(Phase.STOPPING, of="d", submission_id="driver-1"))
    assert log.job("rates").submissions == ["driver-1"]
    log.add(_result(Phase.STOPPED, of="d"))
    assert log.submissions() == frozenset()


@pytest.mark.parametrize(("end", "left"), [(Phase.VERIFIED, "driver-2"), (Phase.ROLLED_BACK, "driver-1")])
def test_after_a_handover_the_log_knows_only_the_driver_that_goes_on(end: Phase, left: str) -> None:
    """A job that is handed over again and again is never stopped: its former drivers need not be asked about."""
    log = command_log([_result(Phase.RUNNING, submission_id="driver-1")])
    for phase in (Phase.SWITCHING, Phase.RUNNING):
        log.add(_result(phase, of="d", submission_id="driver-2", way=Way.HANDOVER))
    assert log.job("rates").submissions == ["driver-1", "driver-2"]
    log.add(_result(end, of="d", submission_id=left, way=Way.HANDOVER))
    assert log.job("rates").submissions == [left]


def test_a_stop_leaves_the_last_good_size() -> None:
    """A verified stop has size 0, and nobody rolls back to that."""
    log = command_log([_result(Phase.VERIFIED), _result(Phase.VERIFIED, of="d", size=0, kind=CommandKind.STOP)])
    assert log.job("rates").last_good == 4


def test_the_example_job_is_a_job() -> None:
    """The example in deploy/ is a valid JobSpec, and its script accepts the arguments."""
    examples = Path(__file__).resolve().parents[2] / "deploy" / "examples"
    spec = JobSpec.model_validate_json(json.dumps(yaml.safe_load((examples / "job.yaml").read_text())))
    assert spec.job_id == "rates"
    script = (examples / Path(spec.application.script).name).read_text()
    for argument in spec.application.args:
        assert f'"{argument.partition("=")[0]}"' in script
    Submission(spec, Token(1), spec.scaling.min_parallelism).spark_conf()


def test_tidegate_owns_the_size_of_a_run() -> None:
    """A spec's own Spark settings cannot change the size, the event log or dynamic allocation."""
    conf = {
        "spark.cores.max": "99",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
        "spark.eventLog.enabled": "false",
        "a": "b",
    }
    run = Submission(with_application(job(rescale=(Way.RESTART,)), conf=conf), Token(7, 2), 6)
    found = run.spark_conf()
    assert found["spark.cores.max"] == "6"
    assert found["spark.dynamicAllocation.enabled"] == "false"
    assert "spark.dynamicAllocation.cachedExecutorIdleTimeout" not in found
    assert found["spark.eventLog.enabled"] == "true"
    assert found["spark.eventLog.dir"] == "file:///events"
    assert found["a"] == "b"
    args = run.submit_args("spark://m:7077")
    assert args[-1] == "/jobs/rates.py"
    assert args[args.index("--epoch") + 1] == "7"
    assert args[args.index("--run") + 1] == "2"


def test_the_launcher_ships_event_logs_to_an_object_store() -> None:
    """Only there: elsewhere Spark writes the log where it is read."""
    here, far = (("/events", None), ("hdfs://nn:8020/events", None)), ("s3a://logs/events", "s3a://logs/events")
    for place, told in (*here, far, ("s3a://logs/a%20b", "s3a://logs/a b")):
        args = Submission(with_application(job(), event_log_dir=place), Token(7), 2).submit_args("yarn")
        assert (args[args.index("--event-log") + 1] if "--event-log" in args else None) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("/a/b c%20d", "file:///a/b%20c%2520d"),
        ("file:/a/b c", "file:/a/b%20c"),
        ("file:///a/b%20c", "file:///a/b%20c"),
        ("hdfs://[::1]:8020/a%20[b]", "hdfs://[::1]:8020/a%20%5Bb%5D"),
    ],
)
def test_spark_is_told_of_the_event_log_by_a_uri(given: str, told: str) -> None:
    """Spark decodes it, and would take one with a space for a path in the driver's working directory."""
    conf = Submission(with_application(job(), event_log_dir=given), Token(7), 2).spark_conf()
    assert conf["spark.eventLog.dir"] == told


def test_a_run_starts_at_its_size_and_can_grow_to_the_maximum() -> None:
    """A cluster grants the ordered executors at the start, and up to the spec's maximum when the driver asks later."""
    spec = job(executor_cores=2, min_parallelism=2, max_parallelism=8)
    found = Submission(spec, Token(7, 2), 6).spark_conf()
    dynamic = "spark.dynamicAllocation."
    assert found["spark.cores.max"] == "8"
    assert found[f"{dynamic}enabled"] == "true"
    assert {found[f"{dynamic}{name}Executors"] for name in ("min", "initial", "max")} == {"3"}
    assert found[f"{dynamic}executorIdleTimeout"] == "100000d"
    assert found["spark.decommission.enabled"] == "true"
    over = Submission(spec, Token(7, 2), 12).spark_conf()
    assert over["spark.cores.max"] == "12", "a maximum that was lowered does not cut off the ordered size"


@pytest.mark.parametrize(
    "fields", [{"rescale": (Way.HANDOVER, Way.RESTART)}, {"master": "local[4]"}], ids=["ways", "master"]
)
def test_a_run_that_cannot_change_in_place_has_a_fixed_size(fields: dict[str, Any]) -> None:
    """Without a cluster, or if the spec does not allow it, the run has no dynamic allocation."""
    spec = job()
    spec = spec.model_copy(update={"application": spec.application.model_copy(update=fields)})
    found = Submission(spec, Token(7, 2), 6).spark_conf()
    assert found["spark.cores.max"] == "6"
    assert found["spark.dynamicAllocation.enabled"] == "false"
    assert "spark.decommission.enabled" not in found


def test_a_result_read_twice_changes_nothing() -> None:
    """A STOPPED result that is read again after the next start does not make the log forget the new driver."""
    stopped = _result(Phase.STOPPED)
    log = command_log([stopped, _result(Phase.RUNNING, submission_id="driver-2")])
    log.add(stopped)
    assert log.job("rates").submissions == ["driver-2"]


def test_results_of_a_command_that_was_forgotten_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is read again whenever a partition comes, and keeps more commands than the log does."""
    monkeypatch.setattr("services.actuator.command_log.ENDED_KEPT", 1)

    def restart(name: str, epoch: int) -> list[ActionResult]:
        submission, cluster = f"driver-{name}", {"master": f"spark://{name}:7077"}
        return [
            _result(Phase.STOPPED, of=name, epoch=epoch),
            _result(Phase.STARTING, of=name, epoch=epoch, details=cluster),
            _result(Phase.RUNNING, of=name, epoch=epoch, submission_id=submission),
            _result(Phase.VERIFIED, of=name, epoch=epoch, size=epoch, incarnation=f"app-{name}"),
        ]

    log = command_log([*restart("old", 7), *restart("new", 8)])
    known = replace(log.job("rates"), submissions=[*log.job("rates").submissions])
    assert not log.ended("old")
    for each in restart("old", 7):
        log.add(each)
        assert log.job("rates") == known


def test_only_the_id_of_an_ended_command_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that runs for months, the log holds running commands and a limited number of ended ids."""
    monkeypatch.setattr("services.actuator.command_log.ENDED_KEPT", 2)
    log = command_log([_result(Phase.ACCEPTED), _result(Phase.VERIFIED), _result(Phase.ACCEPTED)])
    assert log.ended("c")
    assert log.results("c") == []
    for name in ("d", "e"):
        log.add(_result(Phase.REJECTED, of=name))
    assert [log.ended(name) for name in ("c", "d", "e")] == [False, True, True]
    assert log.job("rates").last_good == 4


def test_an_application_is_another_one_if_it_needs_a_new_run() -> None:
    """The digest changes with all that a run is started with, and with nothing else, whatever the order of settings."""
    app = job().application
    assert app.digest == app.model_copy(update={"stop_deadline_seconds": 7.0, "start_deadline_seconds": 8.0}).digest
    others: list[dict[str, Any]] = [
        {"script": "/new.py"},
        {"args": ("--x",)},
        {"conf": {"a": "1"}},
        {"executor_memory_mb": 999},
    ]
    assert len({app.digest, *(app.model_copy(update=other).digest for other in others)}) == len(others) + 1
    one, two = ({"a": "1", "b": "2"}, {"b": "2", "a": "1"})
    assert app.model_copy(update={"conf": one}).digest == app.model_copy(update={"conf": two}).digest
    conf = Submission(job(), Token(1), 2).spark_conf()
    assert conf["spark.tidegate.application"] == app.digest


def test_threads_may_add_results_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of several jobs end at the same time, while the oldest ended ones are forgotten."""
    monkeypatch.setattr("services.actuator.command_log.ENDED_KEPT", 10)
    log, errors = command_log(), list[Exception]()
    ended = _result(Phase.VERIFIED)

    def end_many(thread: int) -> None:
        try:
            for number in range(5_000):
                name = f"{thread}-{number}"
                log.add(ended.model_copy(update={"command_id": name, "result_id": name}))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=end_many, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
