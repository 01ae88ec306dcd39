"""Processes that outlive their starter, identified by more than a pid.

The kernel reuses pids, so a process is recorded with its start time. Each process also carries the stack's id in its
environment, which its children inherit. Before a process is killed, one or the other is checked. Linux only: this reads
/proc.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

MARK = "TIDEGATE_STACK_ID"
# Settings of the user's own Spark, Kafka or Java must not leak into the embedded ones.
_FOREIGN = ("SPARK_", "PYSPARK_", "KAFKA_", "HADOOP_", "JAVA_", "JDK_JAVA_", "_JAVA_", "TIDEGATE_")
# Our own children stay zombies until we wait for them, so we keep their handles.
_children: dict[int, subprocess.Popen[bytes]] = {}


class ProcessRecord(BaseModel):
    """A process by its pid and its start time in clock ticks since boot. Its process group id is its pid."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started_ticks: int
    """-1 if it ended before this could be read."""

    @property
    def alive(self) -> bool:
        """Whether this process is still running; a zombie is not."""
        state, started = _stat(self.pid)
        return bool(state) and started == self.started_ticks

    @property
    def paused(self) -> bool:
        """Whether it is alive but stopped by a signal."""
        return self.alive and _stat(self.pid)[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group; does nothing if the process is gone."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def inherited() -> dict[str, str]:
    """Return the environment without settings of Tidegate and Spark: a process that is started is given its own."""
    foreign = ("TIDEGATE_", "SPARK_", "PYSPARK_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def inherited_by_java(java_home: Path) -> dict[str, str]:
    """Return the environment of a JVM of the stack: without settings of the user's own Spark, Kafka and Java.

    In the locale C, Java opens no file whose path has letters beyond ASCII.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return ours | {"JAVA_HOME": str(java_home), "LC_ALL": "C.UTF-8"}


def spawn(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, stack_id: str) -> ProcessRecord:
    """Start `command` as the leader of a new session and group; append its output to `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            env={**env, MARK: stack_id},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _children[child.pid] = child
    return ProcessRecord(pid=child.pid, started_ticks=_stat(child.pid)[1])


def marked(stack_id: str) -> list[ProcessRecord]:
    """Return all live processes that carry the stack's id, including those launched by Spark's workers."""
    wanted = f"{MARK}={stack_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        state, started = _stat(int(entry.name))
        if wanted in environment and state:
            found.append(ProcessRecord(pid=int(entry.name), started_ticks=started))
    return found


def end_all(
    find: Callable[[], Sequence[ProcessRecord]], grace_seconds: float, limit_seconds: float = 30.0
) -> list[int]:
    """End every process that `find` returns: SIGTERM, and SIGKILL after the grace period. Return those still alive.

    `find` is called repeatedly, because a supervisor among them may start another process meanwhile.
    """
    begin = time.monotonic()
    asked: set[ProcessRecord] = set()
    while alive := [record for record in find() if record.alive]:
        elapsed = time.monotonic() - begin
        if elapsed > limit_seconds:
            return [record.pid for record in alive]
        for record in alive:
            if elapsed > grace_seconds:
                _signal_one(record, signal.SIGKILL)
            elif record not in asked:
                asked.add(record)
                _signal_one(record, signal.SIGTERM)
                # A paused process does not see SIGTERM until it is resumed.
                _signal_one(record, signal.SIGCONT)
        time.sleep(0.05)
    for pid in list(_children):
        _reap(pid)
    return []


def _signal_one(record: ProcessRecord, number: signal.Signals) -> None:
    if record.alive:
        with suppress(ProcessLookupError):
            os.kill(record.pid, number)


def _stat(pid: int) -> tuple[str, int]:
    """Return a process's state letter and start time; `("", -1)` if it is gone or a zombie."""
    _reap(pid)
    try:
        # The command name, in parentheses, may hold any character; the fields after it are plain (proc_pid_stat(5)).
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", -1
    return ("", -1) if fields[0] in "ZX" else (fields[0], int(fields[19]))


def _reap(pid: int) -> None:
    """Reap a child of ours that has ended."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
