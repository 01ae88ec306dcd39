"""The demo's job in pods: its namespace, what its spec says, and the clusters on which it cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.environment import Environment
from demo.failed import DemoFailed
from demo.job import spec_for
from demo.pods import Pods, new_pods
from tests.support.fake_kubernetes import FakeKubernetes, fake_kubernetes
from tests.support.programs import ROOT, captured
from tests.unit.test_stack_info import sample
from tidegate.specfields import read_spec

NAMESPACES = "/api/v1/namespaces"


@pytest.fixture
def server() -> Iterator[FakeKubernetes]:
    """A cluster whose one node is this machine."""
    with fake_kubernetes() as found:
        found.put("/api/v1/nodes/a", status=node_at("127.0.0.1"))
        yield found


def node_at(address: str) -> dict[str, Any]:
    """Return the status of a node."""
    return {"addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": address}]}


def made(server: FakeKubernetes, base: Path, name: str = "run-1", told: list[str] | None = None) -> Pods:
    """Return the pods of a new run."""
    return new_pods(server.api, base, name, "spark", (told if told is not None else []).append)


def test_a_run_has_a_namespace_with_the_drivers_account(server: FakeKubernetes, tmp_path: Path) -> None:
    """The account has the rights of deploy/kubernetes/jobs; at the end the namespace is deleted."""
    pods = made(server, tmp_path)
    assert pods.address == "127.0.0.1"
    here = [path.partition("/namespaces/tidegate-run-1/")[2] for path in server.objects if "tidegate-run-1/" in path]
    assert sorted(here) == [f"{kind}/tidegate-driver" for kind in ("rolebindings", "roles", "serviceaccounts")]
    pods.remove()
    assert f"{NAMESPACES}/tidegate-run-1" not in server.objects


def test_what_an_earlier_run_left_is_deleted(server: FakeKubernetes, tmp_path: Path) -> None:
    """A demo that was killed leaves its pods: the next one in the same folder deletes them, and nobody else's."""
    made(server, tmp_path / "here")
    made(server, tmp_path / "there", "run-2")
    told: list[str] = []
    made(server, tmp_path / "here", "run-3", told)
    assert told[0] == "deleting the namespace tidegate-run-1 of an earlier run"
    assert {path for path in server.objects if path.count("/") == NAMESPACES.count("/") + 1 and NAMESPACES in path} == {
        f"{NAMESPACES}/tidegate-run-2",
        f"{NAMESPACES}/tidegate-run-3",
    }


def test_a_cluster_elsewhere_is_refused(server: FakeKubernetes, tmp_path: Path) -> None:
    """A node that is not this machine, a second node and an API server that says no are named, and nothing is made."""
    server.put("/api/v1/nodes/a", status=node_at("203.0.113.7"))
    with pytest.raises(DemoFailed, match=r"one node is this machine.* has 1 nodes, at 203\.0\.113\.7"):
        made(server, tmp_path)
    server.put("/api/v1/nodes/a", status=node_at("127.0.0.1"))
    server.put("/api/v1/nodes/b", status=node_at("203.0.113.7"))
    with pytest.raises(DemoFailed, match="has 2 nodes"):
        made(server, tmp_path)
    server.broken = 403
    with pytest.raises(DemoFailed, match="/api/v1/nodes: 403: "):
        made(server, tmp_path)
    assert not [path for path in server.objects if NAMESPACES in path]


def test_without_a_cluster_the_demo_says_what_it_needs(tmp_path: Path) -> None:
    """It names the variable to set, and what to look up."""
    words = [sys.executable, "-m", "demo", "--backend", "kubernetes", "--work-dir", str(tmp_path)]
    ended = captured(*words, cwd=ROOT, env={"HOME": str(tmp_path)})
    assert ended.returncode != 0
    assert "error: the demo stopped: no Kubernetes: set KUBECONFIG to a kubeconfig" in ended.stderr
    assert "docs/how-to/kubernetes.md says what it needs of the cluster" in ended.stderr


def test_the_spec_of_a_job_in_pods(server: FakeKubernetes, tmp_path: Path) -> None:
    """All that the pods read and write is in the folder that they mount, and Kafka is where they reach it."""
    info = sample(tmp_path).model_copy(update={"kafka_address": "10.0.0.1"})
    environment = Environment(info, tmp_path / "run", "tidegate.", own_stack=True, pods=made(server, tmp_path))
    spec = spec_for(environment, 15.0)
    app, folder = spec.application, str(tmp_path / "run" / "job")
    assert app.kubernetes is not None
    assert [(one.path, one.host_path) for one in app.kubernetes.volumes] == [(folder, folder)]
    for path in (app.script, app.checkpoint_location, app.event_log_dir):
        assert path.startswith(f"{folder}/")
    assert app.args[1] == "10.0.0.1:1"
    assert (app.control_dir, app.control_place) == (None, "configmap:tidegate-run-1")
    assert read_spec(spec.model_dump(mode="json", exclude_none=True)) == (spec, [])
