"""A small API server of Kubernetes on loopback: objects by path, resource versions, selectors, refusals and silence.

It keeps what it is given, in memory, and does what the API machinery does: 409 for a name that is there or a version
that is not the newest, 404, merge patches, finalizers, and label selectors. A watch goes on from a version: it has an
event for each change since then, and bookmarks, or 410 if that version is forgotten. Nothing schedules or runs pods but
the test.
"""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import QuietHandler, serving
from tidegate.launcher.kubernetes.access import ApiAccess
from tidegate.launcher.kubernetes.api import Api

_OBJECT = re.compile(
    r"(?P<all>/(?:api|apis)/.+?/(?:pods|configmaps|resourcequotas|nodes|namespaces|serviceaccounts|roles|rolebindings"
    r"|sparkapplications|streamingjobs))"
    r"(?:/(?P<name>[^/]+))?(?:(?P<log>/log)|(?P<status>/status))?"
)

EXPIRED = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells of an object: what happened to it, and how it was then."""

    version: int
    path: str
    event: dict[str, Any]


class FakeKubernetes:
    """The state of the server; a test may change it under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.objects: dict[str, dict[str, Any]] = {}
        """By path, such as `/api/v1/namespaces/jobs/pods/a`."""
        self.usual_log = ""
        """The log of each pod."""
        self.sent = 0
        """How much of it was in the last answer."""
        self.requests: list[str] = []
        """Method and path of each; the method of a watch is WATCH."""
        self.answered = 0
        """The bytes of all answers."""
        self.watches = 0
        """How many watches are open."""
        self.bookmark_seconds = 60.0
        """How often a watch is told the newest version although nothing has happened; it is also told at its end."""
        self.tells_expired_late = False
        """Whether a watch from a version that is forgotten begins before it is told so."""
        self.tokens: list[str | None] = []
        """What was shown with each."""
        self.forbidden: re.Pattern[str] | None = None
        """Requests that are answered with 403."""
        self.silent = False
        """Every connection is closed without an answer."""
        self.broken: int | None = None
        """Every request is answered with this status."""
        self.outrun = 0
        """So many of the next pods are refused, because others have used the same quota meanwhile."""
        self.inadmissible: str | None = None
        """Why no pod is admitted, as a quota says it."""
        self.loses_answers = 0
        """So many of the next writes are done, but not answered."""
        self.before_patch: list[Any] = []
        """Functions that are called one by one before the next patches."""
        self.after_create: Callable[[str, dict[str, Any]], None] | None = None
        """A controller: it is called with path and object of whatever has been created."""
        self.clients: list[Api] = []
        self.port = 0
        self._version = 0
        self._changes: list[Change] = []
        self._forgotten = 0
        self._cuts = 0

    @property
    def api(self) -> Api:
        """A client of this server, which is closed at the end."""
        api = Api(ApiAccess(f"http://127.0.0.1:{self.port}", "the test", token="t"), timeout_seconds=30.0)
        self.clients.append(api)
        return api

    def put(self, path: str, **fields: Any) -> dict[str, Any]:
        """Add an object, or replace fields of one."""
        with self.lock:
            kind = "MODIFIED" if path in self.objects else "ADDED"
            known = self.objects.setdefault(path, {"metadata": _metadata(path)})
            self._merge(known, fields)
            return self._touched(path, kind)

    def forget(self) -> None:
        """Know the versions before the present one no longer: a watch from one of them is answered with 410."""
        with self.lock:
            self._forgotten, self._changes = self._version, []

    def cut(self) -> None:
        """Break all connections on which something is watched."""
        with self.changed:
            self._cuts += 1
            self.changed.notify_all()

    def watch(self, target: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until its time is up; raise `ConnectionAbortedError` if it is cut."""
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        under, seen = _under(url.path), int(query["resourceVersion"])
        now = time.monotonic()
        ends, marks = now + float(query["timeoutSeconds"]), now + self.bookmark_seconds
        with self.changed:
            cuts, gone = self._cuts, seen < self._forgotten
        if gone:
            yield {"type": "ERROR", "object": EXPIRED}
            return
        while True:
            with self.changed:
                while seen == self._version and cuts == self._cuts and now < min(ends, marks):
                    self.changed.wait(min(ends, marks) - now)
                    now = time.monotonic()
                if cuts != self._cuts:
                    raise ConnectionAbortedError
                told = [one.event for one in self._changes if one.version > seen and under.fullmatch(one.path)]
                seen = self._version
                if now >= min(ends, marks) and query.get("allowWatchBookmarks") == "true":
                    marks = now + self.bookmark_seconds
                    told.append({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}})
            yield from told
            if now >= ends:
                return

    def refusal(self, request: str, target: str) -> tuple[int, dict[str, Any]] | None:
        """Return status and body of the answer to a request that is refused, whatever it asks for; else None."""
        if self.broken is not None:
            return self.broken, {"message": "the server is broken"}
        if self.forbidden is not None and self.forbidden.search(request):
            return 403, {"message": f'User "tester" cannot {request}'}
        since = parse_qs(urlsplit(target).query).get("resourceVersion")
        if since is not None and int(since[0]) < self._forgotten and not self.tells_expired_late:
            return 410, EXPIRED
        return None

    def answer(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Return status and body of the answer to a request."""
        url = urlsplit(target)
        match = _OBJECT.fullmatch(url.path)
        if match is None:
            return 404, self._status("the server could not find the requested resource")
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if method == "PATCH" and self.before_patch:
            self.before_patch.pop(0)()
        with self.lock:
            if match["log"]:
                there = f"{match['all']}/{match['name']}" in self.objects
                log = self.usual_log[: int(query.get("limitBytes", len(self.usual_log)))]
                self.sent = len(log)
                return (200, log) if there else (404, self._status("not found"))
            if match["name"] is None:
                return self._create(match["all"], body) if method == "POST" else (200, self._listed(url.path, query))
            if match["status"]:
                body = {"status": (body or {})["status"]}
            return self._one(method, url.path.removesuffix("/status"), body)

    def _create(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        made = copy.deepcopy(body or {})
        where = f"{path}/{made['metadata']['name']}"
        if self.outrun and path.endswith("/pods"):
            self.outrun -= 1
            said = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
            return 409, self._status(said) | {"reason": "Conflict", "details": {"kind": "resourcequotas"}}
        if self.inadmissible is not None and path.endswith("/pods"):
            return 403, self._status(f'pods "{made["metadata"]["name"]}" is forbidden: {self.inadmissible}')
        if where in self.objects:
            return 409, self._status(f"{where} already exists") | {"reason": "AlreadyExists"}
        made["metadata"] = _metadata(where) | made["metadata"]
        self.objects[where] = made
        if path.endswith("/pods"):
            made.setdefault("status", {"phase": "Pending"})
        if self.after_create is not None:
            self.after_create(where, made)
        return 201, self._touched(where, "ADDED")

    def _one(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        known = self.objects.get(path)
        if known is None:
            return 404, self._status(f"{path} not found")
        if method == "DELETE":
            if not known["metadata"].get("finalizers"):
                return 200, self._removed(path)
            known["metadata"]["deletionTimestamp"] = known["metadata"]["creationTimestamp"]
            return 200, self._touched(path)
        if method == "PATCH":
            asked = ((body or {}).get("metadata") or {}).get("resourceVersion")
            if asked not in (None, known["metadata"]["resourceVersion"]):
                return 409, self._status("the object has been modified")
            self._merge(known, body or {})
            if "deletionTimestamp" in known["metadata"] and not known["metadata"].get("finalizers"):
                return 200, self._removed(path)
            self._touched(path)
        return 200, copy.deepcopy(known)

    def _listed(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        found = [known for where, known in self.objects.items() if _under(path).fullmatch(where)]
        chosen = [known for known in found if _selected(known, query.get("labelSelector", ""))]
        items = copy.deepcopy(chosen[: int(query.get("limit", len(chosen)))])
        return {"kind": "List", "metadata": {"resourceVersion": str(self._version)}, "items": items}

    def _touched(self, path: str, kind: str = "MODIFIED") -> dict[str, Any]:
        self._version += 1
        known = self.objects[path]
        known["metadata"]["resourceVersion"] = str(self._version)
        found = copy.deepcopy(known)
        self._changes.append(Change(self._version, path, {"type": kind, "object": found}))
        self.changed.notify_all()
        return found

    def _removed(self, path: str) -> dict[str, Any]:
        found = self._touched(path, "DELETED")
        del self.objects[path]
        return found

    def _merge(self, known: dict[str, Any], changes: dict[str, Any]) -> None:
        for name, value in changes.items():
            if value is None:
                known.pop(name, None)
            elif isinstance(value, dict):
                self._merge(known.setdefault(name, {}), value)
            else:
                known[name] = value

    @staticmethod
    def _status(message: str) -> dict[str, Any]:
        return {"kind": "Status", "status": "Failure", "message": message}


def _metadata(path: str) -> dict[str, Any]:
    """Return what the server knows of a new object by itself."""
    namespace = re.search(r"/namespaces/([^/]+)/", path)
    made = {"name": path.rpartition("/")[2], "uid": str(uuid.uuid4())}
    made["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return made | ({} if namespace is None else {"namespace": namespace[1]})


def _selected(known: dict[str, Any], selector: str) -> bool:
    labels = known["metadata"].get("labels") or {}
    for name, among, value in re.findall(r"([\w./-]+)(?: in \(([^)]*)\)|=([^,]*))", selector):
        if labels.get(name) not in (among.replace(" ", "").split(",") if among else [value]):
            return False
    return True


def _under(path: str) -> re.Pattern[str]:
    """Return what the paths of a list's objects match; that of a cluster has those of all namespaces."""
    return re.compile(re.escape(path).replace("/api/v1/", "/api/v1/(?:namespaces/[^/]+/)?", 1) + "/[^/]+")


@contextmanager
def fake_kubernetes() -> Iterator[FakeKubernetes]:
    """Yield an API server that is up until the end."""
    state = FakeKubernetes()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            watched = "watch=true" in self.path
            request = f"{'WATCH' if watched else self.command} {urlsplit(self.path).path}"
            state.requests.append(request)
            state.tokens.append(self.headers.get("Authorization"))
            if state.silent:
                self.close_connection = True
                return
            refusal = state.refusal(request, self.path)
            if watched and refusal is None:
                self._tell()
                return
            status, answer = refusal or state.answer(self.command, self.path, body)
            if refusal is None and state.loses_answers and self.command != "GET":
                state.loses_answers -= 1
                self.close_connection = True
                return
            content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            state.answered += len(content)

        def _tell(self) -> None:
            """Answer a watch: an event is a line, and is sent at once."""
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            state.watches += 1
            try:
                for event in state.watch(self.path):
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    state.answered += len(line)
                self.wfile.write(b"0\r\n\r\n")
            finally:
                state.watches -= 1

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - as the base class calls them

    with serving(Handler) as server:
        state.port = server.server_port
        try:
            yield state
        finally:
            state.cut()
            for api in state.clients:
                api.close()
