"""The executors of a Spark application, seen and changed from inside its driver.

All calls go through py4j to classes of Spark that Python has no names for. They were tried on Spark 3.5 and 4.2. With
dynamic allocation on, Spark's standalone backend grants an application as many executors as it asks for, up to
`spark.cores.max`, and replaces those that die. The allocation manager must be kept from deciding by itself: the
actuator starts the application with the same minimum and maximum and an idle timeout that never passes. On Kubernetes
and YARN, an application may ask for executors without dynamic allocation, and Spark replaces those that die.

An executor leaves by *decommissioning*: it takes no more tasks, ends those it has, moves its shuffle files, and exits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import SparkContext


@dataclass(frozen=True, slots=True)
class Executor:
    """One executor that has registered with the driver."""

    id: str
    cores: int
    alive: bool
    running_tasks: int
    finished_tasks: int
    failed_tasks: int
    reason: str = ""
    """Why it is gone."""


class Executors(Protocol):
    """What the launcher asks of Spark."""

    @property
    def application_id(self) -> str:
        """The application they belong to."""

    @property
    def cores(self) -> int:
        """Cores of each executor."""

    @property
    def limit(self) -> int | None:
        """How many executors the application can have; None if their number cannot be changed."""

    def listed(self) -> list[Executor]:
        """Return the executors that are alive, and the newest of those that are gone."""

    def request(self, count: int) -> bool:
        """Ask for `count` executors in all; return whether Spark has taken the request."""

    def decommission(self, ids: Iterable[str]) -> list[str]:
        """Let executors finish their tasks and leave, and do not replace them; return those that Spark let go."""

    def forget_state_places(self, run_id: str) -> None:
        """Let the next batch of a query spread its state partitions over all executors."""


class SparkExecutors:
    """The executors of the application of a `SparkContext`."""

    def __init__(self, context: Any) -> None:
        self._jvm = context._jvm
        self._spark = context._jsc.sc()
        self.application_id = str(context.applicationId)
        conf = context._conf  # getConf() copies all settings, one call each
        self.cores = int(conf.get("spark.executor.cores", "1"))
        # on Kubernetes and YARN, Spark takes requests for executors with dynamic allocation off
        grows = context.master.startswith(("k8s://", "yarn")) or (
            context.master.startswith("spark://") and conf.get("spark.dynamicAllocation.enabled") == "true"
        )
        resizable = grows and conf.get("spark.decommission.enabled") == "true"
        self.limit = int(conf.get("spark.cores.max", "0")) // self.cores if resizable else None

    def listed(self) -> list[Executor]:
        """Return the executors that are alive, and the newest of those that are gone."""
        # as JSON, because each field of a Scala object would be a call of its own
        mapper = self._jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        only_alive = False
        found = json.loads(mapper.writeValueAsString(self._spark.statusStore().executorList(only_alive)))
        return [
            Executor(
                id=one["id"],
                cores=one["totalCores"],
                alive=one["isActive"],
                running_tasks=one["activeTasks"],
                finished_tasks=one["completedTasks"],
                failed_tasks=one["failedTasks"],
                reason=one.get("removeReason") or "",
            )
            for one in found
            if one["id"] != "driver"
        ]

    def request(self, count: int) -> bool:
        """Ask for `count` executors in all; return whether Spark has taken the request."""
        return bool(self._spark.requestTotalExecutors(count, 0, self._jvm.PythonUtils.toScalaMap({})))

    def decommission(self, ids: Iterable[str]) -> list[str]:
        """Let executors finish their tasks and leave, and do not replace them; return those that Spark let go."""
        backend = self._spark.schedulerBackend()
        info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "Tidegate makes the job smaller", self._jvm.scala.Option.empty()
        )
        adjust_total = by_executor = False  # the total was requested before
        return [id_ for id_ in ids if backend.decommissionExecutor(id_, info, adjust_total, by_executor)]

    def forget_state_places(self, run_id: str) -> None:
        """Let the next batch of a query spread its state partitions over all executors.

        Spark runs a stateful task where its state was last: without this, new executors would get no stateful tasks
        for as long as the old ones finish theirs in less than `spark.locality.wait`. Only between two batches: it also
        drops what Spark tracks of the running batch's commits.
        """
        state = self._jvm.org.apache.spark.sql.execution.streaming.state
        # `forDriver`, which makes a coordinator if there is none, has other arguments in each version of Spark
        coordinator = state.StateStoreCoordinatorRef.forExecutor(self._spark.env())
        coordinator.deactivateInstances(self._jvm.java.util.UUID.fromString(run_id))


def active_context() -> SparkContext | None:
    """Return the script's Spark context; None while there is none, or while it is being made."""
    context = SparkContext._active_spark_context
    return None if getattr(context, "_jsc", None) is None else context


def size_limits(context: Any) -> dict[str, int]:
    """Return how many slots the application can be given, and in which steps; nothing if its size is fixed."""
    try:
        executors = SparkExecutors(context)
    except Exception:  # noqa: BLE001 - the script may run on a Spark of another kind, and must go on
        return {}
    if executors.limit is None:
        return {}
    return {"executor_cores": executors.cores, "max_parallelism": executors.limit * executors.cores}
