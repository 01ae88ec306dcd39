"""A job whose drivers run on this machine, with all its files in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.events.job import Application, JobSpec
from tidegate.stack.class_data import light_conf


def local_job(folder: Path, **application: Any) -> JobSpec:
    """Return the job's spec, and make the folder of its event log; its program is `script.py` unless it says more."""
    (folder / "events").mkdir(exist_ok=True)
    settings: dict[str, Any] = {
        "backend": "local",
        "master": "local[1]",
        "script": str(folder / "script.py"),
        "conf": {**light_conf(), "spark.sql.shuffle.partitions": "2"},
        "checkpoint_location": str(folder / "ck"),
        "event_log_dir": str(folder / "events"),
        "control_dir": str(folder / "control"),
    }
    return JobSpec(job_id="job", sources=("in",), application=Application(**(settings | application)))
