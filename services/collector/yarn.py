"""A YARN cluster's capacity and applications, as its ResourceManager tells them to a job in one of its queues.

An application's slots are its containers, the driver's left out. The pool is the job's queue: the slots of all Spark
executors in it, and those that there is still room for. Room is what the cluster has left of memory and virtual cores,
and not more than the queue's greatest share (its `absoluteMaxCapacity`) leaves. Queues are those of the
CapacityScheduler; with another scheduler, the pool is the whole cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from services.collector.view import App, ClusterView
from services.collector.worker import WorkerThreads
from tidegate.events.job import JobSpec
from tidegate.launcher.kubernetes.pods import memory_mb
from tidegate.remote.yarn import ENDED, LIVE, PENDING, RUNNING, ResourceManager, containers

log = logging.getLogger(__name__)

PREFIX = "yarn:"
"""How the place of a cluster starts, before the ResourceManager's address."""
_QUEUE = "spark.yarn.queue"
_OVER = {"SUCCEEDED": "FINISHED", "KILLED": "KILLED"}
_ENDS = ("appsCompleted", "appsFailed", "appsKilled")
"""Which of the cluster's metrics count the applications that have ended."""
_OTHERS_CORES = 1
"""Cores of an executor of an application that Tidegate does not know."""

Object = Mapping[str, Any]


@dataclass(frozen=True)
class YarnView:
    """One answer of a ResourceManager."""

    applications: Sequence[Object]
    metrics: Object
    scheduler: Object

    def of(self, spec: JobSpec) -> ClusterView:
        """Return what a job in its queue sees."""
        name = spec.application.conf.get(_QUEUE, "default").rpartition(".")[2]
        queue = next((one for one in _queues(self.scheduler) if one.get("queueName") == name), None)
        if (of_queue := self._of_queues.get(name)) is None:
            elsewhere = {str(app["id"]) for app in self.applications if queue is not None and _leaf(app) != name}
            alive = int(self.metrics["activeNodes"])
            common = ClusterView.of_apps(map(_app, self.applications), more=0, workers_alive=alive, elsewhere=elsewhere)
            of_queue = self._of_queues[name] = common, elsewhere
        common, elsewhere = of_queue
        own = [_app(app, spec.application.executor_cores) for app in self._by_name.get(spec.job_id, ())]
        return common.seen_by(spec.job_id, own, more=self._more(spec, queue), elsewhere=elsewhere)

    @cached_property
    def _of_queues(self) -> dict[str, tuple[ClusterView, set[str]]]:
        """What all jobs of a queue see alike, and the applications of other queues."""
        return {}

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[Object]]:
        found: dict[str, list[Object]] = {}
        for app in self.applications:
            found.setdefault(str(app["name"]), []).append(app)
        return found

    def _more(self, spec: JobSpec, queue: Object | None) -> int | None:
        """Return how many more slots the job could get; None if that cannot be known."""
        app, python = spec.application, spec.application.main_class is None
        conf = {"spark.executor.memoryOverheadFactor": "0.1", **app.conf}
        try:
            memory = memory_mb("executor", app.executor_memory_mb, conf, python=python)
        except ValueError as error:
            log.warning("job %s: its executors have no size, so its pool has none: %s", spec.job_id, error)
            return None
        executor = {"memory": memory, "vCores": app.executor_cores}
        fits = []
        for name, kind in (("memory", "MB"), ("vCores", "VirtualCores")):
            room = float(self.metrics[f"available{kind}"])
            if queue is not None:
                share = float(queue.get("absoluteMaxCapacity", 100.0)) / 100.0
                used = float((queue.get("resourcesUsed") or {}).get(name, 0))
                room = min(room, float(self.metrics[f"total{kind}"]) * share - used)
            fits.append(int(room // executor[name]))
        return max(0, min(fits)) * app.executor_cores


class YarnClusters:
    """Asks ResourceManagers, each in a thread of its own."""

    def __init__(self, timeout_seconds: float, manager: ResourceManager | None = None) -> None:
        self._timeout = timeout_seconds
        self._manager = manager or ResourceManager(timeout_seconds)
        self._workers = WorkerThreads("yarn")
        self._seen: dict[str, _Seen] = {}

    async def view(self, url: str) -> YarnView:
        """Return the state of the cluster; raise an error if its ResourceManager does not tell."""
        return await self._workers.call(url, self._timeout, self._view, url)

    def keep(self, urls: Collection[str]) -> None:
        """Forget all other clusters, and end their threads."""
        self._workers.keep(urls)
        for url in [url for url in list(self._seen) if url not in urls]:
            self._seen.pop(url, None)

    def close(self) -> None:
        """End the threads."""
        self._workers.close()
        self._manager.close()

    def _view(self, url: str) -> YarnView:
        live = self._manager.applications(url, states=LIVE)
        metrics = self._manager.get(url, "metrics")["clusterMetrics"]
        scheduler = self._manager.get(url, "scheduler")["scheduler"]["schedulerInfo"]
        return YarnView(live + self._ended(url, {str(app["id"]) for app in live}, metrics), metrics, scheduler)

    def _ended(self, url: str, live: set[str], metrics: Object) -> list[dict[str, Any]]:
        """Return the ended applications that the cluster remembers, often thousands: asked for when one has ended."""
        ends = [int(metrics[name]) for name in _ENDS]
        seen = self._seen.get(url)
        if seen is None or seen.ends != ends or seen.live - live:
            ended = self._manager.applications(url, states=ENDED)
        else:
            ended = seen.ended
        self._seen[url] = _Seen(live, ends, ended)
        return ended


@dataclass(frozen=True, slots=True)
class _Seen:
    live: set[str]
    ends: list[int]
    ended: list[dict[str, Any]]


def _app(app: Object, cores: int = _OTHERS_CORES) -> App:
    """Return an application as any cluster shows it; each of its executors has so many cores."""
    state = str(app["state"])
    executors = containers(app) if state == RUNNING else 0
    over = _OVER.get(str(app.get("finalStatus")), "FAILED")
    return App.model_validate(
        {
            "id": app["id"],
            "name": app["name"],
            "cores": None if executors is None else executors * cores,
            "state": RUNNING if state == RUNNING else "WAITING" if state in PENDING else over,
            "starttime": app["startedTime"],
        }
    )


def _queues(scheduler: Object) -> Iterator[Object]:
    """Yield the queues below one of the CapacityScheduler; none of another scheduler."""
    for queue in (scheduler.get("queues") or {}).get("queue") or []:
        yield queue
        yield from _queues(queue)


def _leaf(app: Object) -> str:
    return str(app.get("queue", "")).rpartition(".")[2]
