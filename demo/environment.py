"""The demo's environment: stack, topics, services and load. The demo stops what it started and leaves the rest alone.

All processes carry the stack's mark, so `tidegate down` stops them too. If the demo started the stack and is killed,
the stack's guardian process stops them.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from confluent_kafka.admin import AdminClient, NewTopic

import tidegate
from demo.failed import DemoFailed
from demo.pods import Pods, new_pods, share
from tidegate import interrupts
from tidegate.client import ClientSettings
from tidegate.launcher.kubernetes.api import Api
from tidegate.remote.files import Files, Place, RemotePath
from tidegate.runtime.topics import create_topics, ensure_topics
from tidegate.stack import StackError, StackInfo, down, up
from tidegate.stack.class_data import light_conf, light_jvm
from tidegate.stack.ports import free_ports
from tidegate.stack.processes import ProcessRecord, end_all, inherited, spawn

SERVICES = ("collector", "decider", "actuator")
JOB = "rates"
PARTITIONS = 8
WORKER_SLOTS = 12
HEALTHY_SECONDS = 90.0
LIGHT_JVM = light_jvm()
LIGHT_JVMS = light_conf()
"""The job sleeps more than it computes, so JVMs should start fast; compiling well gains nothing."""
ROOT = Path(tidegate.__file__).resolve().parent.parent
"""The source tree, with the services and the example job."""
SCRIPT = ROOT / "deploy" / "examples" / "rates.py"


@dataclass
class Environment:
    """A running stack with Tidegate's services, and the folder of one run."""

    info: StackInfo
    folder: Path
    """The run's logs, checkpoint, control directory, recording and report."""
    prefix: str
    own_stack: bool
    pods: Pods | None = None
    """Where the job runs, if on Kubernetes."""
    manager: str | None = None
    """The address of the ResourceManager of the YARN where the job runs, if it does."""
    files: RemotePath | None = None
    """Where its checkpoint, event log and control files are, if not on this machine."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings of it."""
    processes: dict[str, ProcessRecord] = field(default_factory=dict)

    @property
    def settings(self) -> ClientSettings:
        """How to reach the broker and Redis."""
        return ClientSettings(
            bootstrap_servers=self.info.bootstrap_servers,
            topic_prefix=self.prefix,
            redis_url=self.info.redis_url,
            redis_password=self.info.redis_password,  # type: ignore[arg-type]
            redis_prefix=self.redis_prefix,
        )

    @property
    def redis_prefix(self) -> str:
        """The prefix of this run's keys in Redis."""
        return self.prefix.rstrip(".") + ":"

    @property
    def source(self) -> str:
        """The topic the job reads."""
        return f"{self.prefix}demo-in"

    @property
    def sink(self) -> str:
        """The topic the job writes."""
        return f"{self.prefix}demo-out"

    @property
    def standalone(self) -> bool:
        """Whether the job runs on the stack's Spark."""
        return self.pods is None and self.manager is None

    @property
    def job_folder(self) -> Path:
        """What the job reads and writes; its pods mount it."""
        return self.folder if self.pods is None else self.folder / "job"

    @property
    def script(self) -> Path:
        """The job's program."""
        return SCRIPT if self.pods is None else self.job_folder / SCRIPT.name

    @property
    def checkpoint(self) -> Place:
        """The job's checkpoint."""
        return (self.files or self.job_folder) / "checkpoint"

    @property
    def event_log_dir(self) -> Place:
        """Spark's event logs of the job."""
        if self.files is not None:
            return self.files / "events"
        return self.info.event_log_dir if self.standalone else self.job_folder / "events"

    @property
    def control_dir(self) -> Place:
        """The control files of a job that is not in pods."""
        return (self.files or self.folder) / "control"

    @property
    def rate_file(self) -> Path:
        """The file from which the load generator reads its rate."""
        return self.folder / "rate"

    @property
    def logs(self) -> Path:
        """The logs of services and load."""
        return self.folder / "logs"

    def set_rate(self, rate: float) -> None:
        """Change the load, in records/s."""
        scratch = self.rate_file.with_suffix(".new")
        scratch.write_text(f"{rate:g}\n", encoding="utf-8")
        scratch.replace(self.rate_file)

    def start(self, name: str, command: list[str], variables: dict[str, str]) -> None:
        """Start one of the demo's processes in a process group of its own; its output goes to the run's logs."""
        env = inherited() | {
            **variables,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "JAVA_HOME": str(self.info.java_home),
        }
        log = self.logs / f"{name}.log"
        self.processes[name] = spawn([sys.executable, *command], env, ROOT, log, self.info.stack_id)

    def check_alive(self) -> None:
        """Raise `DemoFailed` with the process and its log if one has exited."""
        for name, process in self.processes.items():
            if not process.alive:
                raise DemoFailed(f"the {name} exited unexpectedly; see {self.logs / (name + '.log')}")

    def end(self) -> None:
        """Stop the processes of the demo, and wait until they are gone."""
        gone, self.processes = list(self.processes.values()), {}
        if left := end_all(lambda: gone, grace_seconds=8.0):
            raise DemoFailed(f"these processes did not stop: {left}")

    def kill_driver(self, submission_id: str) -> None:
        """Have the Spark master kill a driver, on a stack that outlives the demo."""
        with suppress(httpx.HTTPError):
            httpx.post(f"{self.info.spark_rest}/v1/submissions/kill/{submission_id}", timeout=10, trust_env=False)

    def close(self, submission_id: str | None = None) -> None:
        """Stop everything the demo started."""
        with ExitStack() as steps:
            if self.own_stack:
                steps.callback(down, self.info.work_dir, wait_seconds=30)
            elif submission_id is not None:
                steps.callback(self.kill_driver, submission_id)
            if self.pods is not None:
                steps.callback(self.pods.remove)
            self.end()


def start_environment(
    base: Path,
    attach: StackInfo | None,
    run_name: str,
    on_progress: Callable[[str], None],
    *,
    image: str | None = None,
    manager: str | None = None,
    files: str | None = None,
    conf: Mapping[str, str] | None = None,
    keep: bool = False,
) -> Environment:
    """Return an environment with its topics; starts a stack in `base`/stack unless given a running one.

    A stack started here is empty and, without `keep`, stops when this process ends for whatever reason. On a stack that
    was already running, topics, Redis keys and consumer groups carry the run's name. With an `image`, the job runs in
    pods of it, and the stack, which pods must reach, is always a new one without Spark. With a `manager`, it runs on
    the YARN whose ResourceManager has this address. With `files`, a URI, the job keeps its files in a folder of the run
    there. `conf` are further Spark settings of the job.
    """
    if not SCRIPT.is_file():
        raise DemoFailed(f"{SCRIPT} does not exist; the demo runs only in a source tree")
    pods: Pods | None = None
    with ExitStack() as undo:
        if image is not None:
            attach, pods = None, new_pods(Api(), base, run_name, image, on_progress)
            undo.callback(pods.remove)
        spark = pods is None and manager is None
        info = attach or _new_stack(base / "stack", pods, on_progress, spark=spark, keep=keep)
        prefix = "tidegate." if attach is None else f"tidegate-demo-{run_name}."
        environment = Environment(info, (base / run_name).absolute(), prefix, own_stack=attach is None, pods=pods)
        environment.manager, environment.conf = manager, conf or {}
        undo.pop_all()
        undo.callback(environment.close)
        environment.logs.mkdir(parents=True, exist_ok=True)
        if files is not None:
            environment.files = Files(environment.settings.files).remote(files) / run_name
            (environment.files / "events" / ".made").replace(b"")  # Spark makes no folder for its logs
        if pods is not None:
            share(environment.job_folder, SCRIPT)
        elif manager is not None:
            (environment.job_folder / "events").mkdir()
        environment.set_rate(0)
        ensure_topics(environment.settings, partitions=4)
        _data_topics(environment)
        on_progress("the topics are ready")
        undo.pop_all()
    return environment


def _new_stack(
    folder: Path, pods: Pods | None, on_progress: Callable[[str], None], *, spark: bool, keep: bool
) -> StackInfo:
    """Start an empty stack; for a job in pods with a Kafka that pods reach."""
    with suppress(StackError):
        down(folder, purge=True)
    address = "127.0.0.1" if pods is None else pods.address
    return up(
        folder,
        spark=spark,
        worker_slots=WORKER_SLOTS,
        kafka_address=address,
        tied=not keep,
        on_progress=on_progress,
    )


def start_services(environment: Environment, on_progress: Callable[[str], None]) -> None:
    """Start the collector, decider, actuator and load generator, and wait until the services are healthy."""
    common = {
        "TIDEGATE_BOOTSTRAP_SERVERS": environment.info.bootstrap_servers,
        "TIDEGATE_TOPIC_PREFIX": environment.prefix,
        "TIDEGATE_FILES": json.dumps(environment.settings.files),
    }
    redis = {
        "TIDEGATE_REDIS_URL": environment.info.redis_url,
        "TIDEGATE_REDIS_PASSWORD": environment.info.redis_password,
        "TIDEGATE_REDIS_PREFIX": environment.redis_prefix,
    }
    group = {"TIDEGATE_ACTUATOR_GROUP": f"{environment.prefix}actuator"}
    ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
    for name in SERVICES:
        own = {"collector": {}, "decider": redis, "actuator": redis | group}[name]
        variables = common | own | {"TIDEGATE_HEALTH_PORT": str(ports[name])}
        environment.start(name, ["-m", f"services.{name}"], variables)
    load = ["-m", "demo.load", "--bootstrap-servers", environment.info.bootstrap_servers]
    environment.start("load", [*load, "--topic", environment.source, "--rate-file", str(environment.rate_file)], {})
    deadline = time.monotonic() + HEALTHY_SECONDS
    for name, port in ports.items():
        while not _healthy(port):
            environment.check_alive()
            if time.monotonic() > deadline:
                log = environment.logs / f"{name}.log"
                raise DemoFailed(f"the {name} was not healthy after {HEALTHY_SECONDS:g} s; see {log}")
            interrupts.check()
            time.sleep(0.25)
        on_progress(f"the {name} is healthy")


def sweep(base: Path) -> None:
    """Remove the folders of all runs but the newest five."""
    runs = sorted(p for p in base.iterdir() if p.is_dir() and p.name.startswith("run-")) if base.is_dir() else []
    for old in runs[:-5]:
        shutil.rmtree(old, ignore_errors=True)


def _data_topics(environment: Environment) -> None:
    wanted = [
        NewTopic(t, num_partitions=PARTITIONS, replication_factor=1) for t in (environment.source, environment.sink)
    ]
    create_topics(AdminClient(environment.settings.kafka()), wanted)


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
