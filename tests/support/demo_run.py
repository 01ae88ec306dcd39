"""A run of the demo in a process of its own: on another cluster, or with the job's files elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from demo.environment import ROOT

DEMO_SECONDS = 840.0


def run_demo_apart(files: str, folder: Path, environment: Mapping[str, str], *options: str) -> None:
    """Run the demo with the job's files at a URI; fail unless its checks pass and none of them is in `folder`."""
    run = run_demo_in(folder, environment, "--files", files, *options)
    assert not {"checkpoint", "control"} & {path.name for path in run.iterdir()}, "nothing is shared"


def run_demo_in(folder: Path, environment: Mapping[str, str], *options: str) -> Path:
    """Run the demo, fail unless its checks pass, and return the folder of the run."""
    command = [
        sys.executable,
        "-m",
        "demo",
        "--work-dir",
        str(folder),
        "--no-browser",
        "--time-factor",
        "1.5",
        *options,
    ]
    log = folder / "demo.log"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
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
    (run,) = folder.glob("run-*")
    return run
