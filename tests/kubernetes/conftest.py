"""A namespace of its own on a real cluster, with the accounts and rights that docs/how-to/kubernetes.md lists.

`make test-k8s` runs these tests where KUBECONFIG names a cluster whose nodes share this machine's file system: the
checkpoint is in a folder of the node. Nothing else runs them: whoever has a kubeconfig has not asked for that yet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidegate.events.job import KubernetesPods, Volume
from tidegate.launcher.kubernetes.access import ApiAccess
from tidegate.launcher.kubernetes.api import Api
from tidegate.launcher.kubernetes.pods import name_of
from tidegate.runtime.poll import wait_until

ASKED = "TIDEGATE_TEST_KUBERNETES"
IMAGE = os.environ.get("TIDEGATE_TEST_SPARK_IMAGE", "tidegate/spark-kubernetes:0.1.0")

RBAC = "/apis/rbac.authorization.k8s.io/v1"

SPARK_OPERATOR = "TIDEGATE_SPARK_OPERATOR"
"""A folder in which the Spark operator was built; test_spark_operator.py, which needs it, tells how."""

NETWORK_POLICIES = "TIDEGATE_TEST_NETWORK_POLICIES"
"""Set where the cluster's network plugin enforces NetworkPolicies."""

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]
collect_ignore = [
    *([] if SPARK_OPERATOR in os.environ else ["test_spark_operator.py"]),
    *([] if NETWORK_POLICIES in os.environ else ["test_network.py"]),
]


@dataclass
class Namespace:
    """A namespace in which drivers may run, and a folder of the node that they share with this process."""

    api: Api
    name: str
    folder: Path
    apis: list[Api] = field(default_factory=list)
    """Those of its accounts."""

    @property
    def path(self) -> str:
        """Its path in the API."""
        return f"/api/v1/namespaces/{self.name}"

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Return its pods."""
        return self.api.listed(f"{self.path}/pods", labelSelector=selector)

    def account(self, name: str, rules: list[dict[str, Any]], everywhere: Sequence[dict[str, Any]] = ()) -> Api:
        """Make an account with these rights in the namespace, and in the cluster; return the API as it sees it."""
        self.create("serviceaccounts", {"metadata": {"name": name}})
        made, binding = role(name, name, rules)
        self.create("roles", made, RBAC)
        self.create("rolebindings", binding, RBAC)
        if everywhere:
            full = {"metadata": {"name": f"{self.name}-{name}"}}
            subject = {"kind": "ServiceAccount", "name": name, "namespace": self.name}
            ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **full["metadata"]}
            assert self.api.create(f"{RBAC}/clusterroles", full | {"rules": everywhere})
            assert self.api.create(f"{RBAC}/clusterrolebindings", full | {"roleRef": ref, "subjects": [subject]})
        answer = self.api._ask("POST", f"{self.path}/serviceaccounts/{name}/token", body={"spec": {}})
        admin = self.api.access
        self.apis.append(Api(ApiAccess(admin.server, name, ca_pem=admin.ca_pem, token=answer["status"]["token"])))
        return self.apis[-1]

    def remove(self) -> None:
        """Delete it with all in it."""
        for api in self.apis:
            api.close()
        for kind in ("clusterroles", "clusterrolebindings"):
            for one in self.api.listed(f"{RBAC}/{kind}"):
                if name_of(one).startswith(self.name):
                    self.api.delete(f"{RBAC}/{kind}/{name_of(one)}", grace_seconds=0)
        self.api.delete(self.path, grace_seconds=0)
        # the namespace itself may stay for as long as some extension of the API does not answer
        gone = wait_until(lambda: not self.pods(), 90, 0.5)
        self.api.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert gone, f"there are still pods in namespace {self.name}"

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


_REMOVES = ["list", "delete", "deletecollection"]
DRIVER = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "watch", "patch", *_REMOVES]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "patch", *_REMOVES]},
    {"apiGroups": [""], "resources": ["services", "persistentvolumeclaims"], "verbs": _REMOVES},
]
ACTUATOR = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "patch"]},
    {
        "apiGroups": ["sparkoperator.k8s.io"],
        "resources": ["sparkapplications"],
        "verbs": ["create", "get", "list", "delete"],
    },
]
COLLECTOR = [{"apiGroups": [""], "resources": ["pods", "resourcequotas"], "verbs": ["list"]}]
COLLECTOR_EVERYWHERE = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
"""The rights that docs/how-to/kubernetes.md lists."""


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
    with new_namespace() as made:
        yield made


@contextmanager
def new_namespace() -> Iterator[Namespace]:
    """Yield a new namespace, which is deleted afterwards with all in it."""
    api, tag = Api(), uuid.uuid4().hex[:6]
    folder = Path(tempfile.mkdtemp(prefix=f"tidegate-k8s-{tag}-"))
    folder.chmod(0o777)
    made = Namespace(api, f"tg-kube-{tag}", folder)
    assert api.create("/api/v1/namespaces", {"metadata": {"name": made.name}})
    try:
        made.account("spark", DRIVER)
        yield made
    finally:
        made.remove()


def pid_of(name: str) -> int:
    """Return the process of a part of the cluster that runs on this machine."""
    folder = os.environ.get("TIDEGATE_K8S_DIR")
    if folder is None:
        raise RuntimeError("TIDEGATE_K8S_DIR must name the folder of a cluster whose parts are processes here")
    return int((Path(folder) / "run" / "pid" / name).read_text("ascii"))
