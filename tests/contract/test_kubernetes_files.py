"""The manifests of deploy/kubernetes: whole, hardened, and with no more rights than a service uses.

`make test-k8s` applies them to a real API server; what is here needs none.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.actuator.settings import ActuatorSettings
from services.collector.settings import CollectorSettings
from services.decider.settings import DeciderSettings
from services.keda.settings import KedaSettings
from services.operator.reconcile import plan
from services.operator.resource import streaming_job
from services.operator.settings import OperatorSettings
from tests.support.events import START
from tests.support.fake_streaming_jobs import FakeStreamingJobs
from tests.support.programs import captured
from tests.support.reach import MAY, PLACES, parties, reached, templates
from tidegate.console.settings import ConsoleSettings
from tidegate.runtime.poll import wait_until
from tidegate.runtime.settings import ServiceSettings

ROOT = Path(__file__).parents[2] / "deploy" / "kubernetes"
FILES = sorted(ROOT.rglob("*.yaml"))
SETTINGS: dict[str, type[ServiceSettings]] = {
    "collector": CollectorSettings,
    "decider": DeciderSettings,
    "actuator": ActuatorSettings,
    "operator": OperatorSettings,
    "console": ConsoleSettings,
    "keda": KedaSettings,
}
ASK_KUBERNETES = {"collector", "actuator", "operator"}


def objects(*kinds: str, under: str = "") -> Iterator[dict[str, Any]]:
    """Yield the objects of these kinds in all files, or in those of a folder."""
    for path in sorted((ROOT / under).rglob("*.yaml")):
        yield from (found for found in documents(path) if found["kind"] in kinds)


@cache
def documents(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


DEPLOYMENTS = {
    found["metadata"]["labels"]["tidegate.dev/service"]: found
    for found in objects("Deployment")
    if "labels" in found["metadata"]
}


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the spec of every pod that is not one of the services."""
    for found in objects("Deployment", "StatefulSet", "Job"):
        name = found["metadata"]["name"]
        if name == "every-service" or "labels" not in found["metadata"]:
            yield name, found["spec"]["template"]["spec"]


def test_every_file_is_part_of_a_kustomization() -> None:
    """Each file is listed, and each listed file or folder is there."""
    for path in ROOT.rglob("kustomization.yaml"):
        said = yaml.safe_load(path.read_text("utf-8"))
        patches = [patch["path"] for patch in said.get("patches", ()) if "path" in patch]
        listed = {*said.get("resources", ()), *patches}
        here = {file.name for file in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert {name for name in listed if "/" not in name} == here, path
        assert all((path.parent / name).exists() for name in [*listed, *said.get("components", ())]), path


def test_all_images_are_built_and_loaded(tmp_path: Path) -> None:
    """`load-images.sh` makes every image that the manifests name, out of all that the Dockerfile copies."""
    docker, log = tmp_path / "docker", tmp_path / "log"
    script = 'echo "$@" >> "$LOG"; if [ "$1" = build ]; then tar -tf - >> "$LOG.files"; fi'
    docker.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "TAG": "0.1.0"}
    done = subprocess.run(
        [ROOT / "load-images.sh", "echo", "loaded:"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    loaded = set(done.stdout.splitlines()[-1].partition("loaded: ")[2].split())
    named = {
        image
        for path in FILES
        for image in re.findall(r"image: ([^\s{}]+:[\w.-]+)$", path.read_text("utf-8"), re.MULTILINE)
    }
    assert loaded == named
    built = {line.split()[-2] for line in log.read_text("utf-8").splitlines() if line.startswith("build")}
    assert built == {name for name in named if name.startswith("tidegate/")}
    dockerfile = (ROOT.parent / "Dockerfile").read_text("utf-8")
    copied = {line.split()[1] for line in dockerfile.splitlines() if line.startswith("COPY ") and "--from" not in line}
    files = set((tmp_path / "log.files").read_text("utf-8").splitlines())
    for path in copied:
        assert any(file.rstrip("/").startswith(path.partition("$")[0].rstrip("/")) for file in files), path


def test_a_signal_ends_the_building_of_images(tmp_path: Path) -> None:
    """The script builds no further image, complains of nothing, and leaves no file."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\ncat > /dev/null; kill -TERM $PPID\n", "utf-8")
    docker.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    ended = captured(ROOT / "load-images.sh", "echo", env=environment)
    assert ended.returncode != 0
    assert (ended.stdout.count("building"), ended.stderr) == (1, "")
    assert list(temporary.iterdir()) == []


def test_who_waits_for_topics_ends_when_told_to(tmp_path: Path) -> None:
    """Process 1 of a container has to handle SIGTERM itself: else Kubernetes waits half a minute and kills it."""
    scripts = {
        container["command"][2]
        for found in objects("Deployment", "Job")
        for kind in ("initContainers", "containers")
        for container in found["spec"]["template"]["spec"].get(kind, ())
        if container["name"] == "topics"
    }
    assert len(scripts) == 2
    python, started = tmp_path / "python", tmp_path / "started"
    python.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 20\n", "utf-8")
    python.chmod(0o755)
    for script in scripts:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        waits = subprocess.Popen(["/bin/sh", "-c", script], env=environment, start_new_session=True)
        try:
            assert wait_until(started.exists, 30, 0.02)
            waits.terminate()
            assert waits.wait(10) == 128 + signal.SIGTERM
        finally:
            os.killpg(waits.pid, signal.SIGKILL)
            waits.wait()
        started.unlink()


def test_each_service_has_its_deployment_account_and_budget() -> None:
    """There is one of each for every service; nobody runs under the account `default`."""
    assert DEPLOYMENTS.keys() == SETTINGS.keys()
    budgets = {found["metadata"]["name"] for found in objects("PodDisruptionBudget")}
    accounts = {found["metadata"]["name"] for found in objects("ServiceAccount")}
    for service, found in DEPLOYMENTS.items():
        assert found["metadata"]["name"] == f"tidegate-{service}"
        assert f"tidegate-{service}" in budgets
        template = found["spec"]["template"]
        assert template["spec"]["serviceAccountName"] == f"tidegate-{service}"
        assert f"tidegate-{service}" in accounts
        assert template["metadata"]["labels"]["tidegate.dev/service"] == service
        assert found["spec"]["selector"]["matchLabels"] == {"tidegate.dev/service": service}


def test_a_service_that_is_not_ready_keeps_no_node_from_being_drained() -> None:
    """Of one pod, Kubernetes counts no disruption as allowed while it fails: by default it refuses to evict that."""
    budgets = [found["spec"] for found in objects("PodDisruptionBudget")]
    assert len(budgets) == len(SETTINGS)
    assert all(spec["maxUnavailable"] == 1 for spec in budgets)
    assert all(spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow" for spec in budgets)


@pytest.mark.parametrize("service", SETTINGS)
def test_a_service_gets_only_settings_that_exist(service: str) -> None:
    """Every variable and every mounted secret is a setting of the service; passwords are files, never variables."""
    (container,) = DEPLOYMENTS[service]["spec"]["template"]["spec"]["containers"]
    common = next(found for found in objects("ConfigMap") if found["metadata"]["name"] == "tidegate-settings")["data"]
    names = {*common, *(one["name"] for one in container.get("env", ()))}
    assert {name for name in names if name.removeprefix("TIDEGATE_").lower() not in SETTINGS[service].model_fields} == (
        set()
    )
    assert not [name for name in names if "PASSWORD" in name or "OPERATORS" in name]
    for mount in container.get("volumeMounts", ()):
        if mount["mountPath"].startswith("/run/secrets/"):
            assert mount["mountPath"].removeprefix("/run/secrets/tidegate_") in SETTINGS[service].model_fields


@pytest.mark.parametrize("service", SETTINGS)
def test_only_who_asks_kubernetes_has_a_token(service: str) -> None:
    """The others cannot show the API server anything, and no policy lets them reach it."""
    template = DEPLOYMENTS[service]["spec"]["template"]
    assert template["spec"].get("automountServiceAccountToken", True) is (service in ASK_KUBERNETES)
    assert ("tidegate.dev/asks" in template["metadata"]["labels"]) is (service in ASK_KUBERNETES)


@pytest.mark.parametrize(("name", "spec"), list(pods()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_pod_is_held_in_bounds(name: str, spec: dict[str, Any]) -> None:
    """An ordinary user, no privileges, no variables made of Services, limits; a read-only root but for the broker."""
    (container,) = spec["containers"]
    assert all(init["securityContext"] == container["securityContext"] for init in spec.get("initContainers", ()))
    context = container["securityContext"]
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (spec["securityContext"].get("runAsNonRoot") is True) is (name != "tidegate-folders")
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"]["drop"] == ["ALL"]
    assert context.get("readOnlyRootFilesystem", False) is (name != "kafka")
    assert "memory" in container["resources"]["limits"]
    if name == "every-service":
        assert all(container[f"{probe}Probe"]["httpGet"]["path"] == "/healthz" for probe in ("startup", "liveness"))


def test_rights_are_named_one_by_one() -> None:
    """No star, no secrets, no right to change rights, nodes or other people's objects anywhere in the cluster."""
    for found in objects("Role", "ClusterRole"):
        for rule in found["rules"]:
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert set(rule["apiGroups"]) <= {"", "tidegate.dev", "sparkoperator.k8s.io"}
            assert not {"secrets", "serviceaccounts", "pods/exec", "nodes/proxy"} & set(rule["resources"])
            assert found["kind"] == "Role" or rule["verbs"] == ["list"]


def rights_of(role: str) -> dict[str, set[str]]:
    """Return the verbs of a Role by resource."""
    (found,) = (each for each in objects("Role") if each["metadata"]["name"] == role)
    return {resource: set(rule["verbs"]) for rule in found["rules"] for resource in rule["resources"]}


def test_the_operator_has_the_rights_that_its_client_uses() -> None:
    """It lists the StreamingJobs, watches them, and patches them and their status."""
    assert rights_of("tidegate-operator") == {
        "streamingjobs": {"list", "watch", "patch"},
        "streamingjobs/status": {"patch"},
    }


def test_a_driver_has_the_rights_that_spark_and_the_launcher_use() -> None:
    """Spark makes, watches and labels executors, makes ConfigMaps, and at its end removes by label what it has made.

    No driver makes a Service: see Spark's ExecutorPodsAllocator and KubernetesClusterSchedulerBackend.
    """
    removes = {"list", "delete", "deletecollection"}
    assert rights_of("tidegate-driver") == {
        "pods": {"create", "get", "watch", "patch", *removes},
        "configmaps": {"create", "get", "patch", *removes},
        "services": removes,
        "persistentvolumeclaims": removes,
    }


def namespace_of(folder: str) -> str:
    """Return the namespace of a folder's objects."""
    name: str = yaml.safe_load((ROOT / folder / "kustomization.yaml").read_text("utf-8"))["namespace"]
    (made,) = objects("Namespace", under=folder)
    assert made["metadata"]["name"] == name
    return name


def test_jobs_are_in_a_namespace_of_their_own() -> None:
    """Nobody has rights in Tidegate's, where its Secrets are; what Spark needs is allowed in that of the jobs alone."""
    here, there = namespace_of("base"), namespace_of("jobs")
    assert here != there
    assert not list(objects("Role", "RoleBinding", under="base"))
    for found in objects("RoleBinding", under="jobs"):
        name = found["metadata"]["name"]
        at = {} if name == "tidegate-driver" else {"namespace": here}
        assert found["subjects"] == [{"kind": "ServiceAccount", "name": name, **at}]
    env = DEPLOYMENTS["operator"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "TIDEGATE_OPERATOR_NAMESPACE", "value": there} in env
    (example,) = objects("StreamingJob")
    assert example["metadata"]["namespace"] == there


@pytest.mark.parametrize(("folder", "level"), [("base", "restricted"), ("jobs", "baseline")])
def test_a_namespace_admits_only_pods_in_bounds(folder: str, level: str) -> None:
    """Kubernetes refuses others, and what no policy allows reaches no pod and is reached by none."""
    (namespace,) = objects("Namespace", under=folder)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level
    specs = [found["spec"] for found in objects("NetworkPolicy", under=folder)]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in specs


@pytest.mark.parametrize("name", MAY)
def test_a_pod_may_reach_what_it_needs_and_nothing_else(name: str) -> None:
    """By the policies' text; `test_network` shows it on a real cluster."""
    here, there = namespace_of("base"), namespace_of("jobs")
    policies = [
        (found["metadata"].get("namespace", there if under == "jobs" else here), found["spec"])
        for under in ("base", "jobs", "components", "overlays")
        for found in objects("NetworkPolicy", under=under)
    ]
    made = templates(objects("Deployment", "StatefulSet", "Job"))
    beyond = {"prometheus": "monitoring", "KEDA": "keda", "ingress": "ingress", "outsider": "other"}
    who = parties(here, there, made, beyond)
    assert who.keys() == MAY.keys()
    found = {
        place
        for place, at in PLACES.items()
        if reached(policies, who[name], at, None if at.party is None else who[at.party])
    }
    assert found == MAY[name]


def test_both_claims_are_of_volumes_that_the_demo_gives() -> None:
    """A storage class would make two empty volumes: the collector would look for event logs where no job writes."""
    volumes = {found["metadata"]["name"]: found["spec"] for found in objects("PersistentVolume")}
    for folder in ("base", "jobs"):
        (claim,) = objects("PersistentVolumeClaim", under=folder)
        assert claim["spec"]["storageClassName"] == ""
        volume = volumes.pop(claim["spec"]["volumeName"])
        assert volume["claimRef"] == {"namespace": namespace_of(folder), "name": claim["metadata"]["name"]}
        assert volume["hostPath"]["path"] == "/var/lib/tidegate-demo"
    assert not volumes


def test_images_are_pinned() -> None:
    """Every image has a tag, and none is `latest`."""
    images = [container["image"] for _, spec in pods() for container in spec["containers"] if "image" in container]
    images += [found["spec"]["template"]["spec"]["containers"][0]["image"] for found in DEPLOYMENTS.values()]
    for image in images:
        assert image.partition(":")[2][:1].isdigit(), image


def test_the_example_job_is_accepted() -> None:
    """The operator publishes it, and its pods find the account and the volume that are there."""
    (example,) = objects("StreamingJob")
    cluster = FakeStreamingJobs()
    cluster.apply("rates", example["spec"])
    todo = plan(streaming_job(cluster.all()[0]), None, None, START)
    assert todo.publish is not None, todo.status
    wanted = todo.publish.application.kubernetes
    assert wanted is not None
    assert wanted.service_account in {found["metadata"]["name"] for found in objects("ServiceAccount")}
    claims = {found["metadata"]["name"] for found in objects("PersistentVolumeClaim")}
    assert {volume.claim for volume in wanted.volumes} <= claims
