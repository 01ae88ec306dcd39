"""Local `spark-submit`: each driver is a process group of its own on this machine. For laptops and tests.

A submission id is `<pid>-<start tick>` of the group's leader. It stays valid when the actuator ends, so a successor on
the same machine can find and kill the driver; and a new process with the same pid is never taken for the driver.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from services.actuator.backends import LAUNCHER, LOG_BYTES, BackendRefused, DriverState, Submission
from services.actuator.backends.spark_submit import environment, spark_submit
from services.actuator.processes import command_line
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import Token

_PYTHON = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
_SUBMIT = b"org.apache.spark.deploy.SparkSubmit"


class Local:
    """`spark-submit` on this machine. With a `local[…]` master, the parallelism replaces the number of threads."""

    def __init__(self, log_dir: Path | None) -> None:
        self._log_dir = log_dir or Path(tempfile.gettempdir())
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Those not known to have ended: afterwards, another group may get the id."""

    def submit(self, submission: Submission) -> str:
        """Start a driver, return its id."""
        app = submission.spec.application
        master = f"local[{submission.parallelism}]" if app.master.startswith("local") else app.master
        log = self._log_of(submission.spec, submission.token)
        try:
            with open(log, "ab", opener=_own) as out:
                child = subprocess.Popen(
                    [spark_submit(), *submission.submit_args(master)],
                    env=environment() | _PYTHON | app.env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        except OSError as error:
            raise BackendRefused(f"spark-submit of {submission.spec.job_id} ({log}): {error}") from error
        _await_words(child)
        submission_id = f"{child.pid}-{_start_tick(child.pid)}"
        self._children[submission_id] = child
        return submission_id

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return whether any process of the driver's group is alive."""
        del spec
        child = self._children.get(submission_id)
        if child is not None:
            child.poll()  # a dead child keeps its pid until somebody waits for it
        pid, _, tick = submission_id.partition("-")
        if not pid.isdigit() or not tick.isdigit():
            return DriverState.ABSENT
        if _start_tick(int(pid)) == int(tick):
            return DriverState.RUNNING
        if child is not None and _group_alive(int(pid)):
            return DriverState.RUNNING  # the leader is gone; no other process can get the group's id before all are
        self._children.pop(submission_id, None)
        return DriverState.ENDED

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return nothing: there is no cluster to say so."""
        del spec, submission_id
        return ""

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """End the driver's whole group by force; it may have ended already."""
        if self.state(spec, submission_id).alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(submission_id.partition("-")[0]), signal.SIGKILL)

    def applications(self, spec: JobSpec) -> dict[str, str]:
        """Return the drivers of this machine that name the job on their command line and are not the launcher's.

        It finds `spark-submit --name JOB`, and a program run by `python` through the name of its session. It does not
        find a script under `spark-submit` that sets its own name, nor a driver in another container or on another
        machine, even if `master` is a cluster: this backend asks no master.
        """
        return {
            f"{pid}-{_start_tick(pid)}": spec.job_id
            for pid in _processes()
            if _SUBMIT in (words := command_line(pid)) and b"--control-dir" not in words and _named(words, spec.job_id)
        }

    def granted(self, spec: JobSpec, application_id: str) -> None:
        """Return None: this backend asks no master."""
        del spec, application_id

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the ids of all process groups of this machine that run the launcher for the spec's job."""
        wanted = {os.fsencode(LAUNCHER), b"--job-id", os.fsencode(spec.job_id)}
        return frozenset(
            f"{pid}-{_start_tick(pid)}" for pid in _processes() if _leads(pid) and wanted <= set(command_line(pid))
        )

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return the end of the log of a run's driver, as this actuator wrote it."""
        del submission_id
        with self._log_of(spec, token).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            return file.read(LOG_BYTES).decode("utf-8", "replace")

    def _log_of(self, spec: JobSpec, token: Token) -> Path:
        return self._log_dir / f"{spec.job_id}-{token}.log"


def _own(path: str, flags: int) -> int:
    """Open a log for its owner alone, and follow no link: anyone may make one in the folder of temporary files."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _start_tick(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot (field 22 of proc(5) stat); None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _named(words: list[bytes], name: str) -> bool:
    """Return whether a `spark-submit` with this command line gives its application the name."""
    wanted = os.fsencode(name)
    return (b"--name", wanted) in pairwise(words) or b"spark.app.name=" + wanted in words


def _leads(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


def _await_words(child: subprocess.Popen[bytes]) -> None:
    """Wait until a new process shows its command line, by which `live_drivers` finds it.

    `Popen` returns when the kernel has closed the files of the old program, a moment before it sets up the new one's
    command line: until then that is empty.
    """
    deadline = time.monotonic() + 1
    while not any(command_line(child.pid)) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
