"""The control files of a job as the keys of one ConfigMap, where no directory is shared.

    kubectl get configmap tidegate-rates -o yaml

All keys share one resource version, so a compare-and-swap sees any change of them. Reads are answered from a view that
is at most `VIEW_SECONDS` old: orders are looked for many times a second, and the API server must not notice. What a
run decides on, such as the fence before its first write, is read again.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tidegate.launcher.control.network import VIEW_SECONDS, patiently
from tidegate.launcher.kubernetes.api import CONFLICT, NOT_FOUND, Api, ApiRefused, ApiUnreachable

JOB_LABEL = "tidegate.dev/job"
LABELS = {"app.kubernetes.io/managed-by": "tidegate"}
_TRIES = 20
_LONGEST_NAME = 63

T = TypeVar("T")


def object_name(*parts: object) -> str:
    """Return a name for an object of Kubernetes: `tidegate-` and the parts, in at most 63 characters.

    Where they do not fit, or hold what names may not hold, a checksum takes the place of what is lost.
    """
    asked = "-".join(["tidegate", *map(str, parts)])
    name = re.sub(r"[^a-z0-9-]", "-", asked)
    if name == asked and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(asked.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


class ConfigMapStore:
    """The keys of the ConfigMap of one job. Thread-safe."""

    def __init__(self, api: Api, namespace: str, job_id: str, *, patience_seconds: float = 0.0) -> None:
        self._api = api
        self._all = f"/api/v1/namespaces/{namespace}/configmaps"
        self._name = object_name(job_id)
        self._one = f"{self._all}/{self._name}"
        self._job_id = job_id
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._data: dict[str, str] = {}
        self._version: str | None = None
        self._seen_at = float("-inf")
        self.place = f"ConfigMap {namespace}/{self._name}"

    def read(self, name: str, *, newest: bool = False) -> str | None:
        """Return the text of a key; None if there is none."""
        with self._lock:
            if newest:
                self._patiently(self._look)
            else:
                self._look_if_old()
            return self._data.get(name)

    def names(self) -> list[str]:
        """Return all keys."""
        with self._lock:
            self._look_if_old()
            return list(self._data)

    def write(self, name: str, text: str) -> None:
        """Write a key, whatever was there."""
        with self._lock:
            self._patiently(lambda: self._merge({name: text}))

    def remove(self, names: Collection[str]) -> None:
        """Remove keys."""
        with self._lock:
            gone: dict[str, str | None] = {name: None for name in names if name in self._data}
            if gone:
                self._patiently(lambda: self._merge(gone))

    def swap(self, seen: Mapping[str, str | None], name: str, text: str) -> bool:
        """Write a key if those in `seen` are what they were, at the same instant."""
        with self._lock:
            return self._patiently(lambda: self._swap(seen, name, text))

    def _swap(self, seen: Mapping[str, str | None], name: str, text: str) -> bool:
        for _ in range(_TRIES):
            self._look()
            if any(self._data.get(one) != was for one, was in seen.items()):
                return self._data.get(name) == text  # an earlier try of this swap, whose answer was lost
            if self._version is None:
                self._make()
                continue
            changed = {"metadata": {"resourceVersion": self._version}, "data": {name: text}}
            try:
                self._take(self._api.merge(self._one, changed))
            except ApiRefused as error:
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
            else:
                return True
        raise ApiUnreachable(f"{self.place}: {_TRIES} others wrote in between")

    def _merge(self, data: Mapping[str, str | None]) -> None:
        """Merge keys; make the ConfigMap if there is none."""
        for _ in range(_TRIES):
            try:
                self._take(self._api.merge(self._one, {"data": data}))
            except ApiRefused as error:
                if error.status != NOT_FOUND:
                    raise
            else:
                return
            self._make()
        raise ApiUnreachable(f"{self.place}: it is removed again and again")

    def _make(self) -> None:
        """Make the ConfigMap, unless somebody just has."""
        metadata = {"name": self._name, "labels": {**LABELS, JOB_LABEL: self._job_id}}
        self._api.create(self._all, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

    def _look_if_old(self) -> None:
        if time.monotonic() >= self._seen_at + VIEW_SECONDS:
            self._look()

    def _look(self) -> None:
        found = self._api.get(self._one)
        if found is not None:
            self._take(found)
        else:
            self._data, self._version, self._seen_at = {}, None, time.monotonic()

    def _take(self, found: Mapping[str, Any]) -> None:
        metadata = found["metadata"]
        of = (metadata.get("labels") or {}).get(JOB_LABEL)
        if of != self._job_id:
            raise ApiRefused(CONFLICT, f"{self.place}: it has the label {JOB_LABEL}={of}, not {self._job_id}")
        self._data = found.get("data") or {}
        self._version = metadata["resourceVersion"]
        self._seen_at = time.monotonic()

    def _patiently(self, action: Callable[[], T]) -> T:
        return patiently(action, self._patience, lambda error: isinstance(error, ApiUnreachable))
