"""Real daemons of Hadoop 3.5 on this machine, each in a process group of its own.

They are in one jar of 56 MB. All else that they need is among pyspark's own jars.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

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
