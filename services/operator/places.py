"""Which clusters and file systems a StreamingJob may name. Pure.

Collector and actuator ask the addresses in a spec, from inside Tidegate's network and with its credentials. Whoever may
write StreamingJobs need not have either. So an object may name only this Kubernetes cluster, in its own namespace, and
what the operator's setting allows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from tidegate.events.job import Application
from tidegate.specfields import SpecProblem

HERE = "k8s://https://kubernetes.default.svc"
"""The API server of the cluster in which a pod runs."""


def refused_places(app: Application, allowed: Collection[str]) -> list[SpecProblem]:
    """Return what is wrong with the places that an application names, if one of them is not allowed."""
    may = {HERE, *(place.rstrip("/") for place in allowed)}
    refused = {field: place for field, place in _places(app) if place.rstrip("/") not in may}
    if not refused:
        return []
    named = "; ".join(f"application.{field}: a StreamingJob may not name {place!r}" for field, place in refused.items())
    advice = (
        "without that, a job runs with backend: kubernetes in the namespace of its object; if Tidegate's services may"
        " ask there, have it added to TIDEGATE_OPERATOR_ALLOWED_PLACES of the operator"
    )
    return [SpecProblem(("application", next(iter(refused))), f"{named}; {advice}")]


def _places(app: Application) -> Iterator[tuple[str, str]]:
    """Yield field and place of all that the services ask because of an application."""
    if app.backend == "local":  # `spark-submit` in the actuator's own pod, whatever the master
        yield "backend", app.backend
    for field in ("master", "rest_url", "master_ui_url"):
        if (place := getattr(app, field)) is not None:
            yield field, place
    for field in ("checkpoint_location", "event_log_dir", "control_dir"):
        if (system := _file_system(getattr(app, field))) is not None:
            yield field, system


def _file_system(location: str | None) -> str | None:
    """Return the file system of a location, as `tidegate.remote.files` takes it; None for a path."""
    try:
        parts = urlsplit(location or "")
    except ValueError:
        return location
    return None if parts.scheme in ("", "file") else f"{parts.scheme}://{parts.netloc}"
