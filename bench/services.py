"""The three services as their users run them, with topics and Redis keys of one benchmark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

import tidegate
from bench.servers import end_group, on_stack
from tidegate.client import ClientSettings, received
from tidegate.events.decision import Decision
from tidegate.events.job import Application
from tidegate.events.result import ActionResult
from tidegate.runtime.poll import wait_until
from tidegate.runtime.topics import create_topics, ensure_topics
from tidegate.stack import StackInfo
from tidegate.stack.processes import inherited

ROOT = Path(tidegate.__file__).resolve().parent.parent
JOB = ROOT / "deploy" / "examples" / "rates.py"
"""The example job: it copies a topic, with some time of work per record."""
SERVICES = ("collector", "decider", "actuator")
WAIT_SECONDS = 240.0


@dataclass
class Services:
    """Collector, decider and actuator; their logs are in `folder`, and all names they use start with `tag`."""

    info: StackInfo
    folder: Path
    tag: str
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the topics."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.settings = ClientSettings(
            bootstrap_servers=self.info.bootstrap_servers,
            topic_prefix=f"{self.tag}.",
            redis_url=self.info.redis_url,
            redis_password=SecretStr(self.info.redis_password),
            redis_prefix=f"{self.tag}:",
        )
        ensure_topics(self.settings, partitions=1)

    def start(self, *names: str) -> None:
        """Start the named services, by default all, each in its own process group."""
        for name in names or SERVICES:
            self._start(name)

    def _start(self, name: str) -> None:
        own = inherited()
        own |= {"TIDEGATE_BOOTSTRAP_SERVERS": self.info.bootstrap_servers, "TIDEGATE_TOPIC_PREFIX": f"{self.tag}."}
        if name != "collector":
            own |= {"TIDEGATE_REDIS_URL": self.info.redis_url, "TIDEGATE_REDIS_PASSWORD": self.info.redis_password}
            own |= {"TIDEGATE_REDIS_PREFIX": f"{self.tag}:"}
        if name == "actuator":
            own |= {"TIDEGATE_ACTUATOR_GROUP": f"{self.tag}.actuator"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"services.{name}"],
                env=own,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, *names: str) -> None:
        """End the named services, by default all that run."""
        for name in names or tuple(self.processes):
            end_group(self.processes.pop(name), 30)

    def create_topics(self, *names: str, partitions: int) -> None:
        """Create topics for jobs."""
        create_topics(AdminClient(self.settings.kafka()), [NewTopic(name, partitions, 1) for name in names])

    def results(self) -> list[ActionResult]:
        """Return all results so far."""
        return [one.event for one in received(ActionResult, self.settings)]

    def wait(self, what: str, seen: Callable[[], bool]) -> None:
        """Wait until something was seen."""
        if not wait_until(seen, WAIT_SECONDS, every=0.25):
            raise TimeoutError(f"not within {WAIT_SECONDS:g} s: {what}\n{self.story()}")

    def story(self) -> str:
        """Return the newest decisions and results, for an error."""
        decisions = (one.event for one in received(Decision, self.settings))
        told = [f"{each.decided_at:%H:%M:%S} {each.job_id}: {each.sentence}" for each in decisions]
        done = [
            f"{each.at:%H:%M:%S} {each.job_id}: {each.kind} {each.phase}: {each.sentence}" for each in self.results()
        ]
        return "\n".join([*told[-60:], *done[-40:]])

    def folder_of(self, job: str) -> Path:
        """Return the folder of a job's files, with folders in it for event logs and control files."""
        folder = self.folder / job
        for name in ("events", "control"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        return folder

    def arguments(self, job: str, source: str, sink: str, *, record_ms: float, trigger: str) -> tuple[str, ...]:
        """Return the arguments of the example job, to copy one topic to another."""
        checkpoint = str(self.folder_of(job) / "checkpoint")
        return (
            *("--bootstrap-servers", self.info.bootstrap_servers, "--checkpoint", checkpoint),
            *("--input", source, "--output", sink, "--record-ms", f"{record_ms:g}", "--trigger", trigger),
        )

    def application(self, job: str, source: str, sink: str, *, record_ms: float, trigger: str) -> Application:
        """Return the example job, with light JVMs."""
        return Application(
            script=str(JOB),
            args=self.arguments(job, source, sink, record_ms=record_ms, trigger=trigger),
            jars=tuple(str(jar) for jar in self.info.connector_jars),
            **on_stack(self.info, self.folder / job),
        )
