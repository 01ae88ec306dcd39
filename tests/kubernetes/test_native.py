"""Tidegate as it is deployed: the demo overlay on a real cluster, its rights, and a job that is a StreamingJob.

`make test-k8s` runs this on the cluster of KUBECONFIG. The images of deploy/Dockerfile must be in it, and this machine
must reach the pods' network. Everything is in a namespace of its own, which is removed at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from services.keda.protocol import CLASSES, METHODS, SERVICE
from tests.kubernetes.conftest import IMAGE
from tests.support.kubectl import ROOT, Kubectl, KubectlFailed
from tests.support.metrics_api import metrics_api, reached, registration
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(600)

DEMO = ROOT / "deploy" / "kubernetes" / "overlays" / "demo"
EXAMPLE = ROOT / "deploy" / "kubernetes" / "examples" / "job.yaml"
TAG = os.environ.get("TIDEGATE_TEST_TAG", "0.1.0")
"""The tag of the services' images."""
GATEWAY = os.environ.get("TIDEGATE_TEST_GATEWAY", "10.77.0.1")
"""Where pods and the API server reach this machine."""
START_SECONDS = 240.0
CHANGE_SECONDS = 180.0

DEPLOYMENTS = ("collector", "decider", "actuator", "operator", "console", "keda")
MAY = {
    "operator": {"list streamingjobs.tidegate.dev", "patch streamingjobs.tidegate.dev"}
    | {"patch streamingjobs.tidegate.dev/status"},
    "actuator": {"create pods", "get pods", "list pods", "delete pods", "get pods/log"}
    | {"create configmaps", "get configmaps", "patch configmaps"}
    | {f"{verb} sparkapplications.sparkoperator.k8s.io" for verb in ("create", "get", "list", "delete")},
    "collector": {"list pods", "list resourcequotas", "list nodes"},
    "decider": set[str](),
    "console": set[str](),
    "keda": set[str](),
    "driver": {f"{verb} {kind}" for kind in ("pods", "configmaps") for verb in ("create", "get", "list", "delete")}
    | {"patch pods", "patch configmaps", "create services", "get services", "list services", "delete services"}
    | {"list persistentvolumeclaims", "delete persistentvolumeclaims"},
}
"""All that each account may do of what follows."""
ACTS = (
    *(f"{verb} pods" for verb in ("create", "get", "list", "delete", "patch")),
    "get pods/log",
    "create pods/exec",
    "create pods/eviction",
    *(f"{verb} configmaps" for verb in ("create", "get", "list", "patch", "delete")),
    *(f"{verb} services" for verb in ("create", "get", "list", "delete")),
    *(f"{verb} persistentvolumeclaims" for verb in ("create", "list", "delete")),
    *(f"{verb} secrets" for verb in ("get", "list", "create")),
    *(f"{verb} streamingjobs.tidegate.dev" for verb in ("get", "list", "create", "patch", "delete")),
    "patch streamingjobs.tidegate.dev/status",
    "patch streamingjobs.tidegate.dev/scale",
    *(f"{verb} sparkapplications.sparkoperator.k8s.io" for verb in ("create", "get", "list", "patch", "delete")),
    "list resourcequotas",
    "list nodes",
    "patch nodes",
    "patch deployments.apps",
    "create rolebindings.rbac.authorization.k8s.io",
    "create serviceaccounts/token",
    "patch customresourcedefinitions.apiextensions.k8s.io",
)
CLUSTER_WIDE = ("nodes", "customresourcedefinitions")


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo overlay in a namespace of its own."""
    subprocess.run([ROOT / "deploy" / "make-secrets.sh", DEMO / "secrets"], check=True, capture_output=True, timeout=30)
    folder = tmp_path_factory.mktemp("overlay")
    namespace = f"tg-op-{uuid.uuid4().hex[:6]}"
    volume = f'[{{"op": "replace", "path": "/spec/hostPath/path", "value": "/var/lib/{namespace}"}}]'
    said = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [os.path.relpath(DEMO, folder)],
        "images": [{"name": f"tidegate/{service}", "newTag": TAG} for service in DEPLOYMENTS],
        "patches": [{"target": {"kind": "PersistentVolume"}, "patch": volume}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(said), "utf-8")
    return folder


@pytest.fixture(scope="module")
def kubectl(overlay: Path) -> Iterator[Kubectl]:
    """The command on a cluster in which everything is deployed; at the end nothing of it is left."""
    namespace = yaml.safe_load((overlay / "kustomization.yaml").read_text("utf-8"))["namespace"]
    run = Kubectl(namespace)
    run("create", "namespace", namespace)
    try:
        run("apply", "--server-side", "--force-conflicts", "--kustomize", str(overlay), seconds=120)
        yield run
    finally:
        with ExitStack() as steps:
            steps.callback(run, "delete", "--ignore-not-found", "--kustomize", str(overlay), seconds=180)
            steps.callback(run, "delete", "pods", "--all", "--grace-period=1", seconds=120)
            steps.callback(run, "delete", "deployments,statefulsets", "--all", seconds=120)
            steps.callback(_forget, run)
            steps.callback(run, "delete", "--ignore-not-found", "apiservice", "v1beta1.external.metrics.k8s.io")


def _forget(run: Kubectl) -> None:
    """Delete all StreamingJobs; without an operator, what they wait for is taken off."""
    try:
        run("delete", "streamingjobs", "--all", "--timeout=20s")
    except KubectlFailed:
        for item in run.get("streamingjobs")["items"]:
            run("patch", "sj", item["metadata"]["name"], "--type=merge", '--patch={"metadata":{"finalizers":null}}')


@pytest.fixture(scope="module")
def ready(kubectl: Kubectl) -> Kubectl:
    """The same, with all pods ready."""
    kubectl("rollout", "status", "statefulset/kafka", f"--timeout={START_SECONDS:.0f}s", seconds=START_SECONDS + 10)
    for name in ("redis", *(f"tidegate-{service}" for service in DEPLOYMENTS)):
        kubectl(
            "rollout", "status", f"deployment/{name}", f"--timeout={START_SECONDS:.0f}s", seconds=START_SECONDS + 10
        )
    return kubectl


@pytest.fixture(scope="module")
def job(ready: Kubectl) -> Iterator[Kubectl]:
    """The example's job, which runs and is measured; at the end it is stopped, and then its object is deleted."""
    example, load = yaml.safe_load_all(EXAMPLE.read_text("utf-8"))
    example["spec"]["application"]["kubernetes"]["image"] = IMAGE
    example["spec"]["scaling"] |= {"interactive": True, "guards": {"cooldown": {"up_seconds": 1, "down_seconds": 1}}}
    example["spec"]["interval_seconds"] = 5
    loader = load["spec"]["template"]["spec"]["containers"][0]
    loader["command"] += ["--rate", "50"]
    loader["image"] = f"tidegate/collector:{TAG}"
    ready.apply(load)
    ready("rollout", "status", "deployment/rates-load", "--timeout=60s", seconds=70)
    ready.apply(example)
    until(ready, lambda sj: sj["status"].get("slots") == 1 and sj["spec"].get("slots") == 1, START_SECONDS)
    yield ready
    ready("patch", "sj", "rates", "--type=merge", '--patch={"spec": {"running": false}}')
    until(ready, lambda sj: sj["status"]["slots"] == 0, CHANGE_SECONDS)
    ready("delete", "sj", "rates", "--timeout=60s", seconds=70)
    assert "rates is removed from Tidegate" in ready("logs", "deployment/tidegate-operator", "--tail=50")


def until(kubectl: Kubectl, holds: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    """Wait until something holds of the StreamingJob `rates`; return it."""

    def look() -> dict[str, Any] | None:
        found = kubectl.get("sj", "rates")
        return found if "status" in found and holds(found) else None

    found = wait_until(look, seconds, 1.0)
    assert found is not None, f"not after {seconds:.0f} s:\n{kubectl('describe', 'sj', 'rates')}\n{state(kubectl)}"
    return found


def state(kubectl: Kubectl) -> str:
    """Return the pods, and the last lines of each service."""
    services = ("operator", "collector", "decider", "actuator")
    logs = [["logs", f"deployment/tidegate-{service}", "--tail=15"] for service in services]
    return "\n".join(_attempt(kubectl, *asked) for asked in (["get", "pods", "--output=wide"], *logs))


def _attempt(kubectl: Kubectl, *arguments: str) -> str:
    """Return what kubectl prints, or why it does not."""
    try:
        return kubectl(*arguments)
    except KubectlFailed as error:
        return str(error)


def conditions(sj: dict[str, Any]) -> dict[str, str]:
    """Return the status of each condition."""
    return {each["type"]: each["status"] for each in sj["status"]["conditions"]}


def test_the_api_server_accepts_every_object(kubectl: Kubectl, overlay: Path) -> None:
    """Nothing is refused, warned of, or different from what is there already."""
    printed = kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--kustomize", str(overlay), seconds=120
    )
    assert "Warning" not in printed
    assert printed.count("serverside-applied") >= 50


def test_explain_reads_well(kubectl: Kubectl) -> None:
    """`kubectl explain` has every field with its meaning and its default."""
    kubectl("wait", "--for=condition=Established", "crd/streamingjobs.tidegate.dev", "--timeout=30s")
    assert wait_until(lambda: "Default: active." in _attempt(kubectl, "explain", "sj.spec.scaling"), 30, 1.0)
    assert "lag_objective_seconds\t<number>" in kubectl("explain", "sj.spec.scaling")
    assert "kubectl scale" in kubectl("explain", "sj.spec.slots")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("sources", [], "spec.sources"),
        ("interval_seconds", "often", "spec.interval_seconds"),
        ("scaling", {"min_parallelism": 5, "max_parallelism": 3}, "must hold: min_parallelism <= max_parallelism"),
        ("skaling", {}, 'unknown field "spec.skaling"'),
        ("slots", -1, "spec.slots"),
    ],
)
def test_the_api_server_refuses_a_wrong_object(kubectl: Kubectl, field: str, value: object, said: str) -> None:
    """A wrong type, a value out of range, sizes in the wrong order and an unknown field are refused at once."""
    example = next(iter(yaml.safe_load_all(EXAMPLE.read_text("utf-8"))))
    example["spec"][field] = value
    with pytest.raises(KubectlFailed) as refused:
        kubectl("apply", "--dry-run=server", "--filename=-", stdin=json.dumps(example))
    assert said in str(refused.value)


def test_all_services_get_ready(ready: Kubectl) -> None:
    """Every pod is ready without a restart, as an ordinary user with a read-only root."""
    pods = ready.get("pods", "--selector=tidegate.dev/service")["items"]
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    assert {pod["metadata"]["labels"]["tidegate.dev/service"] for pod in running} >= set(DEPLOYMENTS)
    written = ready("exec", "deployment/tidegate-decider", "--", "sh", "-c", "id -u; touch /app/x 2>&1 || true")
    assert written.splitlines()[0] == "185"
    assert "Read-only file system" in written


@pytest.mark.parametrize("account", MAY)
def test_each_account_may_do_what_it_needs_and_nothing_else(kubectl: Kubectl, account: str) -> None:
    """Each act in the list is allowed or refused as said, and in the namespace of others everything is refused."""
    name = f"tidegate-{account}"
    wide = [act for act in ACTS if act.split()[1].partition(".")[0] in CLUSTER_WIDE]
    here = [act for act in ACTS if act not in wide]
    assert kubectl.allowed(name, here) | kubectl.allowed(name, wide, "") == MAY[account]
    elsewhere = ("create pods", "delete pods", "get secrets", "patch configmaps", "patch streamingjobs.tidegate.dev")
    assert kubectl.allowed(name, elsewhere, "kube-system") == set()


def test_a_wrong_object_is_named_and_a_right_one_is_taken_over(ready: Kubectl) -> None:
    """What only Tidegate can tell is the condition Accepted, with field and value; corrected, it is accepted."""
    example = next(iter(yaml.safe_load_all(EXAMPLE.read_text("utf-8"))))
    example["metadata"]["name"] = "other"
    example["spec"] |= {"running": False, "scaling": {"policy": "tyde"}}
    ready.apply(example)
    try:
        found = wait_until(lambda: ready.get("sj", "other").get("status"), 30, 0.5) or {}
        accepted = next(each for each in found["conditions"] if each["type"] == "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
        assert "scaling.policy: unknown policy 'tyde'" in accepted["message"]
        example["spec"]["scaling"] = {"policy": "hpa"}
        ready.apply(example)
        assert wait_until(lambda: conditions(ready.get("sj", "other"))["Accepted"] == "True", 30, 0.5)
    finally:
        ready("delete", "sj", "other", "--timeout=60s", seconds=70)


def test_a_job_runs_and_its_status_says_why(job: Kubectl) -> None:
    """The driver and one executor are there; the columns say slots, state and the decision in a sentence."""
    sj = until(job, lambda sj: conditions(sj).get("Healthy") == "True", CHANGE_SECONDS)
    assert conditions(sj) == {"Accepted": "True", "InSync": "True", "Healthy": "True"}
    assert sj["status"]["state"] == "running"
    assert job.get("pods", f"--selector={sj['status']['selector']}")["items"]

    def tells_why() -> bool:
        line = job("get", "sj", "rates").splitlines()[1]
        assert line.split()[0] == "rates"
        assert line.split()[3] == "running"
        return str(job.get("sj", "rates")["status"]["why"]) in line

    assert wait_until(tells_why, 30, 1), "a new decision may come between the two questions, but not each time"


def test_kubectl_scale_changes_the_job(job: Kubectl) -> None:
    """`kubectl scale` is an operator's size: decided, carried out, and verified."""
    before = job.get("sj", "rates")["status"]["version"]
    job("scale", "sj/rates", "--replicas=2")
    sj = until(job, lambda sj: sj["status"]["slots"] == 2 and verified(sj, before), CHANGE_SECONDS)
    assert sj["spec"]["slots"] == sj["status"]["appliedSlots"] == 2
    assert job.get("sj/rates", "--subresource=scale")["status"]["replicas"] == 2


def resized(job: Kubectl, slots: int) -> dict[str, Any]:
    """Scale the job, and wait until it has that size and nothing is under way."""
    job("scale", "sj/rates", f"--replicas={slots}")
    return until(job, lambda sj: sj["status"]["slots"] == sj["status"]["target"] == slots, CHANGE_SECONDS)


def verified(sj: dict[str, Any], after: int) -> bool:
    """Return whether the last change of a job was verified, under a version of the spec after this one."""
    status: dict[str, Any] = sj["status"]
    return bool(status["version"] > after and status.get("lastChange", {}).get("phase") == "verified")


@pytest.fixture
def keda(job: Kubectl) -> Iterator[Callable[[], float]]:
    """What the external scaler answers about the job, as KEDA asks it."""
    address = job.get("service", "tidegate-keda")["spec"]["clusterIP"]
    channel = grpc.insecure_channel(f"{address}:9090")
    request, response, _ = METHODS["GetMetrics"]
    call = channel.unary_unary(
        f"/{SERVICE}/GetMetrics", CLASSES[request].SerializeToString, CLASSES[response].FromString
    )

    def ask() -> float:
        asked = CLASSES[request](scaledObjectRef=CLASSES["ScaledObjectRef"](name="rates"), metricName="tidegate-slots")
        (value,) = call(asked, timeout=10).metricValues
        return float(value.metricValueFloat)

    yield ask
    channel.close()


@pytest.fixture
def autoscaled(job: Kubectl, keda: Callable[[], float], tmp_path: Path) -> Iterator[dict[str, float]]:
    """External metrics for HPAs: `load`, which a test sets, and KEDA's `tidegate-slots`."""
    values = {"load": 1.0}
    metrics = {"load": lambda: values["load"], "tidegate-slots": keda}
    with metrics_api(GATEWAY, metrics, tmp_path) as port:
        *network, service = registration(job.namespace, GATEWAY, port)
        job.apply(*network)
        address = job.get("service", "external-metrics")["spec"]["clusterIP"]
        assert wait_until(lambda: reached(address), 30, 0.5), f"the Service at {address} does not lead to this machine"
        job.apply(service)
        job(
            "wait",
            "--for=condition=Available",
            "apiservice/v1beta1.external.metrics.k8s.io",
            "--timeout=60s",
            seconds=70,
        )
        yield values
    job("delete", "hpa", "--all")
    job("delete", "--ignore-not-found", "apiservice", "v1beta1.external.metrics.k8s.io")


def hpa(metric: str, average: str) -> dict[str, Any]:
    """Return an HPA on the job."""
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "rates"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "tidegate.dev/v1alpha1", "kind": "StreamingJob", "name": "rates"},
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [
                {
                    "type": "External",
                    "external": {
                        "metric": {"name": metric},
                        "target": {"type": "AverageValue", "averageValue": average},
                    },
                }
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def test_an_autoscaler_of_kubernetes_changes_the_job(job: Kubectl, autoscaled: dict[str, float]) -> None:
    """An HPA on `scale` brings the job to the size that follows from its metric; the policy's own do not count."""
    status = job.get("sj", "rates")["status"]
    target = 4 if status["slots"] == 3 else 3
    autoscaled["load"] = 100.0 * target
    job.apply(hpa("load", "100"))
    until(job, lambda sj: sj["status"]["slots"] == target and verified(sj, status["version"]), CHANGE_SECONDS)
    managed = job.get("sj", "rates", "--show-managed-fields")["metadata"]["managedFields"]
    assert ("scale", "kube-controller-manager") in {(each.get("subresource"), each["manager"]) for each in managed}


def test_what_keda_is_told_changes_the_job(
    job: Kubectl, autoscaled: dict[str, float], keda: Callable[[], float]
) -> None:
    """With the recommendation as its metric, as KEDA sets it up, an HPA brings the job to that size."""
    resized(job, 3)
    patched(job, interactive=False, mode="advise", max_parallelism=2)
    try:
        wanted = wait_until(lambda: keda() if keda() <= 2 else 0.0, 60, 1.0)
        assert wanted, "at most two slots may be recommended"
        assert job.get("sj", "rates")["status"]["slots"] == 3
        job.apply(hpa("tidegate-slots", "1"))
        until(job, lambda sj: sj["status"]["slots"] == keda() <= 2, CHANGE_SECONDS)
    finally:
        job("delete", "--ignore-not-found", "hpa", "rates")
        patched(job, interactive=True, mode="active", max_parallelism=4)


def patched(job: Kubectl, **scaling: object) -> None:
    """Change how the job may be scaled."""
    job("patch", "sj", "rates", "--type=merge", "--patch", json.dumps({"spec": {"scaling": scaling}}))
