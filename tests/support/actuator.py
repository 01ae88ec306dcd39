"""A test rig for the actuator: a real job, real servers, and an actuator process that dies or pauses at a given point.

Run as a program, this file is that process: the service as `build()` makes it, with a producer that sends the process a
signal before or after it publishes the result of a phase. So the product contains no code for faults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from bench.orders import new_command
from bench.restart import BareCluster
from bench.servers import on_stack
from services.actuator.app import build
from services.actuator.backends import Submission
from services.actuator.settings import ActuatorSettings
from tests.support.decider import ServiceProcess
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.envelope import decode
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase
from tidegate.events.topics import RESULTS
from tidegate.events.wire import Wire
from tidegate.launcher.control.files import Control, Token
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.logs import configure
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.topics import create_topics, ensure_topics
from tidegate.stack import StackInfo

ROOT = Path(__file__).resolve().parents[2]
RATES = ROOT / "deploy" / "examples" / "rates.py"


class ActuatorRig:
    """One job on the stack, under topics of its own prefix."""

    def __init__(self, info: StackInfo, folder: Path, *, job_id: str | None = None, **application: Any) -> None:
        self.tag = uuid.uuid4().hex[:8]
        self.info = info
        self.folder = folder
        self.job_id = job_id or f"job-{self.tag}"
        self.settings = ActuatorSettings(
            bootstrap_servers=info.bootstrap_servers,
            topic_prefix=f"t{self.tag}.",
            redis_url=info.redis_url,
            redis_password=SecretStr(info.redis_password),
            redis_prefix=f"t{self.tag}:",
            actuator_group=f"actuator-{self.tag}",
            session_timeout_seconds=6,
        )
        ensure_topics(self.settings, partitions=2)
        self.input, self.output = f"in-{self.tag}", f"out-{self.tag}"
        topics = [NewTopic(topic, 8, 1) for topic in (self.input, self.output)]
        create_topics(AdminClient({"bootstrap.servers": info.bootstrap_servers}), topics)
        self._http = httpx.Client(trust_env=False, timeout=10)
        self.spec = self._spec(**application)
        self.publisher = Publisher(self.settings)
        self.publisher.publish(self.spec)
        self.actuators: list[ServiceProcess] = []
        self.by_hand: list[str] = []
        self.epoch = 0
        self.records = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def _spec(self, **application: Any) -> JobSpec:
        info = self.info
        settings = on_stack(info, self.folder)
        settings |= {
            "script": str(RATES),
            "args": (
                *("--bootstrap-servers", info.bootstrap_servers, "--input", self.input, "--output", self.output),
                *("--checkpoint", settings["checkpoint_location"], "--record-ms", "1", "--trigger", "3 seconds"),
            ),
            "jars": tuple(str(jar) for jar in info.connector_jars),
            "stop_deadline_seconds": 30.0,
            "start_deadline_seconds": 240.0,
            "executor_cores": 2,
        }
        return JobSpec(
            job_id=self.job_id,
            sources=(self.input,),
            sinks=(self.output,),
            application=Application(**(settings | application)),
            scaling=Scaling(min_parallelism=2, max_parallelism=8),
        )

    @property
    def control(self) -> Control:
        """The job's control directory."""
        return Control.at(self.spec.application.control_place, self.job_id)

    def load(self, records_per_second: int = 100) -> None:
        """Write records to the input topic until `close`."""

        def feed() -> None:
            producer = Producer({"bootstrap.servers": self.info.bootstrap_servers, "linger.ms": 20})
            while not self._stop.wait(0.5):  # the broker gets a request per partition each time
                for _ in range(max(1, records_per_second // 2)):
                    producer.produce(self.input, str(self.records).encode(), partition=self.records % 8)
                    self.records += 1
                producer.poll(0)
            producer.flush(20)

        self._threads.append(threading.Thread(target=feed, daemon=True))
        self._threads[-1].start()

    def stop_load(self) -> None:
        """Stop the load; return when every record is in the topic."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def submit_by_hand(self) -> str:
        """Run the job's script without the launcher, as somebody without Tidegate would; return the driver's id."""
        with contextlib.closing(BareCluster()) as cluster:
            self.by_hand.append(cluster.submit(Submission(self.spec, Token(0), 2)))
        return self.by_hand[-1]

    def kill_driver(self, driver: str) -> None:
        """End a driver by force."""
        self._http.post(f"{self.info.spark_rest}/v1/submissions/kill/{driver}")

    def start_actuator(self, kill: str | None = None, pause: str | None = None) -> ServiceProcess:
        """Start an actuator that is killed or paused at a point such as `after:stopping` or `before:running`."""
        args = ["-m", "tests.support.actuator"]
        args += ["--kill", kill] if kill else []
        args += ["--pause", pause] if pause else []
        log = self.folder / f"actuator-{len(self.actuators)}.log"
        self.actuators.append(ServiceProcess(self.settings, log, args=args))
        return self.actuators[-1]

    def command(self, kind: CommandKind, to: int, *, before: int = 0, epoch: int | None = None) -> ScalingCommand:
        """Publish a command, by default of the next epoch."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        command = new_command(self.spec, kind, to, before=before, epoch=self.epoch)
        self.publisher.publish(command)
        return command

    def results(self, command_id: str | None = None) -> list[ActionResult]:
        """Return all results, or those of one command, in order."""
        with _results_reader(self.settings) as reader:
            found = [decode(ActionResult, m.value(), m.headers(), m.key()) for m in reader.read_to_end(30)]
        return [result for result in found if command_id in (None, result.command_id)]

    def wait_for_end(self, command: ScalingCommand, seconds: float = 280.0) -> ActionResult:
        """Return the terminal result of a command; fail with all its results if it does not end in time."""
        if end := end_of(self.settings, command, seconds):
            return end
        logs = "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("actuator-*.log")))
        raise AssertionError(
            f"the command did not end within {seconds:g} s: {self.results(command.command_id)}\n{logs}"
        )

    def phases(self, command: ScalingCommand) -> list[str]:
        """Return the phases of a command in order, each result once."""
        return list({r.result_id: f"{r.phase}" for r in self.results(command.command_id)}.values())

    def drivers(self) -> dict[str, str]:
        """Return the state, by id, of every driver of this job that the master ever had and that has arrived."""
        ours = {str(facts["submission_id"]) for t in self.control.runs() if (facts := self.control.running(t))}
        view = self.master()
        listed = {d["id"]: d["state"] for d in [*view["activedrivers"], *view["completeddrivers"]]}
        return {driver: state for driver, state in listed.items() if driver in ours}

    def applications(self) -> set[str]:
        """Return the ids of all applications of this job that started a query."""
        found = (self.control.running(token) or {} for token in self.control.runs())
        return {str(facts["application_id"]) for facts in found if "application_id" in facts}

    def master(self) -> dict[str, Any]:
        """Return what the master says about its cluster."""
        answer: dict[str, Any] = self._http.get(f"{self.info.spark_ui}/json/").raise_for_status().json()
        return answer

    def most_at_once(self) -> int:
        """Return how many applications of this job the master had at the same time, at most."""
        ours, view = self.applications(), self.master()
        listed = [app for app in [*view["activeapps"], *view["completedapps"]] if app["id"] in ours]
        spans = [(app["starttime"], app["starttime"] + app["duration"]) for app in listed]
        return max((sum(start <= at < end for start, end in spans) for at, _ in spans), default=0)

    def outputs(self) -> dict[tuple[int, int], int]:
        """Return how often each input record, by partition and offset, is in the output topic."""
        return Counter((value["source_partition"], value["source_offset"]) for value in self.output_values())

    def output_values(self) -> list[dict[str, Any]]:
        """Return what the records of the output topic say."""
        with contextlib.closing(TopicReader(self.settings, [self.output])) as reader:
            return [json.loads(message.value() or b"") for message in reader.read_to_end(30)]

    def close(self) -> None:
        """End the actuators and the job's drivers."""
        self.stop_load()
        for actuator in self.actuators:
            actuator.close()
        alive = [driver for driver, state in self.drivers().items() if state in ("RUNNING", "SUBMITTED")]
        for driver in [*alive, *self.by_hand]:
            self.kill_driver(driver)
        self._http.close()


def end_of(settings: ActuatorSettings, command: ScalingCommand, seconds: float) -> ActionResult | None:
    """Return the terminal result of a command, or None if it does not end in time."""
    deadline = time.monotonic() + seconds
    with _results_reader(settings) as reader:
        while (left := deadline - time.monotonic()) > 0:
            message = reader.poll(min(left, 1.0))
            if message is None:
                continue
            result = decode(ActionResult, message.value(), message.headers(), message.key())
            if result.command_id == command.command_id and result.phase.terminal:
                return result
    return None


def _results_reader(settings: ActuatorSettings) -> contextlib.closing[TopicReader]:
    return contextlib.closing(TopicReader(settings, [RESULTS.named(settings.topic_prefix)]))


class SignallingProducer:
    """A publisher that sends its own process a signal at the result of one phase."""

    def __init__(self, publisher: Publisher, what: signal.Signals, when: str, phase: Phase) -> None:
        self._publisher = publisher
        self._what = what
        self._when = when
        self._phase = phase

    def publish(self, event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> None:
        """Publish; before or after that, send the signal if this is the phase."""
        here = isinstance(event, ActionResult) and event.phase is self._phase
        if here and self._when == "before":
            os.kill(os.getpid(), self._what)
        self._publisher.publish(event, key=key, trace_id=trace_id)
        if here and self._when == "after":
            os.kill(os.getpid(), self._what)


def main() -> int:
    """Run an actuator; return its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill")
    parser.add_argument("--pause")
    asked = parser.parse_args()
    settings = ActuatorSettings()
    configure("actuator", settings)
    producer = None
    if point := asked.kill or asked.pause:
        when, _, phase = point.partition(":")
        what = signal.SIGKILL if asked.kill else signal.SIGSTOP
        producer = SignallingProducer(Publisher(settings), what, when, Phase(phase))
    actuator = build(settings, clock=SystemClock(), producer=producer)
    signal.signal(signal.SIGTERM, lambda *_: actuator.stop())
    return actuator.run()


@contextlib.contextmanager
def running_job(info: StackInfo, folder: Path, **application: Any) -> Iterator[ActuatorRig]:
    """Yield a job that runs at size 2 under load; its actuator has ended."""
    with contextlib.closing(ActuatorRig(info, folder, **application)) as rig:
        rig.load()
        actuator = rig.start_actuator()
        end = rig.wait_for_end(rig.command(CommandKind.START, 2))
        assert end.phase is Phase.VERIFIED, end
        assert actuator.stop() == 0
        yield rig


if __name__ == "__main__":
    sys.exit(main())
