"""A stateful job on Spark whose records can be counted, and an actuator for it that needs no Kafka and no Redis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.orders import JobOperator
from services.actuator.backends import Backend
from services.actuator.backends.standalone import Standalone
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.launcher.kubernetes.api import Api
from tidegate.remote.files import WITHOUT_OPTIONS, Files
from tidegate.runtime.poll import wait_until
from tidegate.stack import StackInfo
from tidegate.stack.class_data import light_conf

SCRIPT = Path(__file__).with_name("jobs") / "counts.py"
ROWS = 400


class CountingJob(JobOperator):
    """One run of `jobs/counts.py` after another, changed by commands. Its files are in one folder."""

    def __init__(
        self,
        folder: Path,
        cluster: Backend,
        *,
        most: int,
        trigger: str = "1 second",
        api: Api | None = None,
        files: Files = WITHOUT_OPTIONS,
        **application: Any,
    ) -> None:
        self.folder = folder
        settings: dict[str, Any] = {
            "script": str(SCRIPT),
            "checkpoint_location": str(folder / "ck"),
            "event_log_dir": str(folder / "events"),
        } | application
        checkpoint = settings["checkpoint_location"]
        places = ("--output", str(folder / "counts"), "--checkpoint", checkpoint)
        settings.setdefault("args", (*places, "--rows", str(ROWS), "--trigger", trigger))
        for place in (folder / "counts", settings["event_log_dir"], settings.get("control_dir")):
            if place is not None and "://" not in str(place):
                Path(place).mkdir(parents=True, exist_ok=True)
        spec = JobSpec(
            job_id="counts",
            sources=("numbers",),
            application=Application(**settings),
            scaling=Scaling(min_parallelism=1, max_parallelism=most),
        )
        super().__init__(spec, cluster, api=api, files=files)

    def batches(self) -> list[int]:
        """Return the ids of the batches that have written their counts."""
        return sorted(int(path.stem) for path in (self.folder / "counts").glob("*.json"))

    def wait_for_batches(self, count: int, seconds: float = 120.0) -> bool:
        """Wait until `count` more batches have ended; return whether they did."""
        wanted = len(self.batches()) + count
        return wait_until(lambda: len(self.batches()) >= wanted, seconds)

    def wrong_batches(self) -> list[int]:
        """Return the ids of the batches that are missing or did not count every row exactly once."""
        wrong = sorted(set(range(self.batches()[-1] + 1)) - set(self.batches()))
        for batch in self.batches():
            counts = json.loads((self.folder / "counts" / f"{batch}.json").read_text("utf-8"))
            if sum(counts.values()) != ROWS * (batch + 1):
                wrong.append(batch)
        return wrong

    def granted(self) -> int:
        """Return the slots that the cluster has granted to the job's applications."""
        ours = self.cluster.applications(self.spec)
        return sum(self.cluster.granted(self.spec, application) or 0 for application in ours)


class StandaloneCountingJob(CountingJob):
    """The job on a standalone cluster."""

    def __init__(
        self, info: StackInfo, folder: Path, *, most: int, files: Files = WITHOUT_OPTIONS, **application: Any
    ) -> None:
        settings: dict[str, Any] = {
            "master": info.spark_master,
            "rest_url": info.spark_rest,
            "master_ui_url": info.spark_ui,
            "conf": {**light_conf(), "spark.sql.shuffle.partitions": "8"},
            "control_dir": str(folder / "control"),
        }
        self._standalone = Standalone()
        super().__init__(folder, self._standalone, most=most, files=files, **(settings | application))

    def close(self) -> None:
        """End the drivers that still run, and the connections."""
        super().close()
        self._standalone.close()
