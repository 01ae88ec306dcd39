"""A NameNode and a DataNode of WebHDFS in memory, as Hadoop 3.5 answers (`NamenodeWebHdfsMethods`)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_server import QuietHandler, serving

MTIME = 1_764_000_000.0
"""When the first file was written, in seconds since 1970; each later change is a second later."""


@dataclass
class File:
    """A file; while it is being written, the listing does not tell its whole length."""

    data: bytes
    file_id: int
    listed: int | None = None


@dataclass
class FakeWebHdfs:
    """The files by path, and how the server behaves."""

    url: str = ""
    files: dict[str, File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """Method, operation and path of each request."""
    standby: bool = False
    forbidden: bool = False
    kerberos: bool = False
    """Whether the NameNode asks for a ticket; then it takes no user's name, and knows by a cookie who has shown one."""
    fails: str = ""
    """The operation that fails: RENAME, or CREATE, when the DataNode has made the file."""
    silent: threading.Event = field(default_factory=threading.Event)
    """While it is set, nothing is answered."""
    _ids: int = 0

    def put(self, path: str, data: bytes, listed: int | None = None) -> None:
        """Write a file and the folders above it."""
        self._ids += 1
        self.files[path] = File(data, self._ids, listed)
        self.folders |= {path.rsplit("/", depth)[0] or "/" for depth in range(1, path.count("/") + 1)}

    def status(self, path: str, name: str) -> dict[str, Any]:
        """Return the FileStatus of a path; raise `FileNotFoundError`."""
        file = self.files.get(path)
        if file is None and path not in self.folders:
            raise FileNotFoundError(f"File {path} does not exist.")
        size = 0 if file is None else len(file.data) if file.listed is None else file.listed
        number = 0 if file is None else file.file_id
        return {
            "pathSuffix": name,
            "type": "DIRECTORY" if file is None else "FILE",
            "length": size,
            "modificationTime": int((MTIME + number - 1) * 1000) if file else 0,
            "fileId": number,
        }

    def listing(self, path: str) -> list[dict[str, Any]]:
        """Return the statuses of what is in a folder, or of the file itself."""
        if path in self.files:
            return [self.status(path, "")]
        self.status(path, "")
        prefix = path.rstrip("/") + "/"
        inside = {full for full in (*self.files, *self.folders) if full.startswith(prefix) and full != prefix}
        return [self.status(full, full[len(prefix) :]) for full in sorted(inside) if "/" not in full[len(prefix) :]]


class _Refused(Exception):
    """An answer that is a `RemoteException`."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        self.status = status
        self.body = {"RemoteException": {"exception": exception, "message": message}}


@contextmanager
def fake_webhdfs() -> Iterator[FakeWebHdfs]:
    """Run the server on loopback."""
    state = FakeWebHdfs()

    with serving(type("Handler", (_Handler,), {"hdfs": state})) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield state
        finally:
            state.silent.clear()


class _Handler(QuietHandler):
    hdfs: FakeWebHdfs
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = unquote(parts.path).removeprefix("/webhdfs/v1") or "/"
        self.hdfs.requests.append(f"{self.command} {query['op']} {path}")
        while self.hdfs.silent.is_set():
            threading.Event().wait(0.01)
        try:
            if "at_data_node" not in query and not self._knows_who_asks(query):
                self._send(401, "<html>Authentication required</html>")
            elif "at_data_node" in query:
                self._send(*self._data_node(query, path, body))
            else:
                self._send(*self._name_node(query, path))
        except FileNotFoundError as error:
            self._refuse(_Refused(404, "FileNotFoundException", str(error)))
        except _Refused as error:
            self._refuse(error)

    do_GET = do_PUT = do_DELETE = _answer  # noqa: N815 - as the base class calls them

    def _knows_who_asks(self, query: dict[str, str]) -> bool:
        if not self.hdfs.kerberos:
            return True
        known = "hadoop.auth=etl" in self.headers.get("cookie", "") or "authorization" in self.headers
        if known and "user.name" in query:
            raise _Refused(403, "SecurityException", "Usernames not matched")
        return known

    def _name_node(self, query: dict[str, str], path: str) -> tuple[int, Any]:
        hdfs, op = self.hdfs, query["op"]
        if hdfs.standby:
            raise _Refused(403, "StandbyException", "Operation category READ is not supported in state standby.")
        if hdfs.forbidden:
            raise _Refused(403, "AccessControlException", f"Permission denied: user={query.get('user.name')}")
        if op == "LISTSTATUS":
            return 200, {"FileStatuses": {"FileStatus": hdfs.listing(path)}}
        if op == "GETFILESTATUS":
            return 200, {"FileStatus": hdfs.status(path, "")}
        if op in ("OPEN", "CREATE"):
            return 307, self._redirection(op, query, path)
        return 200, self._change(op, query, path)

    def _redirection(self, op: str, query: dict[str, str], path: str) -> str:
        if op == "OPEN":
            size, offset = self.hdfs.status(path, "")["length"], int(query.get("offset", 0))
            if offset >= size > 0:
                raise _Refused(403, "IOException", f"Offset={offset} out of the range [0, {size}); OPEN, path={path}")
        return f"{self.hdfs.url}{self.path}&at_data_node=1"

    def _change(self, op: str, query: dict[str, str], path: str) -> dict[str, bool]:
        hdfs = self.hdfs
        if op == hdfs.fails:
            raise _Refused(403, "NSQuotaExceededException", "The quota is exceeded")
        if op == "RENAME":
            target = query["destination"]
            free = target not in hdfs.files or query.get("renameoptions") == "OVERWRITE"
            if free:
                file = hdfs.files.pop(path)
                hdfs.put(target, file.data)
            return {"boolean": free}
        if op == "DELETE":
            return {"boolean": hdfs.files.pop(path, None) is not None}
        raise _Refused(400, "IllegalArgumentException", f"Invalid value for webhdfs parameter op: {op}")

    def _data_node(self, query: dict[str, str], path: str, body: bytes) -> tuple[int, Any]:
        if query["op"] == "CREATE":
            self.hdfs.put(path, body)
            if self.hdfs.fails == "CREATE":
                raise _Refused(403, "DSQuotaExceededException", "The quota is exceeded")
            return 201, b""
        data, offset = self.hdfs.files[path].data, int(query.get("offset", 0))
        if offset > len(data):
            raise _Refused(403, "EOFException", "Cannot seek after EOF")
        return 200, data[offset : offset + int(query.get("length", len(data)))]

    def _refuse(self, error: _Refused) -> None:
        self._send(error.status, error.body)

    def _send(self, status: int, body: Any) -> None:
        data = b"" if status == 307 else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        if status == 307:
            self.send_header("Location", str(body))
        if status == 401:
            self.send_header("WWW-Authenticate", "Negotiate")
        if "authorization" in self.headers:
            self.send_header("Set-Cookie", "hadoop.auth=etl; Path=/; HttpOnly")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
