"""A namespace of its own on a real cluster, with the accounts and rights that docs/how-to/kubernetes.md lists.

`make test-k8s` runs these tests where KUBECONFIG names a cluster whose nodes share this machine's file system: the
checkpoint is in a folder of the node. Nothing else runs them: whoever has a kubeconfig has not asked for that yet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import wait_until
from tidegate.events.job import KubernetesPods, Volume
from tidegate.launcher.kubernetes import Api

ASKED = "TIDEGATE_TEST_KUBERNETES"
IMAGE = os.environ.get("TIDEGATE_TEST_SPARK_IMAGE", "tidegate/spark-kubernetes:0.1.0")

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]


@dataclass
class Namespace:
    """A namespace in which drivers may run, and a folder of the node that they share with this process."""

    api: Api
    name: str
    folder: Path

    @property
    def path(self) -> str:
        """Its path in the API."""
        return f"/api/v1/namespaces/{self.name}"

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Return its pods."""
        return self.api.listed(f"{self.path}/pods", labelSelector=selector)

    def create(self, kind: str, body: dict[str, Any], group: str = "/api/v1") -> None:
        """Create an object."""
        assert self.api.create(f"{group}/namespaces/{self.name}/{kind}", body)

    def block(self, **template: Any) -> KubernetesPods:
        """Return the block `kubernetes` of a job."""
        return KubernetesPods(
            namespace=self.name,
            image=IMAGE,
            service_account="spark",
            volumes=(Volume(name="data", path=str(self.folder), host_path=str(self.folder)),),
            driver_template=template,
        )


def driver_rules() -> list[dict[str, Any]]:
    """Return the rights of a driver's account."""
    everything = ["create", "get", "list", "watch", "patch", "delete", "deletecollection"]
    return [
        {"apiGroups": [""], "resources": ["pods", "configmaps", "services"], "verbs": everything},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["list", "delete", "deletecollection"]},
    ]


def role(name: str, account: str, rules: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a role and its binding to an account of the same namespace."""
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return (
        {"metadata": {"name": name}, "rules": rules},
        {"metadata": {"name": name}, "roleRef": ref, "subjects": [{"kind": "ServiceAccount", "name": account}]},
    )


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """A new namespace, which is deleted afterwards with all in it."""
    api, tag = Api(), uuid.uuid4().hex[:6]
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-k8s-{tag}-"))
    folder.chmod(0o777)
    made = Namespace(api, f"tg-kube-{tag}", folder)
    assert api.create("/api/v1/namespaces", {"metadata": {"name": made.name}})
    try:
        made.create("serviceaccounts", {"metadata": {"name": "spark"}})
        rules, binding = role("spark-driver", "spark", driver_rules())
        made.create("roles", rules, "/apis/rbac.authorization.k8s.io/v1")
        made.create("rolebindings", binding, "/apis/rbac.authorization.k8s.io/v1")
        yield made
    finally:
        api.delete(made.path, grace_seconds=0)
        # the namespace itself may stay for as long as some extension of the API does not answer
        gone = wait_until(lambda: not made.pods(), 90, 0.5)
        api.close()
        shutil.rmtree(folder, ignore_errors=True)
        assert gone, f"there are still pods in namespace {made.name}"


def pid_of(name: str) -> int:
    """Return the process of a part of the cluster that runs on this machine."""
    folder = os.environ.get("TIDEGATE_K8S_DIR")
    if folder is None:
        raise RuntimeError("TIDEGATE_K8S_DIR must name the folder of a cluster whose parts are processes here")
    return int((Path(folder) / "run" / "pid" / name).read_text("ascii"))
