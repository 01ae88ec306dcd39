"""The demo's job in pods: a namespace of its own on a cluster whose one node is this machine.

The services, Kafka and the load stay processes of this machine. Kafka listens at the node's address, which pods reach.
The pods mount the run's folder: program, checkpoint and event logs are there. Control files are in a ConfigMap.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from demo.failed import DemoFailed
from tidegate.events.job import KubernetesPods, Volume
from tidegate.launcher.kubernetes.api import Api, ApiUnreachable
from tidegate.launcher.kubernetes.pods import name_of

IMAGE = "tidegate/spark-kubernetes:0.1.0"
REMOVE_SECONDS = 90.0
LABEL = "tidegate.dev/demo"
ACCOUNT = "tidegate-driver"
_RIGHTS = Path(__file__).parents[1] / "deploy" / "kubernetes" / "jobs" / "driver.yaml"
_APIS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


@dataclass(frozen=True, slots=True)
class Pods:
    """Where the job's pods are."""

    api: Api
    namespace: str
    image: str
    address: str
    """This machine, as pods reach it."""

    def block(self, folder: Path) -> KubernetesPods:
        """Return the block `kubernetes` of the job's spec; its pods mount `folder` at its own path."""
        return KubernetesPods(
            namespace=self.namespace,
            image=self.image,
            service_account=ACCOUNT,
            volumes=(Volume(name="run", path=str(folder), host_path=str(folder)),),
        )

    def remove(self) -> None:
        """Delete the namespace, and wait until its pods are gone; raise `DemoFailed` if they stay."""
        _remove(self.api, self.namespace)
        self.api.close()


def new_pods(api: Api, base: Path, run_name: str, image: str, on_progress: Callable[[str], None]) -> Pods:
    """Make the namespace of a run, with the drivers' account; delete those that earlier runs in `base` have left.

    Raises `DemoFailed` if there is no cluster, or if its node is not this machine.
    """
    mark = hashlib.sha256(str(base.absolute()).encode()).hexdigest()[:12]
    try:
        address = _address(api)
        for old in api.listed("/api/v1/namespaces", labelSelector=f"{LABEL}={mark}"):
            on_progress(f"deleting the namespace {name_of(old)} of an earlier run")
            _remove(api, name_of(old))
        namespace = f"tidegate-{run_name}"
        api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": {LABEL: mark}}})
        for one in yaml.safe_load_all(_RIGHTS.read_text("utf-8")):
            api.create(_APIS[one["kind"]].format(namespace), one)
    except OSError as error:
        raise DemoFailed(str(error)) from error
    on_progress(f"the job's pods will be in the namespace {namespace}")
    return Pods(api, namespace, image, address)


def share(folder: Path, script: Path) -> None:
    """Make the folder that pods mount, with the job's program; they write there as a user of their image."""
    for path in (folder, folder / "events"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
    shutil.copy(script, folder)


def _address(api: Api) -> str:
    """Return the address of the cluster's node, which must be this machine."""
    nodes = api.listed("/api/v1/nodes")
    found = [
        str(address["address"])
        for node in nodes
        for address in node["status"]["addresses"]
        if address["type"] == "InternalIP"
    ]
    if len(nodes) == 1:
        for address in found:
            with socket.socket() as probe:
                try:
                    probe.bind((address, 0))
                except OSError:
                    continue
                return address
    raise DemoFailed(
        "the demo needs a cluster whose one node is this machine, because its pods mount the run's folder and reach"
        f" Kafka at the node's address; {api.access.server} has {len(nodes)} nodes, at {', '.join(found)}"
    )


def _remove(api: Api, namespace: str) -> None:
    """Delete a namespace, and wait until its pods are gone."""
    path, deadline, asked = f"/api/v1/namespaces/{namespace}", time.monotonic() + REMOVE_SECONDS, False
    while True:
        try:
            asked = asked or api.delete(path, grace_seconds=0) or True
            left = [name_of(pod) for pod in api.listed(f"{path}/pods")]
        except ApiUnreachable as error:
            left = [str(error)]
        if not left:
            return
        if time.monotonic() > deadline:
            raise DemoFailed(f"not gone from namespace {namespace} after {REMOVE_SECONDS:g} s: {', '.join(left)}")
        time.sleep(0.5)
