"""A counting job on a real YARN, and what spark-submit needs for it on this machine."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.counting import CountingJob
from services.actuator.backends.yarn import Yarn
from services.collector.view import ClusterView
from services.collector.yarn import YarnClusters
from tests.support.hadoop import CORES
from tidegate.remote.files import WITHOUT_OPTIONS, Files
from tidegate.stack.jars import spark_home

_EPOCHS = count(100, 100)
"""Each job starts at an epoch of its own: the cluster remembers the runs of those before it."""


@dataclass(frozen=True)
class YarnInfo:
    """A running cluster."""

    url: str
    """Of the ResourceManager."""
    conf_dir: Path


class YarnJob(CountingJob):
    """The job on YARN."""

    def __init__(self, yarn: YarnInfo, folder: Path, files: Files = WITHOUT_OPTIONS, **application: Any) -> None:
        self._yarn = yarn
        settings: dict[str, Any] = {
            "backend": "yarn",
            "rest_url": yarn.url,
            "control_dir": str(folder / "control"),
            "conf": spark_conf(folder),
            "env": environment(yarn),
        }
        self.backend = Yarn(folder)
        super().__init__(folder, self.backend, most=CORES, files=files, **(settings | application))
        self._epoch = next(_EPOCHS)

    def seen(self) -> ClusterView:
        """Return what the collector sees."""

        async def ask() -> ClusterView:
            with closing(YarnClusters(10.0)) as clusters:
                return (await clusters.view(self._yarn.url)).of(self.spec)

        return asyncio.run(ask())

    def close(self) -> None:
        """End the drivers that still run, and the connections."""
        super().close()
        self.backend.close()


def environment(yarn: YarnInfo) -> dict[str, str]:
    """Return what `spark-submit` needs to find the cluster, and what keeps it and the driver on loopback."""
    return {"HADOOP_CONF_DIR": str(yarn.conf_dir), "SPARK_LOCAL_IP": "127.0.0.1"}


def spark_conf(folder: Path) -> dict[str, str]:
    """Return settings that keep a job on this machine: nothing is copied that every container can read anyway."""
    return {
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",
        "spark.yarn.stagingDir": f"file://{folder}/staging",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
    }
