"""The short loop end to end: a real job on real Kafka, Redis and Spark grows under load and shrinks after it.

It is the demo with less traffic and shorter pauses, so the tests cover what users see.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from demo.display import LiveDisplay
from demo.run import RunOptions, run_demo
from demo.script import steady_surge_steady
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.cli import app
from tidegate.replay.files import read_manifest

OBJECTIVE_SECONDS = 20.0


@pytest.mark.timeout(1500)
def test_a_lagging_job_grows_catches_up_and_shrinks(stack: StackProvider, tmp_path: Path) -> None:
    """Size follows the load both ways, lag comes back, no record is lost, and the audit finds nothing."""
    if not isinstance(stack, ProcessProvider):
        pytest.skip("the job's script and checkpoint are files of this machine, which containers do not see")
    info = stack.need(kafka=True, redis=True, spark=True)
    said = io.StringIO()
    display = LiveDisplay(Console(file=said, width=200), OBJECTIVE_SECONDS)
    # 4 ms a record: half the records of the demo for the same slots.
    script = steady_surge_steady(220, OBJECTIVE_SECONDS, hold_seconds=3, shortest_seconds=8)
    outcome = run_demo(RunOptions(tmp_path, info, script, record_ms=4.0, time_factor=3.0), display)

    assert [f"{c.name}: {c.text}" for c in outcome.checks if not c.passed] == [], said.getvalue()
    assert outcome.passed
    sizes = [r.parallelism for r in outcome.timeline.results if r.phase.value == "verified"]
    assert sizes[-1] == 0
    assert max(sizes) > sizes[0]
    assert outcome.png is not None
    assert outcome.png.stat().st_size > 10_000

    # What was recorded is whole, and can be explained from the topics by the command alone.
    assert outcome.recording is not None
    recorded = {entry.topic: entry.records for entry in read_manifest(outcome.recording).files}
    assert recorded["decisions"] == recorded["snapshots"] >= len(outcome.timeline.decisions)
    where = ["-b", info.bootstrap_servers, "--topic-prefix", outcome.environment.prefix]
    explained = CliRunner().invoke(app, ["why", "rates", "--since", "20m", *where])
    assert "Scale up from 2" in explained.stdout

    # Nothing of the run goes on: no process of ours, no driver, no application.
    assert not outcome.environment.processes
    master = json.loads(httpx.get(f"{info.spark_ui}/json/", timeout=10).text)
    assert [a["name"] for a in master["activeapps"] if a["name"] == "rates"] == []
