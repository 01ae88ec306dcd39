"""A real YARN on this machine: a ResourceManager and a NodeManager of Hadoop 3.5, and a folder that all of it shares.

`make test-yarn` runs these tests; nothing else does, because the daemons' jar has 56 MB. All else that they need is
among pyspark's own jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.hadoop import Daemons
from tidegate.remote.yarn import LIVE, ResourceManager, RmUnreachable
from tidegate.runtime.poll import wait_until
from tidegate.stack.jars import spark_home
from tidegate.stack.ports import free_ports

ASKED = "TIDEGATE_TEST_YARN"
MEMORY_MB, CORES = 8192, 8
_DAEMONS = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]


@dataclass(frozen=True)
class YarnInfo:
    """A running cluster."""

    url: str
    """Of the ResourceManager."""
    conf_dir: Path
    processes: dict[str, subprocess.Popen[bytes]]
    """The daemons by name."""


@pytest.fixture(scope="session")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnInfo]:
    """Yield the cluster; its daemons, and with them all containers, end with the session."""
    folder = tmp_path_factory.mktemp("yarn")
    ports = free_ports(5)
    url = f"http://127.0.0.1:{ports[4]}"
    daemons = Daemons(folder, _settings(folder, ports))
    manager = ResourceManager(2.0)

    def nodes() -> int:
        try:
            return int(manager.get(url, "metrics")["clusterMetrics"]["activeNodes"])
        except RmUnreachable:
            return 0

    try:
        for daemon in _DAEMONS:
            daemons.start(f"yarn.server.{daemon}")
        assert wait_until(nodes, 90), daemons.logs()
        yield YarnInfo(url, folder, daemons.processes)
        _end_applications(manager, url)  # containers are not in the daemons' process groups
    finally:
        manager.close()
        daemons.end()


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


def _end_applications(manager: ResourceManager, url: str) -> None:
    """End what a failed test has left."""
    for application in manager.applications(url, states=LIVE):
        manager.kill(url, application)
    assert wait_until(lambda: not manager.applications(url, states=LIVE), 60)


def _settings(folder: Path, ports: list[int]) -> dict[str, dict[str, str]]:
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    yarn = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    yarn |= {f"yarn.nodemanager.{name}address": "127.0.0.1:0" for name in ("", "localizer.", "webapp.")}
    yarn |= {
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
        "yarn.nodemanager.resource.cpu-vcores": str(CORES),
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.nodemanager.delete.debug-delay-sec": "600",
        "yarn.scheduler.minimum-allocation-mb": "128",
    }
    scheduler = "yarn.scheduler.capacity"
    capacity = {
        f"{scheduler}.root.queues": "default",
        f"{scheduler}.root.default.capacity": "100",
        f"{scheduler}.maximum-am-resource-percent": "0.8",
        f"{scheduler}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
    }
    return {"core-site": {"fs.defaultFS": "file:///"}, "yarn-site": yarn, "capacity-scheduler": capacity}
