"""The StreamingJobs of one namespace, through the API of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from services.operator.ports import ObjectMoved
from services.operator.reflector import Reflector
from services.operator.resource import GROUP, MANAGER, PLURAL, VERSION
from tidegate.launcher.kubernetes.access import ACCOUNT
from tidegate.launcher.kubernetes.api import CONFLICT, NOT_FOUND, Api, ApiRefused
from tidegate.runtime.clock import Clock

DEFAULT_NAMESPACE = "default"


class KubernetesStreamingJobs(Reflector):
    """`ports.StreamingJobs` on an API server."""

    def __init__(self, api: Api, namespace: str, clock: Clock) -> None:
        self._api = api
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
        super().__init__(self._versioned, partial(api.watch, self._path), clock)

    def change(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge a patch into an object; one with a `resourceVersion` applies to that version only."""
        try:
            made = self._api.merge(f"{self._path}/{name}", patch, fieldManager=MANAGER)
        except ApiRefused as error:
            if error.status in {CONFLICT, NOT_FOUND}:
                raise ObjectMoved(str(error)) from None
            raise
        self.take(made)
        return made

    def change_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Merge fields into the status of an object; None removes a field."""
        self.change(f"{name}/status", {"status": status})

    def answers(self) -> None:
        """Ask for something small; raise `ApiError` if there is no answer."""
        self._versioned(limit="1")

    def _versioned(self, **query: str) -> tuple[list[dict[str, Any]], str]:
        try:
            return self._api.versioned(self._path, **query)
        except ApiRefused as error:
            if error.status != NOT_FOUND:  # a namespace that does not exist has an empty list
                raise
            text = f"this cluster knows no StreamingJobs: apply deploy/kubernetes/crd ({error})"
            raise ApiRefused(NOT_FOUND, text) from None


def own_namespace() -> str:
    """Return the namespace of this pod; `default` outside of a cluster."""
    try:
        return (ACCOUNT / "namespace").read_text(encoding="ascii").strip()
    except OSError:
        return DEFAULT_NAMESPACE
