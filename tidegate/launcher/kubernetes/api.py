"""The API of Kubernetes with the standard library alone: the launcher runs in images in which nothing of ours is.

`Api` asks and answers in JSON. Each answer is one of three: what was asked for; `ApiRefused`, with the status and the
server's own sentence; or `ApiUnreachable`, and then nobody knows what the server did. All are `OSError`s, like those
of a disk. Objects are named by whoever creates them, so a request that is repeated finds its own object (409).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from tidegate.launcher.kubernetes.access import ApiAccess

TIMEOUT_SECONDS = 10.0
"""How long a connection or an answer may take."""
NOT_FOUND, CONFLICT, FORBIDDEN = 404, 409, 403
_UNAUTHORIZED, _TOO_MANY, _SERVER_ERROR = 401, 429, 500
_MAY_NOT = '" cannot '
"""What the server says of a user without a right: User "…" cannot create resource "pods" in …"""
_OUTRUN = "Conflict"
"""Why a new object may be refused with a 409 although none has its name: others have used the same quota meanwhile."""
_OUTRUN_TRIES, _OUTRUN_SECONDS = 10, 0.2
_DEEPEST = 100
"""Levels that are kept of an answer with more of them than Python can read; Kubernetes takes 10,000 in one object."""
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]')
_MERGE = "application/merge-patch+json"
_JSON = "application/json"


class ApiError(OSError):
    """The API server did not do what was asked."""


class ApiUnreachable(ApiError):
    """The API server does not answer; nobody knows what it did."""


class ApiRefused(ApiError):
    """The API server says no."""

    def __init__(self, status: int, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """The server's word for it, if it has said one."""


class Api:
    """One API server. Thread-safe: each request takes a connection that is idle, or a new one.

    Without an `access`, the first request finds this process's own; it raises `AccessError` if there is none.
    """

    def __init__(self, access: ApiAccess | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._found = access
        self._timeout = timeout_seconds
        self._tls: ssl.SSLContext | None = None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    @property
    def access(self) -> ApiAccess:
        """The API server, and what it is shown."""
        self._found = self._found or ApiAccess.find()
        return self._found

    def get(self, path: str, **query: str) -> dict[str, Any] | None:
        """Return an object or a list; None if there is no such object."""
        try:
            return self._ask("GET", path, query)
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def listed(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the items of a list."""
        return self.versioned(path, **query)[0]

    def versioned(self, path: str, **query: str) -> tuple[list[dict[str, Any]], str]:
        """Return the items of a list, and its resource version: from there, `watch` tells what changes."""
        found = self._ask("GET", path, query)
        return found.get("items") or [], found.get("metadata", {}).get("resourceVersion", "")

    def watch(self, path: str, version: str, seconds: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each change of a list's objects since a version, and bookmarks: the type of the event, and the object.

        The server ends it after so many seconds. Raises `ApiRefused` if it no longer knows the version, before the
        first event or by one, and `ApiUnreachable` if the stream breaks.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        what, url, headers = self._asked("GET", path, query | {"resourceVersion": version})
        connection = self._connect()
        try:
            connection.connect()
            connection.sock.settimeout(seconds + self._timeout)
            connection.request("GET", url, None, headers)
            lines = connection.getresponse()
            if lines.status >= 300:  # noqa: PLR2004 - HTTP
                self._judged(what, lines.status, lines.read())
            for line in lines:
                event = _parsed(line)
                kind, told = event["type"], event["object"]
                if kind == "ERROR":
                    self._judged(what, told.get("code", _SERVER_ERROR), json.dumps(told).encode())
                yield kind, told
        except ApiError:
            raise
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as error:
            raise ApiUnreachable(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def create(self, path: str, body: Mapping[str, Any]) -> bool:
        """Create an object; return False if there is one of its name."""
        tries = 0
        while True:
            try:
                self._ask("POST", path, body=body)
            except ApiRefused as error:
                tries += 1
                if error.status != CONFLICT or (error.reason == _OUTRUN and tries == _OUTRUN_TRIES):
                    raise
                if error.reason != _OUTRUN:
                    return False
            else:
                return True
            time.sleep(_OUTRUN_SECONDS)

    def merge(self, path: str, body: Mapping[str, Any], **query: str) -> dict[str, Any]:
        """Merge `body` into an object, and return the whole object; with a resource version, only into that one."""
        return self._ask("PATCH", path, query, body=body, kind=_MERGE)

    def delete(self, path: str, *, grace_seconds: int) -> bool:
        """Delete an object; return False if there is none."""
        try:
            self._ask("DELETE", path, {"gracePeriodSeconds": str(grace_seconds)})
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return True

    def text(self, path: str, **query: str) -> str:
        """Return plain text, such as a log; empty if there is no such object."""
        try:
            return self._request("GET", path, query).decode("utf-8", "replace")
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return ""
            raise

    def close(self) -> None:
        """Close the connections that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        kind: str = _JSON,
    ) -> dict[str, Any]:
        answer = self._request(method, path, query or {}, None if body is None else json.dumps(body).encode(), kind)
        try:
            found = _parsed(answer)
        except ValueError:
            raise ApiUnreachable(f"{method} {self.access.server}{path}: not JSON: {answer[:80]!r}") from None
        if not isinstance(found, dict):
            raise ApiUnreachable(f"{method} {self.access.server}{path}: a JSON object is expected: {answer[:80]!r}")
        return found

    def _request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None = None, kind: str = _JSON
    ) -> bytes:
        what, url, headers = self._asked(method, path, query)
        if body is not None:
            headers["Content-Type"] = kind
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        try:
            status, answer = self._send(kept or self._connect(), method, url, body, headers)
        except (OSError, http.client.HTTPException) as error:
            # a kept connection may have been closed meanwhile; a repeated request does no harm, see above
            if kept is None or isinstance(error, TimeoutError):
                raise ApiUnreachable(f"{what}: {type(error).__name__}: {error}") from error
            try:
                status, answer = self._send(self._connect(), method, url, body, headers)
            except (OSError, http.client.HTTPException) as again:
                raise ApiUnreachable(f"{what}: {type(again).__name__}: {again}") from again
        return self._judged(what, status, answer)

    def _asked(self, method: str, path: str, query: Mapping[str, str]) -> tuple[str, str, dict[str, str]]:
        """Return what is asked for, for messages; its URL; and the headers that say who asks."""
        url = f"{urlsplit(self.access.server).path.rstrip('/')}{path}"
        url += f"?{urlencode(query)}" if query else ""
        headers = {"Accept": "*/*", "User-Agent": "tidegate"}
        token = self.access.bearer()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return f"{method} {self.access.server}{path}", url, headers

    def _send(
        self, connection: http.client.HTTPConnection, method: str, url: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            answer = response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return response.status, answer

    def _judged(self, what: str, status: int, answer: bytes) -> bytes:
        """Return an answer of success; raise for any other."""
        if status < 300:  # noqa: PLR2004 - HTTP
            return answer
        said, reason = answer[:500].decode("utf-8", "replace"), None
        with contextlib.suppress(ValueError, AttributeError):
            told = json.loads(answer)
            said, reason = str(told.get("message", said)), told.get("reason")
        if status == _TOO_MANY or status >= _SERVER_ERROR:
            raise ApiUnreachable(f"{what}: {status}: {said}")
        if status == _UNAUTHORIZED:
            said += f"; the credentials of {self.access.found_in} are not accepted"
        if status == FORBIDDEN and _MAY_NOT in said:  # a quota, or another admission rule, forbids too
            said += "; docs/how-to/kubernetes.md lists the rights that each account needs"
        raise ApiRefused(status, f"{what}: {status}: {said}", reason)

    def _connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.access.server)
        host = address.hostname or ""
        if address.scheme == "http":
            return http.client.HTTPConnection(host, address.port or 80, timeout=self._timeout)
        if self._tls is None:
            self._tls = self.access.tls()
        return http.client.HTTPSConnection(host, address.port or 443, timeout=self._timeout, context=self._tls)


def _parsed(answer: bytes) -> Any:
    """Return an answer, with null for what is nested too deep: one object of a list must not hide the others."""
    try:
        return json.loads(answer)
    except RecursionError:
        kept, end, depth = bytearray(), 0, 0
        for mark in _NESTING.finditer(answer):
            if mark[0] in b"[{":
                depth += 1
                if depth == _DEEPEST + 1:
                    kept += answer[end : mark.start()] + b"null"
            elif mark[0] in b"]}":
                if depth == _DEEPEST + 1:
                    end = mark.end()
                depth -= 1
        return json.loads(kept + answer[end:])
