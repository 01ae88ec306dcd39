"""Drivers that the real Spark operator starts: the contract of backends, and a job changed in every way (I4).

The operator runs as a process of this machine, without its webhook. TIDEGATE_SPARK_OPERATOR is the folder of its
sources, of version 2.4 or newer, in which it was built:

    git clone --branch v2.5.2 https://github.com/kubeflow/spark-operator && cd spark-operator
    go build -o bin/spark-operator ./cmd/operator
    export TIDEGATE_SPARK_OPERATOR=$PWD

Its CustomResourceDefinitions stay in the cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pyspark
import pytest

from services.actuator.backends import DriverState, Submission
from services.actuator.backends.spark_application import path_of
from tests.contract.test_backends import TestBackend as ContractOfBackends
from tests.kubernetes.conftest import SPARK_OPERATOR, Namespace, new_namespace
from tests.kubernetes.test_backend import RealCluster
from tests.kubernetes.test_job import (
    Job,
    job,
    test_a_job_is_changed_in_every_way,
    test_a_lost_driver_is_started_again,
    test_a_stale_driver_does_not_write,
    test_a_stopped_job_leaves_nothing,
    test_a_wrong_image_can_be_corrected,
)
from tests.support.kubectl import Kubectl
from tidegate.events.command import CommandKind
from tidegate.events.job import KubernetesPods
from tidegate.launcher.control.files import Token
from tidegate.launcher.kubernetes.api import Api
from tidegate.launcher.kubernetes.pods import name_of
from tidegate.runtime.poll import wait_until

__all__ = [
    "job",
    "test_a_job_is_changed_in_every_way",
    "test_a_lost_driver_is_started_again",
    "test_a_stale_driver_does_not_write",
    "test_a_stopped_job_leaves_nothing",
    "test_a_wrong_image_can_be_corrected",
]

pytestmark = pytest.mark.timeout(600)


class SparkOperator:
    """The operator, for all namespaces."""

    def __init__(self, log: Path) -> None:
        self._folder, self._log = Path(os.environ[SPARK_OPERATOR]), log
        self._process: subprocess.Popen[bytes] | None = None
        self._program = self._folder / "bin" / "spark-operator"
        if not self._program.is_file():
            raise RuntimeError(
                f"{SPARK_OPERATOR}: no {self._program}; tests/kubernetes/test_spark_operator.py tells how"
            )
        definitions = str(self._folder / "config" / "crd" / "bases")
        kubectl = Kubectl("default")
        kubectl("apply", "--server-side", "--force-conflicts", "--filename", definitions, seconds=120)
        # an operator that does not find its definitions ends at once
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "--filename", definitions, seconds=90)

    def start(self) -> None:
        """Start it as its image does, with this machine's Spark for `spark-submit`."""
        api = Api()
        server = urlsplit(api.access.server)
        api.close()
        own = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
        own |= {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
        own |= {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        # spark-submit hands the name of this machine's Python on to the driver's pod, where there is none of that name
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        asked = ["controller", "start", "--enable-ui-service=false", "--health-probe-bind-address=0"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *asked], env=kept | own, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        """End it, and what it runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    @property
    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text("utf-8", "replace")[-6000:]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkOperator]:
    """The operator, which runs."""
    made = SparkOperator(tmp_path_factory.mktemp("operator") / "log")
    made.start()
    try:
        yield made
    finally:
        made.stop()
        print(made.said)


class OperatedCluster(RealCluster):
    """A namespace in which the operator starts the drivers."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace)
        app = self.spec.application
        assert app.kubernetes is not None
        changed = app.model_copy(update={"kubernetes": _operated(app.kubernetes)})
        self.spec = self.spec.model_copy(update={"application": changed})

    def arguments(self, submission_id: str) -> list[str]:
        """Return the arguments of the pod's container; none before the operator has made it."""
        there = {name_of(pod) for pod in self._namespace.pods()}
        return super().arguments(submission_id) if submission_id.rpartition("/")[2] in there else []

    def refuse(self) -> None:
        """Set a quota that leaves no SparkApplication."""
        self.set_quota("count/sparkapplications.sparkoperator.k8s.io")


@pytest.fixture
def cluster(namespace: Namespace, operator: SparkOperator) -> Iterator[OperatedCluster]:
    """The cluster."""
    del operator
    made = OperatedCluster(namespace)
    yield made
    made.close()


@pytest.mark.timeout(240)
class TestBackendOnSparkOperator(ContractOfBackends):
    """The contract of backends."""


@pytest.fixture(scope="module")
def only_job(operator: SparkOperator) -> Iterator[Job]:
    """The one job of the tests that follow, and of those that are taken over from `test_job`."""
    del operator
    with new_namespace() as namespace, closing(Job(namespace, kubernetes=_operated(namespace.block()))) as made:
        yield made


def test_deleting_the_object_ends_the_job(job: Job) -> None:
    """Kubernetes deletes driver and executors with it; the job is seen to have ended, and a start goes on."""
    (driver,) = job.cluster.live_drivers(job.spec)
    _delete(job, driver)
    assert wait_until(lambda: job.cluster.state(job.spec, driver) is DriverState.ENDED, 90)
    assert job.cluster.live_drivers(job.spec) == frozenset()
    assert wait_until(lambda: job.cluster.applications(job.spec) == {}, 60), "executors may still write"
    assert job.order(CommandKind.START, 2).submission_id != driver


def test_an_operator_that_is_away_is_named(job: Job, operator: SparkOperator) -> None:
    """A run that nobody submits is pending, and the sentence says why; the job that runs does not need the operator."""
    with _away(operator):
        waiting = job.cluster.submit(Submission(job.spec, Token(0, 1), 1))
        try:
            assert job.wait_for_batches(3)
            assert job.cluster.state(job.spec, waiting) is DriverState.PENDING
            assert waiting in job.cluster.live_drivers(job.spec)
            said = job.cluster.reason(job.spec, waiting)
            print(said)
            assert "The Spark operator has not looked at SparkApplication" in said
        finally:
            job.cluster.kill(job.spec, waiting)
        assert job.cluster.state(job.spec, waiting) is DriverState.ENDED


def test_what_the_operator_says_is_the_reason(job: Job) -> None:
    """`spark-submit` fails in the operator: the run has ended, with the error in the operator's words."""
    app = job.spec.application
    wrong = app.model_copy(update={"conf": app.conf | {"spark.kubernetes.driver.request.cores": "many"}})
    spec = job.spec.model_copy(update={"application": wrong})
    driver = job.cluster.submit(Submission(spec, Token(0, 2), 1))
    try:
        assert wait_until(lambda: job.cluster.state(spec, driver) is DriverState.ENDED, 90)
        said = job.cluster.reason(spec, driver)
        print(said)
        assert "The Spark operator says" in said
        assert "quantities must match" in said
    finally:
        job.cluster.kill(spec, driver)


@contextmanager
def _away(operator: SparkOperator) -> Iterator[None]:
    """Have no operator."""
    operator.stop()
    try:
        yield
    finally:
        operator.start()


def _operated(block: KubernetesPods) -> KubernetesPods:
    """Return a block `kubernetes` whose drivers the operator starts."""
    return block.model_copy(update={"spark_application": {}})


def _delete(job: Job, driver: str) -> None:
    """Delete a driver's SparkApplication, as somebody with kubectl would."""
    path = path_of(job.namespace.name, driver.rpartition("/")[2])
    assert job.namespace.api.delete(path, grace_seconds=30)
