"""HDFS through its REST API, WebHDFS: fsspec's client, with bounded waits, whole-file writes, and files that grow.

The NameNode learns the length of a file that is being written only block by block. What a writer has flushed can be
read all the same: a DataNode asks the others that hold the file. So reads do not look at the listed length. A NameNode
refuses an offset beyond it. But its answer is an address at a DataNode, in which another offset may be put.

Of several NameNodes, one is active. The others say that they are not, or nothing, and then the next one is asked.

A NameNode that asks for Kerberos gets a ticket, and no user's name. The address at a DataNode then holds a token.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFS

from tidegate.remote.kerberos import asks, authorization

PORT = 9870
"""Where a NameNode listens unless `dfs.namenode.http-address` says otherwise."""
TIMEOUT_SECONDS = 5.0
_STANDBY = "standby"
_OUT_OF_RANGE = "out of the range"
_BEYOND_END = "seek after EOF"


class WebHdfs(WebHDFS):  # type: ignore[misc]  # fsspec is untyped
    """One HDFS. Of its own it raises `OSError`, and otherwise what fsspec raises."""

    cachable = False
    lags = True
    """A file that is being written may hold more than its listed size."""

    def __init__(self, urls: Sequence[str], timeout_seconds: float, **options: Any) -> None:
        self._urls = [f"{url.rstrip('/')}/webhdfs/v1" for url in urls]
        self._timeout = timeout_seconds
        parts = urlsplit(urls[0])
        super().__init__(host=parts.hostname, port=parts.port, **options)
        self.url = self._urls[0]
        self.advice = (
            f". Is {' or '.join(urls)} the HTTP address of the NameNode? Otherwise set"
            ' TIDEGATE_FILES={"hdfs": {"url": "http://NAMENODE:9870"}}'
        )

    def _connect(self) -> None:
        super()._connect()
        self.session.auth = self.session.auth or _Negotiate(self.pars)
        # those who call the session give no time limit
        self.session.request = partial(self.session.request, timeout=self._timeout)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """Return the path of a URI as it is: Hadoop's URIs are not percent-encoded."""
        scheme, separator, rest = path.partition("://")
        return (f"/{rest.partition('/')[2]}" if separator else scheme).rstrip("/") or "/"

    def _call(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """Ask the active NameNode."""
        failure: Exception | None = None
        for url in [self.url, *(url for url in self._urls if url != self.url)]:
            self.url = url
            try:
                return super()._call(op, *args, **kwargs)
            except requests.RequestException as error:
                failure = self._silent(url, error)
            except RuntimeError as error:
                if _STANDBY not in str(error):
                    raise
                failure = failure or error  # one that is silent says more
        assert failure is not None  # noqa: S101 - there is at least one URL
        raise failure

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes from `start` to `end`, of a file that is being written too; fewer only at its end."""
        asked = {"offset": start or 0, **({} if end is None else {"length": end - (start or 0)})}
        try:
            answer = self._call("OPEN", path=path, redirect=False, **asked)
        except RuntimeError as error:
            if _OUT_OF_RANGE not in str(error):
                raise
            answer = self._call("OPEN", path=path, redirect=False, **{**asked, "offset": 0})
        if "Location" not in answer.headers:  # an HttpFS gateway reads the file itself
            return bytes(answer.content)
        parts = urlsplit(self._apply_proxy(answer.headers["Location"]))
        query = dict(parse_qsl(parts.query)) | {key: str(value) for key, value in asked.items()}
        return bytes(self._at_data_node("get", parts._replace(query=urlencode(query)).geturl()).content)

    def replace_file(self, path: str, data: bytes) -> None:
        """Write a whole file, whatever was there, by a rename."""
        with self._written_aside(path, data) as written:
            self._call("RENAME", "put", path=written, destination=path, renameoptions="OVERWRITE")

    def create_file(self, path: str, data: bytes) -> bool:
        """Write a whole file by a rename, which only succeeds if there is none."""
        with self._written_aside(path, data) as written:
            if self._call("RENAME", "put", path=written, destination=path).json()["boolean"]:
                return True
        self.rm_file(written)
        return False

    def rm_file(self, path: str, **_: Any) -> None:
        """Remove a file."""
        if not self._call("DELETE", "delete", path=path).json()["boolean"]:
            raise FileNotFoundError(path)

    @contextlib.contextmanager
    def _written_aside(self, path: str, data: bytes) -> Iterator[str]:
        """Write a file next to another, to be renamed; it is removed if that fails."""
        folder, _, name = path.rpartition("/")
        aside = f"{folder}/.{name}.{uuid.uuid4().hex[:12]}"
        answer = self._call("CREATE", "put", path=aside, redirect=False, overwrite="false")
        try:
            self._at_data_node("put", self._apply_proxy(answer.headers["Location"]), data)
            yield aside
        except BaseException:
            with contextlib.suppress(Exception):
                self.rm_file(aside)
            raise

    def _at_data_node(self, method: str, url: str, data: bytes | None = None) -> Any:
        headers = {} if data is None else {"content-type": "application/octet-stream"}
        try:
            answer = self.session.request(method, url, data=data, headers=headers)
        except requests.RequestException as error:
            raise self._silent(url, error) from error
        if answer.ok:
            return answer
        try:
            said = str(answer.json()["RemoteException"]["message"])
        except (ValueError, KeyError):
            said = answer.text[:200]
        if _BEYOND_END in said:
            raise OSError(f"shorter than what has been read of it: {said}")
        if "FileNotFoundException" in answer.text:
            raise FileNotFoundError(said)
        raise OSError(f"{urlsplit(url).netloc} answers {answer.status_code}: {said}")

    def _silent(self, url: str, error: requests.RequestException) -> OSError:
        at = urlsplit(url)
        if error.response is not None:
            return OSError(f"{at.scheme}://{at.netloc} answers {error.response.status_code} {error.response.reason}")
        why = f"not in {self._timeout:g} s" if isinstance(error, requests.Timeout) else type(error).__name__
        return OSError(f"{at.scheme}://{at.netloc} does not answer ({why})")


class _Negotiate(requests.auth.AuthBase):  # type: ignore[misc]  # requests is untyped
    """Sends a ticket to a server that asks for one."""

    def __init__(self, parameters: dict[str, str]) -> None:
        """`parameters` are those of every request."""
        self._parameters = parameters

    def __call__(self, request: Any) -> Any:
        """Have the answer to a request looked at."""
        request.register_hook("response", self._answer)
        return request

    def _answer(self, response: Any, **how: Any) -> Any:
        if not asks(response.status_code, response.headers.get("www-authenticate")):
            return response
        _ = response.content  # all of it is read, so the connection is used again
        self._parameters.pop("user.name", None)  # the ticket says who asks
        request, parts = response.request.copy(), urlsplit(response.request.url)
        query = [(name, value) for name, value in parse_qsl(parts.query) if name != "user.name"]
        request.url = parts._replace(query=urlencode(query)).geturl()
        request.headers["Authorization"] = authorization(str(parts.hostname))
        again = response.connection.send(request, **how)
        again.history.append(response)  # the session looks there, and keeps the cookies of both
        return again


def open_hdfs(
    authority: str,
    *,
    url: str | Sequence[str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    **options: Any,
) -> WebHdfs:
    """Return the HDFS that Spark calls `hdfs://<authority>`.

    Args:
        authority: the NameNode with its RPC port, or the name of several NameNodes; may be empty.
        url: of the NameNode's web address, or those of several. By default port 9870 of the authority's host.
        timeout_seconds: longest wait for one answer.
        options: those of `fsspec.implementations.webhdfs.WebHDFS`, such as `user`. The user is by default as Hadoop
            finds it: `HADOOP_USER_NAME`, or that of this process.

    Raises:
        ValueError: if nobody says where the NameNode is.
    """
    urls = [url] if isinstance(url, str) else list(url or ())
    if not urls:
        host = urlsplit(f"//{authority}").hostname
        if not host:
            raise ValueError(
                'nothing says where its NameNode is: set TIDEGATE_FILES={"hdfs": {"url": "http://…:9870"}}'
            )
        urls = [f"http://{host}:{PORT}"]
    for each in urls:
        if urlsplit(each).scheme not in ("http", "https") or not urlsplit(each).hostname:
            raise ValueError(f"url {each!r} of TIDEGATE_FILES must be like http://namenode:9870")
    options.pop("kerberos", None)  # the server says whether it is needed
    if not options.keys() & {"user", "token"}:
        options["user"] = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return WebHdfs(urls, timeout_seconds, **options)
