"""A small client of the REST API of YARN's ResourceManager: its applications, queues and metrics.

Documented as "ResourceManager REST API's" of Hadoop 3. A standby ResourceManager redirects to the active one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from tidegate.remote.http import HTTP_ERRORS, Negotiate

PENDING = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})
"""States of an application that waits for the container of its driver."""
RUNNING = "RUNNING"
LIVE = ",".join(sorted({*PENDING, RUNNING}))
ENDED = "FAILED,FINISHED,KILLED"
TAG_PREFIX = "tidegate-"
NODE_CONNECT_SECONDS = 2.0
"""How long a node may take to accept a connection: one that is gone does not."""
_SPARK = "SPARK"


class RmUnreachable(RuntimeError):
    """The ResourceManager gave no usable answer; the text says which, and why."""


class RmRefused(RuntimeError):
    """The ResourceManager refused; the text says what, and why."""


class ResourceManager:
    """Asks ResourceManagers by the address of their web page, such as `http://rm:8088`. Thread-safe."""

    def __init__(self, timeout_seconds: float = 10.0, transport: httpx.BaseTransport | None = None) -> None:
        self._of_node = httpx.Timeout(timeout_seconds, connect=min(timeout_seconds, NODE_CONNECT_SECONDS))
        # it is on the internal network: ignore proxies from the environment
        self._http = httpx.Client(
            timeout=timeout_seconds, trust_env=False, transport=transport, follow_redirects=True, auth=Negotiate()
        )

    def applications(self, url: str, **query: str) -> list[dict[str, Any]]:
        """Return the Spark applications that the ResourceManager knows; `query` is as in its API."""
        found = self.get(url, "apps", applicationTypes=_SPARK, **query).get("apps") or {}
        listed = (found.get("app") or []) if isinstance(found, dict) else found
        if not isinstance(listed, list) or not all(map(_is_application, listed)):
            raise RmUnreachable(f"{url}: a list of applications is expected, found {str(found)[:80]!r}")
        return listed

    def tagged(self, url: str, tag: str) -> list[dict[str, Any]]:
        """Return the applications with a tag, the newest last."""
        return sorted(self.applications(url, applicationTags=tag), key=lambda app: int(app.get("startedTime") or 0))

    def kill(self, url: str, application: dict[str, Any]) -> None:
        """End an application by force, as the user who has submitted it."""
        self._ask("PUT", f"{_api(url)}/apps/{application['id']}/state", user=application["user"], state="KILLED")

    def get(self, url: str, path: str, **query: str) -> dict[str, Any]:
        """Return the answer to a question below `/ws/v1/cluster`."""
        return self._ask("GET", f"{_api(url)}/{path}", **query)

    def text(self, url: str, **query: str) -> str:
        """Return the text at an address, such as a log at a NodeManager; empty if there is none."""
        try:
            response = self._http.get(url, params=query, timeout=self._of_node)
        except HTTP_ERRORS:
            return ""
        return response.text if response.is_success else ""

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _ask(self, method: str, url: str, *, user: str = "", state: str = "", **query: str) -> dict[str, Any]:
        params = query | ({"user.name": user} if user else {})
        try:
            response = self._http.request(method, url, params=params, json={"state": state} if state else None)
        except HTTP_ERRORS as error:
            raise RmUnreachable(f"{method} {url}: {type(error).__name__}: {error}") from error
        if response.is_client_error:
            said = response.reason_phrase if response.text.startswith("<") else response.text[:300]
            raise RmRefused(f"{method} {url}: {response.status_code}: {said}")
        try:
            answer = response.raise_for_status().json()
        except (*HTTP_ERRORS, ValueError) as error:
            raise RmUnreachable(f"{method} {url}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise RmUnreachable(f"{method} {url}: a JSON object is expected, found {str(answer)[:80]!r}")
        return answer


def containers(application: Mapping[str, Any]) -> int | None:
    """Return how many containers an application has besides its driver's; None if the ResourceManager hides it."""
    running = int(application.get("runningContainers", -1))
    return None if running < 0 else max(0, running - 1)


def _is_application(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(field), str) for field in ("id", "name", "state"))


def tags(application: dict[str, Any]) -> list[str]:
    """Return the tags of an application."""
    return [tag for tag in str(application.get("applicationTags", "")).split(",") if tag]


def _api(url: str) -> str:
    return f"{url.rstrip('/')}/ws/v1/cluster"
