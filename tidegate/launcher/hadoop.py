"""Files of the driver's that are not on its machine: through Hadoop's FileSystem, in the JVM that Spark runs in.

The user's image has PySpark and nothing else that could reach HDFS. The JVM has all it needs: the client, the cluster's
settings, and the job's own rights. It is there before the launcher, because `spark-submit` starts this Python process
from it. No session is needed.

A *place* is a `pathlib.Path` on this machine, or a `HadoopPath`. The functions at the end are for both.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

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
}
"""How long the clients of HDFS wait; by default for minutes. In milliseconds."""
_ABSENT = "FileNotFoundException"
_EXISTS = "FileAlreadyExistsException"
_FORBIDDEN = "AccessControlException"


class HadoopSystem:
    """One file system of Hadoop's, with bounded waits. Thread-safe."""

    def __init__(self, uri: str) -> None:
        SparkContext._ensure_initialized()
        self.jvm = jvm = SparkContext._jvm
        assert jvm is not None  # noqa: S101 - it was just ensured
        root = jvm.org.apache.hadoop.fs.Path(uri).toUri()
        conf = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(jvm.SparkConf())
        for name, value in _BOUNDS.items():
            conf.set(name, value)
        self.files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(root, conf)
        self._context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(root, conf)

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
        self._context.rename(self.path(source), self.path(target), options)


class HadoopPath:
    """A file or a folder on a file system of Hadoop's.

    Raises `FileNotFoundError` for what is absent, and `OSError` if nobody can tell; its text names the place.
    """

    def __init__(self, uri: str) -> None:
        """`uri` is with its scheme, as Spark has it."""
        self._uri = uri.rstrip("/")

    @property
    def name(self) -> str:
        """The last part."""
        return self._uri.rpartition("/")[2]

    def __truediv__(self, name: str) -> HadoopPath:
        return HadoopPath(f"{self._uri}/{name}")

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
        aside.write_bytes(data)
        try:
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
        kinds = {_ABSENT: FileNotFoundError, _EXISTS: FileExistsError, _FORBIDDEN: PermissionError}
        found = next((error for name, error in kinds.items() if kind.endswith(name)), OSError)
        return found(f"{self}: {kind.rpartition('.')[2]}: {message}")


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
    """Return a place by its path or URI; asks nobody whether there is such a file."""
    parts = urlsplit(location)
    if parts.scheme == "":
        return Path(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else HadoopPath(location)


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
