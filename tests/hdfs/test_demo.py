"""The demo with the job's files in HDFS: the same script and the same checks as with a shared folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from demo.environment import ROOT
from tests.hdfs.conftest import Hdfs

DEMO_SECONDS = 840.0


@pytest.mark.timeout(900)
def test_the_demo_passes_without_a_shared_folder(hdfs: Hdfs, tmp_path: Path) -> None:
    """The job falls behind, grows and shrinks in place; no record is lost, and every decision is recomputed."""
    command = [sys.executable, "-m", "demo", "--files", f"{hdfs.uri}/demo", "--work-dir", str(tmp_path)]
    env = {**os.environ, "TIDEGATE_FILES": json.dumps({"hdfs": {"url": hdfs.url}})}
    log = tmp_path / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [*command, "--no-browser", "--time-factor", "1.5"],
            cwd=ROOT,
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        code = demo.wait(DEMO_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(demo.pid, signal.SIGTERM)
        demo.wait(60)
    said = log.read_text("utf-8", "replace")
    print(said[-6000:])
    assert code == 0, said[-3000:]
    (run,) = tmp_path.glob("run-*")
    assert not {"checkpoint", "control"} & {path.name for path in run.iterdir()}, "nothing is shared"
