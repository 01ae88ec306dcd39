"""A stateful job on a real cluster: its size changed in every way, its pods and the API server taken away (I4)."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.counting import SCRIPT, CountingJob
from services.actuator.backends import DriverState, Submission
from services.actuator.backends.kubernetes import Kubernetes
from tests.kubernetes.conftest import Namespace, pid_of
from tests.support.wait import wait_until
from tidegate.events.command import CommandKind
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control import Token
from tidegate.launcher.kubernetes import Api
from tidegate.launcher.pods import name_of

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
        self._api = Api()
        shutil.copy(SCRIPT, namespace.folder)
        settings = {
            "backend": "kubernetes",
            "script": str(namespace.folder / SCRIPT.name),
            "kubernetes": namespace.block(),
            "conf": LIGHT,
            "stop_deadline_seconds": 30.0,
        }
        super().__init__(namespace.folder, Kubernetes(self._api), most=6, **(settings | application))
        for folder in namespace.folder.iterdir():
            if folder.is_dir():
                folder.chmod(0o777)

    def executors(self) -> list[str]:
        """Return the names of the executors' pods that run."""
        pods = self.namespace.pods(EXECUTORS)
        return sorted(pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running")

    def delete(self, pod: str) -> None:
        """Delete a pod as somebody with kubectl would who cannot wait."""
        self.namespace.api.delete(f"{self.namespace.path}/pods/{pod}", grace_seconds=0)

    def close(self) -> None:
        """End the drivers that still run, and the connections."""
        super().close()
        self._api.close()


@pytest.fixture
def job(namespace: Namespace) -> Iterator[Job]:
    """A job of two slots that has committed."""
    with _started(Job(namespace)) as job:
        yield job


@contextmanager
def _started(job: Job) -> Iterator[Job]:
    try:
        _show(job.order(CommandKind.START, 2))
        assert job.wait_for_batches(2)
        yield job
    except BaseException:
        _show_logs(job)
        raise
    finally:
        job.close()


def test_a_job_is_changed_in_every_way(job: Job) -> None:
    """Grown and shrunk in place, handed over, restarted and stopped: sizes as ordered, every row counted once."""
    for size, way in ((4, Way.IN_PLACE), (1, Way.IN_PLACE), (3, Way.HANDOVER), (2, Way.RESTART), (4, Way.IN_PLACE)):
        end = job.order(CommandKind.RESCALE, size, way)
        _show(end)
        assert (end.phase, end.parallelism, end.way) == (Phase.VERIFIED, size, way), end
        assert wait_until(lambda size=size: job.granted() == size, 20, 0.2), job.granted()  # type: ignore[misc]
        assert job.wait_for_batches(2)
    _show(job.order(CommandKind.STOP, 0))
    assert wait_until(lambda: not job.executors(), 30)
    assert job.wrong_batches() == []
    assert {pod["status"]["phase"] for pod in job.namespace.pods("spark-role=driver")} <= {"Succeeded", "Failed"}


def test_a_lost_executor_is_replaced(job: Job) -> None:
    """Spark makes another one, the size stays, and no row is lost."""
    first = job.executors()[0]
    job.delete(first)
    assert wait_until(lambda: first not in job.executors() and len(job.executors()) == 2, 60), job.executors()
    assert job.wait_for_batches(2)
    job.order(CommandKind.STOP, 0)
    assert job.wrong_batches() == []


def test_a_lost_driver_is_started_again(job: Job) -> None:
    """Its executors go with it; the next start goes on from the checkpoint, and no row is lost or counted twice."""
    driver = str(job.results[-1].submission_id)
    job.delete(driver)
    assert wait_until(lambda: job.cluster.state(job.spec, driver) is DriverState.ENDED, 30)
    again = job.order(CommandKind.START, 2)
    assert again.submission_id != driver
    assert job.wait_for_batches(2)
    job.order(CommandKind.STOP, 0)
    assert job.wrong_batches() == []


def test_an_api_server_that_is_away_changes_nothing(job: Job) -> None:
    """For 30 s nobody answers: the batches go on, a command under way waits, and nothing is started twice."""
    server = pid_of("kube-apiserver")
    before = len(job.batches())
    os.kill(server, signal.SIGSTOP)
    back = threading.Timer(30.0, os.kill, (server, signal.SIGCONT))
    back.start()
    try:
        assert job.wait_for_batches(5, 25), "the queries need no API server"
    finally:
        back.join()
    print("batches while the API server was away:", len(job.batches()) - before)
    _show(job.order(CommandKind.RESCALE, 4, Way.IN_PLACE))
    stopped = threading.Timer(1.0, os.kill, (server, signal.SIGSTOP))
    stopped.start()
    again = threading.Timer(31.0, os.kill, (server, signal.SIGCONT))
    again.start()
    try:
        end = job.carry_out(CommandKind.RESCALE, 2, Way.RESTART)
    finally:
        again.join()
    _show(end)
    assert end.phase in {Phase.VERIFIED, Phase.ROLLED_BACK, Phase.FAILED}, end
    assert wait_until(lambda: len(job.cluster.live_drivers(job.spec)) <= 1, 60)
    if end.phase is Phase.FAILED:
        job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2)
    job.order(CommandKind.STOP, 0)
    assert job.wrong_batches() == []


def test_a_cordoned_node_grants_fewer(job: Job) -> None:
    """No executor finds a node: the job keeps what it has, and the result says so."""
    api = job.namespace.api
    nodes = [f"/api/v1/nodes/{name_of(node)}" for node in api.listed("/api/v1/nodes")]
    for node in nodes:
        api.merge(node, {"spec": {"unschedulable": True}})
    try:
        end = job.carry_out(CommandKind.RESCALE, 4, Way.IN_PLACE)
    finally:
        for node in nodes:
            api.merge(node, {"spec": {"unschedulable": None}})
    _show(end)
    assert (end.phase, end.parallelism, end.code) == (Phase.VERIFIED, 2, "GRANTED_FEWER"), end
    assert job.wait_for_batches(2)
    time.sleep(5)
    assert len(job.executors()) == 2, "executors that were not granted must not come later"
    job.order(CommandKind.STOP, 0)
    assert job.wrong_batches() == []


def test_a_stale_driver_does_not_write(job: Job) -> None:
    """One of an older token ends before its first write: the fence is in the ConfigMap, and no directory is needed."""
    for _ in range(2):  # the epoch that is stale
        job.order(CommandKind.RESCALE, job.size % 2 + 1, Way.IN_PLACE)
    job.order(CommandKind.RESCALE, 3, Way.RESTART)
    fence = job.control.fence(newest=True)
    assert fence is not None
    stale = job.cluster.submit(Submission(job.spec, Token(fence[0].epoch - 1, 9), 1))
    try:
        assert wait_until(lambda: job.cluster.state(job.spec, stale) is DriverState.ENDED, 120)
        log = job.cluster.log_tail(job.spec, stale, Token(1))
        assert "must not start a query: ConfigMap" in log, log[-2000:]
    finally:
        job.cluster.kill(job.spec, stale)
    assert job.wait_for_batches(2)
    job.order(CommandKind.STOP, 0)
    assert job.wrong_batches() == []


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
