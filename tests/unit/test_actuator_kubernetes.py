"""The Kubernetes backend: the driver's pod, what the API says about pods, and what Tidegate makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tidegate
from services.actuator.backends import LOG_BYTES, BackendRefused, BackendUnreachable, DriverState, Submission
from services.actuator.backends.driver_pod import driver_pod, launcher_code
from services.actuator.backends.kubernetes import Kubernetes
from services.actuator.command_log import CommandLog
from services.actuator.drivers import JobDrivers
from tests.support.clusters import on_kubernetes
from tests.support.events import job, with_application
from tests.support.fake_kubernetes import FakeKubernetes
from tidegate.events.job import JobSpec, Volume
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.control.store import store_at
from tidegate.launcher.kubernetes.api import Api
from tidegate.launcher.kubernetes.pods import app_name_label

PODS = "/api/v1/namespaces/jobs/pods"
RUN = "tidegate-rates-7-2"
ID = f"jobs/{RUN}"
SPEC = on_kubernetes(job("rates"))


def pod(server: FakeKubernetes, name: str, status: dict[str, Any], **fields: Any) -> None:
    """Add a pod."""
    server.put(f"{PODS}/{name}", status=status, **fields)


def container(spec: JobSpec) -> dict[str, Any]:
    """Return the driver's container."""
    made: dict[str, Any] = driver_pod(Submission(spec, Token(7, 2), 2))["spec"]["containers"][0]
    return made


def conf(spec: JobSpec) -> dict[str, str]:
    """Return the settings of the run."""
    words = container(spec)["args"]
    pairs = [words[at + 1].partition("=") for at, word in enumerate(words) if word == "--conf"]
    return {name: value for name, _, value in pairs}


def test_a_run_has_one_name() -> None:
    """Pod and application are called alike, and the id says where the pod is."""
    made = driver_pod(Submission(SPEC, Token(7, 2), 2))
    labels = made["metadata"]["labels"]
    assert made["metadata"]["name"] == labels["spark-app-selector"] == RUN
    assert (labels["spark-role"], labels["spark-app-name"]) == ("driver", "rates")
    assert (labels["tidegate.dev/job"], labels["tidegate.dev/run"]) == ("rates", "7-2")
    said = conf(SPEC)
    assert said["spark.app.id"] == said["spark.kubernetes.driver.pod.name"] == RUN
    assert {"name": "TIDEGATE_SUBMISSION_ID", "value": ID} in container(SPEC)["env"]


def test_executors_find_the_driver_and_its_volumes() -> None:
    """They are told the address of its pod, and mount what it mounts."""
    volumes = (Volume(name="data", path="/data", claim="spark"), Volume(name="logs", path="/logs", host_path="/srv"))
    spec = on_kubernetes(job("rates"), volumes=volumes)
    said, driver = conf(spec), driver_pod(Submission(spec, Token(7, 2), 2))["spec"]
    assert said["spark.driver.host"] == "$(SPARK_DRIVER_BIND_ADDRESS)"
    place = "spark.kubernetes.executor.volumes"
    assert said[f"{place}.persistentVolumeClaim.data.options.claimName"] == "spark"
    assert said[f"{place}.persistentVolumeClaim.data.mount.path"] == "/data"
    assert said[f"{place}.hostPath.logs.options.path"] == "/srv"
    assert {"name": "data", "mountPath": "/data"} in driver["containers"][0]["volumeMounts"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "spark"}} in driver["volumes"]
    assert {"name": "logs", "hostPath": {"path": "/srv"}} in driver["volumes"]


def test_the_launcher_comes_with_the_driver() -> None:
    """Its files are mounted where the arguments say, at paths from which it imports itself; they fit a ConfigMap."""
    code = launcher_code()
    mounted = {volume["name"]: volume for volume in driver_pod(Submission(SPEC, Token(7, 2), 2))["spec"]["volumes"]}
    source = mounted["tidegate-launcher"]["configMap"]
    assert source["name"] == code["metadata"]["name"]
    files = {item["path"]: code["data"][item["key"]] for item in source["items"]}
    package = Path(tidegate.__file__).parent
    sources = (path for kind in ("py", "java") for path in (package / "launcher").rglob(f"*.{kind}"))
    names = {"__init__.py", *(str(path.relative_to(package)) for path in sources)}
    assert files == {f"tidegate/{name}": (package / name).read_text("utf-8") for name in names}
    assert {"launcher/__main__.py", "launcher/control/files.py", "launcher/programs/Gate.java"} <= names
    assert all(re.fullmatch(r"[-._A-Za-z0-9]+", key) for key in code["data"])
    assert sum(map(len, code["data"].values())) < 900_000
    assert "/opt/tidegate/tidegate/launcher/__main__.py" in container(SPEC)["args"]


def test_arguments_are_not_expanded() -> None:
    """Kubernetes puts variables in place of `$(NAME)`; in the spec's own texts it must not."""
    spec = with_application(SPEC, args=("$(HOME)", "$$"), env={"PATTERN": "a$(b)"})
    assert container(spec)["args"][-2:] == ["$$(HOME)", "$$$$"]
    assert {"name": "PATTERN", "value": "a$$(b)"} in container(spec)["env"]


def test_sizes_are_asked_for_as_spark_does() -> None:
    """The driver's memory has Spark's overhead, more for Python; executors start in the run's number and may grow."""
    assert container(SPEC)["resources"]["requests"] == {"cpu": "1", "memory": "896Mi"}  # 512 + 384
    large = with_application(SPEC, driver_memory_mb=2000, conf={"spark.kubernetes.driver.request.cores": "100m"})
    assert container(large)["resources"]["requests"] == {"cpu": "100m", "memory": "2800Mi"}  # + 0.4 * 2000
    told = with_application(SPEC, conf={"spark.driver.memoryOverhead": "1g"})
    assert container(told)["resources"]["limits"] == {"memory": "1536Mi"}
    said = conf(SPEC)
    assert (said["spark.executor.instances"], said["spark.cores.max"]) == ("2", "16")
    assert said["spark.dynamicAllocation.enabled"] == "false"
    assert said["spark.decommission.enabled"] == "true"


def test_a_template_adds_and_tidegate_wins() -> None:
    """What the template says of the pod is kept, but for what the launcher depends on."""
    template: dict[str, Any] = {
        "metadata": {"annotations": {"team": "shop"}, "name": "mine"},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "restartPolicy": "Always",
            "containers": [
                {"name": "spark-kubernetes-driver", "securityContext": {"runAsUser": 7}, "env": [{"name": "A"}]},
                {"name": "sidecar"},
            ],
            "volumes": [{"name": "extra", "emptyDir": {}}],
        },
    }
    made = driver_pod(Submission(on_kubernetes(job("rates"), driver_template=template), Token(7, 2), 2))
    assert (made["metadata"]["name"], made["metadata"]["annotations"]) == (RUN, {"team": "shop"})
    spec = made["spec"]
    assert (spec["nodeSelector"], spec["restartPolicy"]) == ({"disk": "ssd"}, "Never")
    ours, other = spec["containers"]
    assert (ours["securityContext"], ours["image"], other) == ({"runAsUser": 7}, "spark:4.2.0", {"name": "sidecar"})
    assert [env["name"] for env in ours["env"]] == ["A", "TIDEGATE_SUBMISSION_ID", "SPARK_DRIVER_BIND_ADDRESS"]
    assert [volume["name"] for volume in spec["volumes"]] == ["extra", "tidegate-launcher"]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"phase": "Pending"}, DriverState.RUNNING),  # its image is pulled
        ({"phase": "Running"}, DriverState.RUNNING),
        ({"phase": "Unknown"}, DriverState.RUNNING),
        ({"phase": "Succeeded"}, DriverState.ENDED),
        ({"phase": "Failed"}, DriverState.ENDED),
    ],
)
def test_the_phase_is_the_state(server: FakeKubernetes, status: dict[str, Any], state: DriverState) -> None:
    """A pod that is being deleted is alive until the API does not list it: its containers may still run (I4)."""
    placed = {"nodeName": "node-1"}
    pod(server, RUN, status, spec=placed)
    assert Kubernetes(server.api).state(SPEC, ID) is state
    pod(server, RUN, status, spec=placed, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert Kubernetes(server.api).state(SPEC, ID) is state


def test_a_pod_without_a_node_waits_for_room(server: FakeKubernetes) -> None:
    """A node may still come: nobody ends it."""
    pod(server, RUN, {"phase": "Pending"})
    assert Kubernetes(server.api).state(SPEC, ID) is DriverState.PENDING


def test_a_deleted_pod_has_ended(server: FakeKubernetes) -> None:
    """The API forgets nothing else, so nobody waits for a driver whose pod somebody has deleted."""
    backend = Kubernetes(server.api)
    assert backend.state(SPEC, ID) is DriverState.ENDED
    assert backend.reason(SPEC, ID) == f"The driver's pod {ID} was deleted."


def test_a_run_stays_where_it_is(server: FakeKubernetes) -> None:
    """A spec that names another namespace by now does not make a driver disappear that runs in the old one (I4)."""
    backend = Kubernetes(server.api)
    driver = backend.submit(Submission(SPEC, Token(7, 2), 2))
    moved = on_kubernetes(job("rates"), namespace="elsewhere")
    assert backend.state(moved, driver).alive
    backend.kill(moved, driver)
    assert backend.state(moved, driver) is DriverState.ENDED


def test_a_kill_waits_for_the_node(server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod is never taken off the list by force: on a node that is cut off, its containers may run on (I4)."""
    api, asked = server.api, []
    monkeypatch.setattr(Api, "delete", lambda _, path, *, grace_seconds: asked.append((path, grace_seconds)))
    Kubernetes(api).kill(SPEC, ID)
    assert asked == [(f"{PODS}/{RUN}", 1)]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            {"containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
            "OOMKilled: container c used more memory than its limit; raise application.driver_memory_mb",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image x"}}}
                ]
            },
            "ImagePullBackOff: no such image x",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu."}]},
            f"No node takes the driver's pod {RUN}: 0/1 nodes: Insufficient cpu.",
        ),
        ({"reason": "Evicted", "message": "The node was low on memory."}, "Evicted: The node was low on memory."),
        ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "Error", "exitCode": 1}}}]}, ""),
        ({}, ""),
    ],
)
def test_the_cluster_says_why(server: FakeKubernetes, status: dict[str, Any], said: str) -> None:
    """What hinders a driver's pod, or has ended it, is in the sentence of the failed command."""
    pod(server, RUN, {"phase": "Pending", **status})
    server.usual_log = "ValueError: the program's own"
    backend = Kubernetes(server.api)
    assert backend.reason(SPEC, ID).startswith(said)
    control = Control(store_at("configmap:jobs", "rates", api=server.api))
    drivers = JobDrivers(SPEC, backend, control, CommandLog())
    assert drivers.reason(Token(7, 2), ID).startswith(said or "ValueError: the program's own")


def test_a_log_of_long_lines_fills_no_memory(server: FakeKubernetes) -> None:
    """A driver writes what it likes; the actuator asks for some megabytes of it at most."""
    pod(server, RUN, {"phase": "Running"})
    server.usual_log = 20_000_000 * "x"
    assert len(Kubernetes(server.api).log_tail(SPEC, ID, Token(7, 2))) == LOG_BYTES
    assert server.sent == 64 * LOG_BYTES


def test_who_runs_is_told_by_labels(server: FakeKubernetes) -> None:
    """Applications of any name and kind are listed; our own driver is one as soon as it has executors."""
    backend, spec = Kubernetes(server.api), on_kubernetes(job("rates_v2"))
    driver = backend.submit(Submission(spec, Token(7, 2), 2))
    name = driver.removeprefix("jobs/")
    assert backend.applications(spec) == {}
    labels = {"spark-role": "executor", "spark-app-selector": name, "spark-app-name": "rates-v2"}
    pod(server, "e1", {"phase": "Running"}, metadata={"labels": labels})
    pod(server, "e2", {"phase": "Running"}, metadata={"labels": labels | {"spark-app-selector": "spark-1"}})
    pod(server, "d3", {"phase": "Running"}, metadata={"labels": {"spark-role": "driver", "spark-app-name": "clicks"}})
    pod(server, "d4", {"phase": "Failed"}, metadata={"labels": {"spark-role": "driver", "spark-app-name": "old"}})
    pod(server, "web", {"phase": "Running"})
    assert backend.applications(spec) == {name: "rates_v2", "spark-1": "rates_v2", "d3": "clicks"}
    assert backend.live_drivers(spec) == {driver}


def test_our_own_run_is_not_foreign(server: FakeKubernetes) -> None:
    """A run of ours that has executors before it has reported its application is not taken for somebody else's."""
    backend, control = Kubernetes(server.api), Control(store_at("configmap:jobs", "rates", api=server.api))
    drivers = JobDrivers(SPEC, backend, control, CommandLog())
    name = drivers.submit(Token(7, 2), 2)
    control.write_running(Token(7, 2), {"submission_id": name})
    for id_ in (RUN, "spark-1"):
        labels = {"spark-role": "executor", "spark-app-selector": id_, "spark-app-name": "rates"}
        pod(server, f"{id_}-exec-1", {"phase": "Running"}, metadata={"labels": labels})
    assert drivers.foreign() == ["spark-1"]


def test_slots_count_when_they_have_a_node(server: FakeKubernetes) -> None:
    """While the scheduler has not judged each executor, nobody knows what was granted; then it is what it placed."""
    backend, spec = Kubernetes(server.api), on_kubernetes(job("rates", executor_cores=2, min_parallelism=2))
    labels = {"metadata": {"labels": {"spark-role": "executor", "spark-app-selector": RUN}}}
    assert backend.granted(spec, RUN) is None
    pod(server, "e1", {"phase": "Running"}, spec={"nodeName": "n"}, **labels)
    pod(server, "e2", {"phase": "Pending"}, **labels)
    assert backend.granted(spec, RUN) is None
    pod(server, "e2", {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]})
    assert backend.granted(spec, RUN) == 2
    pod(server, "e3", {"phase": "Succeeded"}, spec={"nodeName": "n"}, **labels)
    pod(server, "e4", {"phase": "Pending"}, spec={"nodeName": "n"}, **labels)
    assert backend.granted(spec, RUN) == 4


def test_old_pods_are_removed(server: FakeKubernetes) -> None:
    """Pods of drivers that have ended do not pile up; the newest stay, with their logs."""
    backend = Kubernetes(server.api)
    for run in range(1, 8):
        backend.submit(Submission(SPEC, Token(7, run), 2))
        ended = {"phase": "Failed"} if run != 4 else {"phase": "Running"}
        created = {"creationTimestamp": f"2026-01-01T00:00:0{run}Z"}
        pod(server, f"tidegate-rates-7-{run}", ended, metadata=created)
    backend.submit(Submission(SPEC, Token(8, 1), 2))
    left = {path.rpartition("/")[2] for path in server.objects if path.startswith(PODS)}
    assert left == {f"tidegate-rates-{run}" for run in ("7-4", "7-5", "7-6", "7-7", "8-1")}


def test_no_way_to_a_cluster_is_a_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """An actuator without a kubeconfig outside a cluster says what to do, and is not taken for a silent cluster."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BackendRefused, match="no Kubernetes: set KUBECONFIG"):
        Kubernetes(Api()).state(SPEC, ID)


@pytest.mark.parametrize("outrun", [1, 100], ids=["once", "again and again"])
def test_a_pod_that_others_outran_is_not_taken_for_one_that_is_there(
    server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch, outrun: int
) -> None:
    """Where pods share a quota, the API refuses some that come at the same time with a 409, as it does known names."""
    monkeypatch.setattr("tidegate.launcher.kubernetes.api._OUTRUN_SECONDS", 0.0)
    backend, run = Kubernetes(server.api), Submission(SPEC, Token(5), 2)
    backend.submit(Submission(SPEC, Token(4), 2))  # so that the launcher's code is there
    server.outrun = outrun
    if outrun > 1:
        with pytest.raises(BackendRefused, match="resourcequotas"):
            backend.submit(run)
        return
    assert backend.state(SPEC, backend.submit(run)) is DriverState.PENDING


@pytest.mark.parametrize(
    "why",
    [
        "exceeded quota: q, requested: limits.memory=910Mi, used: limits.memory=7Gi, limited: limits.memory=8Gi",
        'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    ],
    ids=["quota", "pod security"],
)
def test_a_pod_that_is_not_admitted_is_no_want_of_rights(server: FakeKubernetes, why: str) -> None:
    """The API answers with the same 403 to a full quota; whoever reads of rights then looks in the wrong place."""
    server.inadmissible = why
    with pytest.raises(BackendRefused) as refused:
        Kubernetes(server.api).submit(Submission(SPEC, Token(5), 2))
    assert str(refused.value).endswith(f"is forbidden: {why}")


def test_an_overloaded_server_is_silent(server: FakeKubernetes) -> None:
    """429 and 5xx say nothing about what was done."""
    for status in (429, 500, 503):
        server.broken = status
        with pytest.raises(BackendUnreachable, match=str(status)):
            Kubernetes(server.api).live_drivers(SPEC)


@pytest.mark.parametrize(
    ("name", "label"), [("rates", "rates"), ("my_job.v2", "my-job-v2"), (" A  b ", "a-b"), ("x" * 70, "x" * 63)]
)
def test_labels_are_those_of_spark(name: str, label: str) -> None:
    """A foreign driver is known by the label that Spark makes of its name."""
    assert app_name_label(name) == label
