"""Start, check and end the whole stack.

A work folder holds everything: data, logs, settings, `stack.json`. While a stack starts, a guardian ends it if the
starter dies. After that the stack runs on its own until `down`, which needs only `stack.json`.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidegate.interrupts import interruptible
from tidegate.stack.component import Component, State
from tidegate.stack.errors import StackError
from tidegate.stack.guardian import Guardian
from tidegate.stack.info import Ports, StackInfo, info_path, locked
from tidegate.stack.kafka import Kafka
from tidegate.stack.ports import free_ports
from tidegate.stack.processes import ProcessRecord, end_all, marked
from tidegate.stack.redis import Redis
from tidegate.stack.spark import SparkMaster, SparkWorker
from tidegate.stack.toolbox import prepare

DEFAULT_WORK_DIR = Path(".tidegate/stack")
DEFAULT_WORKER_SLOTS = 8
DEFAULT_WORKER_MEMORY = "6g"
# Grace period for components to end; Kafka's clean shutdown takes about 2 s.
GRACE_SECONDS = 6.0

Progress = Callable[[str], None]
_guardians: dict[Path, Guardian] = {}


def silent(_text: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class ComponentState:
    """One line of `status`."""

    name: str
    state: State
    pid: int | None
    endpoint: str
    log: Path

    @property
    def ok(self) -> bool:
        """Whether it runs, or is not meant to."""
        return self.state in ("running", "not started")


class Stack:
    """The stack in `work_dir` and its components by name, for tests that kill, pause and restart them."""

    def __init__(self, work_dir: Path | str) -> None:
        self.work_dir = Path(work_dir).absolute()
        info = self.info
        self.kafka = Kafka(self.work_dir)
        self.redis = Redis(self.work_dir)
        self.master = SparkMaster(self.work_dir)
        self.workers = [SparkWorker(self.work_dir, number) for number in range(len(info.ports.spark_worker_uis))]

    @property
    def info(self) -> StackInfo:
        """The stack's current record."""
        return StackInfo.load(self.work_dir)

    @property
    def components(self) -> list[Component]:
        """All components, started or not."""
        return [self.kafka, self.redis, self.master, *self.workers]

    def start(
        self, *, kafka: bool = False, redis: bool = False, spark: bool = False, on_progress: Progress = silent
    ) -> None:
        """Start the chosen components that are not running, in parallel, and wait until all are healthy."""
        chosen: list[Component] = []
        if redis:
            chosen.append(self.redis)
        if spark:
            chosen.append(self.master)
        if kafka:
            chosen.append(self.kafka)
        for component in chosen:
            on_progress(f"starting {component.name}")
            component.launch()
        if spark:
            self.master.wait_healthy()
            for worker in self.workers:
                on_progress(f"starting {worker.name}")
                worker.launch()
            chosen += self.workers
        for component in chosen:
            component.wait_healthy()
            on_progress(f"{component.name} is healthy")


def up(
    work_dir: Path | str = DEFAULT_WORK_DIR,
    *,
    kafka: bool = True,
    redis: bool = True,
    spark: bool = True,
    workers: int = 1,
    worker_slots: int = DEFAULT_WORKER_SLOTS,
    worker_memory: str = DEFAULT_WORKER_MEMORY,
    kafka_address: str = "127.0.0.1",
    tied: bool = False,
    on_progress: Progress = silent,
) -> StackInfo:
    """Start the stack and wait until it is healthy. On any failure, also Ctrl-C or SIGTERM, end everything again.

    Each of `workers` offers `worker_slots` cores (they may exceed the machine's) and `worker_memory` (such as `6g`).
    Kafka listens at `kafka_address` of this machine, such as that of a bridge to which containers are connected.
    Components left out can be started later with `Stack.start`. With `tied` the stack ends when this process does.
    Raises StackError if a stack is already running in `work_dir`, or if a component does not become healthy.
    """
    if workers < 1 or worker_slots < 1:
        raise StackError(f"workers and worker_slots must be at least 1, got {workers} and {worker_slots}")
    folder = Path(work_dir).absolute()
    with locked(folder, "up.lock", wait_seconds=0):
        _clear_leftover(folder, on_progress)
        with interruptible():
            tools = prepare(on_progress)
        (folder / "logs").mkdir(exist_ok=True)
        # The applications and drivers of an earlier stack are gone; only a master restarted in this stack reads this.
        shutil.rmtree(folder / "spark" / "recovery", ignore_errors=True)
        free = free_ports(8 + workers)
        ports = Ports(**dict(zip(Ports.model_fields, free[:8], strict=False)), spark_worker_uis=tuple(free[8:]))
        info = StackInfo(
            stack_id=uuid.uuid4().hex,
            state="starting",
            work_dir=folder,
            ports=ports,
            kafka_address=kafka_address,
            java_home=tools.java.home,
            spark_home=tools.spark_home,
            redis_server=tools.redis.executable,
            kafka_jars=tools.kafka_jars,
            connector_jars=tools.connector_jars,
            worker_slots=worker_slots,
            worker_memory=worker_memory,
            python=Path(sys.executable),
        )
        info.save()
        guardian = Guardian(folder, info.stack_id)
        try:
            with interruptible():
                Stack(folder).start(kafka=kafka, redis=redis, spark=spark, on_progress=on_progress)
                info = StackInfo.load(folder).model_copy(update={"state": "up"})
                info.save()
                if not tied:
                    guardian.stand_down()
        except BaseException:
            on_progress("ending what was started")
            _end(info)
            guardian.end()
            raise
        if tied:
            _guardians[folder] = guardian
        return info


def down(
    work_dir: Path | str = DEFAULT_WORK_DIR,
    *,
    purge: bool = False,
    wait_seconds: float = 0.0,
    only: str | None = None,
    on_progress: Progress = silent,
) -> bool:
    """End the stack of `work_dir` with all drivers and executors it launched; return False if there was none.

    With `only`, a stack of another id stays as it is. Data and logs stay for the next `up`, unless `purge`. Raises
    StackError if another process is still starting or ending the stack after `wait_seconds`, or if a process survives.
    """
    folder = Path(work_dir).absolute()
    if not folder.is_dir():
        return False
    with locked(folder, "up.lock", wait_seconds=wait_seconds):
        found = info_path(folder).exists()
        if found:
            info = StackInfo.load(folder)
            if only not in (None, info.stack_id):
                return False
            on_progress(f"ending {', '.join(info.processes) or 'a stack without components'}")
            _end(info)
        if guardian := _guardians.pop(folder, None):
            guardian.end()
        if purge:
            for name in ("kafka", "redis", "spark", "logs"):
                shutil.rmtree(folder / name, ignore_errors=True)
        return found


def status(work_dir: Path | str = DEFAULT_WORK_DIR) -> list[ComponentState]:
    """Return the state of every component; empty if there is no stack in `work_dir`."""
    if not info_path(Path(work_dir)).exists():
        return []
    stack = Stack(work_dir)
    info = stack.info
    endpoints = {"kafka": info.bootstrap_servers, "redis": info.redis_url, "spark-master": info.spark_master}
    lines = []
    for component in stack.components:
        process = component.process
        worker = f"{info.worker_slots} slots, {info.worker_memory}"
        lines.append(
            ComponentState(
                name=component.name,
                state=component.state,
                pid=process.pid if process else None,
                endpoint=endpoints.get(component.name, worker),
                log=component.log,
            )
        )
    return lines


def _ours(info: StackInfo) -> list[ProcessRecord]:
    """Return the recorded components and everything else with the stack's mark: drivers, executors, Python workers."""
    return list({*info.processes.values(), *marked(info.stack_id)})


def _end(info: StackInfo) -> None:
    # If there is no newer record, this one is still right, and the mark finds the rest.
    with suppress(StackError):
        info = StackInfo.load(info.work_dir)
    if survivors := end_all(lambda: _ours(info), GRACE_SECONDS):
        raise StackError(f"these processes of the stack did not end: {survivors}")
    info_path(info.work_dir).unlink(missing_ok=True)


def _clear_leftover(folder: Path, on_progress: Progress) -> None:
    """Raise StackError if a stack is up in `folder`; end the remains of one that never came up."""
    if not info_path(folder).exists():
        return
    info = StackInfo.load(folder)
    alive = [name for name, record in info.processes.items() if record.alive]
    if info.state == "up" and alive:
        raise StackError(f"a stack is already up in {folder} ({', '.join(alive)}): end it with `down` first")
    on_progress("ending the remains of an earlier stack")
    _end(info)
