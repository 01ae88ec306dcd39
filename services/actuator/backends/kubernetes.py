"""Kubernetes: each driver is a pod that the actuator makes (`driver_pod.py`), and the API says what becomes of it.

A driver's id is the namespace and the name of its pod. The name is the key of the submission: a second one of the
same run is refused by the API (409), also when the pod has ended, and counts as the first one. A pod that is being
deleted counts as alive for as long as the API lists it: its containers may still run. So a kill never takes a pod off
the list by force (grace period 0): then Kubernetes would not wait until the node says that the containers are gone. If
the node is dead, the driver stays alive to Tidegate, and nothing is started next to it, until somebody who knows that
it is dead deletes the pod by force.

The API forgets nothing but what was deleted: a run whose pod is not there has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from services.actuator.backends import LOG_BYTES, BackendRefused, BackendUnreachable, DriverState, Submission
from services.actuator.backends.driver_pod import CONTAINER, driver_pod, launcher_code, pods_of, submission_id_of
from tidegate.events.job import JobSpec
from tidegate.launcher.config_map import JOB_LABEL
from tidegate.launcher.control import Token
from tidegate.launcher.kubernetes import Api, ApiRefused, ApiUnreachable
from tidegate.launcher.pods import (
    APP_LABEL,
    NAME_LABEL,
    ROLE_LABEL,
    SPARK_PODS,
    Object,
    app_name_label,
    is_over,
    labels_of,
    name_of,
    node_of,
    phase_of,
    unscheduled,
)

GRACE_SECONDS = 1
"""How long a driver that is killed may take after SIGTERM. 0 would be no wait for the node at all, see above."""
_LOG_LINES = 400
_KEPT_PODS = 3
_BAD_REQUEST = 400
_USUAL = frozenset({"ContainerCreating", "PodInitializing", "Completed", "Error"})
"""Reasons of containers that explain nothing: a container starts, or its own log says why it ended."""

T = TypeVar("T")


class Kubernetes:
    """One cluster. Thread-safe."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def submit(self, submission: Submission) -> str:
        """Start a driver, return its id. After `BackendUnreachable` it may have been started or not."""
        base, code = _base(submission.spec), launcher_code()
        _answer(lambda: self._api.create(f"{base}/configmaps", code))
        _answer(lambda: self._api.create(f"{base}/pods", driver_pod(submission)))
        with contextlib.suppress(BackendRefused, BackendUnreachable):
            self._remove_old_pods(submission.spec)
        return submission_id_of(submission)

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the API says about a driver's pod."""
        pod = self._pod(spec, submission_id)
        if pod is None:
            return DriverState.ENDED if "/" in submission_id else DriverState.ABSENT
        if is_over(pod):
            return DriverState.ENDED
        return DriverState.PENDING if phase_of(pod) == "Pending" else DriverState.RUNNING

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return why a driver's pod does not start, or was ended by the cluster."""
        pod = self._pod(spec, submission_id)
        if pod is None:
            return f"The driver's pod {submission_id} was deleted."
        return next(_troubles(pod), "")

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """Delete a driver's pod, and with it its executors; it may have ended already."""
        _answer(lambda: self._api.delete(_pod_path(spec, submission_id), grace_seconds=GRACE_SECONDS))

    def applications(self, spec: JobSpec) -> dict[str, str]:
        """Return the names, by id, of all applications in the job's namespace that have a live pod.

        A driver's pod of Tidegate's is not counted before it has executors: the fence keeps it from writing. Spark
        shortens names for its labels; one that is what Spark makes of the job's id is taken for it.
        """
        found: dict[str, str] = {}
        for pod in self._pods(spec, SPARK_PODS):
            labels = labels_of(pod)
            if is_over(pod) or (labels[ROLE_LABEL] == "driver" and JOB_LABEL in labels):
                continue
            name = labels.get(NAME_LABEL, "")
            ours = name == app_name_label(spec.job_id)
            found[labels.get(APP_LABEL, name_of(pod))] = spec.job_id if ours else name
        return found

    def granted(self, spec: JobSpec, application_id: str) -> int | None:
        """Return the slots of the executors that have a node; None while the scheduler has not judged all of them."""
        pods = self._pods(spec, f"{APP_LABEL}={application_id},{ROLE_LABEL}=executor")
        live = [pod for pod in pods if not is_over(pod) and "deletionTimestamp" not in pod["metadata"]]
        placed = [pod for pod in live if node_of(pod) is not None]
        if not live or any(pod not in placed and unscheduled(pod) is None for pod in live):
            return None
        return len(placed) * spec.application.executor_cores

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the ids of the job's drivers, as their pods' labels tell, that run or may run."""
        pods = self._pods(spec, f"{ROLE_LABEL}=driver,{JOB_LABEL}={spec.job_id}")
        namespace = pods_of(spec.application).namespace
        return frozenset(f"{namespace}/{name_of(pod)}" for pod in pods if not is_over(pod))

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return the end of the log of a driver's pod; empty if it has not started or was deleted."""
        del token
        path = f"{_pod_path(spec, submission_id)}/log"

        def read() -> str:
            try:
                return self._api.text(path, container=CONTAINER, tailLines=str(_LOG_LINES))
            except ApiRefused as error:
                if error.status == _BAD_REQUEST:  # the container waits
                    return ""
                raise

        return _answer(read)[-LOG_BYTES:]

    def _remove_old_pods(self, spec: JobSpec) -> None:
        """Delete the pods of drivers that have ended, but for the newest, whose logs somebody may want to read."""
        pods = self._pods(spec, f"{ROLE_LABEL}=driver,{JOB_LABEL}={spec.job_id}")
        ended = sorted((pod["metadata"].get("creationTimestamp", ""), name_of(pod)) for pod in pods if is_over(pod))
        for _, name in ended[:-_KEPT_PODS]:
            self.kill(spec, name)

    def _pod(self, spec: JobSpec, submission_id: str) -> Object | None:
        return _answer(lambda: self._api.get(_pod_path(spec, submission_id)))

    def _pods(self, spec: JobSpec, selector: str) -> list[dict[str, Any]]:
        return _answer(lambda: self._api.listed(f"{_base(spec)}/pods", labelSelector=selector))


def _base(spec: JobSpec) -> str:
    return f"/api/v1/namespaces/{pods_of(spec.application).namespace}"


def _pod_path(spec: JobSpec, submission_id: str) -> str:
    """Return the path of a driver's pod, where it was submitted: the spec may name another namespace by now."""
    namespace, _, name = submission_id.rpartition("/")
    return f"/api/v1/namespaces/{namespace or pods_of(spec.application).namespace}/pods/{name}"


def _answer(question: Callable[[], T]) -> T:
    """Return the answer of the API, or raise what the actuator knows."""
    try:
        return question()
    except ApiUnreachable as error:
        raise BackendUnreachable(str(error)) from error
    except OSError as error:  # it refuses, or there is no way to it
        raise BackendRefused(str(error)) from error


def _troubles(pod: Object) -> Iterator[str]:
    """Yield what hinders a pod, or has ended it, other than its own program."""
    status = pod.get("status") or {}
    if (why := unscheduled(pod)) is not None:
        yield f"No node takes the driver's pod {name_of(pod)}: {why}"
    if status.get("reason"):  # such as Evicted
        yield f"{status['reason']}: {status.get('message', 'the cluster ended the pod')}"
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        for state in (container.get("state") or {}).values():
            why, message = str(state.get("reason", "")), state.get("message")
            if why == "OOMKilled":
                yield (
                    f"OOMKilled: container {container['name']} used more memory than its limit;"
                    " raise application.driver_memory_mb, or spark.driver.memoryOverhead"
                )
            elif why and why not in _USUAL:
                yield f"{why}: {message or 'container ' + str(container['name'])}"
