"""What a job sees of its cluster, whatever kind that is: the Spark applications, and the slots of its pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from tidegate.events.job import JobSpec

ACTIVE = frozenset({"WAITING", "RUNNING"})
"""States of an application that has not ended."""


class Tolerant(BaseModel):
    """A part of an answer; fields that are not known are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class App(Tolerant):
    """An application as its cluster sees it."""

    id: str
    name: str
    cores: int | None
    """Cores granted to its executors now; None if the cluster does not tell."""
    state: str
    """WAITING, RUNNING, FINISHED, FAILED, KILLED or UNKNOWN."""
    start_millis: int = Field(validation_alias="starttime")

    @property
    def started_at(self) -> datetime:
        """When it registered."""
        return datetime.fromtimestamp(self.start_millis / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a job sees of its cluster at one moment."""

    slots_total: int | None
    """None if whoever asked may not know."""
    slots_used: int
    workers_alive: int
    active: Mapping[str, App]
    completed: Mapping[str, App]
    active_by_name: Mapping[str, App]
    """The newest active application of each name."""

    @classmethod
    def of_apps(
        cls, apps: Iterable[App], *, more: int | None, workers_alive: int, elsewhere: Collection[str] = ()
    ) -> ClusterView:
        """Return the view of a pool that has room for `more` slots; None if that is unknown.

        The applications with the ids `elsewhere` hold slots of another pool.
        """
        ordered = sorted(apps, key=lambda app: app.start_millis)
        active = {app.id: app for app in ordered if app.state in ACTIVE}
        used = sum(app.cores or 0 for app in active.values() if app.id not in elsewhere)
        return cls(
            slots_total=None if more is None else used + more,
            slots_used=used,
            workers_alive=workers_alive,
            active=active,
            completed={app.id: app for app in ordered if app.id not in active},
            active_by_name={app.name: app for app in active.values()},
        )

    def seen_by(
        self, job_id: str, apps: Iterable[App], *, more: int | None, elsewhere: Collection[str] = ()
    ) -> ClusterView:
        """Return what a job sees that knows its own applications better: how they are called, and their cores.

        Of the others nothing is looked at again, as hundreds of jobs may share a pool.
        """
        own = [app for app in apps if app.state in ACTIVE]
        here = [app for app in own if app.id not in elsewhere]
        used = self.slots_used + sum((app.cores or 0) - (self.active[app.id].cores or 0) for app in here)
        newest = {job_id: max(own, key=lambda app: app.start_millis)} if own else {}
        return replace(
            self,
            slots_total=None if more is None else used + more,
            slots_used=used,
            active={**self.active, **{app.id: app for app in own}},
            active_by_name={**self.active_by_name, **newest},
        )

    def of(self, spec: JobSpec) -> ClusterView:
        """Return what a job sees: slots are the same for all."""
        del spec
        return self
