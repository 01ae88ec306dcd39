"""Files of the driver's that are not on its machine: through Hadoop's FileSystem, in the JVM that Spark runs in.

The user's image has PySpark and nothing else that could reach HDFS. The JVM has all it needs: the client, the cluster's
settings, and the job's own rights. It is there before the launcher, because `spark-submit` starts this Python process
from it. No session is needed.

A *place* is a `pathlib.Path` on this machine, or a `HadoopPath`. The functions at the end are for both.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

_BOUNDS = {
    "ipc.client.connect.timeout": "5000",
    "ipc.client.connect.max.retries": "1",
    "ipc.client.connect.max.retries.on.timeouts": "0",
    "ipc.client.rpc-timeout.ms": "5000",
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.socket-timeout": "5000",
    "dfs.datanode.socket.write.timeout": "5000",
    "fs.s3a.connection.timeout": "15000",  # S3A takes no less
    "fs.s3a.connection.request.timeout": "15000",
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.bucket.probe": "2",  # a bucket that does not exist is no empty folder
}
"""How long the clients of HDFS and S3 wait; by default for minutes. In milliseconds."""
_S3A = "s3a:"
_ABSENT = "FileNotFoundException"
_EXISTS = "FileAlreadyExistsException"
_FORBIDDEN = ("AccessControlException", "AccessDeniedException")
_CONDITIONAL = "fs.option.create.conditional.overwrite"
_OVERTAKEN = "RemoteFileChangedException"
"""What S3A says if the condition of a write does not hold."""


class HadoopSystem:
    """One file system of Hadoop's, with bounded waits. Thread-safe."""

    def __init__(self, uri: str) -> None:
        SparkContext._ensure_initialized()
        self.jvm = jvm = SparkContext._jvm
        assert jvm is not None  # noqa: S101 - it was just ensured
        root = jvm.org.apache.hadoop.fs.Path(uri).toUri()
        conf = hadoop_conf(jvm)
        for name, value in _BOUNDS.items():
            conf.set(name, value)
        self.files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(root, conf)
        self._context = cache(partial(jvm.org.apache.hadoop.fs.FileContext.getFileContext, root, conf))

    def path(self, uri: str) -> Any:
        """Return the JVM's object for a place."""
        return self.jvm.org.apache.hadoop.fs.Path(uri)

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one step."""
        kind = self.jvm.org.apache.hadoop.fs.Options.Rename
        gateway = SparkContext._gateway
        assert gateway is not None  # noqa: S101 - there is a JVM
        options = gateway.new_array(kind, 1)
        options[0] = kind.OVERWRITE if overwrite else kind.NONE
        self._context().rename(self.path(source), self.path(target), options)


class HadoopPath:
    """A file or a folder on a file system of Hadoop's.

    Raises `FileNotFoundError` for what is absent, and `OSError` if nobody can tell; its text names the place.
    """

    view_seconds: float | None = None
    """How old a view of its files may be, if each look has a price."""

    def __init__(self, uri: str) -> None:
        """`uri` is with its scheme, as Spark has it."""
        self._uri = uri.rstrip("/")

    @property
    def name(self) -> str:
        """The last part."""
        return self._uri.rpartition("/")[2]

    def __truediv__(self, name: str) -> HadoopPath:
        return type(self)(f"{self._uri}/{name}")

    def __str__(self) -> str:
        return self._uri

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        with self._asked() as system:
            return bool(system.files.exists(system.path(self._uri)))

    def names(self) -> list[str]:
        """Return the names in the folder."""
        with self._asked() as system:
            return [status.getPath().getName() for status in system.files.listStatus(system.path(self._uri))]

    def versions(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return the files among `names`, or all, with what differs from one content of a file to another."""
        try:
            with self._asked() as system:
                wanted = "*" if names is None else f"{{{','.join(sorted(names))}}}"
                only = system.jvm.org.apache.hadoop.fs.GlobFilter(wanted)
                found = system.files.listStatus(system.path(self._uri), only)
                return {status.getPath().getName(): status.toString() for status in found}
        except FileNotFoundError:
            return {}

    def read_bytes(self) -> bytes:
        """Return the whole file."""
        with self._asked() as system:
            opened = system.files.open(system.path(self._uri))
            try:
                return bytes(system.jvm.org.apache.commons.io.IOUtils.toByteArray(opened))
            finally:
                opened.close()

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the whole file."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Write the file and the folders above it; a reader may see a part of it."""
        with self._asked() as system:
            opened = system.files.create(system.path(self._uri), True)  # noqa: FBT003 - Java has no keywords
            try:
                opened.write(bytearray(data))
            finally:
                opened.close()

    def replace(self, data: bytes) -> None:
        """Write the whole file, whatever was there; readers see the old one or the new one."""
        self._write(data, overwrite=True)

    def create(self, data: bytes) -> bool:
        """Write the whole file if there is none; of several who do that at once, one succeeds."""
        try:
            self._write(data, overwrite=False)
        except FileExistsError:
            return False
        return True

    def swap(self, was: bytes, data: bytes) -> bool:
        """Write the whole file if it still holds what it was; not in one step."""
        if self.read_bytes() != was:
            return False
        self.replace(data)
        return True

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""
        if not self._delete() and not missing_ok:
            raise FileNotFoundError(f"{self}: there is no such file")

    def remove(self) -> None:
        """Remove the folder, and all in it."""
        self._delete()

    def _delete(self) -> bool:
        with self._asked() as system:
            return bool(system.files.delete(system.path(self._uri), True))  # noqa: FBT003 - Java has no keywords

    def _write(self, data: bytes, *, overwrite: bool) -> None:
        folder, _, name = self._uri.rpartition("/")
        aside = HadoopPath(f"{folder}/.{name}.{uuid.uuid4().hex[:12]}")
        try:
            aside.write_bytes(data)
            with self._asked() as system:
                system.rename(str(aside), self._uri, overwrite=overwrite)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def _asked(self) -> Iterator[HadoopSystem]:
        """Give the file system; turn what the JVM raises into an `OSError`."""
        try:
            yield _system(self._uri)
        except Py4JJavaError as error:
            raise self._explained(str(error.java_exception)) from error
        except Py4JError as error:
            raise ConnectionResetError(f"{self}: the driver's JVM does not answer: {error}") from error

    def _explained(self, text: str) -> OSError:
        kind, _, message = text.partition("\n")[0].partition(": ")
        kinds = {_ABSENT: FileNotFoundError, _EXISTS: FileExistsError, _OVERTAKEN: FileExistsError}
        kinds |= dict.fromkeys(_FORBIDDEN, PermissionError)
        found = next((error for name, error in kinds.items() if kind.endswith(name)), OSError)
        return found(f"{self}: {kind.rpartition('.')[2]}: {message}")


class S3aPath(HadoopPath):
    """A file or a folder on S3. Files appear whole there, so nothing is renamed; and each request has a price."""

    view_seconds = 2.0

    def versions(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return the files among `names`, or all, with their ETags; a few names cost less than a listing."""
        found = {}
        for name in self._listed() if names is None else names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = S3aPath(f"{self._uri}/{name}")._etag()
        return found

    def swap(self, was: bytes, data: bytes) -> bool:
        """Write the whole file if it still holds what it was; of several who do that at once, one succeeds."""
        etag = self._etag()
        if self.read_bytes() != was:
            return False
        try:
            self._put(data, (f"{_CONDITIONAL}.etag", etag))
        except FileExistsError:
            return False
        return True

    def _listed(self) -> list[str]:
        try:
            return self.names()
        except FileNotFoundError:
            return []

    def _etag(self) -> str:
        with self._asked() as system:
            return str(system.files.getS3AInternals().getObjectMetadata(system.path(self._uri)).eTag())

    def _write(self, data: bytes, *, overwrite: bool) -> None:
        self._put(data, None if overwrite else (_CONDITIONAL, True))

    def _put(self, data: bytes, condition: tuple[str, str | bool] | None) -> None:
        with self._asked() as system:
            builder = system.files.createFile(system.path(self._uri))
            builder.opt("fs.s3a.create.performance", True)  # noqa: FBT003 - one request: nothing is looked up before
            if condition is not None:
                builder.must(*condition)
            opened = builder.build()
            opened.write(bytearray(data))
            opened.close()


def remote(uri: str) -> HadoopPath:
    """Return a place that is not on this machine, by its URI."""
    return S3aPath(uri) if uri.startswith(_S3A) else HadoopPath(uri)


def hadoop_conf(jvm: Any) -> Any:
    """Return the settings of Hadoop that Spark would use in this JVM."""
    return jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(jvm.SparkConf())


_systems: dict[str, HadoopSystem] = {}
_lock = threading.Lock()


def _system(uri: str) -> HadoopSystem:
    parts = urlsplit(uri)
    root = f"{parts.scheme}://{parts.netloc}/"
    with _lock:
        if root not in _systems:
            _systems[root] = HadoopSystem(root)
        return _systems[root]


def place_of(location: str) -> Path | HadoopPath:
    """Return a place by its path or URI; asks nobody whether there is such a file.

    Spark takes it for a path of Hadoop, in which `%20` and `#` stand for themselves.
    """
    scheme = urlsplit(location).scheme
    if scheme == "":
        return Path(location)
    return Path(re.sub("^file:(//[^/]*)?", "", location, flags=re.IGNORECASE)) if scheme == "file" else remote(location)


def names(folder: Path | HadoopPath) -> list[str]:
    """Return the names in a folder."""
    return [path.name for path in folder.iterdir()] if isinstance(folder, Path) else folder.names()


def write(file: Path | HadoopPath, data: bytes) -> None:
    """Write a file, and the folders above it."""
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def remove(folder: Path | HadoopPath) -> None:
    """Remove a folder and all in it, if that can be done."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        folder.remove()
