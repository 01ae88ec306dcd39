"""Spark's pods on Kubernetes: their labels, what the API says of them, and how much memory they ask for.

An object is what the API answers, as JSON. Labels and sizes are those of Spark 4.2 (Constants, BasicDriverFeatureStep
and BasicExecutorFeatureStep of its Kubernetes module).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

APP_LABEL, ROLE_LABEL, NAME_LABEL = "spark-app-selector", "spark-role", "spark-app-name"
OPERATED_LABEL = "sparkoperator.k8s.io/app-name"
"""On the pods of the Spark operator: the name of their SparkApplication."""
SPARK_PODS = f"{ROLE_LABEL} in (driver,executor)"
"""Selects the pods of all applications."""

_OVER = frozenset({"Succeeded", "Failed"})
_LEAST_OVERHEAD_MB = 384
_UNITS = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}

Object = Mapping[str, Any]


def app_name_label(name: str) -> str:
    """Return the label that Spark makes of an application's name (KubernetesConf.getAppNameLabel)."""
    return re.sub(r"-+", "-", re.sub(r"[^a-z0-9-]", "-", name.strip().lower()))[:63].strip("-")


def name_of(one: Object) -> str:
    """Return the name of an object."""
    return str(one["metadata"]["name"])


def labels_of(one: Object) -> dict[str, str]:
    """Return its labels."""
    return one["metadata"].get("labels") or {}


def application_name(pod: Object) -> str:
    """Return what a pod's application is called: by whoever started it, or by the program itself."""
    labels = labels_of(pod)
    return labels.get(OPERATED_LABEL) or labels.get(NAME_LABEL) or name_of(pod)


def phase_of(pod: Object) -> str:
    """Return the phase of a pod."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_over(pod: Object) -> bool:
    """Return whether all containers of a pod have ended for good. One that is being deleted is not over by that."""
    return phase_of(pod) in _OVER


def node_of(pod: Object) -> str | None:
    """Return the node that the scheduler has given to a pod."""
    found = (pod.get("spec") or {}).get("nodeName")
    return None if found is None else str(found)


def unscheduled(pod: Object) -> str | None:
    """Return why the scheduler has found no node for a pod; None if it has found one, or has not tried yet."""
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "unschedulable")
    return None


def overhead_factor(conf: Mapping[str, str], *, python: bool) -> str:
    """Return the share of memory that a pod has next to its JVM's heap: more for Python."""
    return conf.get("spark.kubernetes.memoryOverheadFactor", "0.4" if python else "0.1")


def memory_mb(role: str, heap_mb: int, conf: Mapping[str, str], *, python: bool) -> int:
    """Return the MiB that a pod asks for; `role` is `driver` or `executor`."""
    factor = conf.get(f"spark.{role}.memoryOverheadFactor", overhead_factor(conf, python=python))
    usual = max(_LEAST_OVERHEAD_MB, math.ceil(float(factor) * heap_mb))
    workers = mebibytes(conf.get("spark.executor.pyspark.memory"), 0) if python and role == "executor" else 0
    return heap_mb + mebibytes(conf.get(f"spark.{role}.memoryOverhead"), usual) + workers


def mebibytes(size: str | None, default: int) -> int:
    """Return a size as Spark writes it, such as `1g`, in MiB; a plain number is MiB."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", (size or "").strip().lower())
    return default if match is None else math.ceil(int(match[1]) * _UNITS[match[2]])
