"""The driver of a run as a pod of Kubernetes, and the launcher's code as a ConfigMap that it mounts.

The pod runs `spark-submit` in client mode, through the entry point of Spark's images. So the actuator needs no Java,
and a start costs a pod. The pod's name is made of job, epoch and run: it is the key of the submission, and the id of
the application. Executors find the driver at its pod's address, and belong to the pod: when it is deleted, Kubernetes
deletes them.

The launcher has only text files, less than the 1 MiB that a ConfigMap holds. Its ConfigMap is named by their checksum:
a driver has the launcher of the actuator that started it, whatever its image is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from services.actuator.backends import LAUNCHER, Submission, launcher_files
from tidegate.events.job import Application, KubernetesPods
from tidegate.launcher.control.config_map import JOB_LABEL, LABELS, object_name
from tidegate.launcher.control.files import SUBMISSION_ID
from tidegate.launcher.kubernetes.pods import (
    APP_LABEL,
    NAME_LABEL,
    ROLE_LABEL,
    app_name_label,
    memory_mb,
    overhead_factor,
)

CONTAINER = "spark-kubernetes-driver"
"""As Spark names it; a template may change it under this name."""
RUN_LABEL = "tidegate.dev/run"
_ADDRESS = "SPARK_DRIVER_BIND_ADDRESS"
_LAUNCHER_DIR = "/opt/tidegate"
LAUNCHER_AT = f"{_LAUNCHER_DIR}/tidegate/launcher/{LAUNCHER.name}"
"""Where the launcher is in a driver's pod."""


def run_name(submission: Submission) -> str:
    """Return the name of a run: of its pod and its application."""
    return object_name(submission.spec.job_id, *submission.token)


def run_labels(submission: Submission) -> dict[str, str]:
    """Return the labels by which a run's objects are found."""
    return {**LABELS, JOB_LABEL: submission.spec.job_id, RUN_LABEL: str(submission.token)}


def driver_pod(submission: Submission) -> dict[str, Any]:
    """Return the pod of a run's driver."""
    app, name, job_id = submission.spec.application, run_name(submission), submission.spec.job_id
    pods = pods_of(app)
    own = {"spark.app.id": name, "spark.kubernetes.driver.pod.name": name}
    words = submission.submit_args(app.master, launcher_at=LAUNCHER_AT, conf=pods_conf(app, job_id) | own)
    args = ["driver", *unexpanded(words)]
    args[1:1] = ["--conf", f"spark.driver.host=$({_ADDRESS})"]
    container = {
        "name": CONTAINER,
        "image": pods.image,
        "args": args,
        "env": [{"name": _ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": resources(app),
    }
    whole = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {ROLE_LABEL: "driver", APP_LABEL: name, NAME_LABEL: app_name_label(job_id)},
        },
        "spec": {"restartPolicy": "Never", "serviceAccountName": pods.service_account, "containers": [container]},
    }
    made: dict[str, Any] = merged(driver_template(submission, f"{pods.namespace}/{name}"), whole)
    return made


def driver_template(submission: Submission, submission_id: str) -> dict[str, Any]:
    """Return what the pod of a run's driver has, whoever makes it: what the spec says, and what the launcher needs."""
    app = submission.spec.application
    pods, code = pods_of(app), launcher_code()
    env = zip(app.env, unexpanded(app.env.values()), strict=True)
    container = {
        "name": CONTAINER,
        "env": [
            *({"name": name, "value": value} for name, value in env),
            {"name": SUBMISSION_ID, "value": submission_id},
        ],
        "volumeMounts": [
            *({"name": volume.name, "mountPath": volume.path} for volume in pods.volumes),
            {"name": "tidegate-launcher", "mountPath": _LAUNCHER_DIR},
        ],
    }
    volumes = [
        *({"name": one.name, **_source(one.claim, one.host_path)} for one in pods.volumes),
        {"name": "tidegate-launcher", "configMap": {"name": code["metadata"]["name"], "items": _items()}},
    ]
    own = {"metadata": {"labels": run_labels(submission)}, "spec": {"containers": [container], "volumes": volumes}}
    made: dict[str, Any] = merged(pods.driver_template, own)
    return made


@cache
def launcher_code() -> dict[str, Any]:
    """Return the ConfigMap that holds the launcher's code."""
    files = {_key(path): text for path, text in launcher_files().items()}
    digest = hashlib.sha256("\0".join(part for item in files.items() for part in item).encode()).hexdigest()[:12]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        # a dot, which the name of no job's ConfigMap has
        "metadata": {"name": f"tidegate.launcher-{digest}", "labels": dict(LABELS)},
        "immutable": True,
        "data": files,
    }


def pods_of(app: Application) -> KubernetesPods:
    """Return the block `kubernetes` of an application; its backend is `kubernetes`, so it has one."""
    if app.kubernetes is None:
        raise ValueError("application.kubernetes is needed by the kubernetes backend")
    return app.kubernetes


def unexpanded(words: Iterable[str]) -> list[str]:
    """Return words of a container so that Kubernetes leaves them as they are: it puts variables for `$(NAME)`."""
    return [word.replace("$", "$$") for word in words]


def _items() -> list[dict[str, str]]:
    """Return where each file of the launcher is below the mount."""
    return [{"key": _key(path), "path": path} for path in launcher_files()]


def _key(path: str) -> str:
    """Return the key of a file in the ConfigMap; keys have no slash."""
    return path.replace("/", ".")


def pods_conf(app: Application, job_id: str) -> dict[str, str]:
    """Return the settings of a driver in a pod; those that only repeat Spark's cluster mode give way to the spec's."""
    pods = pods_of(app)
    usual = {
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
        "spark.executor.memoryOverheadFactor": overhead_factor(app.conf, python=app.main_class is None),
    }
    for volume in pods.volumes:
        kind = "persistentVolumeClaim" if volume.claim is not None else "hostPath"
        place = f"spark.kubernetes.executor.volumes.{kind}.{volume.name}"
        option = "claimName" if volume.claim is not None else "path"
        usual |= {
            f"{place}.mount.path": volume.path,
            f"{place}.options.{option}": str(volume.claim or volume.host_path),
        }
    return {key: app.conf.get(key, value) for key, value in usual.items()} | {
        "spark.kubernetes.namespace": pods.namespace,
        "spark.kubernetes.container.image": pods.image,
        f"spark.kubernetes.executor.label.{JOB_LABEL}": job_id,
    }


def _source(claim: str | None, host_path: str | None) -> dict[str, Any]:
    return {"hostPath": {"path": host_path}} if claim is None else {"persistentVolumeClaim": {"claimName": claim}}


def resources(app: Application) -> dict[str, Any]:
    """Return what the driver's pod asks for, by the rules of Spark's cluster mode (BasicDriverFeatureStep)."""
    memory = f"{memory_mb('driver', app.driver_memory_mb, app.conf, python=app.main_class is None)}Mi"
    cpu = app.conf.get("spark.kubernetes.driver.request.cores", app.conf.get("spark.driver.cores", "1"))
    most = app.conf.get("spark.kubernetes.driver.limit.cores")
    limits = {"memory": memory} | ({} if most is None else {"cpu": most})
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": limits}


def merged(base: Any, over: Any) -> Any:
    """Return `base` with `over` in it, which wins; in lists, entries of one name are merged, and others come after."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {
            **base,
            **{key: merged(base[key], value) if key in base else value for key, value in over.items()},
        }
    if isinstance(base, list) and isinstance(over, list):
        names = {one["name"]: one for one in over if isinstance(one, Mapping) and "name" in one}
        found = [one.get("name") if isinstance(one, Mapping) else None for one in base]
        kept = [merged(one, names[name]) if name in names else one for one, name in zip(base, found, strict=True)]
        return [*kept, *(one for one in over if not isinstance(one, Mapping) or one.get("name") not in found)]
    return over
