"""What the collector makes of the API of Kubernetes: applications, slots, and room for more."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest

from services.collector.clusters import Clusters
from services.collector.kubernetes import KubernetesClusters, KubernetesView, quantity
from services.collector.master import HttpMaster
from services.collector.snapshots import SourceAnswers, snapshot
from services.collector.sources import KafkaAnswer
from services.collector.view import ClusterView
from services.collector.yarn import YarnClusters
from tests.support.clusters import on_kubernetes
from tests.support.counted import CountedList
from tests.support.events import START, job, with_application
from tests.support.fake_kubernetes import FakeKubernetes, fake_kubernetes
from tests.support.fake_yarn import URL, FakeResourceManager
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import ClusterState, Part
from tidegate.launcher.kubernetes.api import ApiUnreachable
from tidegate.remote.yarn import ResourceManager
from tidegate.runtime.poll import wait_until

PODS = "/api/v1/namespaces/jobs/pods"
SPEC = on_kubernetes(job("rates"))
RUN = "tidegate-rates-7-1"


class Cluster:
    """A cluster of one node with 8 cores and 8 GiB, on which the job runs with two executors."""

    def __init__(self, server: FakeKubernetes) -> None:
        self.server = server
        self.node("n1")
        self.spark("driver", "d")
        for number in (1, 2):
            self.spark("executor", f"e{number}", cpu="1", memory="896Mi")
        self._clusters = KubernetesClusters(server.api, 5.0)

    def node(self, name: str, **spec: Any) -> None:
        """Add a node, or change it."""
        status = {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self.server.put(f"/api/v1/nodes/{name}", status=status, spec=spec)

    def pod(self, path: str, *, cpu: str = "0", memory: str = "0", node: str | None = "n1", **fields: Any) -> None:
        """Add a pod."""
        container = {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields.pop("container", {})}
        spec = {"containers": [container], **({} if node is None else {"nodeName": node})}
        self.server.put(path, **{"status": {"phase": "Running"}, "spec": spec} | fields)

    def spark(self, role: str, name: str, app: str = RUN, called: str = "rates", **more: Any) -> None:
        """Add a pod of an application."""
        labels = {"spark-role": role, "spark-app-selector": app, "spark-app-name": called}
        self.pod(f"{PODS}/{name}", metadata={"labels": labels, "creationTimestamp": "2026-03-01T12:00:00Z"}, **more)

    def view(self, spec: JobSpec = SPEC) -> ClusterView:
        """Return what a job sees."""
        return asyncio.run(self._clusters.view("jobs")).of(spec)

    async def views(self, *namespaces: str) -> list[KubernetesView]:
        """Return what several namespaces see at the same time."""
        return await asyncio.gather(*(self._clusters.view(each) for each in namespaces))

    def close(self) -> None:
        """End the thread."""
        self._clusters.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """The cluster."""
    with fake_kubernetes() as server, _closing(Cluster(server)) as cluster:
        yield cluster


@contextmanager
def _closing(cluster: Cluster) -> Iterator[Cluster]:
    try:
        yield cluster
    finally:
        cluster.close()


def test_slots_are_those_in_use_and_those_that_fit(cluster: Cluster) -> None:
    """Two executors run; of 8 cores and 8192 MiB, 6 cores and 6400 MiB are left, for 6 of 1 core and 896 MiB."""
    view = cluster.view()
    assert (view.slots_total, view.slots_used, view.workers_alive) == (8, 2, 1)
    assert view.active[RUN].cores == 2
    assert view.active_by_name["rates"].id == RUN
    cluster.pod("/api/v1/namespaces/web/pods/a", cpu="1500m", memory="1Gi")
    assert cluster.view().slots_total == 2 + 4  # 4.5 cores are left
    cluster.pod("/api/v1/namespaces/web/pods/b", cpu="0", memory="4Gi")
    assert cluster.view().slots_total == 2 + 1  # 1280 MiB are left


def test_the_size_of_an_executor_decides(cluster: Cluster) -> None:
    """What one slot requests follows from the job's settings, by Spark's rules."""
    cores = "spark.kubernetes.executor.request.cores"
    assert cluster.view(with_application(SPEC, conf={cores: "100m"})).slots_total == 2 + 7  # by memory
    two = on_kubernetes(job("rates", executor_cores=2, min_parallelism=2))
    assert cluster.view(two).slots_total == 2 * 2 + 6
    assert cluster.view(with_application(SPEC, conf={cores: "many"})).slots_total is None


@pytest.mark.parametrize(
    "spec", [{"unschedulable": True}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}], ids=["cordoned", "tainted"]
)
def test_a_node_that_takes_no_pods_has_no_room(cluster: Cluster, spec: dict[str, Any]) -> None:
    """What runs on it counts as used, and nothing more fits: the job cannot grow."""
    cluster.node("n1", **spec)
    view = cluster.view()
    assert (view.slots_total, view.slots_used, view.workers_alive) == (2, 2, 0)
    cluster.node("n2")
    assert cluster.view().slots_total == 2 + 8


def test_a_node_that_is_not_ready_has_no_room(cluster: Cluster) -> None:
    """Its pods may come back, but no new ones."""
    cluster.server.put("/api/v1/nodes/n1", status={"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert cluster.view().slots_total == 2


def test_a_node_that_does_not_tell_its_room_has_none(cluster: Cluster) -> None:
    """The scheduler takes that for nothing too; all jobs lost their view of the cluster by it."""
    ready = [{"type": "Ready", "status": "True"}]
    cluster.server.put("/api/v1/nodes/n2", status={"conditions": ready})
    cluster.server.put("/api/v1/nodes/n3", status={"conditions": ready, "allocatable": {"cpu": "8", "memory": "8Gi"}})
    assert cluster.view().slots_total == 8


def test_quotas_limit_the_room(cluster: Cluster) -> None:
    """Of each quota of the namespace, what is left; a quota that has nothing to do with pods does not count."""
    quotas = "/api/v1/namespaces/jobs/resourcequotas"
    cluster.server.put(f"{quotas}/other", status={"hard": {"services": "1"}, "used": {"services": "1"}})
    assert cluster.view().slots_total == 8
    cluster.server.put(f"{quotas}/q", status={"hard": {"requests.cpu": "5"}, "used": {"requests.cpu": "2"}})
    assert cluster.view().slots_total == 2 + 3
    cluster.server.put(f"{quotas}/q", status={"hard": {"pods": "4"}, "used": {"pods": "3"}})
    assert cluster.view().slots_total == 2 + 1


def test_quotas_count_as_spark_asks_for_executors(cluster: Cluster) -> None:
    """An executor has requests, and its limit of memory is its request: quotas of other pods do not count."""
    quotas = "/api/v1/namespaces/jobs/resourcequotas"
    full = {"hard": {"pods": "1"}, "used": {"pods": "1"}}
    for name, scope in (("best", "BestEffort"), ("ends", "Terminating")):
        cluster.server.put(f"{quotas}/{name}", spec={"scopes": [scope]}, status=full)
        expressions = [{"scopeName": scope, "operator": "Exists"}]
        cluster.server.put(f"{quotas}/{name}-2", spec={"scopeSelector": {"matchExpressions": expressions}}, status=full)
    assert cluster.view().slots_total == 8
    memory = {"hard": {"limits.memory": "2688Mi"}, "used": {"limits.memory": "0"}}
    cluster.server.put(f"{quotas}/limits", spec={"scopes": ["NotTerminating", "NotBestEffort"]}, status=memory)
    assert cluster.view().slots_total == 2 + 3
    cluster.server.put(f"{quotas}/count", status={"hard": {"count/pods": "9"}, "used": {"count/pods": "8"}})
    assert cluster.view().slots_total == 2 + 1


@pytest.mark.parametrize("has_it", [False, True])
def test_a_quota_of_a_priority_class_counts_only_for_executors_that_have_it(cluster: Cluster, has_it: bool) -> None:
    """Executors have the class that a pod template or the cluster's default gives them, mostly none."""
    quota = "/api/v1/namespaces/jobs/resourcequotas/q"
    for name in ("e1", "e2"):
        cluster.server.put(f"{PODS}/{name}", spec={"priorityClassName": "high"} if has_it else {})
    for operator, values, counts in (
        ("In", ["high"], has_it),
        ("NotIn", ["high"], not has_it),
        ("Exists", [], has_it),
        ("DoesNotExist", [], not has_it),
    ):
        expressions = [{"scopeName": "PriorityClass", "operator": operator, "values": values}]
        full = {"hard": {"pods": "1"}, "used": {"pods": "1"}}
        cluster.server.put(quota, spec={"scopeSelector": {"matchExpressions": expressions}}, status=full)
        assert cluster.view().slots_total == (2 if counts else 8), operator


def test_namespaces_that_ask_together_share_what_is_the_clusters(cluster: Cluster) -> None:
    """Lists of all nodes and all pods are long; a list of the next round is a new one."""
    views = asyncio.run(cluster.views("jobs", "web", "etl"))
    assert [view.of(SPEC).slots_total for view in views] == [8, 6, 6]
    assert cluster.server.requests.count("GET /api/v1/nodes") == 1
    assert sum(request.startswith("GET /api/v1/pods") for request in cluster.server.requests) == 1
    cluster.pod("/api/v1/namespaces/web/pods/a", cpu="2")
    assert asyncio.run(cluster.views("web"))[0].of(SPEC).slots_total == 4


@pytest.mark.parametrize(
    ("init", "taken"),
    [
        ([("3", None)], 3),  # larger than the container
        ([("1", None), ("1", None)], 2),  # one after the other, and then the container
        ([("1", "Always"), ("1", "Always")], 4),  # both run next to the container
        ([("2", "Always"), ("3", None)], 5),  # the second one next to the first
        ([("3", None), ("2", "Always")], 4),
    ],
)
def test_init_containers_and_sidecars_take_room(
    cluster: Cluster, init: list[tuple[str, str | None]], taken: int
) -> None:
    """As the scheduler counts them; the pod's container requests 2 cores."""
    asked = [{"resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy} for cpu, policy in init]
    container = {"resources": {"requests": {"cpu": "2"}}}
    spec = {"containers": [container], "initContainers": asked, "nodeName": "n1"}
    cluster.pod("/api/v1/namespaces/web/pods/a", spec=spec)
    assert cluster.view().slots_total == 8 - taken


def test_what_a_pod_requests_as_a_whole_counts(cluster: Cluster) -> None:
    """From Kubernetes 1.34 on, a pod may have requests of its own, which count in place of those of its containers."""
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
        "resources": {"requests": {"cpu": "4"}},
        "nodeName": "n1",
    }
    cluster.pod("/api/v1/namespaces/web/pods/a", spec=spec)
    assert cluster.view().slots_total == 8 - 4
    cluster.pod("/api/v1/namespaces/web/pods/a", spec={**spec, "resources": {"requests": {"memory": "4608Mi"}}})
    assert cluster.view().slots_total == 2 + 2  # 1792 MiB are left


def test_pending_pods_take_room(cluster: Cluster) -> None:
    """One that the scheduler has not judged yet will take room; one that fits nowhere takes none."""
    cluster.spark("executor", "e3", cpu="1", memory="896Mi", node=None, status={"phase": "Pending"})
    view = cluster.view()
    assert (view.slots_total, view.slots_used) == (2 + 5, 2)
    nowhere = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    cluster.spark("executor", "e3", cpu="1", memory="896Mi", node=None, status=nowhere)
    assert cluster.view().slots_total == 2 + 6


def test_other_applications_are_seen(cluster: Cluster) -> None:
    """Executors say how many slots they have; an application whose driver is elsewhere is alive by its executors."""
    env = {"env": [{"name": "SPARK_EXECUTOR_CORES", "value": "3"}]}
    cluster.spark("executor", "f1", "spark-1", "clicks", container=env, cpu="3", memory="1Gi")
    for name, phase in (("g", "Succeeded"), ("h", "Failed")):
        cluster.spark("driver", name, f"spark-{name}", "old", status={"phase": phase})
    view = cluster.view()
    assert (view.active["spark-1"].cores, view.active["spark-1"].name) == (3, "clicks")
    assert {id_: app.state for id_, app in view.completed.items()} == {"spark-g": "FINISHED", "spark-h": "FAILED"}
    assert view.slots_used == 5


@pytest.mark.parametrize("told", [{"value": "²"}, {"value": "many"}, {"value": "9" * 8}, {"valueFrom": {}}])
def test_an_executor_that_does_not_tell_its_slots_disturbs_no_job(cluster: Cluster, told: dict[str, Any]) -> None:
    """It counts with one: anybody who may make pods there can call one an executor."""
    cluster.spark("executor", "x", "app-9", "else", container={"env": [{"name": "SPARK_EXECUTOR_CORES", **told}]})
    assert _snapshot(cluster.view()).pool.slots_used == 3


def test_a_name_that_is_no_label_is_known(cluster: Cluster) -> None:
    """Spark shortens and changes names for its labels; the job that asks finds itself."""
    cluster.spark("driver", "x", "spark-x", "my-job-v2")
    assert cluster.view(on_kubernetes(job("my_job.v2"))).active_by_name["my_job.v2"].id == "spark-x"


def test_the_pods_of_a_namespace_are_looked_at_once_for_all_its_jobs(cluster: Cluster) -> None:
    """Each job has its own executors' cores and room for its own size, and hundreds may share a namespace."""
    for number in range(9):
        cluster.spark("driver", f"d-{number}", f"spark-{number}", f"job-{number}")
        cluster.spark("executor", f"e-{number}", f"spark-{number}", f"job-{number}", cpu="100m", memory="1Mi")
    seen = asyncio.run(cluster.views("jobs"))[0]
    view = KubernetesView(CountedList(seen.spark_pods), seen.capacity)
    for number in range(9):
        sizes: Any = {"min_parallelism": 1 + number, "max_parallelism": 4 + 4 * number}
        spec = on_kubernetes(job(f"job-{number}", executor_cores=1 + number, **sizes))
        of_job = view.of(spec)
        assert of_job.active[f"spark-{number}"].cores == 1 + number
        assert of_job.slots_used == 2 + 8 + (1 + number), "an executor of another job that tells no cores has one"
        assert of_job.slots_total is not None
        assert (of_job.slots_total - of_job.slots_used) % (1 + number) == 0
    assert view.spark_pods.passes == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/nodes", "/resourcequotas", r"/v1/pods"])
def test_without_rights_capacity_is_missing(cluster: Cluster, path: str) -> None:
    """An account that may see only its namespace measures the job; capacity is named as missing and is never 0."""
    cluster.server.forbidden = re.compile(f"{path}$")
    view = cluster.view()
    assert (view.slots_total, view.active[RUN].cores) == (None, 2)
    made = _snapshot(view)
    assert (made.state, made.slots_granted, made.pool) == (ClusterState.RUNNING, 2, None)
    assert Part.CAPACITY in made.missing


def test_slots_that_a_node_autoscaler_can_add_count(cluster: Cluster) -> None:
    """The pool has as many as the spec says, or more if there is more room; nobody needs to read the nodes for that."""
    assert [_pool_of(cluster.view(), most) for most in (None, 64, 4)] == [(8, 2), (64, 2), (8, 2)]
    cluster.server.forbidden = re.compile("/nodes$")
    assert [_pool_of(cluster.view(), most) for most in (64, 1)] == [(64, 2), (2, 2)]
    assert Part.CAPACITY not in _snapshot(cluster.view(), SPEC.model_copy(update={"pool_max_slots": 64})).missing


def test_an_api_server_that_is_away_says_nothing(cluster: Cluster) -> None:
    """Then capacity and the job's state are missing, and the job has not stopped because of that."""
    cluster.server.silent = True
    with pytest.raises(ApiUnreachable):
        cluster.view()
    made = _snapshot(None)
    assert (made.state, made.slots_granted, made.pool) == (ClusterState.UNKNOWN, None, None)
    assert {Part.CAPACITY, Part.JOB_STATE} <= set(made.missing)


def test_a_job_without_pods_has_stopped(cluster: Cluster) -> None:
    """No pod has its name, and the API would know: nothing runs, and it has 0 slots."""
    for path in [path for path in cluster.server.objects if path.startswith(PODS)]:
        del cluster.server.objects[path]
    made = _snapshot(cluster.view())
    assert (made.state, made.slots_granted) == (ClusterState.STOPPED, 0)
    assert made.pool is not None
    assert (made.pool.slots_total, made.pool.slots_used) == (8, 0)


def test_the_threads_of_a_place_end_with_its_last_job(cluster: Cluster) -> None:
    """Namespaces come and go, and the collector runs for months."""
    manager = ResourceManager(transport=httpx.MockTransport(FakeResourceManager().answer))
    clusters = Clusters(HttpMaster(1.0), KubernetesClusters(cluster.server.api, 5.0), YarnClusters(5.0, manager))

    def asked() -> set[str]:
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        return {name.removeprefix("collector-") for name in names if name.startswith("collector-")}

    async def ask() -> None:
        places = ["kubernetes:jobs", "kubernetes:more", f"yarn:{URL}"]
        for place in places:
            await clusters.view(place)
        assert asked() == {"kubernetes all namespaces", "kubernetes jobs", "kubernetes more", f"yarn {URL}"}
        clusters.keep({"kubernetes:jobs", "http://master:8080"})
        assert wait_until(lambda: asked() == {"kubernetes all namespaces", "kubernetes jobs"}, 30, 0.01)
        clusters.keep({"http://master:8080"})
        assert wait_until(lambda: not asked(), 30, 0.01)
        await clusters.view("kubernetes:jobs")
        await clusters.close()

    before = set(threading.enumerate())
    asyncio.run(ask())


def test_each_cluster_is_asked_where_it_is(cluster: Cluster) -> None:
    """A place tells the kind of the cluster."""

    async def ask() -> ClusterView:
        clusters = Clusters(HttpMaster(1.0), KubernetesClusters(cluster.server.api, 5.0), YarnClusters(5.0))
        try:
            return (await clusters.view(str(SPEC.application.cluster_place))).of(SPEC)
        finally:
            await clusters.close()

    assert asyncio.run(ask()).slots_used == 2


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("100m", 0.1),
        ("2", 2.0),
        (4, 4.0),
        ("1.5Gi", 1.5 * 2**30),
        ("24479296Ki", 24479296 * 1024.0),
        ("1e3", 1000.0),
        ("128974848", 128974848.0),
        ("3k", 3e3),
    ],
)
def test_quantities_are_read(text: object, amount: float) -> None:
    """All forms of Kubernetes are understood."""
    assert quantity(text) == pytest.approx(amount)


@pytest.mark.parametrize("text", ["", "many", "1Q", "1.2.3"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """It is never taken for 0."""
    with pytest.raises(ValueError, match=r"quantity|could not convert"):
        quantity(text)


def _pool_of(view: ClusterView, most: int | None) -> tuple[int, int]:
    """Return the slots of the pool, all and used, of a job whose spec says how many there can be."""
    pool = _snapshot(view, SPEC.model_copy(update={"pool_max_slots": most})).pool
    return pool.slots_total, pool.slots_used


def _snapshot(view: ClusterView | None, spec: JobSpec = SPEC) -> Any:
    """Return the snapshot of a job whose log does not answer."""
    seen = SourceAnswers(
        sequence=7,
        kafka=KafkaAnswer(None, START + timedelta(seconds=70), {}),
        logs=None,
        cluster=view,
        last_app_id=None if view is None else RUN,
    )
    return snapshot(spec, seen, 60.0)
