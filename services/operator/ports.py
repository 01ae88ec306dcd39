"""What the operator needs of Kubernetes and of the topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tidegate.events.job import JobSpec


class ObjectMoved(RuntimeError):
    """Somebody else has changed or removed the object; the next round sees it as it is now."""


class StreamingJobs(Protocol):
    """The StreamingJobs of one namespace. Each method may raise `ApiError`, a change `ObjectMoved` too."""

    @property
    def alive(self) -> bool:
        """Whether what keeps the objects up to date still does something."""

    def all(self) -> list[dict[str, Any]]:
        """Return every object as it was told last; raise if nobody knows whether that is all of them."""

    def change(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a patch into an object; one with a `resourceVersion` applies to that version only."""

    def change_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Merge fields into the status of an object; None removes a field."""


class Requests(Protocol):
    """Writes to the jobs topic."""

    def publish(self, spec: JobSpec) -> None:
        """Publish a version of a spec; raise `NotDelivered` if the broker does not acknowledge it."""

    def remove(self, job_id: str) -> None:
        """Remove a job from Tidegate without stopping it."""
