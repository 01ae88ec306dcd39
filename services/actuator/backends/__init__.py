"""What the actuator asks of a cluster. One file per kind of cluster; only these five questions are asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tidegate import launcher
from tidegate.events.job import JobSpec
from tidegate.launcher.control import Token

LAUNCHER = Path(launcher.__file__).with_name("__main__.py")


class DriverState(StrEnum):
    """What the cluster says of a driver."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    ABSENT = "absent"
    """The cluster does not know the driver (any more)."""

    @property
    def alive(self) -> bool:
        """Whether the driver may run, now or later."""
        return self in (DriverState.PENDING, DriverState.RUNNING)


class BackendUnreachable(RuntimeError):
    """The cluster does not answer; nothing is known of what it did."""


class BackendRefused(RuntimeError):
    """The cluster answered that it will not do it."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One start of a job: what to run is the spec's alone, the size and the name are the command's."""

    spec: JobSpec
    token: Token
    parallelism: int

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings of the run; those that Tidegate owns win over the spec's."""
        app = self.spec.application
        return app.conf | {
            "spark.executor.cores": str(app.executor_cores),
            "spark.executor.memory": f"{app.executor_memory_mb}m",
            "spark.driver.memory": f"{app.driver_memory_mb}m",
            "spark.driver.cores": "1",  # of no meaning in client mode, but 0, which the master takes, is refused here
            "spark.cores.max": str(self.parallelism),
            "spark.dynamicAllocation.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": _uri(app.event_log_dir),
            "spark.eventLog.rolling.enabled": "true",
            "spark.eventLog.compress": "true",
            "spark.eventLog.compression.codec": "zstd",
            "spark.tidegate.job_id": self.spec.job_id,
            "spark.tidegate.epoch": str(self.token.epoch),
            "spark.tidegate.run": str(self.token.run),
        }

    def submit_args(self, master: str) -> list[str]:
        """Return the arguments of `spark-submit` (client mode: the caller decides where the driver stands)."""
        app = self.spec.application
        args = ["--master", master, "--deploy-mode", "client", "--name", self.spec.job_id]
        if app.jars:
            args += ["--jars", ",".join(app.jars)]
        if app.py_files:
            args += ["--py-files", ",".join(app.py_files)]
        for name, value in sorted(self.spark_conf().items()):
            args += ["--conf", f"{name}={value}"]
        args += [str(LAUNCHER), "--control-dir", app.control_dir, "--job-id", self.spec.job_id]
        args += ["--epoch", str(self.token.epoch), "--run", str(self.token.run)]
        return [*args, "--parallelism", str(self.parallelism), app.script, *app.args]


class Backend(Protocol):
    """A cluster that runs drivers."""

    def submit(self, run: Submission) -> str:
        """Start a driver, return its id; `BackendUnreachable` leaves open whether it was started."""
        ...

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the cluster says of a driver."""
        ...

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """End a driver by force; ending one that has ended is fine."""
        ...

    def applications(self, spec: JobSpec) -> Mapping[str, str]:
        """Return the names, by id, of all applications of the cluster, whosesoever, that hold or wait for slots."""
        ...

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the ids of all drivers of the cluster, whosesoever, that may run."""
        ...


def python_env() -> dict[str, str]:
    """Return the environment that makes a local driver use this very interpreter."""
    return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def _uri(path: str) -> str:
    return path if "://" in path or path.startswith("file:") else f"file://{path}"
