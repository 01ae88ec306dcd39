"""Kubernetes: each driver is a pod, and the API says what becomes of it.

The actuator makes the pod (`driver_pod.py`), or a SparkApplication, of which the Spark operator makes the pod
(`spark_application.py`). A driver's id has the namespace and the name of its pod, and tells which way it was started:
a spec may change to the other way while its driver runs.

The pod's name is the key of the submission: a second one of the same run is refused by the API (409), also when the pod
has ended, and counts as the first one. A pod that is being deleted counts as alive for as long as the API lists it: its
containers may still run. So a kill never takes a pod off the list by force (grace period 0): then Kubernetes would not
wait until the node says that the containers are gone. If the node is dead, the driver stays alive to Tidegate, and
nothing is started next to it, until somebody who knows that it is dead deletes the pod by force.

The API forgets nothing but what was deleted: a run whose pod is not there has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from services.actuator.backends import LOG_BYTES, BackendRefused, BackendUnreachable, DriverState, Submission
from services.actuator.backends.driver_pod import CONTAINER, driver_pod, launcher_code, pods_of, run_name
from services.actuator.backends.spark_application import (
    has_ended,
    is_operated,
    may_start,
    path_of,
    spark_application,
    submission_id_of,
    trouble,
)
from tidegate.events.job import JobSpec
from tidegate.launcher.control.config_map import JOB_LABEL
from tidegate.launcher.control.files import Token
from tidegate.launcher.kubernetes.api import NOT_FOUND, Api, ApiRefused, ApiUnreachable
from tidegate.launcher.kubernetes.pods import (
    APP_LABEL,
    OPERATED_LABEL,
    ROLE_LABEL,
    SPARK_PODS,
    Object,
    app_name_label,
    application_name,
    is_over,
    labels_of,
    name_of,
    node_of,
    phase_of,
    unscheduled,
)
from tidegate.runtime.clock import Clock, SystemClock

GRACE_SECONDS = 1
"""How long a driver that is killed may take after SIGTERM. 0 would be no wait for the node at all, see above."""
_LOG_LINES = 400
_LOG_LIMIT = 64 * LOG_BYTES
"""A driver's lines may have any length; of very long ones, the first are read."""
_KEPT_PODS = 3
_BAD_REQUEST = 400
_USUAL = frozenset({"ContainerCreating", "PodInitializing", "Completed", "Error"})
"""Reasons of containers that explain nothing: a container starts, or its own log says why it ended."""

T = TypeVar("T")


class Kubernetes:
    """One cluster. Thread-safe."""

    def __init__(self, api: Api, clock: Clock | None = None) -> None:
        self._api = api
        self._clock = clock or SystemClock()

    def submit(self, submission: Submission) -> str:
        """Start a driver, return its id. After `BackendUnreachable` it may have been started or not."""
        spec, pods = submission.spec, pods_of(submission.spec.application)
        _answer(lambda: self._api.create(f"{_base(spec)}/configmaps", launcher_code()))
        if pods.spark_application is None:
            _answer(lambda: self._api.create(f"{_base(spec)}/pods", driver_pod(submission)))
            submission_id = f"{pods.namespace}/{run_name(submission)}"
        else:
            _answer(lambda: self._create_application(submission))
            submission_id = submission_id_of(pods.namespace, run_name(submission))
        with contextlib.suppress(BackendRefused, BackendUnreachable):
            self._remove_old_drivers(spec)
        return submission_id

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the API says about a driver's pod, or what the Spark operator says before there is one."""
        # in this order: a pod that the operator makes in between is seen
        application = self._application(spec, submission_id)
        pod = self._pod(spec, submission_id)
        if pod is None:
            if application is not None and may_start(application):
                return DriverState.PENDING
            return DriverState.ENDED if "/" in submission_id else DriverState.ABSENT
        if is_over(pod):
            return DriverState.ENDED
        waits = phase_of(pod) == "Pending" and node_of(pod) is None
        return DriverState.PENDING if waits else DriverState.RUNNING

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return why a driver's pod does not start, or was ended by the cluster."""
        pod = self._pod(spec, submission_id)
        if pod is not None:
            return next(_troubles(pod), "")
        application = self._application(spec, submission_id)
        said = "" if application is None else trouble(application, self._clock.now())
        return said or f"The driver's pod {'/'.join(_place(spec, submission_id))} was deleted."

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """Delete a driver's pod, and with it its executors; it may have ended already."""
        if is_operated(submission_id):
            path = path_of(*_place(spec, submission_id))
            _answer(lambda: self._api.delete(path, grace_seconds=GRACE_SECONDS))
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
            name = application_name(pod)
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
        applications = self._applications(spec)
        pods = {_id_of(pod): pod for pod in self._drivers(spec)}
        waiting = {_id_of(one) for one in applications if may_start(one)} - pods.keys()
        return frozenset({id_ for id_, pod in pods.items() if not is_over(pod)} | waiting)

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return the end of the log of a driver's pod; empty if it has not started or was deleted."""
        del token
        path = f"{_pod_path(spec, submission_id)}/log"

        def read() -> str:
            try:
                return self._api.text(path, container=CONTAINER, tailLines=str(_LOG_LINES), limitBytes=str(_LOG_LIMIT))
            except ApiRefused as error:
                if error.status == _BAD_REQUEST:  # the container waits
                    return ""
                raise

        return _answer(read)[-LOG_BYTES:]

    def _create_application(self, submission: Submission) -> None:
        path = path_of(pods_of(submission.spec.application).namespace)
        try:
            self._api.create(path, spark_application(submission))
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                raise
            asked = f"{error}; is the Spark operator installed? application.kubernetes.spark_application needs it"
            raise ApiRefused(NOT_FOUND, asked) from error

    def _remove_old_drivers(self, spec: JobSpec) -> None:
        """Delete the pods of drivers that have ended, but for the newest, whose logs somebody may want to read."""
        applications = self._applications(spec)
        pods = {_id_of(pod): pod for pod in self._drivers(spec)}
        ended = {_id_of(one): one for one in applications if has_ended(one)} | pods
        over = [(_created(one), id_) for id_, one in ended.items() if id_ not in pods or is_over(one)]
        for _, submission_id in sorted(over)[:-_KEPT_PODS]:
            self.kill(spec, submission_id)

    def _application(self, spec: JobSpec, submission_id: str) -> Object | None:
        """Return the SparkApplication of a driver; None if it was deleted, or never was."""
        if not is_operated(submission_id):
            return None
        return _answer(lambda: self._api.get(path_of(*_place(spec, submission_id))))

    def _applications(self, spec: JobSpec) -> list[dict[str, Any]]:
        """Return the job's SparkApplications."""
        pods = pods_of(spec.application)
        if pods.spark_application is None:
            return []
        of = f"{JOB_LABEL}={spec.job_id}"
        return _answer(lambda: self._api.listed(path_of(pods.namespace), labelSelector=of))

    def _drivers(self, spec: JobSpec) -> list[dict[str, Any]]:
        """Return the pods of the job's drivers."""
        return self._pods(spec, f"{ROLE_LABEL}=driver,{JOB_LABEL}={spec.job_id}")

    def _pod(self, spec: JobSpec, submission_id: str) -> Object | None:
        return _answer(lambda: self._api.get(_pod_path(spec, submission_id)))

    def _pods(self, spec: JobSpec, selector: str) -> list[dict[str, Any]]:
        return _answer(lambda: self._api.listed(f"{_base(spec)}/pods", labelSelector=selector))


def _base(spec: JobSpec) -> str:
    return f"/api/v1/namespaces/{pods_of(spec.application).namespace}"


def _place(spec: JobSpec, submission_id: str) -> tuple[str, str]:
    """Return namespace and name of a driver's pod, where it was submitted: the spec may name another one by now."""
    namespace = submission_id.partition("/")[0] if "/" in submission_id else pods_of(spec.application).namespace
    return namespace, submission_id.rpartition("/")[2]


def _pod_path(spec: JobSpec, submission_id: str) -> str:
    namespace, name = _place(spec, submission_id)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _id_of(one: Object) -> str:
    """Return the id of a driver by its pod or by its SparkApplication."""
    namespace, name = one["metadata"]["namespace"], name_of(one)
    operated = one.get("kind") == "SparkApplication" or OPERATED_LABEL in labels_of(one)
    return submission_id_of(namespace, name) if operated else f"{namespace}/{name}"


def _created(one: Object) -> str:
    return str(one["metadata"].get("creationTimestamp", ""))


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
