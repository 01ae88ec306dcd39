"""The NetworkPolicies of the demo overlay on a real cluster: each pod reaches what it needs, and nothing else.

Its network plugin must enforce NetworkPolicies, which `TIDEGATE_TEST_NETWORK_POLICIES` says. Pods that only listen have
the labels and the namespaces of the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.test_native import EXAMPLE, GATEWAY, TAG, manifest, moved
from tests.support.http_server import QuietHandler, serving
from tests.support.kubectl import Kubectl
from tests.support.reach import MAY, NAMESPACE, PLACES, Labels, Party, parties, templates
from tidegate.runtime.poll import wait_until

__all__ = ["manifest"]

pytestmark = pytest.mark.timeout(300)

PORTS = sorted({place.port for place in PLACES.values() if place.party is not None})
LISTEN = """
import socket, sys, threading
def listen(server):
    while True:
        server.accept()[0].close()
servers = [socket.create_server(("", int(port))) for port in sys.argv[1:]]
threads = [threading.Thread(target=listen, args=(server,)) for server in servers]
[thread.start() for thread in threads]
"""
CONNECT = """
import concurrent.futures, json, socket, sys
def reaches(asked):
    place, host, port = asked
    try:
        if place == "names":
            socket.getaddrinfo(host, None)
        else:
            socket.create_connection((host, port), 3).close()
    except OSError:
        return None
    return place
asked = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
    print(json.dumps([place for place in pool.map(reaches, asked) if place]))
"""


class Cast:
    """The pods that stand in for the real ones, and their addresses."""

    def __init__(
        self, who: Mapping[str, Party], addresses: Mapping[str, str], outside: Mapping[str, tuple[str, int]]
    ) -> None:
        self._who = who
        at = {place: (addresses[to.party], to.port) for place, to in PLACES.items() if to.party is not None}
        self.places = at.keys() | outside.keys()
        self._asked = json.dumps([[place, *address] for place, address in (at | dict(outside)).items()])

    def reached(self, name: str) -> set[str]:
        """Return which places a party reaches."""
        pod = Kubectl(self._who[name].namespace)
        return set(json.loads(pod("exec", pod_of(name), "--", "python", "-c", CONNECT, self._asked)))


def pod_of(name: str) -> str:
    """Return the name of the pod that stands in for a party."""
    return f"as-{name.lower()}"


def stand_in(name: str, party: Party) -> dict[str, Any]:
    """Return a pod that listens on every port that anybody is asked on."""
    bounds = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "listens",
        "image": f"tidegate/collector:{TAG}",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", LISTEN, *map(str, PORTS)],
        "readinessProbe": {"tcpSocket": {"port": PORTS[-1]}, "periodSeconds": 1},
        "securityContext": bounds,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_of(name), "namespace": party.namespace, "labels": dict(party.labels)},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


def near(found: Any, keda: str) -> Any:
    """Return a policy that knows KEDA's namespace by the name that it has in this run."""
    if isinstance(found, list):
        return [near(each, keda) for each in found]
    if isinstance(found, dict):
        return {key: keda if (key, value) == (NAMESPACE, "keda") else near(value, keda) for key, value in found.items()}
    return found


@pytest.fixture(scope="module")
def cast(manifest: Path) -> Iterator[Cast]:
    """All pods, with the policies; at the end nothing of it is left."""
    objects = list(yaml.safe_load_all(manifest.read_text("utf-8")))
    here, there = sorted(found["metadata"]["name"] for found in objects if found["kind"] == "Namespace")
    beyond = {name: f"{here}-{name.lower()}" for name in ("prometheus", "KEDA", "ingress", "outsider")}
    load = [moved(found, here) for found in yaml.safe_load_all(EXAMPLE.read_text("utf-8"))]
    who = parties(here, there, templates([*objects, *load]), beyond)
    namespaces = [found for found in objects if found["kind"] == "Namespace"]
    namespaces += [namespace(name, who[party].namespace_labels) for party, name in beyond.items()]
    policies = [near(found, beyond["KEDA"]) for found in objects if found["kind"] == "NetworkPolicy"]
    everywhere = Kubectl("")
    with ExitStack() as steps:
        for each in namespaces:
            steps.callback(
                everywhere, "delete", "--ignore-not-found", "--wait=false", "namespace", each["metadata"]["name"]
            )
        everywhere.apply(*namespaces)
        for name in (here, there, *beyond.values()):
            account = Kubectl(name)
            assert wait_until(lambda: account("get", "--ignore-not-found", "serviceaccount", "default"), 30), name  # noqa: B023
        everywhere.apply(*policies, *(stand_in(name, party) for name, party in who.items()))
        for name, party in who.items():
            Kubectl(party.namespace)(
                "wait", "--for=condition=Ready", "--timeout=90s", f"pod/{pod_of(name)}", seconds=100
            )
        addresses = {
            name: Kubectl(party.namespace).get("pod", pod_of(name))["status"]["podIP"] for name, party in who.items()
        }
        server = Kubectl("default").get("service", "kubernetes")["spec"]["clusterIP"]
        listener = steps.enter_context(serving(QuietHandler, GATEWAY))
        outside = {
            "API server": (server, PLACES["API server"].port),
            "names": ("kubernetes.default.svc.cluster.local", 0),
            "elsewhere": (GATEWAY, listener.server_port),
        }
        yield Cast(who, addresses, outside)


def namespace(name: str, labels: Labels) -> dict[str, Any]:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}


def test_a_pod_reaches_what_it_needs_and_nothing_else(cast: Cast) -> None:
    """Every pair of a pod and a place is tried, but for a pod and itself: no policy keeps them apart."""

    def differs(name: str) -> str:
        tried = {place for place, at in PLACES.items() if at.party != name} & cast.places
        may, found = MAY[name] & tried, cast.reached(name) & tried
        more, less = sorted(found - may), sorted(may - found)
        return f"{name} reaches {more}, does not reach {less}" if more or less else ""

    def all_that_differ() -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            return [found for found in pool.map(differs, MAY) if found]

    # a plugin needs a moment for policies that are new
    wait_until(lambda: not all_that_differ(), 30, 2.0)
    assert all_that_differ() == []
