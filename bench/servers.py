"""The servers that a benchmark runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.stack import StackInfo, down, up
from tidegate.stack.class_data import light_conf

WORKER_MEMORY = "12g"
"""A handover runs two drivers with all their executors at once; its largest job needs 8 GB for that."""


@contextmanager
def servers(*, spark: bool, worker_slots: int = 8) -> Iterator[StackInfo]:
    """Yield the stack of TIDEGATE_STACK_DIR if set, otherwise a new one for this run."""
    attached = os.environ.get("TIDEGATE_STACK_DIR")
    if attached:
        yield StackInfo.load(Path(attached))
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        try:
            yield up(folder, spark=spark, worker_slots=worker_slots, worker_memory=WORKER_MEMORY, tied=True)
        finally:
            down(folder)


def on_stack(info: StackInfo, folder: Path) -> dict[str, Any]:
    """Return what an application says of the stack's Spark, with light JVMs, and of its files, which are in a folder.

    Makes the folders for event logs and control files.
    """
    for name in ("events", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "master": info.spark_master,
        "rest_url": info.spark_rest,
        "master_ui_url": info.spark_ui,
        "conf": light_conf(),
        "checkpoint_location": str(folder / "checkpoint"),
        "event_log_dir": str(folder / "events"),
        "control_dir": str(folder / "control"),
    }


def end_group(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process that leads its group, by force after `seconds`."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
