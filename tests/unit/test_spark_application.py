"""Drivers of the Spark operator: the SparkApplication that is written, and what is made of the operator's words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import JsonValue, ValidationError

from services.actuator.backends import BackendRefused, DriverState, Submission
from services.actuator.backends.driver_pod import driver_pod
from services.actuator.backends.kubernetes import Kubernetes
from services.actuator.backends.spark_application import spark_application
from services.actuator.command_log import CommandLog
from services.actuator.drivers import JobDrivers
from services.collector.kubernetes import KubernetesView
from tests.support.clusters import on_kubernetes
from tests.support.events import job, with_application
from tests.support.fake_kubernetes import FakeKubernetes
from tidegate.events.job import JobSpec, KubernetesPods, Volume
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.control.store import store_at
from tidegate.runtime.clock import SystemClock

PODS = "/api/v1/namespaces/jobs/pods"
APPLICATIONS = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/jobs/sparkapplications"
RUN = "tidegate-rates-7-2"
ID = f"jobs/sparkapplications/{RUN}"
SPEC = on_kubernetes(job("rates"), spark_application={})


class ThreeMinutesLater(SystemClock):
    """A clock that stands still."""

    def now(self) -> datetime:
        """Return the instant."""
        return datetime(2026, 1, 1, 0, 3, tzinfo=UTC)


def written(spec: JobSpec = SPEC, slots: int = 2) -> dict[str, Any]:
    """Return the spec of a run's SparkApplication."""
    made: dict[str, Any] = spark_application(Submission(spec, Token(7, 2), slots))["spec"]
    return made


def told(server: FakeKubernetes, state: str, **more: str) -> None:
    """Have the operator say something of the run."""
    server.put(f"{APPLICATIONS}/{RUN}", kind="SparkApplication", status={"applicationState": {"state": state, **more}})


def test_a_run_has_one_name() -> None:
    """Object and pod are called alike, so the operator cannot make two pods of one run; it starts none again."""
    made = spark_application(Submission(SPEC, Token(7, 2), 2))
    assert made["metadata"]["name"] == made["spec"]["driver"]["podName"] == RUN
    assert made["metadata"]["labels"]["tidegate.dev/job"] == "rates"
    assert (made["spec"]["mode"], made["spec"]["restartPolicy"]) == ("cluster", {"type": "Never"})
    assert "dynamicAllocation" not in made["spec"]


def test_the_size_is_the_run_s() -> None:
    """Executors are counted, not slots; the driver asks for what its pod would ask for without the operator."""
    made = written(on_kubernetes(job("rates", executor_cores=2, min_parallelism=2), spark_application={}), 6)
    assert made["executor"] == {"instances": 3, "cores": 2, "memory": "512m"}
    assert made["sparkConf"]["spark.executor.instances"] == "3"
    assert (made["driver"]["memory"], made["driver"]["coreRequest"]) == ("512m", "1")
    assert written(with_application(SPEC, conf={"spark.driver.cores": "2"}))["driver"]["coreRequest"] == "2"
    assert made["sparkConf"]["spark.driver.memoryOverheadFactor"] == "0.4"


def test_the_pod_is_the_same_either_way() -> None:
    """Labels, environment, volumes and the launcher's code come into the operator's pod through a template."""
    volumes = (Volume(name="data", path="/data", claim="spark"),)
    block: dict[str, Any] = {"volumes": volumes, "driver_template": {"spec": {"nodeSelector": {"disk": "ssd"}}}}
    env = {"env": {"PATTERN": "a$(b)"}}
    own = driver_pod(Submission(with_application(on_kubernetes(job("rates"), **block), **env), Token(7, 2), 2))
    made = written(with_application(on_kubernetes(job("rates"), **block, spark_application={}), **env))
    template = made["driver"]["template"]
    assert template["metadata"]["labels"].items() <= own["metadata"]["labels"].items()
    assert template["spec"]["volumes"] == own["spec"]["volumes"]
    assert template["spec"]["nodeSelector"] == {"disk": "ssd"}
    ours, theirs = template["spec"]["containers"][0], own["spec"]["containers"][0]
    assert (ours["name"], ours["volumeMounts"]) == (theirs["name"], theirs["volumeMounts"])
    assert ours["env"] == [{"name": "PATTERN", "value": "a$$(b)"}, {"name": "TIDEGATE_SUBMISSION_ID", "value": ID}]
    assert made["mainApplicationFile"] == "local:///opt/tidegate/tidegate/launcher/__main__.py"
    assert made["sparkConf"]["spark.kubernetes.executor.label.tidegate.dev/job"] == "rates"
    said = made["sparkConf"]["spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName"]
    assert said == "spark"


def test_paths_are_those_of_the_pod() -> None:
    """`spark-submit` runs in the operator and must not look there for files; words are left as they are."""
    spec = with_application(SPEC, jars=("/jobs/a.jar", "s3a://b/c.jar"), py_files=("/jobs/d.zip",), args=("$(HOME)",))
    made = written(spec)
    assert made["deps"] == {"jars": ["local:///jobs/a.jar", "s3a://b/c.jar"], "pyFiles": ["local:///jobs/d.zip"]}
    assert made["arguments"][-1] == "$$(HOME)"
    assert spec.application.script in made["arguments"]
    more = written(with_application(spec, conf={"spark.jars": "/jobs/e.jar", "spark.submit.pyFiles": "/jobs/f.zip"}))[
        "deps"
    ]
    assert (more["jars"][-1], more["pyFiles"][-1]) == ("local:///jobs/e.jar", "local:///jobs/f.zip")
    scala = written(with_application(SPEC, main_class="com.example.Rates", script="/jobs/rates.jar"))
    assert scala["deps"] == {"jars": ["local:///jobs/rates.jar"]}
    assert (scala["type"], "mainClass" in scala) == ("Python", False)


def test_the_spec_adds_and_tidegate_wins() -> None:
    """What the block says of the object is kept, but for what the launcher depends on."""
    partial: dict[str, Any] = {
        "sparkVersion": "3.5.7",
        "timeToLiveSeconds": 3600,
        "sparkConf": {"spark.executor.instances": "9", "spark.ui.enabled": "false"},
        "driver": {"podName": "mine", "javaOptions": "-Xss4m", "template": {"spec": {"priorityClassName": "high"}}},
        "executor": {"tolerations": [{"key": "spot"}], "instances": 9},
    }
    made = written(on_kubernetes(job("rates"), spark_application=partial))
    assert (made["sparkVersion"], made["timeToLiveSeconds"]) == ("3.5.7", 3600)
    assert (made["sparkConf"]["spark.executor.instances"], made["sparkConf"]["spark.ui.enabled"]) == ("2", "false")
    assert (made["driver"]["podName"], made["driver"]["javaOptions"]) == (RUN, "-Xss4m")
    assert made["driver"]["template"]["spec"]["priorityClassName"] == "high"
    assert made["executor"] == {"tolerations": [{"key": "spot"}], "instances": 2, "cores": 1, "memory": "512m"}


def test_what_tidegate_writes_is_refused_in_the_spec() -> None:
    """A start policy or a program of its own would make another job of it."""
    partial: dict[str, JsonValue] = {"restartPolicy": {"type": "Always"}, "arguments": ["x"]}
    with pytest.raises(ValidationError, match="Tidegate itself writes arguments, restartPolicy of a SparkApplication"):
        KubernetesPods(namespace="jobs", image="spark", spark_application=partial)


@pytest.mark.parametrize(
    ("said", "phase", "state"),
    [
        ("", None, DriverState.PENDING),
        ("SUBMITTED", None, DriverState.PENDING),
        ("SUBMITTED", "Pending", DriverState.PENDING),
        ("SUBMITTED", "Running", DriverState.RUNNING),
        ("RUNNING", None, DriverState.ENDED),
        ("RUNNING", "Succeeded", DriverState.ENDED),
        ("SUBMISSION_FAILED", None, DriverState.ENDED),
        ("FAILED", None, DriverState.ENDED),
        ("FAILED", "Running", DriverState.RUNNING),
        ("COMPLETED", "Succeeded", DriverState.ENDED),
        (None, "Running", DriverState.RUNNING),
        (None, None, DriverState.ENDED),
    ],
)
def test_the_operator_s_word_counts_before_the_pod_s(
    server: FakeKubernetes, said: str | None, phase: str | None, state: DriverState
) -> None:
    """A run is alive while a pod of it may come, and then for as long as the pod is (I4); both questions agree."""
    backend = Kubernetes(server.api)
    assert backend.submit(Submission(SPEC, Token(7, 2), 2)) == ID
    if said is None:
        del server.objects[f"{APPLICATIONS}/{RUN}"]
    elif said:
        told(server, said)
    if phase is not None:
        labels = {"spark-role": "driver", "tidegate.dev/job": "rates", "sparkoperator.k8s.io/app-name": RUN}
        server.put(f"{PODS}/{RUN}", metadata={"labels": labels}, status={"phase": phase})
    assert backend.state(SPEC, ID) is state
    assert backend.live_drivers(SPEC) == (frozenset({ID}) if state.alive else frozenset())


def test_an_object_that_is_being_deleted_starts_nothing(server: FakeKubernetes) -> None:
    """A finalizer may keep it listed for long."""
    backend = Kubernetes(server.api)
    backend.submit(Submission(SPEC, Token(7, 2), 2))
    server.put(f"{APPLICATIONS}/{RUN}", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert backend.state(SPEC, ID) is DriverState.ENDED


def test_an_operator_that_is_not_there_is_named(server: FakeKubernetes) -> None:
    """An object that nobody looks at is the reason why a start failed."""
    backend = Kubernetes(server.api, ThreeMinutesLater())
    backend.submit(Submission(SPEC, Token(7, 2), 2))
    server.put(f"{APPLICATIONS}/{RUN}", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    said = f"The Spark operator has not looked at SparkApplication jobs/{RUN} for 180 s; is it running, and does it"
    assert backend.reason(SPEC, ID) == f"{said} watch namespace jobs?"
    control = Control(store_at("configmap:jobs", "rates", api=server.api))
    assert JobDrivers(SPEC, backend, control, CommandLog()).reason(Token(7, 2), ID).startswith(said)


def test_the_operator_says_why(server: FakeKubernetes) -> None:
    """Of what `spark-submit` printed, the error is told; a driver's pod that is there speaks for itself."""
    backend = Kubernetes(server.api)
    backend.submit(Submission(SPEC, Token(7, 2), 2))
    lines = ["failed to run spark-submit: WARN Utils: a", 'Exception in thread "main" Forbidden: no rights', "\tat b"]
    told(server, "FAILED", errorMessage="\n".join(lines))
    assert backend.reason(SPEC, ID) == f"The Spark operator says FAILED: {lines[1]}"
    told(server, "FAILING", errorMessage="driver pod not found")
    assert backend.reason(SPEC, ID) == "The Spark operator says FAILING: driver pod not found"
    server.put(f"{PODS}/{RUN}", status={"phase": "Failed"})
    assert backend.reason(SPEC, ID) == ""
    backend.kill(SPEC, ID)
    assert backend.reason(SPEC, ID) == f"The driver's pod jobs/{RUN} was deleted."


def test_no_operator_in_the_cluster_is_a_refusal(server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server does not know the kind of object; the sentence says what is missing."""
    answer = server.answer

    def without_operator(method: str, target: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        known = "/sparkoperator.k8s.io/" not in target
        return answer(method, target, body) if known else (404, {"message": "could not find the requested resource"})

    monkeypatch.setattr(server, "answer", without_operator)
    with pytest.raises(BackendRefused, match=r"is the Spark operator installed\? application.kubernetes.spark_appli"):
        Kubernetes(server.api).submit(Submission(SPEC, Token(7, 2), 2))


def test_a_kill_leaves_neither_object_nor_pod(server: FakeKubernetes) -> None:
    """An older operator leaves the pod of an object that is gone. It is killed where it was submitted."""
    backend = Kubernetes(server.api)
    backend.submit(Submission(SPEC, Token(7, 2), 2))
    server.put(f"{PODS}/{RUN}", status={"phase": "Running"})
    backend.kill(on_kubernetes(job("rates"), namespace="elsewhere"), ID)
    assert not [path for path in server.objects if path.endswith(RUN)]


def test_our_own_run_is_not_foreign(server: FakeKubernetes) -> None:
    """Spark makes up the application's id; before the run tells it, the operator's label says whose pods they are."""
    backend, log = Kubernetes(server.api), CommandLog()
    control = Control(store_at("configmap:jobs", "rates", api=server.api))
    drivers = JobDrivers(SPEC, backend, control, log)
    control.write_running(Token(7, 2), {"submission_id": drivers.submit(Token(7, 2), 2)})
    for id_, called in (("spark-1", RUN), ("spark-2", "rates"), ("spark-3", "clicks")):
        labels = {"spark-role": "executor", "spark-app-selector": id_, "spark-app-name": "my-own-name"}
        labels |= {"sparkoperator.k8s.io/app-name": called}
        server.put(f"{PODS}/{id_}-exec-1", metadata={"labels": labels}, status={"phase": "Running"})
    assert drivers.foreign() == ["spark-2"]


def test_the_collector_knows_the_job(server: FakeKubernetes) -> None:
    """Spark's labels name the SparkApplication; Tidegate's name the job."""
    labels = {"spark-app-selector": "spark-1", "spark-app-name": RUN, "tidegate.dev/job": "rates"}
    pods = [
        server.put(
            f"{PODS}/{role}",
            metadata={"labels": labels | {"spark-role": role}},
            spec={"nodeName": "n"},
            status={"phase": "Running"},
        )
        for role in ("driver", "executor")
    ]
    assert KubernetesView(pods, None).of(SPEC).active_by_name["rates"].cores == 1


def test_old_objects_are_removed(server: FakeKubernetes) -> None:
    """Those of drivers that have ended do not pile up, with a pod or without; a pod that runs keeps its own."""
    backend = Kubernetes(server.api)
    for run in range(1, 8):
        backend.submit(Submission(SPEC, Token(7, run), 2))
        name = f"tidegate-rates-7-{run}"
        created = {"creationTimestamp": f"2026-01-01T00:00:0{run}Z"}
        labels = {"spark-role": "driver", "tidegate.dev/job": "rates", "sparkoperator.k8s.io/app-name": name}
        server.put(f"{APPLICATIONS}/{name}", metadata=created, status={"applicationState": {"state": "FAILED"}})
        if run > 1:
            phase = {"phase": "Running" if run == 3 else "Failed"}
            server.put(f"{PODS}/{name}", metadata=created | {"labels": labels}, status=phase)
    backend.submit(Submission(SPEC, Token(8, 1), 2))
    for folder, more in ((APPLICATIONS, ["8-1"]), (PODS, [])):
        left = {path.rpartition("/")[2] for path in server.objects if path.startswith(folder)}
        assert left == {f"tidegate-rates-{run}" for run in ("7-3", "7-5", "7-6", "7-7", *more)}
