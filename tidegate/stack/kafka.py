"""Kafka as one KRaft process: broker and controller together, small enough for a laptop."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from typing_extensions import override

from tidegate.stack.component import Component, port_open
from tidegate.stack.errors import StackError
from tidegate.stack.info import StackInfo
from tidegate.stack.jars import class_path
from tidegate.stack.processes import inherited_by_java

# The second listener advertises a proxy's port, so clients that connect through the proxy stay behind it. A killed
# broker can return only after its old session has expired, which takes 9 s by default.
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{address}:{broker},PROXIED://127.0.0.1:{proxied},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{address}:{broker},PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
metadata.max.idle.interval.ms=0
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
"""


class Kafka(Component):
    """The broker; its data survives a restart."""

    name = "kafka"
    port_names = ("kafka", "kafka_controller", "kafka_proxied")  # a test's proxy listens on `kafka_proxy`

    @override
    def prepare(self, info: StackInfo) -> None:
        self.write_settings(info)
        if not (self.work_dir / "kafka" / "data" / "meta.properties").exists():
            self._format(info)

    def write_settings(self, info: StackInfo) -> Path:
        """Write `server.properties`; return its path."""
        folder = self.work_dir / "kafka"
        folder.mkdir(exist_ok=True)
        ports = info.ports
        settings = folder / "server.properties"
        settings.write_text(
            SETTINGS.format(
                address=info.kafka_address,
                broker=ports.kafka,
                proxied=ports.kafka_proxied,
                proxy=ports.kafka_proxy,
                controller=ports.kafka_controller,
                # Java reads the file as Latin-1, and knows JSON's escapes.
                data=json.dumps(str(folder / "data"))[1:-1],
            ),
            encoding="utf-8",
        )
        return settings

    @override
    def command(self, info: StackInfo) -> list[str]:
        return [*self._java(info), "kafka.Kafka", str(self.work_dir / "kafka" / "server.properties")]

    @override
    def healthy(self, info: StackInfo) -> bool:
        if not port_open(info.ports.kafka, info.kafka_address):
            return False
        try:
            # A broker that is still loading its log listens but does not answer this.
            client = AdminClient({"bootstrap.servers": info.bootstrap_servers, "log_level": 0})
            return bool(client.list_topics(timeout=4).brokers)
        except KafkaException:
            return False

    def _java(self, info: StackInfo) -> list[str]:
        java = str(info.java_home / "bin" / "java")
        options = ["-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
        # Without a settings file, log4j writes to the console, our log file, from this level up.
        options += ["-Dorg.apache.logging.log4j.level=INFO"]
        return [java, *options, "-cp", class_path(info.kafka_jars)]

    def _format(self, info: StackInfo) -> None:
        # Kafka's ids never start with '-', which the command line would read as an option.
        cluster_id = "-"
        while cluster_id.startswith("-"):
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        settings = str(self.work_dir / "kafka" / "server.properties")
        command = [*self._java(info), "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", settings]
        try:
            done = subprocess.run(
                command,
                env=inherited_by_java(info.java_home),
                check=False,
                capture_output=True,
                text=True,
                timeout=60,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise StackError("formatting Kafka's storage took more than 60 s") from error
        if done.returncode != 0:
            raise StackError(f"formatting Kafka's storage failed:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
