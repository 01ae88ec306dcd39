"""A Kafka cluster of three brokers and a controller on this machine, of which a broker dies or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidegate.runtime.poll import wait_until
from tidegate.stack.jars import KAFKA, class_path, ensure_jars
from tidegate.stack.java import find_java
from tidegate.stack.ports import free_ports

CONTROLLER = 9
"""Its node id. On its own, it is not disturbed by what happens to the brokers."""
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
SETTINGS = """\
process.roles={role}
node.id={node}
controller.quorum.voters=9@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners={listener}://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
auto.create.topics.enable=false
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
"""


class Brokers:
    """The cluster, while the block lasts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        java = find_java()
        self._java = [str(java.executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._java += ["-cp", class_path(ensure_jars(KAFKA, java, print))]
        *self._ports, self._controller = free_ports(4)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all three."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def leader(self, topic: str, partition: int) -> int:
        """Return the id of the broker that leads a partition."""
        listed = AdminClient({"bootstrap.servers": self.bootstrap_servers}).list_topics(topic, timeout=30)
        return int(listed.topics[topic].partitions[partition].leader)

    def signal(self, node: int, number: signal.Signals) -> None:
        """Send a signal to a broker's process group."""
        os.killpg(self._processes[node].pid, number)

    def __enter__(self) -> Self:
        try:
            for node in (CONTROLLER, 1, 2, 3):
                self._start(node)
            assert wait_until(self._up, 90, 0.5), "the brokers did not find each other within 90 s"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node, process in self._processes.items():
            if process.poll() is None:
                self.signal(node, signal.SIGKILL)
                process.wait(timeout=10)

    def _start(self, node: int) -> None:
        folder = self._folder / f"broker-{node}"
        folder.mkdir()
        of_all = {"node": node, "controller": self._controller, "data": folder / "data"}
        own = (
            {"role": "controller", "listener": "CONTROLLER", "port": self._controller}
            if node == CONTROLLER
            else {"role": "broker", "listener": "PLAINTEXT", "port": self._ports[node - 1]}
        )
        settings = folder / "server.properties"
        settings.write_text(SETTINGS.format(**of_all, **own), "utf-8")
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
        subprocess.run(tool, check=True, capture_output=True, timeout=90)
        with (folder / "log").open("wb") as log:
            self._processes[node] = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(settings)], stdout=log, stderr=log, start_new_session=True
            )

    def _up(self) -> bool:
        try:
            client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return len(client.list_topics(timeout=4).brokers) == 3
        except KafkaException:
            return False
