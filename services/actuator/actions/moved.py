"""Refuses to act while the job runs on another cluster than its spec names: a second driver must not start there.

The spec may have changed while the job ran, or the job was removed and added again. The results tell on which cluster
it was started or resized last, and that one is asked whether it still runs. If a result says that the job has stopped,
no cluster is asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.actuator.drivers import JobDrivers
from services.actuator.machine import ActionEvent
from services.actuator.task import ActionOutcome
from tidegate.events.job import CLUSTER_FIELDS, JobSpec, KubernetesPods
from tidegate.events.result import OTHER_CLUSTER


def where_it_ran(spec: JobSpec, cluster: Mapping[str, str]) -> JobSpec:
    """Return the spec with another cluster, to ask that about drivers; nothing can be started with it."""
    app = spec.application
    named: dict[str, object] = {name: cluster.get(name) for name in CLUSTER_FIELDS if name != "kubernetes.namespace"}
    namespace = cluster.get("kubernetes.namespace")
    named["kubernetes"] = None if namespace is None else KubernetesPods(namespace=namespace, image="unknown")
    return spec.model_copy(update={"application": app.model_copy(update=named)})


def refuse_moved(drivers: JobDrivers) -> ActionOutcome | None:
    """Return Refused if the job was started on another cluster, and a driver there may be alive; else None.

    If the cluster of the spec knows the job's driver, it is the same one under another name. Raises `NO_ANSWER` if one
    of them does not say.
    """
    before = drivers.before
    if before is None or drivers.runs_here() or not (live := before.live()):
        return None
    changed = "; ".join(drivers.spec.application.moved_from(before.spec.application.cluster))
    sentence = (
        f"The job runs as {live[-1].submission_id} on another cluster than its spec names ({changed}). Nothing was"
        " changed. Put the former values back, stop the job with running: false, and change them then."
    )
    return ActionOutcome(ActionEvent.REFUSED, sentence, OTHER_CLUSTER, submission_id=live[-1].submission_id)


ENDED_BY_MOVE = ActionOutcome(
    ActionEvent.ORPHANED, "The spec names another cluster since the command was started.", OTHER_CLUSTER
)
"""A command that has changed something on one cluster does not continue on another one."""
