"""A StreamingJob as Kubernetes gives it, and who asked for what. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.events.wire import identity

GROUP, VERSION, PLURAL = "tidegate.dev", "v1alpha1", "streamingjobs"
FINALIZER = f"{GROUP}/operator"
MANAGER = "tidegate-operator"
"""The field manager of our own writes."""
CAUSE = "kubernetes.io/change-cause"
"""The annotation that says why somebody changed an object."""
LONGEST_NAME, LONGEST_REASON = 100, 500


@dataclass(frozen=True, slots=True)
class StreamingJob:
    """One object."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    deleting: bool
    finalizers: tuple[str, ...]
    fields: Mapping[str, Any]
    """`spec` without `slots`: the fields of a job file."""
    slots: int | None
    """`spec.slots`, which also the scale subresource writes."""
    status: Mapping[str, Any]
    annotations: Mapping[str, str]
    managers: tuple[Mapping[str, Any], ...]
    """Who has written which fields, as Kubernetes keeps it."""

    @property
    def digest(self) -> str:
        """A checksum of `fields`: the same fields need to be taken over only once."""
        return identity("streaming-job", json.dumps(self.fields, sort_keys=True))

    @property
    def changed(self) -> bool:
        """Whether `fields` are others than those taken over last."""
        return self.digest != self.status.get("appliedSpec")

    @property
    def taken_over(self) -> bool:
        """Whether its `fields` were ever taken over: only then the job of its name is its own."""
        return "appliedSpec" in self.status

    @property
    def request(self) -> int | None:
        """The size that somebody has asked for since; None if nobody has."""
        return self.slots if self.slots != self.status.get("appliedSlots") and not self._written_back else None

    @property
    def _written_back(self) -> bool:
        """Whether we wrote `slots` last: if we were interrupted then, `appliedSlots` does not say so yet.

        Kubernetes keeps who owns a field; whoever changes its value takes it over, also through `scale`.
        """
        ours = [one for one in self.managers if one.get("manager") == MANAGER and not one.get("subresource")]
        return any("f:slots" in one.get("fieldsV1", {}).get("f:spec", {}) for one in ours)

    @property
    def request_id(self) -> str:
        """The id of that request: the same for the same generation of the object, however often it is looked at."""
        return identity("slots", self.uid, self.generation)

    @property
    def held(self) -> bool:
        """Whether the object waits for us before it goes away."""
        return FINALIZER in self.finalizers

    def asked_by(self, *, scaled: bool) -> str:
        """Return the name of the program that wrote the object last, such as `kubectl-edit`: Kubernetes keeps no user.

        With `scaled`, the one that wrote its scale subresource, if one did.
        """
        scalers = [one for one in self.managers if one.get("subresource") == "scale"]
        writers = [one for one in self.managers if not one.get("subresource") and one.get("manager") != MANAGER]
        found = max((scalers if scaled else []) or writers, key=lambda one: str(one.get("time", "")), default={})
        return str(found.get("manager") or "kubernetes")[:LONGEST_NAME]

    @property
    def reason(self) -> str:
        """Why the object was changed: what its annotation says, or which object it is."""
        said = self.annotations.get(CAUSE, "").strip()
        return (said or f"StreamingJob {self.namespace}/{self.name}, generation {self.generation}")[:LONGEST_REASON]


def streaming_job(item: Mapping[str, Any]) -> StreamingJob:
    """Return an item of a list as a value."""
    metadata = item["metadata"]
    fields = dict(item.get("spec") or {})
    slots = fields.pop("slots", None)
    return StreamingJob(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        fields=fields,
        slots=slots,
        status=item.get("status") or {},
        annotations=metadata.get("annotations") or {},
        managers=tuple(metadata.get("managedFields") or ()),
    )
