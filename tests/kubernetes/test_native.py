"""Tidegate as it is deployed: the demo overlay on a real cluster, its rights, and a job that is a StreamingJob.

`make test-k8s` runs this on the cluster of KUBECONFIG. The images of deploy/Dockerfile must be in it, and this machine
must reach the pods' network. Everything is in a namespace of its own, which is removed at the end.
"""

from __future__ import annotations

import json
import os
import re
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
from tidegate.runtime.poll import wait_until

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
    "operator": {f"{verb} streamingjobs.tidegate.dev" for verb in ("list", "watch", "patch")}
    | {"patch streamingjobs.tidegate.dev/status"},
    "actuator": {"create pods", "get pods", "list pods", "delete pods", "get pods/log"}
    | {"create configmaps", "get configmaps", "patch configmaps"}
    | {f"{verb} sparkapplications.sparkoperator.k8s.io" for verb in ("create", "get", "list", "delete")},
    "collector": {"list pods", "list resourcequotas", "list nodes"},
    "decider": set[str](),
    "console": set[str](),
    "keda": set[str](),
    "driver": {f"{verb} {kind}" for kind in ("pods", "configmaps") for verb in ("create", "get", "list", "delete")}
    | {"patch pods", "patch configmaps", "list services", "delete services"}
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
    *(f"{verb} streamingjobs.tidegate.dev" for verb in ("get", "list", "watch", "create", "patch", "delete")),
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
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo overlay in two namespaces of this run."""
    subprocess.run([ROOT / "deploy" / "make-secrets.sh", DEMO / "secrets"], check=True, capture_output=True, timeout=30)
    run = f"tg-op-{uuid.uuid4().hex[:6]}"
    rendered = yaml.safe_load_all(Kubectl("")("kustomize", str(DEMO)))
    path = tmp_path_factory.mktemp("manifest") / "all.yaml"
    path.write_text(yaml.safe_dump_all([moved(each, run) for each in rendered]), "utf-8")
    return path


def moved(found: Any, run: str) -> Any:
    """Return a part of a manifest with the namespaces, the folder and the images of a run."""
    if isinstance(found, list):
        return [moved(each, run) for each in found]
    if isinstance(found, dict):
        return {key: moved(value, run) for key, value in found.items()}
    if not isinstance(found, str):
        return found
    if found in {"tidegate", "tidegate-jobs", "/var/lib/tidegate-demo"}:
        return found.replace("tidegate", run)
    found = re.sub(r"^(tidegate/\w+):.*", rf"\1:{TAG}", found)
    return found.replace("kafka.tidegate:", f"kafka.{run}:")


@pytest.fixture(scope="module")
def kubectl(manifest: Path) -> Iterator[Kubectl]:
    """The command in Tidegate's namespace, with everything deployed; at the end nothing of it is left."""
    found = [each for each in yaml.safe_load_all(manifest.read_text("utf-8")) if each["kind"] == "Namespace"]
    run, jobs = (Kubectl(name) for name in sorted(each["metadata"]["name"] for each in found))
    everywhere = Kubectl("")
    try:
        everywhere("apply", "--server-side", "--force-conflicts", f"--filename={manifest}", seconds=120)
        yield run
    finally:
        with ExitStack() as steps:
            steps.callback(everywhere, "delete", "--ignore-not-found", f"--filename={manifest}", seconds=240)
            for each in (run, jobs):
                steps.callback(each, "delete", "pods", "--all", "--grace-period=1", seconds=120)
            steps.callback(run, "delete", "deployments,statefulsets", "--all", seconds=120)
            steps.callback(_forget, jobs)
            steps.callback(run, "delete", "--ignore-not-found", "apiservice", "v1beta1.external.metrics.k8s.io")


@pytest.fixture(scope="module")
def jobs(kubectl: Kubectl) -> Kubectl:
    """The command in the namespace of the jobs."""
    return Kubectl(f"{kubectl.namespace}-jobs")


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
def job(ready: Kubectl, jobs: Kubectl) -> Iterator[Kubectl]:
    """The example's job, which runs and is measured; at the end it is stopped, and then its object is deleted."""
    example, load = yaml.safe_load_all(EXAMPLE.read_text("utf-8"))
    example["spec"]["application"]["kubernetes"]["image"] = IMAGE
    example["spec"]["scaling"] |= {"interactive": True, "guards": {"cooldown": {"up_seconds": 1, "down_seconds": 1}}}
    example["spec"]["interval_seconds"] = 5
    loader = load["spec"]["template"]["spec"]["containers"][0]
    loader["command"] += ["--rate", "50"]
    ready.apply(moved(load, ready.namespace))
    ready("rollout", "status", "deployment/rates-load", "--timeout=60s", seconds=70)
    jobs.apply(moved(example, ready.namespace))
    until(jobs, lambda sj: sj["status"].get("slots") == 1 and sj["spec"].get("slots") == 1, START_SECONDS)
    yield jobs
    jobs("patch", "sj", "rates", "--type=merge", '--patch={"spec": {"running": false}}')
    until(jobs, lambda sj: sj["status"]["slots"] == 0, CHANGE_SECONDS)
    jobs("delete", "sj", "rates", "--timeout=60s", seconds=70)
    log = ready("logs", "deployment/tidegate-operator")
    assert "rates is removed from Tidegate" in log
    assert "cannot watch" not in log


def streaming_job(jobs: Kubectl) -> dict[str, Any]:
    """Return the example's StreamingJob for the namespace of the jobs."""
    found = next(iter(yaml.safe_load_all(EXAMPLE.read_text("utf-8"))))
    found["metadata"]["namespace"] = jobs.namespace
    job: dict[str, Any] = found
    return job


def until(kubectl: Kubectl, holds: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
    """Wait until something holds of the StreamingJob `rates`; return it."""

    def look() -> dict[str, Any] | None:
        found = kubectl.get("sj", "rates")
        return found if "status" in found and holds(found) else None

    found = wait_until(look, seconds, 1.0)
    assert found is not None, f"not after {seconds:.0f} s:\n{kubectl('describe', 'sj', 'rates')}\n{state(kubectl)}"
    return found


def state(kubectl: Kubectl) -> str:
    """Return the pods of the jobs, and the last lines of each service."""
    services = ("operator", "collector", "decider", "actuator")
    tidegate = Kubectl(kubectl.namespace.removesuffix("-jobs"))
    logs = [_attempt(tidegate, "logs", f"deployment/tidegate-{service}", "--tail=15") for service in services]
    return "\n".join([_attempt(kubectl, "get", "pods", "--output=wide"), *logs])


def _attempt(kubectl: Kubectl, *arguments: str) -> str:
    """Return what kubectl prints, or why it does not."""
    try:
        return kubectl(*arguments)
    except KubectlFailed as error:
        return str(error)


def conditions(sj: dict[str, Any]) -> dict[str, str]:
    """Return the status of each condition."""
    return {each["type"]: each["status"] for each in sj["status"]["conditions"]}


def test_the_api_server_accepts_every_object(kubectl: Kubectl, manifest: Path) -> None:
    """Nothing is refused, warned of, or different from what is there already."""
    del kubectl
    printed = Kubectl("")(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", f"--filename={manifest}", seconds=120
    )
    assert "Warning" not in printed
    assert printed.count("serverside-applied") >= 50


def rendered(folder: Path, **kustomization: Any) -> list[dict[str, Any]]:
    """Return the objects of an overlay."""
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), "utf-8")
    return list(yaml.safe_load_all(Kubectl("")("kustomize", str(folder))))


def test_all_can_be_in_one_namespace(tmp_path: Path) -> None:
    """With the component, jobs are next to Tidegate, whose operator looks there, on one claim, as in older versions."""
    root = Path(os.path.relpath(DEMO.parents[1], tmp_path))
    component = str(root / "components" / "one-namespace")
    found = rendered(tmp_path, resources=[str(root / "base"), str(root / "jobs")], components=[component])
    assert {each["metadata"]["namespace"] for each in found if "namespace" in each["metadata"]} == {"tidegate"}
    assert [each["metadata"]["name"] for each in found if each["kind"] == "Namespace"] == ["tidegate"]
    (claim,) = (each["spec"] for each in found if each["kind"] == "PersistentVolumeClaim")
    assert not {"volumeName", "storageClassName"} & set(claim)
    assert "TIDEGATE_OPERATOR_NAMESPACE" not in yaml.safe_dump_all(found)


def test_a_further_namespace_is_a_small_overlay(tmp_path: Path) -> None:
    """Its bindings name Tidegate's accounts, and the drivers' account is its own."""
    found = rendered(tmp_path, namespace="team-a", resources=[os.path.relpath(DEMO.parents[1] / "jobs", tmp_path)])
    assert {each["metadata"].get("namespace", each["metadata"]["name"]) for each in found} == {"team-a"}
    subjects = [each["subjects"][0] for each in found if each["kind"] == "RoleBinding"]
    assert {each["name"]: each["namespace"] for each in subjects} == {
        "tidegate-actuator": "tidegate",
        "tidegate-collector": "tidegate",
        "tidegate-operator": "tidegate",
        "tidegate-driver": "team-a",
    }


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
def test_the_api_server_refuses_a_wrong_object(jobs: Kubectl, field: str, value: object, said: str) -> None:
    """A wrong type, a value out of range, sizes in the wrong order and an unknown field are refused at once."""
    example = streaming_job(jobs)
    example["spec"][field] = value
    with pytest.raises(KubectlFailed) as refused:
        jobs("apply", "--dry-run=server", "--filename=-", stdin=json.dumps(example))
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
def test_each_account_may_do_what_it_needs_and_nothing_else(kubectl: Kubectl, jobs: Kubectl, account: str) -> None:
    """In the namespace of the jobs it may do what is said, in Tidegate's own and in others nothing."""
    name, home = f"tidegate-{account}", jobs if account == "driver" else kubectl
    wide = [act for act in ACTS if act.split()[1].partition(".")[0] in CLUSTER_WIDE]
    here = [act for act in ACTS if act not in wide]
    assert home.allowed(name, here, jobs.namespace) | home.allowed(name, wide, "") == MAY[account]
    everywhere = {"list pods"} if account == "collector" else set()
    for elsewhere in (kubectl.namespace, "kube-system"):
        assert home.allowed(name, here, elsewhere) == everywhere


def test_no_pod_of_a_job_gets_into_tidegates_namespace(kubectl: Kubectl, jobs: Kubectl) -> None:
    """One as Spark makes it is refused there, and one that mounts the node's folders also where the jobs are."""
    spec: dict[str, Any] = {"containers": [{"name": "driver", "image": IMAGE, "command": ["true"]}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(KubectlFailed, match='violates PodSecurity "restricted'):
        kubectl.apply(pod)
    spec["volumes"] = [{"name": "node", "hostPath": {"path": "/etc"}}]
    with pytest.raises(KubectlFailed, match='violates PodSecurity "baseline'):
        jobs.apply(pod)


def test_a_wrong_object_is_named_and_a_right_one_is_taken_over(ready: Kubectl, jobs: Kubectl) -> None:
    """What only Tidegate can tell is the condition Accepted, with field and value; corrected, it is accepted."""
    del ready
    example = streaming_job(jobs)
    example["metadata"]["name"] = "other"
    example["spec"] |= {"running": False, "scaling": {"policy": "tyde"}}
    jobs.apply(example)
    try:
        accepted = refused(jobs, "other")
        assert accepted["reason"] == "Invalid"
        assert "scaling.policy: unknown policy 'tyde'" in accepted["message"]
        assert "False" in jobs("get", "sj", "other")
        example["spec"]["scaling"] = {"policy": "hpa"}
        jobs.apply(example)
        assert wait_until(lambda: conditions(jobs.get("sj", "other"))["Accepted"] == "True", 30, 0.5)
    finally:
        jobs("delete", "sj", "other", "--timeout=60s", seconds=70)


def test_an_object_may_not_name_what_the_services_would_ask(ready: Kubectl, jobs: Kubectl) -> None:
    """Another API server and another file system are refused, with what to do, and no job comes of that."""
    del ready
    example = streaming_job(jobs)
    example["metadata"]["name"] = "outside"
    example["spec"]["application"] |= {"master": "k8s://https://10.0.0.1:6443", "event_log_dir": "hdfs://10.0.0.1/x"}
    jobs.apply(example)
    try:
        message = refused(jobs, "outside")["message"]
        assert "application.master: a StreamingJob may not name 'k8s://https://10.0.0.1:6443'" in message
        assert "application.event_log_dir: a StreamingJob may not name 'hdfs://10.0.0.1'" in message
        assert "TIDEGATE_OPERATOR_ALLOWED_PLACES" in message
        assert "version" not in jobs.get("sj", "outside")["status"]
    finally:
        jobs("delete", "sj", "outside", "--timeout=60s", seconds=70)


def refused(jobs: Kubectl, name: str) -> dict[str, Any]:
    """Wait until a StreamingJob is refused; return the condition that says why."""

    def look() -> dict[str, Any] | None:
        status = jobs.get("sj", name).get("status", {})
        found = (each for each in status.get("conditions", ()) if each["type"] == "Accepted")
        return next((each for each in found if each["status"] == "False"), None)

    found = wait_until(look, 30, 0.5)
    assert found is not None, jobs("describe", "sj", name)
    return found


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
    before = job.get("sj", "rates")["status"]
    size = 2 if before["slots"] != 2 else 3
    job("scale", "sj/rates", f"--replicas={size}")
    sj = until(job, lambda sj: sj["status"]["slots"] == size and verified(sj, before["version"]), CHANGE_SECONDS)
    assert sj["spec"]["slots"] == sj["status"]["appliedSlots"] == size
    assert job.get("sj/rates", "--subresource=scale")["status"]["replicas"] == size


def resized(job: Kubectl, slots: int) -> dict[str, Any]:
    """Scale the job, and wait until it has that size and nothing is under way."""
    job("scale", "sj/rates", f"--replicas={slots}")
    return until(job, lambda sj: sj["status"]["slots"] == sj["status"]["target"] == slots, CHANGE_SECONDS)


def verified(sj: dict[str, Any], after: int) -> bool:
    """Return whether the last change of a job was verified, under a version of the spec after this one."""
    status: dict[str, Any] = sj["status"]
    return bool(status["version"] > after and status.get("lastChange", {}).get("phase") == "verified")


@pytest.fixture
def keda(ready: Kubectl, job: Kubectl) -> Iterator[Callable[[], float]]:
    """What the external scaler answers about the job, as KEDA asks it."""
    del job
    address = ready.get("service", "tidegate-keda")["spec"]["clusterIP"]
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
