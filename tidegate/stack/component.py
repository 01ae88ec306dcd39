"""One component of the stack: a process with settings, a health check, and the controls that fault tests need."""

from __future__ import annotations

import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from tidegate import interrupts
from tidegate.stack.errors import StackError
from tidegate.stack.info import Ports, StackInfo, locked
from tidegate.stack.ports import free_ports, is_free
from tidegate.stack.processes import ProcessRecord, end_all, inherited_by_java, spawn

START_SECONDS = 60.0
State = Literal["not started", "running", "unhealthy", "paused", "dead"]


class Component(ABC):
    """A process of the stack in `work_dir`. Its state is always read from `stack.json`."""

    name: str
    port_names: ClassVar[tuple[str, ...]] = ()
    """The `Ports` that it listens on."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir

    @property
    def info(self) -> StackInfo:
        """The stack's current record."""
        return StackInfo.load(self.work_dir)

    @abstractmethod
    def prepare(self, info: StackInfo) -> None:
        """Create folders and settings files; safe to repeat."""

    @abstractmethod
    def command(self, info: StackInfo) -> list[str]:
        """The command line of the process."""

    @abstractmethod
    def healthy(self, info: StackInfo) -> bool:
        """Whether the process answers correctly; takes at most about 5 s and never raises."""

    def environment(self, info: StackInfo) -> Mapping[str, str]:  # noqa: ARG002 - for those that need it
        """Environment variables in addition to the caller's."""
        return {}

    @property
    def process(self) -> ProcessRecord | None:
        """The process as last started; None if it was never started."""
        return self.info.processes.get(self.name)

    @property
    def state(self) -> State:
        """The current state; `unhealthy` means that it runs but does not answer."""
        process = self.process
        if process is None:
            return "not started"
        if not process.alive:
            return "dead"
        if process.paused:
            return "paused"
        return "running" if self.healthy(self.info) else "unhealthy"

    @property
    def log(self) -> Path:
        """The file with its output."""
        return self.work_dir / "logs" / f"{self.name}.log"

    def launch(self) -> None:
        """Start the process unless it is running, without waiting until it is healthy."""
        info = self.info
        process = info.processes.get(self.name)
        if process is not None and process.alive:
            return
        if process is None:
            info = self._with_free_ports()
        self.prepare(info)
        env = {**inherited_by_java(info.java_home), **self.environment(info)}
        with locked(self.work_dir, "stack.lock", wait_seconds=10):
            record = spawn(self.command(info), env, self.work_dir / "logs", self.log, info.stack_id)
            info = self.info  # other components may have been recorded meanwhile
            info.model_copy(update={"processes": {**info.processes, self.name: record}}).save()

    def _with_free_ports(self) -> StackInfo:
        """Return the stack's record, with other ports for those taken since it chose them; nobody knows them yet."""
        with locked(self.work_dir, "stack.lock", wait_seconds=10):
            info = self.info
            if (ports := self.usable(info.ports)) != info.ports:
                info = info.model_copy(update={"ports": ports})
                info.save()
            return info

    def usable(self, ports: Ports) -> Ports:
        """Return the ports with others for those of this component on which something listens."""
        taken = [name for name in self.port_names if not is_free(getattr(ports, name))]
        return ports.model_copy(update=dict(zip(taken, free_ports(len(taken)), strict=True)))

    def wait_healthy(self, timeout_seconds: float = START_SECONDS) -> None:
        """Wait until it is healthy. Raises StackError with the end of its log if it dies or takes too long."""
        info = self.info
        process = info.processes.get(self.name)
        deadline = time.monotonic() + timeout_seconds
        while not self.healthy(info):
            if process is None or not process.alive:
                raise StackError(f"{self.name} ended while starting; {self.log} ends with:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} not healthy after {timeout_seconds:g} s; {self.log} ends with:\n{self._log_tail()}"
                )
            interrupts.check()
            time.sleep(0.1)

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start it on its existing data and ports and wait until it is healthy; does nothing if it is running."""
        self.launch()
        self.wait_healthy(timeout_seconds)

    def kill(self) -> None:
        """Kill it as a crash would (SIGKILL to its group) and wait until it is gone; its state is then `dead`."""
        process = self._running()
        process.signal(signal.SIGKILL)
        if end_all(lambda: [process], 0.0):
            raise StackError(f"{self.name} (pid {process.pid}) survived SIGKILL")

    def pause(self) -> None:
        """Freeze it with SIGSTOP, so that its peers see a hang, not a closed connection; wait until it is frozen."""
        process = self._running()
        process.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not process.paused:
            if not process.alive or time.monotonic() > deadline:
                raise StackError(f"{self.name} (pid {process.pid}) could not be paused")
            time.sleep(0.01)

    def resume(self) -> None:
        """Resume it with SIGCONT."""
        self._running().signal(signal.SIGCONT)

    def _running(self) -> ProcessRecord:
        process = self.process
        if process is None or not process.alive:
            raise StackError(f"{self.name} is not running in {self.work_dir}")
        return process

    def _log_tail(self) -> str:
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        except OSError:
            text = ["(no log)"]
        return "\n".join(f"  {line}" for line in text)


def port_open(port: int, address: str = "127.0.0.1") -> bool:
    """Whether something listens on a port of this machine."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
