"""How far a run has come, by Spark's own counts."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from tests.support.fake_queries import FakeContext, FakeJob, FakeQuery
from tests.support.fake_time import fake_time
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.reports.progress import BatchTasks, RunProgress, running_batch

TOKEN = Token(5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The driver's monotonic clock."""
    clock = types.SimpleNamespace(now=100.0)
    fake_time(monkeypatch, "tidegate.launcher.reports.progress", monotonic=lambda: clock.now)
    return clock


def test_a_batch_is_all_its_jobs_and_no_others() -> None:
    """Jobs of the batch before do not count, and neither do tasks that Spark skips."""
    jobs = {3: FakeJob(6, 50, 50), 4: FakeJob(7, 10, 10, started=100.0), 5: FakeJob(7, 2, 30, started=110.0, skipped=8)}
    found = running_batch(FakeContext(jobs), FakeQuery())
    assert found == BatchTasks("q", 7, done=12, tasks=32, since=100.0)


def test_a_task_counts_before_spark_writes_its_end_to_the_job() -> None:
    """The running stage knows of it at once; a stage of another job does not count."""
    jobs = {3: FakeJob(6, 4, 4, stages=[1]), 4: FakeJob(7, 0, 16, stages=[2, 3])}
    found = running_batch(FakeContext(jobs, running={3: 1, 9: 5}), FakeQuery())
    assert found == BatchTasks("q", 7, done=1, tasks=16, since=0.0)


def test_a_query_that_waits_has_no_running_batch() -> None:
    """Between two batches the jobs of the last one are over."""
    query = FakeQuery()
    assert running_batch(FakeContext(), query) is None
    query.status["isTriggerActive"] = False
    assert running_batch(FakeContext({1: FakeJob(0, 1, 1)}), query) is None


@pytest.mark.parametrize(
    ("done", "tasks", "seconds", "remaining"), [(0, 6, 90, None), (5, 6, 100, 20), (6, 6, 100, 0), (1, 6, -1, 0)]
)
def test_the_rest_is_expected_at_the_pace_so_far(done: int, tasks: int, seconds: int, remaining: float | None) -> None:
    """Nothing is expected before the first task has finished, nor of a clock that was set back."""
    assert BatchTasks("q", 0, done, tasks, since=1000.0).remaining_seconds(1000.0 + seconds) == remaining


def test_progress_is_written_when_it_has_changed(tmp_path: Path, clock: types.SimpleNamespace) -> None:
    """Each second before the first commit, and less often after it; never twice the same."""
    control, query = Control.at(tmp_path, "job"), FakeQuery()
    progress = RunProgress(control, TOKEN, wall=lambda: clock.now)
    context = FakeContext({0: FakeJob(0, 1, 6, started=99.0)}, finished=[1])

    def written(after: float) -> dict[str, object] | None:
        clock.now += after
        (Path(control.place) / f"progress-{TOKEN}.json").unlink(missing_ok=True)
        if progress.due:
            progress.look(context, [query])
        return control.progress(TOKEN)

    assert written(0) == {
        "finished_tasks": 1,
        "committed": {},
        "batches": [{"query_id": "q", "batch_id": 0, "done": 1, "tasks": 6, "since": 99.0}],
        "at": "1970-01-01T00:01:40+00:00",
    }
    assert written(2) is None, "nothing has changed"
    context.finished = [1, 1]
    assert written(0.5) is None, "that was a moment ago"
    assert (written(2) or {})["finished_tasks"] == 2
    query.lastProgress = {"batchId": 0, "durationMs": {"addBatch": 1}}
    assert (written(2) or {})["committed"] == {"q": 0}
    context.finished = []
    assert written(6) is None, "Spark has forgotten the executors, but the tasks are finished"
    context.finished = [3]
    assert written(2) is None, "after the first commit"
    assert (written(4) or {})["finished_tasks"] == 3


def test_an_idle_event_is_no_commit(tmp_path: Path, clock: types.SimpleNamespace) -> None:
    """Without data Spark sends events with the number of the next batch."""
    control, query = Control.at(tmp_path, "job"), FakeQuery()
    query.lastProgress = {"batchId": 4, "durationMs": {"triggerExecution": 3, "latestOffset": 3}}
    RunProgress(control, TOKEN, wall=lambda: clock.now).look(FakeContext(), [query])
    assert (control.progress(TOKEN) or {})["committed"] == {}
