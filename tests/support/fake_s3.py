"""S3's protocol as far as Tidegate uses it, in this process: objects, ranges, listings, conditional writes.

As in S3, a condition and the write that depends on it are one step.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_server import QuietHandler, serving

BUCKET = "jobs"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}
_SILENCE_SECONDS = 3.0


@dataclass
class FakeS3:
    """One bucket."""

    url: str = ""
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    """Content and time of writing by key."""
    requests: list[str] = field(default_factory=list)
    """Method and key of each request; `LIST` for a listing."""
    silent: threading.Event = field(default_factory=threading.Event)
    """Set: requests are answered too late."""
    forbidden: bool = False
    loses_answers: int = 0
    """How many writes are done, and answered as if they had failed."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: str, data: bytes) -> None:
        """Write an object, as Spark would."""
        self.objects[key.lstrip("/")] = data, datetime.now(UTC)

    def reset(self) -> None:
        """Forget all objects and requests, and answer again."""
        self.objects.clear()
        self.requests.clear()
        self.silent.clear()
        self.forbidden = False


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    s3: FakeS3

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self._body()
        self.s3.requests.append("LIST" if "list-type" in query else f"{self.command} {key}")
        if self.s3.silent.is_set():
            self.s3.silent.wait(_SILENCE_SECONDS)
            threading.Event().wait(_SILENCE_SECONDS)
        with self.s3.lock:
            if self.s3.forbidden:
                self._error(403, "AccessDenied")
            elif bucket != BUCKET:
                self._error(404, "NoSuchBucket")
            elif "list-type" in query:
                self._list(query.get("prefix", ""))
            elif self.command == "PUT":
                self._put(key, body)
            elif self.command == "DELETE":
                self.s3.objects.pop(key, None)
                self._answer(204)
            else:
                self._get(key)

    do_GET = do_HEAD = do_PUT = do_DELETE = _serve  # noqa: N815 - the base class calls them

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        if "aws-chunked" not in self.headers.get("content-encoding", ""):
            return data
        found = b""
        while data:
            size, _, rest = data.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if not length:
                break
            found, data = found + rest[:length], rest[length + 2 :]
        return found

    def _put(self, key: str, body: bytes) -> None:
        there = self.s3.objects.get(key)
        wanted = self.headers.get("if-match")
        if self.headers.get("if-none-match") == "*" and there is not None:
            self._error(412, "PreconditionFailed")
        elif wanted is not None and there is None:
            self._error(404, "NoSuchKey")
        elif wanted is not None and there is not None and wanted != _etag(there[0]):
            self._error(412, "PreconditionFailed")
        elif self.s3.loses_answers:
            self.s3.loses_answers -= 1
            self.s3.put(key, body)
            self._error(500, "InternalError")
        else:
            self.s3.put(key, body)
            self._answer(200, headers={"ETag": _etag(body)})

    def _get(self, key: str) -> None:
        if key not in self.s3.objects:
            self._error(404, "NoSuchKey")
            return
        data, at = self.s3.objects[key]
        headers = {"ETag": _etag(data), "Last-Modified": format_datetime(at, usegmt=True)}
        asked = self.headers.get("range")
        if asked is None:
            self._answer(200, data, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            self._error(416, "InvalidRange")
            return
        part = data[int(first) : int(last) + 1 if last else None]
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self._answer(206, part, {**headers, "Content-Range": span})

    def _list(self, prefix: str) -> None:
        keys = sorted(key for key in self.s3.objects if key.startswith(prefix))
        folders = sorted({prefix + key[len(prefix) :].partition("/")[0] for key in keys if "/" in key[len(prefix) :]})
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{at:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{escape(_etag(data))}</ETag><Size>{len(data)}</Size></Contents>"
            for key, (data, at) in ((key, self.s3.objects[key]) for key in keys if "/" not in key[len(prefix) :])
        )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{escape(each)}/</Prefix></CommonPrefixes>" for each in folders)
        self._xml(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{prefixes}</ListBucketResult>")

    def _error(self, status: int, code: str) -> None:
        self._xml(status, f"<Error><Code>{code}</Code><Message>{code} of the test</Message></Error>")

    def _xml(self, status: int, text: str) -> None:
        self._answer(status, f"<?xml version='1.0'?>{text}".encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    """Run a server."""
    s3 = FakeS3()
    with serving(type("Handler", (_Handler,), {"s3": s3})) as server:
        s3.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield s3
        finally:
            s3.silent.clear()
