"""A Kubernetes cluster's capacity and applications, as a job in one of its namespaces sees them.

Applications are the Spark pods of the namespace, by their labels. An application's slots are those of its executors
that have a node. The pool's slots are those of all executors of the namespace, and those that there is still room for:
how many more executors *of the job's size* would get a node. Room is what ready nodes that take pods have left next to
what the pods of all namespaces request, less what pods request that the scheduler has not judged yet, and not more than
the quotas of the namespace leave. Taints count as if no executor tolerated them.

An account that may not list the cluster's nodes and pods sees applications, but no capacity: it is missing, never 0.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from services.collector.view import App, ClusterView
from services.collector.worker import WorkerThreads
from tidegate.events.job import JobSpec
from tidegate.launcher.control.config_map import JOB_LABEL
from tidegate.launcher.kubernetes.api import FORBIDDEN, Api, ApiRefused
from tidegate.launcher.kubernetes.pods import (
    APP_LABEL,
    ROLE_LABEL,
    SPARK_PODS,
    Object,
    app_name_label,
    application_name,
    is_over,
    labels_of,
    memory_mb,
    name_of,
    node_of,
    overhead_factor,
    phase_of,
    unscheduled,
)

log = logging.getLogger(__name__)

PREFIX = "kubernetes:"
"""How the place of a cluster starts, before the namespace."""
_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})
_ALL = "all namespaces"
_LIVE = "status.phase!=Succeeded,status.phase!=Failed"
_SUFFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SUFFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}
_CORES = re.compile("[0-9]{1,4}")
"""Of an executor; any other text is a mistake of somebody's."""
_QUOTAS = {
    "requests.cpu": "cpu",
    "cpu": "cpu",
    "requests.memory": "memory",
    "memory": "memory",
    "limits.memory": "memory",  # Spark limits the memory of an executor to what it requests
    "pods": "pods",
    "count/pods": "pods",
}
"""Which resource a line of a quota limits."""
_OF_OTHERS = frozenset({"BestEffort", "Terminating", "CrossNamespacePodAffinity", "VolumeAttributesClass"})
"""Scopes of quotas that no executor is in: it has requests, no deadline, and no affinity to pods elsewhere."""


@dataclass(frozen=True, slots=True)
class Room:
    """Amounts of the resources that decide where an executor fits: cores, bytes, pods."""

    cpu: float
    memory: float
    pods: float

    def __sub__(self, other: Room) -> Room:
        return Room(self.cpu - other.cpu, self.memory - other.memory, self.pods - other.pods)

    def __add__(self, other: Room) -> Room:
        return Room(self.cpu + other.cpu, self.memory + other.memory, self.pods + other.pods)

    def fit(self, one: Room) -> int:
        """Return how often `one` fits in."""
        pairs = ((self.cpu, one.cpu), (self.memory, one.memory), (self.pods, one.pods))
        return max(0, math.floor(min((whole / part for whole, part in pairs if part > 0), default=0.0) + 1e-9))


@dataclass(frozen=True, slots=True)
class NodesLeft:
    """What the nodes of a cluster have left, for all its namespaces."""

    nodes: Sequence[Room]
    """By each node that takes pods."""
    waiting: Room
    """What pods request that the scheduler has not judged yet."""

    def fit(self, executor: Room) -> int:
        """Return how many more executors of a size would get a node."""
        taken = max(self.waiting.cpu / executor.cpu if executor.cpu else 0.0, self.waiting.memory / executor.memory)
        return sum(room.fit(executor) for room in self.nodes) - math.ceil(taken - 1e-9)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a namespace can still have."""

    left: NodesLeft
    quotas: Sequence[Room]
    """By each quota of the namespace."""

    def fit(self, executor: Room) -> int:
        """Return how many more executors of a size would get a node."""
        return max(0, min([self.left.fit(executor), *(quota.fit(executor) for quota in self.quotas)]))


@dataclass(frozen=True)
class KubernetesView:
    """One answer about a cluster and one namespace of it."""

    spark_pods: Sequence[Object]
    """Of the namespace."""
    capacity: Capacity | None
    """None if whoever asked may not know it."""

    def of(self, spec: JobSpec) -> ClusterView:
        """Return what a job in the namespace sees."""
        cores = spec.application.executor_cores
        names = {spec.job_id, app_name_label(spec.job_id)}
        ours = {id(pods): pods for name in names for pods in self._by_name.get(name, ())}
        own = [_app(pods, cores, spec.job_id) for pods in ours.values()]
        return self._common.seen_by(spec.job_id, own, more=self._more(spec))

    def _more(self, spec: JobSpec) -> int | None:
        """Return how many more slots the job could get; None if that cannot be known."""
        try:
            executor = _executor(spec)
        except ValueError as error:
            log.warning("job %s: its executors have no size, so its pool has none: %s", spec.job_id, error)
            return None
        if self.capacity is None:
            return None
        if executor not in self._fits:
            self._fits[executor] = self.capacity.fit(executor)
        return self._fits[executor] * spec.application.executor_cores

    @cached_property
    def _common(self) -> ClusterView:
        """What all jobs see alike."""
        nodes = 0 if self.capacity is None else len(self.capacity.left.nodes)
        return ClusterView.of_apps(map(_app, self._by_application), more=0, workers_alive=nodes)

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[Sequence[Object]]]:
        """The pods of each application, by what it is called and by the job that its driver names."""
        found: dict[str, list[Sequence[Object]]] = {}
        for pods in self._by_application:
            first = _first(pods)
            for name in {application_name(first), labels_of(first).get(JOB_LABEL, "")}:
                found.setdefault(name, []).append(pods)
        return found

    @cached_property
    def _by_application(self) -> Collection[Sequence[Object]]:
        found: dict[str, list[Object]] = {}
        for pod in self.spark_pods:
            found.setdefault(labels_of(pod).get(APP_LABEL, name_of(pod)), []).append(pod)
        return found.values()

    @cached_property
    def _fits(self) -> dict[Room, int]:
        """How many more executors of a size would get a node."""
        return {}


class KubernetesClusters:
    """Asks the API server, about each namespace in a thread of its own.

    Nodes, and the pods of all namespaces, are asked for once by all namespaces that ask at the same time.
    """

    def __init__(self, api: Api, timeout_seconds: float) -> None:
        self._api = api
        self._timeout = timeout_seconds
        self._workers = WorkerThreads("kubernetes")
        self._may_not: set[str] = set()
        self._asking: asyncio.Task[NodesLeft | None] | None = None

    async def view(self, namespace: str) -> KubernetesView:
        """Return the state of the cluster, and of a namespace; raise an `OSError` if the API server does not tell."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._workers.call(_ALL, self._timeout, self._nodes_left))
            # Nobody is left to hear of an error if all namespaces have stopped waiting.
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        left = await asyncio.shield(self._asking)
        return await self._workers.call(namespace, self._timeout, self._view, left, namespace)

    def keep(self, namespaces: Collection[str]) -> None:
        """End the threads of all other namespaces."""
        self._workers.keep({*namespaces, _ALL} if namespaces else ())

    def close(self) -> None:
        """End the threads."""
        self._workers.close()
        self._api.close()

    def _nodes_left(self) -> NodesLeft | None:
        nodes = self._allowed("/api/v1/nodes")
        everywhere = None if nodes is None else self._allowed("/api/v1/pods", fieldSelector=_LIVE)
        return None if nodes is None or everywhere is None else nodes_left(nodes, everywhere)

    def _view(self, left: NodesLeft | None, namespace: str) -> KubernetesView:
        base = f"/api/v1/namespaces/{namespace}"
        spark_pods = self._api.listed(f"{base}/pods", labelSelector=SPARK_PODS)
        quotas = None if left is None else self._allowed(f"{base}/resourcequotas")
        if left is None or quotas is None:
            return KubernetesView(spark_pods, None)
        executors = [pod for pod in spark_pods if labels_of(pod)[ROLE_LABEL] == "executor"]
        priorities = {(pod.get("spec") or {}).get("priorityClassName", "") for pod in executors} or {""}
        counted = [_left_of(quota) for quota in quotas if any(_counts(quota, each) for each in priorities)]
        return KubernetesView(spark_pods, Capacity(left, counted))

    def _allowed(self, path: str, **query: str) -> Sequence[Object] | None:
        """Return a list; None, and say so once, if this account may not read it."""
        try:
            found = self._api.listed(path, **query)
        except ApiRefused as error:
            if error.status != FORBIDDEN:
                raise
            if path not in self._may_not:
                self._may_not.add(path)
                log.warning("capacity is missing from the snapshots of jobs on Kubernetes: %s", error)
            return None
        self._may_not.discard(path)
        return found


def nodes_left(nodes: Iterable[Object], pods: Iterable[Object]) -> NodesLeft:
    """Return what nodes have left next to what the pods of all namespaces request."""
    left = {name_of(node): _allocatable(node) for node in nodes if _takes_pods(node)}
    waiting = Room(0.0, 0.0, 0.0)
    for pod in pods:
        node = node_of(pod)
        if node is not None and node in left:
            left[node] -= _requests(pod)
        elif node is None and unscheduled(pod) is None and not is_over(pod):
            waiting += _requests(pod)
    return NodesLeft(list(left.values()), waiting)


def quantity(text: object) -> float:
    """Return a quantity of Kubernetes, such as `100m` or `1.5Gi`, as a number; raise `ValueError` if it is none."""
    match = re.fullmatch(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)([numkKMGTPE]?i?)", str(text).strip())
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity of Kubernetes: {text!r}")
    return float(match[1]) * _SUFFIXES[match[2]]


def _app(pods: Sequence[Object], usual: int = 1, job_id: str | None = None) -> App:
    """Return an application as its pods show it; if it is that of the job that asks, with the job's own name.

    An executor that does not tell its slots has as many as `usual`.
    """
    executors = [pod for pod in pods if labels_of(pod)[ROLE_LABEL] == "executor" and not is_over(pod)]
    drivers = [pod for pod in pods if labels_of(pod)[ROLE_LABEL] == "driver"]
    alive = any(not is_over(pod) for pod in drivers) or bool(executors)
    failed = any(phase_of(pod) == "Failed" for pod in drivers)
    first = _first(pods)
    return App.model_validate(
        {
            "id": labels_of(first).get(APP_LABEL, name_of(first)),
            "name": job_id or application_name(first),
            "cores": sum(_slots(pod, usual) for pod in executors if node_of(pod) is not None),
            "state": "RUNNING" if alive else "FAILED" if failed else "FINISHED",
            "starttime": _created_millis(first),
        }
    )


def _first(pods: Sequence[Object]) -> Object:
    """Return the pod that tells what an application is called: the oldest driver, or the oldest of all."""
    drivers = [pod for pod in pods if labels_of(pod)[ROLE_LABEL] == "driver"]
    return min(drivers or pods, key=_created_millis)


def _slots(pod: Object, usual: int) -> int:
    """Return the slots of an executor: Spark tells it in an environment variable."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        for variable in container.get("env") or []:
            if variable.get("name") == "SPARK_EXECUTOR_CORES" and _CORES.fullmatch(str(variable.get("value"))):
                return int(variable["value"])
    return usual


def _created_millis(pod: Object) -> int:
    created = pod["metadata"].get("creationTimestamp", "1970-01-01T00:00:00Z")
    return int(datetime.fromisoformat(created).timestamp() * 1000)


def _executor(spec: JobSpec) -> Room:
    """Return what one executor of a job requests."""
    app, python = spec.application, spec.application.main_class is None
    conf = {"spark.executor.memoryOverheadFactor": overhead_factor(app.conf, python=python), **app.conf}
    cpu = quantity(app.conf.get("spark.kubernetes.executor.request.cores", app.executor_cores))
    return Room(cpu, memory_mb("executor", app.executor_memory_mb, conf, python=python) * 1024.0**2, 1.0)


def _takes_pods(node: Object) -> bool:
    """Return whether a node is ready, not cordoned, and without taints that keep pods off."""
    spec, conditions = node.get("spec") or {}, (node.get("status") or {}).get("conditions") or []
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    tainted = any(taint.get("effect") in _KEEPS_OFF for taint in spec.get("taints") or [])
    return ready and not spec.get("unschedulable") and not tainted


def _allocatable(node: Object) -> Room:
    found = node["status"].get("allocatable") or {}  # the scheduler, too, takes what is missing for nothing
    return Room(*(quantity(found.get(name, 0)) for name in ("cpu", "memory", "pods")))


def _requests(pod: Object) -> Room:
    """Return what a pod requests of its node: its containers together, or more while an init container runs.

    An init container that is always restarted is a sidecar: it goes on next to everything that starts after it. What
    the pod itself requests counts in place of its containers.
    """
    spec = pod.get("spec") or {}
    overhead, whole = spec.get("overhead") or {}, (spec.get("resources") or {}).get("requests") or {}

    def most(name: str) -> float:
        if name in whole:
            return quantity(whole[name]) + quantity(overhead.get(name, 0))
        sidecars = starting = 0.0
        for one in spec.get("initContainers") or []:
            starting = max(starting, sidecars + _request(one, name))
            if one.get("restartPolicy") == "Always":
                sidecars += _request(one, name)
        running = sidecars + sum(_request(one, name) for one in spec.get("containers") or [])
        return max(running, starting) + quantity(overhead.get(name, 0))

    return Room(most("cpu"), most("memory"), 1.0)


def _request(container: Object, name: str) -> float:
    return quantity(((container.get("resources") or {}).get("requests") or {}).get(name, 0))


def _counts(quota: Object, priority: str) -> bool:
    """Return whether executors of a priority class, or of none (""), count in a quota."""
    spec = quota.get("spec") or {}
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    if not _OF_OTHERS.isdisjoint([*(spec.get("scopes") or []), *(one.get("scopeName") for one in selected)]):
        return False
    return all(_selects(one, priority) for one in selected if one.get("scopeName") == "PriorityClass")


def _selects(expression: Object, priority: str) -> bool:
    values = expression.get("values") or []
    operators = {
        "In": priority in values,
        "NotIn": priority not in values,
        "Exists": priority != "",
        "DoesNotExist": priority == "",
    }
    return operators.get(str(expression.get("operator")), True)


def _left_of(quota: Object) -> Room:
    """Return what a quota leaves; what it does not limit is endless."""
    status = quota.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    left = {"cpu": math.inf, "memory": math.inf, "pods": math.inf}
    for line, name in _QUOTAS.items():
        if line in hard:
            left[name] = min(left[name], quantity(hard[line]) - quantity(used.get(line, 0)))
    return Room(**{name: min(amount, 1e18) for name, amount in left.items()})
