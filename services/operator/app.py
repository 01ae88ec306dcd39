"""The operator assembled: a loop that looks at the StreamingJobs, decides what is to be done for each, and does it.

Every round looks at everything again, so a lost event, a restart or a second run of a step does no harm. What is wrong
with one object ends no round. If the API server or the broker is slow, a round ends early, and the next one goes on
after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.operator.ports import ObjectMoved, Requests, StreamingJobs
from services.operator.reconcile import ObjectPlan, plan
from services.operator.resource import FINALIZER, StreamingJob, streaming_job
from services.operator.status import changes
from tidegate.events.job import JobSpec
from tidegate.fleet.feed import is_live
from tidegate.fleet.fleet import LiveFleet
from tidegate.launcher.kubernetes.api import ApiError
from tidegate.operate import publish, remove
from tidegate.runtime.clock import Clock
from tidegate.runtime.health import Health
from tidegate.runtime.logs import about
from tidegate.runtime.producer import NotDelivered, TooLarge
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger("operator")

ROUND_SECONDS = 10.0
"""How long a round may take: what it does for an object is decided on what the objects were at its start."""
SEEN_WITHIN_SECONDS = 10.0
"""How long a version that was just published counts although the jobs topic has not shown it yet."""


@dataclass(kw_only=True)
class Operator:
    """Looks after the StreamingJobs until it is stopped."""

    namespace: str
    allowed: Collection[str] = ()
    """Clusters and file systems that objects may name."""
    poll_seconds: float
    clock: Clock
    cluster: StreamingJobs
    jobs: LiveFleet
    requests: Requests
    health: Health
    stopping: threading.Event = field(default_factory=threading.Event)
    _published: dict[str, tuple[JobSpec, float]] = field(default_factory=dict)
    _left_off_at: str = ""
    """The object after which the last round ended early."""
    _silent: bool = False
    _failed: dict[str, str] = field(default_factory=dict)
    """By object, the error that it meets in each round, which the log has."""

    def run(self) -> int:
        """Go round until `stop`; return the exit code. Raises `TopicsLost`."""
        log.info("looking after the StreamingJobs of namespace %s", self.namespace)
        while not self.stopping.is_set():
            self.turn()
            self.stopping.wait(self.poll_seconds)
        return 0

    def stop(self) -> None:
        """End the loop after the object at hand."""
        self.stopping.set()

    def turn(self) -> None:
        """Do one round. Before all topics have been read nothing is done: a job would seem to be missing."""
        if self.cluster.alive:
            self.health.beat()
        if not is_live(self.jobs):
            return
        try:
            items = self.cluster.all()
        except ApiError as error:
            self._note_silence(error)
            return
        self._note_silence(None)
        named = {item["metadata"]["name"]: item for item in items}
        self._failed = {name: error for name, error in self._failed.items() if name in named}
        began, left_off_at, self._left_off_at = self.clock.monotonic(), self._left_off_at, ""
        for name in sorted(named, key=lambda name: (name <= left_off_at, name)):
            with about(job_id=name):
                self._look_after(name, named[name])
            self.health.beat()
            if self.stopping.is_set():
                return
            if self.clock.monotonic() - began >= ROUND_SECONDS:
                self._left_off_at = name
                return

    def _look_after(self, name: str, item: Mapping[str, Any]) -> None:
        try:
            sj = streaming_job(item)
            self._do(sj, self._plan(sj))
        except ObjectMoved:
            log.debug("%s has changed meanwhile", name)
        except Exception as error:  # it must not keep the others from their turn
            if self._failed.get(name) == str(error):
                return
            self._failed[name] = str(error)
            if isinstance(error, ApiError | NotDelivered):
                log.warning("%s: %s; trying again", name, error)
            else:
                log.exception("%s: an error that Tidegate does not expect; trying again", name)
        else:
            self._failed.pop(name, None)

    def _plan(self, sj: StreamingJob, too_large: str | None = None) -> ObjectPlan:
        with self.jobs.reading() as fleet:
            job = fleet.get(sj.name)
            present = self._in_force(sj.name, job.spec if job is not None else None)
            return plan(
                sj,
                job,
                present,
                self.clock.now(),
                self.allowed,
                unreadable=fleet.unusable.get(sj.name),
                unknown=fleet.unknown.get(sj.name, ()),
                too_large=too_large,
            )

    def _in_force(self, job_id: str, seen: JobSpec | None) -> JobSpec | None:
        """Return the spec in force: the one that was just published, until the topic has shown it."""
        published, at = self._published.get(job_id, (None, 0.0))
        if published is None or self.clock.monotonic() - at > SEEN_WITHIN_SECONDS:
            return seen
        if seen is not None and seen.version >= published.version:
            del self._published[job_id]
            return seen
        return published

    def _do(self, sj: StreamingJob, todo: ObjectPlan) -> None:
        version = sj.resource_version
        if todo.hold:
            made = self._finalizers(sj, version, [*sj.finalizers, FINALIZER])
            version = made["metadata"]["resourceVersion"]
        if (new := todo.publish) is not None:
            if not sj.taken_over:  # said first: if we are killed now, the job still goes with its object
                self.cluster.change_status(sj.name, {"appliedSpec": ""})
            try:
                self.requests.publish(new)
            except TooLarge as error:
                todo = replace(self._plan(sj, str(error)), hold=False)
            else:
                self._published[sj.name] = new, self.clock.monotonic()
                by = new.change.by if new.change is not None else ""
                log.info("version %d of %s is on the jobs topic, asked for by %s", new.version, sj.name, by)
        if todo.remove:
            self.requests.remove(sj.name)
            self._published.pop(sj.name, None)
            log.info("%s is removed from Tidegate", sj.name)
        if todo.release:
            self._finalizers(sj, version, [each for each in sj.finalizers if each != FINALIZER])
        if todo.slots is not None:
            self.cluster.change(sj.name, {"metadata": {"resourceVersion": version}, "spec": {"slots": todo.slots}})
        if todo.status is not None and (different := changes(sj.status, todo.status)):
            self.cluster.change_status(sj.name, different)

    def _finalizers(self, sj: StreamingJob, version: str, finalizers: list[str]) -> dict[str, Any]:
        return self.cluster.change(sj.name, {"metadata": {"resourceVersion": version, "finalizers": finalizers}})

    def _note_silence(self, error: Exception | None) -> None:
        """Log once that the API server is away, and once that it is back."""
        if error is not None and not self._silent:
            log.warning("cannot list the StreamingJobs: %s", error)
        elif error is None and self._silent:
            log.info("the API server answers again")
        self._silent = error is not None


class TopicRequests:
    """Writes to the jobs topic as the `tidegate` command does."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._publisher = Publisher(settings)

    def publish(self, spec: JobSpec) -> None:
        """Publish a version of a spec."""
        publish(self._settings, [spec], self._publisher)

    def remove(self, job_id: str) -> None:
        """Remove a job from Tidegate without stopping it."""
        remove(self._settings, job_id, self._publisher)
