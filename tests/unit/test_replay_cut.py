"""Snapshots cut again from event logs: the recorded ones are proved, and a figure that was changed is named."""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.audited import AuditedJob, audited_job, write_audited
from tests.support.eventlogs import recorded
from tests.support.fake_webhdfs import fake_webhdfs
from tidegate.events.envelope import decode
from tidegate.events.snapshot import ClusterState, MetricSnapshot, SourceOffsets, snapshot_id
from tidegate.remote.files import Files, Place
from tidegate.replay.cut import CutFigure, LoggedRun, PlacedSnapshot, compare_with_logs, logged_runs
from tidegate.sparklog.application_run import ApplicationRun, Interval, Reading
from tidegate.sparklog.parse import parse

ALL_TIME = Interval(datetime(2026, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC), first=True)


@pytest.fixture(scope="module")
def job() -> AuditedJob:
    """One job with its snapshots and logs; tests work on copies."""
    return audited_job("rates", 0)


def compared(job: AuditedJob, logs: Place, shots: list[MetricSnapshot] | None = None) -> list[CutFigure]:
    """Return what became of the job's snapshots."""
    snapshots = shots or [decode(MetricSnapshot, record.value) for record in job.records["snapshots"]]
    found: list[CutFigure] = []
    placed = [PlacedSnapshot(shot, 0, number) for number, shot in enumerate(snapshots)]
    compare_with_logs(placed, logged_runs(logs), found.append)
    return found


def test_recorded_snapshots_are_cut_again(job: AuditedJob, tmp_path: Path) -> None:
    """Every snapshot of five runs is proved by the logs of these runs, whatever else is in their folder."""
    _, logs = write_audited(tmp_path, [job])
    (logs / "circle").symlink_to("circle")
    assert len(logged_runs(logs)) == 5
    assert {each.verdict for each in compared(job, logs)} == {"ok"}


def test_figures_that_no_snapshot_may_hold_are_left_out(job: AuditedJob, tmp_path: Path) -> None:
    """As the collector leaves them out: the snapshots are proved all the same."""
    _, logs = write_audited(tmp_path, [job])
    for log in logs.iterdir():
        lines = log.read_bytes().splitlines(keepends=True)
        batches = [number for number, line in enumerate(lines) if b'"addBatch"' in line]
        absurd = re.sub(rb'"addBatch":\d+', b'"addBatch":%d' % (2 * 10**12), lines[batches[1]])
        lines.insert(batches[1], absurd)
        log.write_bytes(b"".join(lines))
    assert {each.verdict for each in compared(job, logs)} == {"ok"}


def test_logs_in_hdfs_are_read_there(job: AuditedJob, tmp_path: Path) -> None:
    """Spark's workers get them pickled, and open them again by their URI."""
    _, logs = write_audited(tmp_path, [job])
    with fake_webhdfs() as hdfs:
        for file in logs.iterdir():
            hdfs.put(f"/events/{file.name}", file.read_bytes())
        files = Files({"hdfs": {"url": hdfs.url}})
        there = pickle.loads(pickle.dumps(files.place("hdfs://nn/events")))  # noqa: S301 - our own
        assert len(logged_runs(there)) == 5
        assert {each.verdict for each in compared(job, there)} == {"ok"}


def test_a_changed_figure_is_named_with_both_values(job: AuditedJob, tmp_path: Path) -> None:
    """One changed figure of one snapshot is the only finding, and those after it are still proved."""
    _, logs = write_audited(tmp_path, [job])
    shots = [decode(MetricSnapshot, record.value) for record in job.records["snapshots"]]
    batch = shots[10].batches[0]
    changed = batch.model_copy(update={"input_records": batch.input_records + 1})
    shots[10] = shots[10].model_copy(update={"batches": (changed, *shots[10].batches[1:])})
    wrong = [each for each in compared(job, logs, shots) if each.verdict != "ok"]
    (only,) = wrong
    assert (only.verdict, only.of.offset, only.figure) == ("finding", 10, "batches.0.input_records")
    assert (int(only.recorded), int(only.cut)) == (batch.input_records + 1, batch.input_records)


def test_a_snapshot_of_an_impossible_second_is_a_finding(job: AuditedJob, tmp_path: Path) -> None:
    """A forged record must not end the audit: those before it are proved."""
    _, logs = write_audited(tmp_path, [job])
    shots = [decode(MetricSnapshot, record.value) for record in job.records["snapshots"]]
    forged = {"sequence": 2**62, "snapshot_id": snapshot_id("rates", 2**62)}
    shots.append(shots[-1].model_copy(update=forged))
    (only,) = [each for each in compared(job, logs, shots) if each.verdict != "ok"]
    assert (only.verdict, only.of.offset, only.figure, only.recorded) == (
        "finding",
        len(shots) - 1,
        "sequence",
        str(2**62),
    )


def test_a_changed_offset_is_found(job: AuditedJob, tmp_path: Path) -> None:
    """A committed offset that the log does not give is found."""
    _, logs = write_audited(tmp_path, [job])
    shots = [decode(MetricSnapshot, record.value) for record in job.records["snapshots"]]
    source = shots[12].sources[0]
    raised = source.model_copy(update={"committed_offsets": (*source.committed_offsets[:3], 99_999_999)})
    shots[12] = shots[12].model_copy(update={"sources": (raised,)})
    (only,) = (each for each in compared(job, logs, shots) if each.verdict != "ok")
    assert (only.of.offset, only.figure) == (12, "committed_offsets of in.3")


def test_snapshots_of_a_log_that_is_gone_are_not_provable(job: AuditedJob, tmp_path: Path) -> None:
    """Without a run's log, its snapshots are named as not provable, with the run."""
    _, logs = write_audited(tmp_path, [job])
    gone = next(log for log in logged_runs(logs) if log.app_id == "app-0")
    gone.path.unlink()
    found = compared(job, logs)
    unproved = [each for each in found if each.verdict == "not provable"]
    assert len(unproved) == 7
    assert {each.cut for each in unproved} == {"there is no event log of app-0"}
    assert {each.verdict for each in found} == {"ok", "not provable"}


def test_a_log_that_the_worker_cannot_read_proves_nothing_of_its_run(job: AuditedJob, tmp_path: Path) -> None:
    """A worker of another machine may have no such file: every snapshot of the run is not provable, and none wrong."""
    _, logs = write_audited(tmp_path, [job])
    listed = logged_runs(logs)
    lost = next(log for log in listed if log.app_id == "app-0")
    lost.path.unlink()
    snapshots = [decode(MetricSnapshot, record.value) for record in job.records["snapshots"]]
    found: list[CutFigure] = []
    compare_with_logs([PlacedSnapshot(shot, 0, n) for n, shot in enumerate(snapshots)], listed, found.append)
    unproved = [each for each in found if each.verdict == "not provable"]
    assert len([each for each in unproved if each.of.snapshot.incarnation == "app-0"]) == 7
    assert all(str(lost.path) in each.cut for each in unproved)
    assert {each.verdict for each in found} == {"ok", "not provable"}


def test_logs_are_listed_by_whole_paths(job: AuditedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers, which read them, start in folders of their own."""
    _, logs = write_audited(tmp_path, [job])
    monkeypatch.chdir(logs.parent)
    assert logged_runs(Path(logs.name)) == logged_runs(logs)


def test_a_log_with_tasks_is_cut_wherever_it_was_read(tmp_path: Path) -> None:
    """A real log, cut while its batches ran and its tasks ended: each snapshot is found again, whatever was read."""
    lines = recorded("standalone")
    (tmp_path / "log").write_bytes(b"".join(lines))
    (log,) = logged_runs(tmp_path)
    run, shots, end = ApplicationRun(), [], int(log.started_at.timestamp()) // 10 * 10 + 40
    for number, line in enumerate(lines):
        event = parse(line)
        if event is not None:
            run.apply(event)
        if number > 60 and number % 9 == 0:  # the collector reads at any line
            end += 10
            at = datetime.fromtimestamp(end, UTC)
            shots.append(_shot(log, run.cut(Interval(at - timedelta(seconds=10), at)), end))
    assert any(shot.running for shot in shots)
    assert len(shots) > 5
    assert any(stage.slowest_task_place is not None for shot in shots for stage in shot.stages)
    assert _verdicts(shots, log) == [("ok", "")] * len(shots)
    # An older version of Tidegate told less of a stage.
    assert _verdicts([_with_places(shot, None) for shot in shots], log) == [("ok", "")] * len(shots)
    assert ("finding", "stages.0.slowest_task_place") in _verdicts([_with_places(shot, 77) for shot in shots], log)


def test_rows_that_are_not_counted_were_zero_to_an_older_tidegate(tmp_path: Path) -> None:
    """Its snapshots are proved all the same; any other number of rows is a finding."""
    total, metrics = re.compile(rb'"numRowsTotal":[1-9]\d*'), re.compile(rb'"customMetrics":{(?=[^}]*loadedMap)')
    lines = [
        metrics.sub(b'"customMetrics":{"rocksdbPutCount":1,', total.sub(b'"numRowsTotal":0', line))
        for line in recorded("standalone")[:-2]
    ]
    log, run = _read_back(tmp_path, lines)
    end = max(batch.started_at for batch in run.reading(ALL_TIME).batches) + timedelta(seconds=5)
    made = run.cut(Interval(end - timedelta(seconds=10), end))
    assert {operator.rows for operator in made.operators} == {None}
    for rows, verdict in (None, "ok"), (0, "ok"), (5, "finding"):
        operators = tuple(operator.model_copy(update={"rows": rows}) for operator in made.operators)
        shot = _shot(log, made, int(end.timestamp())).model_copy(update={"state_operators": operators})
        assert {each for each, _ in _verdicts([shot], log)} == {verdict}


def test_offsets_that_a_real_time_query_does_not_tell_are_proved(tmp_path: Path) -> None:
    """Between the ends of its batches they are unknown; a snapshot that tells them is one of an older Tidegate."""
    latest = re.compile(rb'(?<="latestOffset":)"[^}]*}}"')  # batches end after it: the query has read on
    lines = [latest.sub(rb'"{\\"rec\\":{\\"0\\":0}}"', line) for line in recorded("standalone")[:-2]]
    log, run = _read_back(tmp_path, lines)
    end = max(batch.started_at for batch in run.reading(ALL_TIME).batches) + timedelta(seconds=60)
    made = run.cut(Interval(end - timedelta(seconds=10), end))
    assert (made.real_time, made.reads_on) == (True, True)
    offsets = tuple(made.committed["rec"].values())
    for told, verdict in ((None,) * 4, "ok"), (offsets, "ok"), ((None, *offsets[1:]), "finding"):
        source = SourceOffsets(topic="rec", end_offsets=offsets, committed_offsets=told)
        shot = _shot(log, made, int(end.timestamp())).model_copy(update={"sources": (source,)})
        assert [each for each, _ in _verdicts([shot], log)] == [verdict]


def test_partitions_that_are_not_assigned_are_proved(tmp_path: Path) -> None:
    """The job does not read the last two of six, so a snapshot has 0 there, which would be wrong if it did."""
    for kind, verdict in (b"Assign", "ok"), (b"Subscribe", "finding"):
        lines = [line.replace(b"Subscribe[", kind + b"[") for line in recorded("standalone")[:-2]]
        log, run = _read_back(tmp_path, lines)
        end = max(batch.started_at for batch in run.reading(ALL_TIME).batches) + timedelta(seconds=5)
        made = run.cut(Interval(end - timedelta(seconds=10), end))
        offsets = (*made.committed["rec"].values(), 0, 0)
        source = SourceOffsets(topic="rec", end_offsets=offsets, committed_offsets=offsets)
        shot = _shot(log, made, int(end.timestamp())).model_copy(update={"sources": (source,)})
        assert [each for each, _ in _verdicts([shot], log)] == [verdict]


def _read_back(folder: Path, lines: list[bytes]) -> tuple[LoggedRun, ApplicationRun]:
    """Return a run whose log has these lines: as the audit finds it, and as the collector reads it."""
    (folder / "log").write_bytes(b"".join(lines))
    (log,) = logged_runs(folder)
    run = ApplicationRun()
    for line in lines:
        event = parse(line)
        if event is not None:
            run.apply(event)
    return log, run


def _verdicts(shots: list[MetricSnapshot], log: LoggedRun) -> list[tuple[str, str]]:
    found: list[CutFigure] = []
    compare_with_logs([PlacedSnapshot(shot, 0, n) for n, shot in enumerate(shots)], [log], found.append)
    return [(each.verdict, each.figure) for each in found]


def _with_places(shot: MetricSnapshot, place: int | None) -> MetricSnapshot:
    stages = tuple(stage.model_copy(update={"slowest_task_place": place}) for stage in shot.stages)
    return shot.model_copy(update={"stages": stages})


def _shot(log: LoggedRun, made: Reading, sequence: int) -> MetricSnapshot:
    return MetricSnapshot(
        snapshot_id=snapshot_id(log.job_id, sequence),
        job_id=log.job_id,
        pipeline_id=log.job_id,
        sequence=sequence,
        interval_seconds=10,
        observed_at=datetime.fromtimestamp(sequence, UTC),
        state=ClusterState.RUNNING,
        incarnation=log.app_id,
        incarnation_started_at=made.started_at,
        query_id=made.query_id,
        batches=made.batches,
        batches_left_out=made.batches_left_out,
        current_batch_started_at=made.current_batch_started_at,
        running=made.running or None,
        stages=made.stages,
        state_operators=made.operators,
        gc_ratio=made.gc_ratio,
    )
