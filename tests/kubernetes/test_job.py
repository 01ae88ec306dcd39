"""A stateful job on a real cluster: its size changed in every way, its pods and the API server taken away (I4)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from bench.counting import SCRIPT, CountingJob
from services.actuator.backends import DriverState, Submission
from services.actuator.backends.kubernetes import Kubernetes
from services.collector.kubernetes import KubernetesClusters
from tests.kubernetes.conftest import ACTUATOR, COLLECTOR, COLLECTOR_EVERYWHERE, Namespace, new_namespace, pid_of
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.launcher.kubernetes.pods import name_of
from tidegate.runtime.poll import wait_until

LIGHT = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.kubernetes.driver.request.cores": "100m",
    "spark.kubernetes.executor.request.cores": "100m",
}
EXECUTORS = "spark-role=executor"

pytestmark = pytest.mark.timeout(600)


class Job(CountingJob):
    """The job in pods; its control files are in a ConfigMap."""

    def __init__(self, namespace: Namespace, **application: Any) -> None:
        self.namespace = namespace
        api = namespace.account("actuator", ACTUATOR)
        self._clusters = KubernetesClusters(namespace.account("collector", COLLECTOR, COLLECTOR_EVERYWHERE), 10.0)
        shutil.copy(SCRIPT, namespace.folder)
        settings: dict[str, Any] = {
            "backend": "kubernetes",
            "script": str(namespace.folder / SCRIPT.name),
            "kubernetes": namespace.block(),
            "conf": LIGHT,
        }
        super().__init__(namespace.folder, Kubernetes(api), most=6, api=api, **(settings | application))
        for folder in namespace.folder.iterdir():
            if folder.is_dir():
                folder.chmod(0o777)

    def executors(self) -> list[str]:
        """Return the names of the executors' pods that run."""
        pods = self.namespace.pods(EXECUTORS)
        return sorted(pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running")

    def delete(self, pod: str) -> None:
        """Delete a pod, as somebody with kubectl would."""
        self.namespace.api.delete(f"{self.namespace.path}/pods/{pod.rpartition('/')[2]}", grace_seconds=1)

    def seen(self) -> int | None:
        """Return the slots of the job as the collector sees them."""
        view = asyncio.run(self._clusters.view(self.namespace.name)).of(self.spec)
        assert view.slots_total is not None
        return view.active_by_name[self.spec.job_id].cores

    def close(self) -> None:
        """End the drivers that still run, and the connections."""
        super().close()
        self._clusters.close()


@pytest.fixture(scope="module")
def only_job() -> Iterator[Job]:
    """The one job of all tests: a start takes longer than most of them."""
    with new_namespace() as namespace, closing(Job(namespace)) as job:
        yield job


@pytest.fixture
def job(only_job: Job) -> Iterator[Job]:
    """A job of two slots that has committed; afterwards every row has been counted once."""
    try:
        if not only_job.cluster.live_drivers(only_job.spec):
            _show(only_job.order(CommandKind.START, 2))
        elif only_job.size != 2:
            _show(only_job.order(CommandKind.RESCALE, 2, Way.IN_PLACE))
        assert only_job.wait_for_batches(2)
        yield only_job
        assert only_job.wait_for_batches(2)
        assert only_job.wrong_batches() == []
    except BaseException:
        _show_logs(only_job)
        raise


def test_a_job_is_changed_in_every_way(job: Job) -> None:
    """Grown and shrunk in place, handed over and restarted: sizes as ordered, and seen so by actuator and collector."""
    for size, way in ((4, Way.IN_PLACE), (1, Way.IN_PLACE), (3, Way.HANDOVER), (2, Way.RESTART)):
        end = job.order(CommandKind.RESCALE, size, way)
        _show(end)
        assert (end.phase, end.parallelism, end.way) == (Phase.VERIFIED, size, way), end
        assert wait_until(partial(_has, job, size), 20, 0.2), (job.granted(), job.seen())
        assert job.wait_for_batches(2)


def test_a_stopped_job_leaves_nothing(job: Job) -> None:
    """It ends at a batch boundary; its executors go, and a start goes on from the checkpoint."""
    job.order(CommandKind.STOP, 0)
    stopped = next(result for result in reversed(job.results) if result.phase is Phase.STOPPED)
    _show(stopped)
    assert stopped.details["clean"], stopped
    assert wait_until(lambda: not job.executors(), 30)
    assert job.cluster.live_drivers(job.spec) == frozenset()
    assert job.cluster.applications(job.spec) == {}
    _show(job.order(CommandKind.START, 2))


def test_a_lost_executor_is_replaced(job: Job) -> None:
    """Spark makes another one, the size stays, and no row is lost."""
    first = job.executors()[0]
    job.delete(first)
    assert wait_until(lambda: first not in job.executors() and len(job.executors()) == 2, 60), job.executors()


def test_a_lost_driver_is_started_again(job: Job) -> None:
    """Its executors go with it; the next start goes on from the checkpoint, and no row is lost or counted twice."""
    (driver,) = job.cluster.live_drivers(job.spec)
    job.delete(driver)
    assert wait_until(lambda: job.cluster.state(job.spec, driver) is DriverState.ENDED, 30)
    assert wait_until(lambda: job.cluster.applications(job.spec) == {}, 30), "executors may still write"
    again = job.order(CommandKind.START, 2)
    _show(again)
    assert again.submission_id != driver


def test_a_wrong_image_can_be_corrected(job: Job) -> None:
    """A start whose driver never arrives leaves no pod that looks as if it started; the next one is carried out."""
    right, app = job.spec, job.spec.application
    assert app.kubernetes is not None
    pods = app.kubernetes.model_copy(update={"image": "127.0.0.1:1/no/such:image"})
    wrong = app.model_copy(update={"kubernetes": pods, "start_deadline_seconds": 10.0})
    job.order(CommandKind.STOP, 0)
    job.spec = right.model_copy(update={"application": wrong})
    try:
        end = job.carry_out(CommandKind.START, 2)
    finally:
        job.spec = right
    print(end.sentence)
    assert (end.phase, end.code) == (Phase.FAILED, "NOT_VERIFIED")
    assert end.sentence.endswith("The driver was ended.")
    assert job.cluster.live_drivers(right) == frozenset()
    _show(job.order(CommandKind.START, 2))


def test_queries_need_no_api_server(job: Job) -> None:
    """For 30 s nobody answers: the batches go on, and afterwards the size can be changed in place."""
    before = len(job.batches())
    with _away(30.0):
        assert job.wait_for_batches(5, 25)
    print("batches while the API server was away:", len(job.batches()) - before)
    _show(job.order(CommandKind.RESCALE, 3, Way.IN_PLACE))


def test_a_restart_survives_an_api_server_that_is_away(job: Job) -> None:
    """It goes away for 30 s in the middle of a restart: the command waits for it, and never are there two drivers."""
    with _away(30.0, after=1.0):
        end = job.carry_out(CommandKind.RESCALE, 1, Way.RESTART)
    _show(end)
    assert (end.phase, end.parallelism) == (Phase.VERIFIED, 1), end
    assert len(job.cluster.live_drivers(job.spec)) == 1


@contextmanager
def _cordoned(job: Job) -> Iterator[Callable[[], None]]:
    """Let no new pod find a node; the function that it gives ends that, as its end does."""
    api = job.namespace.api
    nodes = [f"/api/v1/nodes/{name_of(node)}" for node in api.listed("/api/v1/nodes")]

    def mark(unschedulable: bool | None) -> None:
        for node in nodes:
            api.merge(node, {"spec": {"unschedulable": unschedulable}})

    mark(True)
    try:
        yield lambda: mark(None)
    finally:
        mark(None)


def test_a_node_that_is_added_for_waiting_executors_is_waited_for(job: Job) -> None:
    """As with a node autoscaler: the pool may grow, and the node comes half a minute after the pods."""
    plain = job.spec
    job.spec = plain.model_copy(update={"pool_max_slots": 64})
    try:
        with _cordoned(job) as uncordon:
            timer = threading.Timer(30.0, uncordon)
            timer.start()
            try:
                end = job.carry_out(CommandKind.RESCALE, 4, Way.IN_PLACE)
            finally:
                timer.cancel()
                timer.join()
    finally:
        job.spec = plain
    _show(end)
    assert (end.phase, end.parallelism, end.code) == (Phase.VERIFIED, 4, "OK"), end
    assert end.delay_seconds is not None
    assert end.delay_seconds > 25


def test_a_cordoned_node_grants_fewer(job: Job) -> None:
    """No executor finds a node: the job keeps what it has, and the result says so."""
    with _cordoned(job):
        end = job.carry_out(CommandKind.RESCALE, 4, Way.IN_PLACE)
        assert wait_until(lambda: len(job.executors()) == 2, 15), "executors that were not granted must not come later"
    _show(end)
    assert (end.phase, end.parallelism, end.code) == (Phase.VERIFIED, 2, "GRANTED_FEWER"), end
    time.sleep(5)
    assert len(job.executors()) == 2


def test_a_stale_driver_does_not_write(job: Job) -> None:
    """One of an older token ends before its first write: the fence is in the ConfigMap, and no directory is needed."""
    fence = job.control.fence(newest=True)
    assert fence is not None
    stale = job.cluster.submit(Submission(job.spec, Token(fence[0].epoch - 1, 9), 1))
    try:
        assert wait_until(lambda: job.cluster.state(job.spec, stale) is DriverState.ENDED, 120)
        log = job.cluster.log_tail(job.spec, stale, Token(1))
        assert "must not start a query: ConfigMap" in log, log[-2000:]
    finally:
        job.cluster.kill(job.spec, stale)


def _has(job: Job, size: int) -> bool:
    """Whether actuator and collector see the job at a size."""
    return job.granted() == job.seen() == size


@contextmanager
def _away(seconds: float, after: float = 0.0) -> Iterator[None]:
    """Have the API server answer nobody for so long. A process of its own sees to its return, whatever happens here."""
    server = pid_of("kube-apiserver")
    script = f"sleep {after}; kill -STOP {server}; sleep {seconds}; kill -CONT {server}"
    away = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
    try:
        yield
    finally:
        away.wait(after + seconds + 10)


def _show(end: ActionResult) -> None:
    """Print what a command took, for the record."""
    print(
        f"{end.kind} to {end.parallelism} {end.way or ''}: {end.phase} delay {end.delay_seconds} outage"
        f" {end.outage_seconds} downtime {end.downtime_seconds} {end.details}"
    )


def _show_logs(job: Job) -> None:
    for result in job.results[-12:]:
        print(result.phase, result.sentence)
    for pod in job.namespace.pods("spark-role=driver"):
        name = pod["metadata"]["name"]
        print(name, pod["status"], job.cluster.log_tail(job.spec, name, Token(1))[-3000:])
