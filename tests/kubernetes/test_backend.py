"""The contract of backends and of stores on the real API server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from services.actuator.backends import Submission
from services.actuator.backends.kubernetes import Kubernetes
from services.collector.kubernetes import KubernetesClusters
from tests.contract.test_backends import TestBackend as ContractOfBackends
from tests.contract.test_stores import Open
from tests.contract.test_stores import TestStore as ContractOfStores
from tests.kubernetes.conftest import IMAGE, Namespace
from tests.support.clusters import SAID
from tests.support.events import job
from tidegate.events.job import Application, JobSpec
from tidegate.launcher.control.files import Token
from tidegate.launcher.control.store import store_at
from tidegate.launcher.kubernetes.access import ApiAccess
from tidegate.launcher.kubernetes.api import Api
from tidegate.runtime.poll import wait_until

STANDS_IN = f"echo '{SAID}'; while ! [ -e {{}}/${{{{TIDEGATE_SUBMISSION_ID##*/}}}} ]; do sleep 0.1; done"
"""What a driver's container runs in place of Spark."""


class RealCluster:
    """A namespace whose drivers run until a file tells them to end."""

    names_drivers = True

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        container = {
            "name": "spark-kubernetes-driver",
            "command": ["/bin/sh", "-c", STANDS_IN.format(namespace.folder)],
        }
        block = namespace.block(spec={"containers": [container], "terminationGracePeriodSeconds": 1})
        fields = job("rates").application.model_dump(include={"script", "checkpoint_location", "event_log_dir"})
        small = {"spark.kubernetes.driver.request.cores": "10m"}
        app = Application(**fields, backend="kubernetes", kubernetes=block, conf=small)
        self.spec: JobSpec = job("rates").model_copy(update={"application": app})
        self._api = Api()
        self.backend = Kubernetes(self._api)

    def arguments(self, submission_id: str) -> list[str]:
        """Return the arguments of the pod's container."""
        found = self._namespace.api.get(f"{self._namespace.path}/pods/{submission_id.rpartition('/')[2]}")
        assert found is not None
        words: list[str] = found["spec"]["containers"][0]["args"]
        return words

    def end(self, submission_id: str) -> None:
        """Let the container end."""
        (self._namespace.folder / submission_id.rpartition("/")[2]).touch()

    def start_foreign(self, name: str) -> str:
        """Start a pod that looks like somebody's executor; return when it has a node."""
        labels = {"spark-app-selector": "spark-9", "spark-app-name": name, "spark-role": "executor"}
        container = {"name": "c", "image": IMAGE, "command": ["/bin/sh", "-c", "sleep 600"]}
        spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        self._namespace.create("pods", {"metadata": {"name": "theirs", "labels": labels}, "spec": spec})
        assert wait_until(lambda: self.backend.granted(self.spec, "spark-9"), 20, 0.1)
        return "spark-9"

    def end_foreign(self, application_id: str) -> None:
        """Delete it."""
        del application_id
        self._namespace.api.delete(f"{self._namespace.path}/pods/theirs", grace_seconds=1)
        assert wait_until(lambda: not self._namespace.pods("spark-role=executor"), 20, 0.1)

    def refuse(self) -> None:
        """Set a quota that leaves no pod."""
        self.set_quota("pods")

    def set_quota(self, kind: str) -> None:
        """Set a quota that leaves nothing of a kind."""
        self._namespace.create("resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": {kind: "0"}}})
        path = f"{self._namespace.path}/resourcequotas/none"
        # the controller looks for new kinds every 30 s
        assert wait_until(lambda: ((self._namespace.api.get(path) or {}).get("status") or {}).get("used"), 60, 0.2)

    def be_silent(self) -> None:
        """Go where nobody answers."""
        self._api.close()
        self._api._found = ApiAccess("http://127.0.0.1:1", "the test")

    def close(self) -> None:
        """Close the connections."""
        self._api.close()


@pytest.fixture
def cluster(namespace: Namespace) -> Iterator[RealCluster]:
    """The cluster."""
    made = RealCluster(namespace)
    yield made
    made.close()


@pytest.mark.timeout(240)
class TestBackendOnKubernetes(ContractOfBackends):
    """The contract of backends."""


@pytest.fixture
def stores(namespace: Namespace) -> Open:
    """Stores in the namespace."""
    return lambda job_id="rates": store_at(f"configmap:{namespace.name}", job_id, api=namespace.api)


class TestStoreOnKubernetes(ContractOfStores):
    """The contract of stores."""


def test_the_cluster_has_room(cluster: RealCluster) -> None:
    """What the collector reads from a real API server is understood."""
    with closing(KubernetesClusters(cluster._api, 10.0)) as clusters:
        namespace = cluster.spec.application.kubernetes.namespace  # type: ignore[union-attr]
        view = asyncio.run(clusters.view(namespace)).of(cluster.spec)
    print(view)
    assert view.slots_total is not None
    assert view.slots_total > 0
    assert (view.slots_used, view.workers_alive) == (0, 1)


def _trouble(cluster: RealCluster, **changes: Any) -> str:
    """Return what the cluster says of a driver that cannot start."""
    app = cluster.spec.application
    block = app.kubernetes.model_copy(update=changes.pop("block", {}))  # type: ignore[union-attr]
    spec = cluster.spec.model_copy(update={"application": app.model_copy(update={"kubernetes": block, **changes})})
    driver = cluster.backend.submit(Submission(spec, Token(9, 1), 1))
    return wait_until(lambda: cluster.backend.reason(spec, driver), 60, 0.2) or ""


def test_an_image_that_is_not_there_is_named(cluster: RealCluster) -> None:
    """The node's sentence reaches the result."""
    said = _trouble(cluster, block={"image": "127.0.0.1:1/no/such:image"})
    assert re.search(r"ErrImagePull|ImagePullBackOff", said), said


def test_a_driver_that_fits_nowhere_is_named(cluster: RealCluster) -> None:
    """The scheduler's sentence reaches the result."""
    said = _trouble(cluster, conf={"spark.kubernetes.driver.request.cores": "999"})
    assert "Insufficient cpu" in said, said
