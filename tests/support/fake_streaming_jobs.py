"""StreamingJobs and topics in memory, for tests of the operator: what the API machinery does with such objects."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from services.operator.ports import ObjectMoved
from services.operator.resource import MANAGER
from tidegate.events.job import JobSpec
from tidegate.fleet.fleet import Fleet
from tidegate.installed import engine
from tidegate.launcher.kubernetes.api import ApiError
from tidegate.operate import SpecRefused

FIELDS: dict[str, Any] = {
    "sources": ["in"],
    "application": {
        "backend": "kubernetes",
        "script": "/jobs/rates.py",
        "checkpoint_location": "/checkpoints/rates",
        "event_log_dir": "/events",
        "kubernetes": {"namespace": "jobs", "image": "spark:4.2.0"},
    },
}
"""The `spec` of an object: a job on the Kubernetes cluster that it is on."""


class FakeStreamingJobs:
    """The objects of one namespace; a change of `spec` is a new generation, and every change a new version."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.away = False
        """Whether nothing answers."""
        self.alive = True
        """Whether what keeps the objects up to date still does something."""
        self.writes: list[tuple[str, str]] = []
        """Name and kind of each write of the operator."""
        self._version = 0

    def apply(
        self, name: str, spec: Mapping[str, Any], manager: str = "kubectl-client-side-apply", **more: Any
    ) -> None:
        """Create an object, or merge fields into its spec, as somebody with kubectl does."""
        made = self.objects.setdefault(
            name,
            {"metadata": {"name": name, "namespace": "jobs", "uid": f"uid-{name}", "generation": 0}, "spec": {}},
        )
        metadata = made["metadata"]
        if made["spec"] != {**made["spec"], **spec}:
            metadata["generation"] += 1
        if made["spec"].get("slots") != spec.get("slots", made["spec"].get("slots")):
            self._disown_slots(metadata)
        made["spec"] = {**made["spec"], **copy.deepcopy(dict(spec))}
        metadata.setdefault("managedFields", []).append(
            {"manager": manager, "time": datetime.now(UTC).isoformat(), **more}
        )
        self._touch(made)

    def scale(self, name: str, slots: int, manager: str = "kubectl") -> None:
        """Write the scale subresource."""
        self.apply(name, {"slots": slots}, manager, subresource="scale")

    def delete(self, name: str) -> None:
        """Delete an object: it stays until its finalizers are gone."""
        if not self.objects[name]["metadata"].get("finalizers"):
            del self.objects[name]
            return
        self.objects[name]["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        self._touch(self.objects[name])

    def all(self) -> list[dict[str, Any]]:
        """Return every object as it is now."""
        if self.away:
            raise ApiError("no answer")
        return copy.deepcopy(list(self.objects.values()))

    def change(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a patch into an object, but for its status."""
        found = self._found(name, patch)
        if "finalizers" in patch.get("metadata", {}):
            self.writes.append((name, "finalizers"))
            found["metadata"]["finalizers"] = list(patch["metadata"]["finalizers"])
            if not found["metadata"]["finalizers"] and "deletionTimestamp" in found["metadata"]:
                del self.objects[name]
        if "spec" in patch:
            self.writes.append((name, "spec"))
            found["spec"] = {**found["spec"], **patch["spec"]}
            found["metadata"]["generation"] += 1
            self._disown_slots(found["metadata"])
            fields: dict[str, Any] = {"f:spec": {f"f:{name}": {} for name in patch["spec"]}}
            found["metadata"]["managedFields"].append({"manager": MANAGER, "fieldsV1": fields})
        self._touch(found)
        return copy.deepcopy(found)

    def change_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Merge fields into the status of an object."""
        found = self._found(name, {})
        self.writes.append((name, "status"))
        merged = {**found.get("status", {}), **copy.deepcopy(dict(status))}
        found["status"] = {field: value for field, value in merged.items() if value is not None}
        self._touch(found)

    def _disown_slots(self, metadata: dict[str, Any]) -> None:
        """Whoever changes a field owns it; those who wrote it before do not any more."""
        kept = [
            one
            for one in metadata.get("managedFields", [])
            if "f:slots" not in one.get("fieldsV1", {}).get("f:spec", {})
        ]
        metadata["managedFields"] = kept

    def _found(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        found = self.objects.get(name)
        version = patch.get("metadata", {}).get("resourceVersion")
        if found is None or version not in {None, found["metadata"]["resourceVersion"]}:
            raise ObjectMoved(name)
        return found

    def _touch(self, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)


class FakeJobs:
    """A fleet that shows what was published when `deliver` is called; both ports of the topics in one."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.state = "live"
        self.revision = 0
        self.published: list[JobSpec] = []
        self.removed: list[str] = []
        self._left: list[JobSpec | str] = []

    @contextmanager
    def reading(self) -> Iterator[Fleet]:
        """Hold the fleet still."""
        yield self.fleet

    def publish(self, spec: JobSpec) -> None:
        """Take a version of a spec; raise `SpecRefused` as the real one does."""
        if problems := engine().check(spec):
            raise SpecRefused("; ".join(problems))
        self.published.append(spec)
        self._left.append(spec)

    def remove(self, job_id: str) -> None:
        """Take a tombstone."""
        self.removed.append(job_id)
        self._left.append(job_id)

    def deliver(self) -> None:
        """Show what was published."""
        for one in self._left:
            if isinstance(one, JobSpec):
                self.fleet.take_spec(one)
            else:
                self.fleet.remove(one)
        self._left = []
