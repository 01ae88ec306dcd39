"""Who may reach what where Tidegate runs on Kubernetes, and what the NetworkPolicies' text says about that.

`MAY` is the promise. tests/contract reads the policies' text, tests/kubernetes asks pods of a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = "kubernetes.io/metadata.name"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Party:
    """A pod that connects, or is connected to."""

    namespace: str
    labels: Labels = field(default_factory=dict)
    namespace_labels: Labels = field(default_factory=dict)

    @property
    def all_namespace_labels(self) -> Labels:
        """The labels of its namespace, with the one that Kubernetes sets."""
        return {NAMESPACE: self.namespace, **self.namespace_labels}


@dataclass(frozen=True)
class Place:
    """What is connected to: a port of a party, or of something that is no pod."""

    party: str | None
    port: int
    protocol: str = "TCP"


SERVICES = ("collector", "decider", "actuator", "operator", "console", "keda")
METRICS = {f"metrics of {name}": Place(name, 8081) for name in SERVICES if name != "console"}
PLACES = {
    "kafka": Place("kafka", 9092),
    "redis": Place("redis", 6379),
    "console": Place("console", 8081),
    "keda": Place("keda", 9090),
    "driver": Place("driver", 7078),
    "driver's page": Place("driver", 4040),
    "executor": Place("executor", 7079),
    "a pod of ours": Place("ours", 8081),
    "a pod of theirs": Place("theirs", 8081),
    "API server": Place(None, 443),
    "API server at its own port": Place(None, 6443),
    "API server of minikube": Place(None, 8443),
    "names": Place(None, 53, "UDP"),
    "elsewhere": Place(None, 18080),
    **METRICS,
}
SPARK = {"driver", "driver's page", "executor"}
API = {"API server", "API server at its own port", "API server of minikube"}
"""A network plugin may look at a connection before or after the address of a Service becomes that of the server."""
OUTSIDE = {*API, "names", "elsewhere"}
MAY = {
    "collector": {"names", "kafka"} | API,
    "decider": {"names", "kafka", "redis"},
    "actuator": {"names", "kafka", "redis"} | API,
    "operator": {"names", "kafka"} | API,
    "console": {"names", "kafka"},
    "keda": {"names", "kafka"},
    "topics": {"names", "kafka"},
    "load": {"names", "kafka"},
    "kafka": {"names"},
    "redis": {"names"},
    "ours": {"names"},
    "driver": {"names", "kafka"} | API | SPARK,
    "executor": {"names", "kafka"} | SPARK,
    "folders": set[str](),
    "theirs": set[str](),
    "prometheus": METRICS.keys() | OUTSIDE,
    "KEDA": {"keda"} | OUTSIDE,
    "ingress": {"console"} | OUTSIDE,
    "outsider": OUTSIDE,
}
"""All of PLACES that each party may reach. `ours` and `theirs` are pods that no policy names, next to Tidegate and next
to the jobs; the last four are in other namespaces, which have no policies."""


def parties(here: str, there: str, templates: Mapping[str, Labels], beyond: Mapping[str, str]) -> dict[str, Party]:
    """Return who takes part, by the names in `MAY`.

    `here` is Tidegate's namespace, `there` that of the jobs; `templates` are the labels of the pods that the manifests
    make, `beyond` the namespaces of the last four.
    """
    made = {name: Party(there if name == "folders" else here, labels) for name, labels in templates.items()}
    return made | {
        "ours": Party(here),
        "driver": Party(there, {"spark-role": "driver"}),
        "executor": Party(there, {"spark-role": "executor"}),
        "theirs": Party(there),
        "prometheus": Party(beyond["prometheus"], {"app.kubernetes.io/name": "prometheus"}),
        "KEDA": Party(beyond["KEDA"]),
        "ingress": Party(beyond["ingress"], namespace_labels={"tidegate.dev/reaches-console": "true"}),
        "outsider": Party(beyond["outsider"]),
    }


def templates(objects: Iterable[Mapping[str, Any]]) -> dict[str, Labels]:
    """Return the labels of the pods that Deployments, StatefulSets and Jobs make, by the names in `MAY`."""
    specs = [found["spec"]["template"].get("metadata", {}).get("labels") for found in objects if _makes_pods(found)]
    return {
        labels.get("tidegate.dev/service") or labels["app.kubernetes.io/name"]: labels for labels in specs if labels
    }


def _makes_pods(found: Mapping[str, Any]) -> bool:
    return found["kind"] in {"Deployment", "StatefulSet", "Job"}


def reached(policies: Iterable[tuple[str, Mapping[str, Any]]], who: Party, place: Place, target: Party | None) -> bool:
    """Return whether these policies, each with its namespace, let a party reach a place.

    As the API describes them: a pod that no policy of a direction selects is open in that direction; the policies that
    select it are added up; both ends must allow a connection.
    """
    found = list(policies)
    out = _allowed(found, who, "Egress", place, target)
    return out and (target is None or _allowed(found, target, "Ingress", place, who))


def _allowed(
    policies: Iterable[tuple[str, Mapping[str, Any]]], pod: Party, direction: str, place: Place, peer: Party | None
) -> bool:
    chosen = [
        spec
        for namespace, spec in policies
        if namespace == pod.namespace and direction in spec["policyTypes"] and _selects(spec["podSelector"], pod.labels)
    ]
    rules = [rule for spec in chosen for rule in spec.get(direction.lower(), ())]
    peers = "to" if direction == "Egress" else "from"
    return not chosen or any(_port(rule, place) and _peer(rule.get(peers), pod.namespace, peer) for rule in rules)


def _port(rule: Mapping[str, Any], place: Place) -> bool:
    ports = rule.get("ports")
    return not ports or any((one["port"], one.get("protocol", "TCP")) == (place.port, place.protocol) for one in ports)


def _peer(peers: Iterable[Mapping[str, Any]] | None, namespace: str, peer: Party | None) -> bool:
    if not peers:
        return True
    if peer is None:
        return False
    for one in peers:
        assert not set(one) - {"podSelector", "namespaceSelector"}, one
        if "namespaceSelector" in one:
            near = _selects(one["namespaceSelector"], peer.all_namespace_labels)
        else:
            near = peer.namespace == namespace
        if near and _selects(one.get("podSelector", {}), peer.labels):
            return True
    return False


def _selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    assert not set(selector) - {"matchLabels", "matchExpressions"}, selector
    wanted = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return wanted and all(_holds(each, labels) for each in selector.get("matchExpressions", ()))


def _holds(expression: Mapping[str, Any], labels: Labels) -> bool:
    key, operator = expression["key"], expression["operator"]
    if operator == "Exists":
        return key in labels
    assert operator == "In", expression
    return labels.get(key) in expression["values"]
