"""What the actuator asks of a cluster, and what it submits. Each kind of cluster has one file that answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Protocol

from tidegate import launcher
from tidegate.events.job import JobSpec
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.remote.files import log_directory, log_uri

NEVER = "100000d"
"""An idle timeout that does not pass; Spark counts it in nanoseconds, so it must not be much longer."""

LAUNCHER = Path(launcher.__file__).with_name("__main__.py")
_NONE: Mapping[str, str] = {}
_ASK_FREELY = ("k8s://", "yarn")
"""Masters of which an application may ask for executors at any time."""
_OBJECT_STORES = ("s3a:",)
"""Where a file appears only when it is closed, so that the launcher ships event logs."""
LOG_BYTES = 65_536
"""How much of the end of a driver's log is read to say why it failed."""


_DECOMMISSION = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.shuffleBlocks.enabled": "true",
    "spark.storage.decommission.replicationReattemptInterval": "1s",  # an executor that leaves waits for it
}
"""With which executors leave without a failed task."""
_FORGET_PODS = {"spark.dynamicAllocation.executorIdleTimeout": "5s"}
"""How old a pod without a node must be before Spark deletes it when fewer executors are wanted; without dynamic
allocation it means nothing else (ExecutorPodsAllocator)."""


class DriverState(StrEnum):
    """What the cluster says about a driver."""

    PENDING = "pending"
    """It waits until the cluster has room for it, or looks at it."""
    RUNNING = "running"
    ENDED = "ended"
    ABSENT = "absent"
    """The cluster does not know the driver, or has forgotten it."""

    @property
    def alive(self) -> bool:
        """Whether the driver runs, or may still start to run."""
        return self in (DriverState.PENDING, DriverState.RUNNING)


class BackendUnreachable(RuntimeError):
    """The cluster does not answer; nobody knows what it did."""


class BackendRefused(RuntimeError):
    """The cluster refused."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One start of a job. The spec alone says what to run; the command gives size and name."""

    spec: JobSpec
    token: Token
    parallelism: int
    handover: bool = False
    """The driver warms up and waits until another one hands over to it."""
    check: Callable[[], object] = lambda: None
    """Raises an error if the run must not be started any more: a backend in which it waits asks now and then."""

    def spark_conf(self) -> dict[str, str]:
        """Return the Spark settings of the run; Tidegate's own win over the spec's, except for the checkpoint."""
        app = self.spec.application
        theirs = {name: value for name, value in app.conf.items() if not name.startswith("spark.dynamicAllocation.")}
        return (
            {"spark.sql.streaming.checkpointLocation": _uri(app.checkpoint_location)}
            | theirs
            | {
                "spark.executor.cores": str(app.executor_cores),
                "spark.executor.memory": f"{app.executor_memory_mb}m",
                "spark.driver.memory": f"{app.driver_memory_mb}m",
                "spark.driver.cores": "1",  # no effect in client mode; a 0 in the spec is for the master alone
                **self._size_conf(),
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": log_uri(self._event_log),
                "spark.eventLog.rolling.enabled": "true",
                "spark.eventLog.compress": "true",
                "spark.eventLog.compression.codec": "zstd",
                "spark.tidegate.job_id": self.spec.job_id,
                "spark.tidegate.epoch": str(self.token.epoch),
                "spark.tidegate.run": str(self.token.run),
                "spark.tidegate.application": app.digest,
            }
        )

    def _size_conf(self) -> dict[str, str]:
        """Return the settings with which the run starts at its size, and can be resized in place if the spec allows it.

        An application on a standalone cluster gets as many cores as `spark.cores.max` says, and never more. Only with
        dynamic allocation on, it starts with fewer and can ask for more. Spark's allocation manager then has nothing
        to decide: its minimum is its maximum, and no executor is ever idle for long enough to be removed.

        On Kubernetes and YARN, an application has as many executors as it asks for at any time, and `spark.cores.max`
        means nothing to Spark: there it only tells the launcher how far the run can grow.
        """
        app = self.spec.application
        asks_freely = app.master.startswith(_ASK_FREELY)
        fixed = {"spark.dynamicAllocation.enabled": "false"}
        executors = str(self.parallelism // app.executor_cores)
        instances = {"spark.executor.instances": executors} if asks_freely else {}
        if Way.IN_PLACE not in app.ways or not (asks_freely or app.master.startswith("spark://")):
            return {"spark.cores.max": str(self.parallelism), **fixed, **instances}
        most = {"spark.cores.max": str(max(self.spec.scaling.max_parallelism, self.parallelism))}
        if asks_freely:
            return {**most, **instances, **fixed, **_FORGET_PODS, **_DECOMMISSION}
        return {
            **most,
            "spark.executor.instances": executors,
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.minExecutors": executors,
            "spark.dynamicAllocation.initialExecutors": executors,
            "spark.dynamicAllocation.maxExecutors": executors,
            "spark.dynamicAllocation.executorIdleTimeout": NEVER,
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            **_DECOMMISSION,
        }

    def submit_args(
        self,
        master: str,
        *,
        deploy_mode: str = "client",
        launcher_at: str = str(LAUNCHER),
        conf: Mapping[str, str] = _NONE,
    ) -> list[str]:
        """Return the arguments of `spark-submit`, usually in client mode: the caller decides where the driver runs.

        There, the launcher is at `launcher_at`. `conf` has the settings that only the caller knows; they win.
        """
        args = ["--master", master, "--deploy-mode", deploy_mode, "--name", self.spec.job_id]
        if self.jars:
            args += ["--jars", ",".join(self.jars)]
        if self.py_files:
            args += ["--py-files", ",".join(self.py_files)]
        for name, value in sorted({**self.spark_conf(), **conf}.items()):
            args += ["--conf", f"{name}={value}"]
        return [*args, launcher_at, *self.launcher_args()]

    @property
    def jars(self) -> tuple[str, ...]:
        """The jars on the class path of driver and executors: a main class is in one of them."""
        app = self.spec.application
        own = app.jars if app.main_class is None else (app.script, *app.jars)
        return self._with(own, "spark.jars")

    @property
    def py_files(self) -> tuple[str, ...]:
        """The Python files of driver and executors."""
        return self._with(self.spec.application.py_files, "spark.submit.pyFiles")

    def _with(self, files: tuple[str, ...], name: str) -> tuple[str, ...]:
        """Return files and those of a setting: `spark-submit` does not read the setting if it is given files."""
        listed = self.spec.application.conf.get(name, "").split(",")
        return tuple(dict.fromkeys([*files, *(file.strip() for file in listed if file.strip())]))

    def launcher_args(self) -> list[str]:
        """Return the launcher's arguments: which run it is, and the user's program with its own arguments."""
        app = self.spec.application
        args = ["--control-dir", app.control_place, "--job-id", self.spec.job_id]
        args += ["--epoch", str(self.token.epoch), "--run", str(self.token.run)]
        args += ["--parallelism", str(self.parallelism), *(["--handover"] if self.handover else [])]
        if self._event_log.startswith(_OBJECT_STORES):
            args += ["--event-log", self._event_log]
        if app.main_class is not None:
            args += ["--main-class", app.main_class]
        return [*args, app.script, *app.args]

    @property
    def _event_log(self) -> str:
        return _uri(log_directory(self.spec.application.event_log_dir))


class Backend(Protocol):
    """A cluster that runs drivers."""

    def submit(self, submission: Submission) -> str:
        """Start a driver, return its id. After `BackendUnreachable` it may have been started or not."""

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the cluster says about a driver."""

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return what the cluster says hinders a driver, or has ended it; an empty text if it says nothing."""

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """End a driver by force; it may have ended already."""

    def applications(self, spec: JobSpec) -> Mapping[str, str]:
        """Return the names, by id, of all applications that hold or wait for slots, no matter who started them."""

    def granted(self, spec: JobSpec, application_id: str) -> int | None:
        """Return how many task slots the cluster has granted to an application; None if it does not say."""

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the ids of all drivers that run or may run, no matter who started them."""

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return the end of the log of a run's driver, at most `LOG_BYTES`; an empty text if there is none."""


@cache
def launcher_files() -> dict[str, str]:
    """Return the text of each file of the launcher, by its path below the folder that makes `tidegate` importable."""
    package = LAUNCHER.parent.parent
    sources = (path for path in LAUNCHER.parent.rglob("*") if path.suffix in {".py", ".java"})
    paths = [package / "__init__.py", *sorted(sources)]
    return {f"tidegate/{path.relative_to(package)}": path.read_text(encoding="utf-8") for path in paths}


def _uri(path: str) -> str:
    """Return an absolute path as a URI: without a scheme, Spark takes it for a path on its default file system."""
    return f"file://{path}" if path.startswith("/") else path
