"""The driver of a run as a SparkApplication: Tidegate writes the object, and the Spark operator submits it.

The object, the driver's pod and the run have one name. So a run that is submitted twice is one object (409), and the
operator can make one pod of it. It runs `spark-submit` in cluster mode; the pod gets the launcher, the labels and the
volumes through a pod template. `Never` keeps the operator from starting a driver again: the actuator decides that.

The operator's word counts only before there is a pod. After that the pod does: the operator takes a driver for failed
that it has submitted twice, although its pod runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from services.actuator.backends import Submission
from services.actuator.backends.driver_pod import (
    LAUNCHER_AT,
    driver_template,
    merged,
    pods_conf,
    pods_of,
    resources,
    run_labels,
    run_name,
    unexpanded,
)
from tidegate.launcher.kubernetes.pods import Object, name_of, overhead_factor
from tidegate.launcher.reports.failure import last_errors

_GROUP, _VERSION, _PLURAL = "sparkoperator.k8s.io", "v1beta2", "sparkapplications"
_SPARK_VERSION = "4.2.0"
"""What the operator is told unless the spec says otherwise: it asks only whether there are pod templates, since 3.0."""
_BEFORE_THE_POD = frozenset({"", "SUBMITTED", "INVALIDATING", "PENDING_RERUN", "SUSPENDING", "SUSPENDED", "RESUMING"})
"""States in which the operator may still make a pod; without any it has not looked, or is submitting."""
_ENDED = frozenset({"COMPLETED", "FAILED"})


def path_of(namespace: str, name: str | None = None) -> str:
    """Return the path of a namespace's SparkApplications, or of one."""
    path = f"/apis/{_GROUP}/{_VERSION}/namespaces/{namespace}/{_PLURAL}"
    return path if name is None else f"{path}/{name}"


def submission_id_of(namespace: str, name: str) -> str:
    """Return the id of a driver that the operator starts."""
    return f"{namespace}/{_PLURAL}/{name}"


def is_operated(submission_id: str) -> bool:
    """Return whether the operator starts this driver."""
    return f"/{_PLURAL}/" in submission_id


def spark_application(submission: Submission) -> dict[str, Any]:
    """Return the SparkApplication of a run."""
    app, name = submission.spec.application, run_name(submission)
    pods, factor = pods_of(app), "spark.driver.memoryOverheadFactor"
    usual = {factor: app.conf.get(factor, overhead_factor(app.conf, python=app.main_class is None))}
    deps = {"jars": _in_the_pod(submission.jars), "pyFiles": _in_the_pod(submission.py_files)}
    own = {
        "type": "Python",
        "mode": "cluster",
        "image": pods.image,
        "restartPolicy": {"type": "Never"},
        "mainApplicationFile": f"local://{LAUNCHER_AT}",
        "arguments": unexpanded(submission.launcher_args()),
        "sparkConf": submission.spark_conf() | pods_conf(app, submission.spec.job_id) | usual,
        "deps": {kind: places for kind, places in deps.items() if places},
        "driver": {
            "podName": name,
            "serviceAccount": pods.service_account,
            "kubernetesMaster": app.master.removeprefix("k8s://"),
            "coreRequest": resources(app)["requests"]["cpu"],
            "memory": f"{app.driver_memory_mb}m",
            "template": driver_template(submission, submission_id_of(pods.namespace, name)),
        },
        "executor": {
            "instances": submission.parallelism // app.executor_cores,
            "cores": app.executor_cores,
            "memory": f"{app.executor_memory_mb}m",
        },
    }
    return {
        "apiVersion": f"{_GROUP}/{_VERSION}",
        "kind": "SparkApplication",
        "metadata": {"name": name, "labels": run_labels(submission)},
        "spec": merged({"sparkVersion": _SPARK_VERSION, **(pods.spark_application or {})}, own),
    }


def may_start(one: Object) -> bool:
    """Return whether the operator may still make the driver's pod, if there is none."""
    return _state(one) in _BEFORE_THE_POD and "deletionTimestamp" not in one["metadata"]


def has_ended(one: Object) -> bool:
    """Return whether the operator has done all with an object that it will."""
    return _state(one) in _ENDED


def trouble(one: Object, now: datetime) -> str:
    """Return what keeps the operator from making a pod, or why a driver failed in its eyes; empty if it is silent."""
    said = str(_told(one).get("errorMessage", ""))
    if said:
        return f"The Spark operator says {_state(one)}: {last_errors(said) or said}"
    if _state(one):
        return ""
    metadata = one["metadata"]
    seconds = (now - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()
    return (
        f"The Spark operator has not looked at SparkApplication {metadata['namespace']}/{name_of(one)} for"
        f" {seconds:.0f} s; is it running, and does it watch namespace {metadata['namespace']}?"
    )


def _told(one: Object) -> dict[str, Any]:
    return (one.get("status") or {}).get("applicationState") or {}


def _state(one: Object) -> str:
    return str(_told(one).get("state", ""))


def _in_the_pod(places: Iterable[str]) -> list[str]:
    """Return places so that `spark-submit`, which runs in the operator, does not look for paths on its own machine."""
    return [f"local://{place}" if place.startswith("/") else place for place in places]
