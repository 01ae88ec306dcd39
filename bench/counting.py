"""A stateful job on Spark whose records can be counted, and an actuator for it that needs no Kafka and no Redis."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from services.actuator.backends.standalone import Standalone
from services.actuator.command_log import CommandLog
from services.actuator.execute import CommandRunner
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.result import ActionResult
from tidegate.launcher.control import Control, Token
from tidegate.runtime.clock import SystemClock
from tidegate.stack import StackInfo

SCRIPT = Path(__file__).with_name("jobs") / "counts.py"
ROWS = 400


class OneActuator:
    """Tokens where there is one actuator: the control directory alone decides."""

    def claim(self, control: Control, job_id: str, epoch: int, owner: str) -> Token | None:
        """Return the next token of `epoch`; None if a newer epoch has claimed the job."""
        del job_id, owner
        newest = control.newest_claim()
        if newest is not None and newest[0].epoch > epoch:
            return None
        return Token(epoch, newest[0].run + 1 if newest is not None and newest[0].epoch == epoch else 1)


class CountingJob:
    """One run of `jobs/counts.py` after another, changed by commands."""

    def __init__(self, info: StackInfo, folder: Path, *, most: int, **application: Any) -> None:
        self.folder = folder
        for name in ("counts", "events", "control"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {
            "script": str(SCRIPT),
            "args": ("--output", str(folder / "counts"), "--checkpoint", str(folder / "ck"), "--rows", str(ROWS)),
            "master": info.spark_master,
            "rest_url": info.spark_rest,
            "master_ui_url": info.spark_ui,
            "conf": {
                "spark.driver.cores": "0",
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "8",
            },
            "checkpoint_location": str(folder / "ck"),
            "event_log_dir": str(folder / "events"),
            "control_dir": str(folder / "control"),
        }
        self.spec = JobSpec(
            job_id="counts",
            sources=("numbers",),
            application=Application(**(settings | application)),
            scaling=Scaling(min_parallelism=1, max_parallelism=most),
        )
        self.cluster = Standalone()
        self.results: list[ActionResult] = []
        self._log = CommandLog()
        self._runner = CommandRunner(
            SystemClock(),
            self._log,
            OneActuator(),
            {"standalone": self.cluster},
            lambda result, _trace_id: self.results.append(result),
            owner="bench",
        )
        self._epoch = 0

    @property
    def size(self) -> int:
        """The size that worked last."""
        return self._log.job(self.spec.job_id).last_good or 0

    @property
    def control(self) -> Control:
        """The job's control directory."""
        return Control(self.spec.application.control_dir, self.spec.job_id)

    def carry_out(self, kind: CommandKind, size: int) -> ActionResult:
        """Carry out a command; return its last result."""
        self._epoch += 1
        now = datetime.now(UTC)
        command = ScalingCommand(
            command_id=f"{kind}-{self._epoch}",
            job_id=self.spec.job_id,
            pipeline_id=self.spec.pipeline_id,
            snapshot_id=f"s-{self._epoch}",
            spec_version=1,
            kind=kind,
            from_parallelism=self.size,
            to_parallelism=size,
            epoch=self._epoch,
            issued_at=now,
            expires_at=now + timedelta(seconds=60),
            reason="benchmark",
        )
        self._runner.run(command, self.spec, threading.Event())
        return self.results[-1]

    def batches(self) -> list[int]:
        """Return the ids of the batches that have written their counts."""
        return sorted(int(path.stem) for path in (self.folder / "counts").glob("*.json"))

    def wait_for_batches(self, count: int, seconds: float = 120.0) -> bool:
        """Wait until `count` more batches have ended; return whether they did."""
        wanted, deadline = len(self.batches()) + count, time.monotonic() + seconds
        while len(self.batches()) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return len(self.batches()) >= wanted

    def wrong_batches(self) -> list[int]:
        """Return the ids of the batches that are missing or did not count every row exactly once."""
        wrong = sorted(set(range(self.batches()[-1] + 1)) - set(self.batches()))
        for batch in self.batches():
            counts = json.loads((self.folder / "counts" / f"{batch}.json").read_text("utf-8"))
            if sum(counts.values()) != ROWS * (batch + 1):
                wrong.append(batch)
        return wrong

    def granted(self) -> int:
        """Return the slots that the master has granted to the job's applications."""
        with httpx.Client(trust_env=False, timeout=10) as client:
            state = client.get(f"{self.spec.application.master_ui_url}/json/").raise_for_status().json()
        return sum(app["cores"] for app in state["activeapps"] if app["name"] == self.spec.job_id)

    def close(self) -> None:
        """End the driver if it still runs."""
        for token in self.control.runs():
            self.cluster.kill(self.spec, str((self.control.running(token) or {})["submission_id"]))
        self.cluster.close()
