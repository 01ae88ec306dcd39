"""Real daemons of Hadoop 3.5 on this machine, each in a process group of its own.

They are in one jar of 56 MB. All else that they need is among pyspark's own jars.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidegate.remote.yarn import LIVE, ResourceManager, RmUnreachable
from tidegate.runtime.poll import wait_until
from tidegate.stack.fetch import Artifact
from tidegate.stack.jars import JarSet, class_path, ensure_jars, spark_home
from tidegate.stack.java import ensure_java

JARS = JarSet(
    "yarn-3.5.0",
    (
        Artifact("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),
        *(Artifact("org.bouncycastle", f"{name}-jdk18on", "1.82") for name in ("bcprov", "bcpkix", "bcutil")),
    ),
    transitive=False,
)
BLOCK_BYTES = 65_536
MEMORY_MB, CORES = 8192, 8
"""Of a NodeManager."""


class Daemons:
    """The daemons that run with the settings of one folder, by the name of their class."""

    def __init__(self, folder: Path, settings: Mapping[str, Mapping[str, str]]) -> None:
        """`settings` are by file, such as `core-site`."""
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, pairs in settings.items():
            lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in pairs.items()]
            (folder / f"{name}.xml").write_text("\n".join(["<configuration>", *lines, "</configuration>"]), "utf-8")
        self._java = ensure_java(print)
        jars = ensure_jars(JARS, self._java, print, lock=Path(__file__).with_name("hadoop.lock"))
        self._class_path = f"{folder}:{class_path(jars)}:{spark_home()}/jars/*"

    def start(self, daemon: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a class of Hadoop's, such as `hdfs.server.datanode.DataNode`; its log is next to the settings."""
        name = daemon.rpartition(".")[2]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    str(self._java.executable),
                    "-Xmx300m",
                    "-XX:TieredStopAtLevel=1",
                    "--add-opens=java.base/java.lang=ALL-UNNAMED",
                    *("-cp", self._class_path),
                    f"org.apache.hadoop.{daemon}",
                    *args,
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        return self.processes[name]

    def logs(self) -> str:
        """Return the end of each daemon's log."""
        return "\n".join(file.read_text("utf-8")[-3000:] for file in self.folder.glob("*.log"))

    def end(self) -> None:
        """End all: on SIGTERM, a NodeManager may take minutes."""
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def hdfs_site(folder: Path, rpc: int, http: int, host: str = "127.0.0.1") -> dict[str, str]:
    """Return the settings of a NameNode on two ports, and of a DataNode."""
    data_node = {f"dfs.datanode.{name}address": f"{host}:0" for name in ("", "http.", "ipc.")}
    return {
        "dfs.namenode.rpc-address": f"{host}:{rpc}",
        "dfs.namenode.http-address": f"{host}:{http}",
        "dfs.namenode.name.dir": (folder / "name").as_uri(),
        "dfs.datanode.data.dir": (folder / "data").as_uri(),
        "dfs.namenode.fs-limits.min-block-size": "1024",
        "dfs.blocksize": str(BLOCK_BYTES),
        "dfs.replication": "1",
        "dfs.datanode.hostname": host,
        **data_node,
    }


def start_hdfs(daemons: Daemons) -> None:
    """Start a NameNode on an empty file system, and a DataNode."""
    name_node = "hdfs.server.namenode.NameNode"
    assert daemons.start(name_node, "-format", "-force", "-nonInteractive").wait(60) == 0, daemons.logs()
    daemons.start(name_node)
    daemons.start("hdfs.server.datanode.DataNode")


def yarn_site(folder: Path, ports: Sequence[int], host: str = "127.0.0.1") -> dict[str, dict[str, str]]:
    """Return the settings, by file, of a ResourceManager on five ports, its web port the last, and of a NodeManager."""
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    yarn = {f"yarn.resourcemanager.{name}": f"{host}:{port}" for name, port in zip(names, ports, strict=True)}
    yarn |= {f"yarn.nodemanager.{name}address": f"{host}:0" for name in ("", "localizer.", "webapp.")}
    yarn |= {
        "yarn.nodemanager.hostname": host,
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
    return {"yarn-site": yarn, "capacity-scheduler": capacity}


def start_yarn(daemons: Daemons, manager: ResourceManager, url: str) -> None:
    """Start a ResourceManager and a NodeManager, and wait for both."""

    def nodes() -> int:
        try:
            return int(manager.get(url, "metrics")["clusterMetrics"]["activeNodes"])
        except RmUnreachable:
            return 0

    for daemon in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
        daemons.start(f"yarn.server.{daemon}")
    assert wait_until(nodes, 90), daemons.logs()


def end_applications(manager: ResourceManager, url: str) -> None:
    """End what a failed test has left: containers are not in the daemons' process groups."""
    for application in manager.applications(url, states=LIVE):
        manager.kill(url, application)
    assert wait_until(lambda: not manager.applications(url, states=LIVE), 60)
