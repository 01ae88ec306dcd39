"""Files that the services read where a job keeps them: on this machine, in HDFS, or in any store that fsspec knows.

A *place* is a file or a folder. On this machine it is a `pathlib.Path`, elsewhere a `RemotePath`, which has the methods
of the same names. What pathlib has no method for is here as functions, such as `scan` and `chunks`.

A `RemotePath` raises `FileNotFoundError` if there is no such file, and `OSError` if nobody can tell; its text names the
place, and what to do.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NoReturn, Protocol
from urllib.parse import quote, unquote, urlsplit

from tidegate.remote.kerberos import KerberosError

CHUNK = 64 * 1024
"""Bytes that are read of a local file at once."""
REMOTE_CHUNK = 1024 * 1024
"""Bytes that one request asks for."""
WHOLE_BYTES = 64 * 1024 * 1024
"""How large a file may be that is read whole. Those of checkpoints and control directories have some kB."""
_ROOT = re.compile("[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")
"""How a URI begins: with a scheme, and perhaps an authority."""
_MILLIS = 1000
_TIMES = ("modificationTime", "LastModified", "mtime", "created")
"""Where file systems of fsspec tell when a file was last written: seconds, milliseconds (the first), or a datetime."""
_VERSIONS = ("fileId", "ETag", "created")
"""Where they tell one content of a name from another."""


class FilesError(OSError):
    """A location that cannot be used here; the text says what to install or to set."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of a remote file, under the names of `os.stat_result`."""

    st_size: int
    st_mtime: float
    """Seconds since 1970; 0 if unknown."""


class Entry(Protocol):
    """One name in a folder; `os.DirEntry` is one."""

    @property
    def name(self) -> str:
        """Its name in the folder."""

    def is_dir(self) -> bool:
        """Whether it is a folder."""

    def is_file(self) -> bool:
        """Whether it is a file."""

    def stat(self) -> os.stat_result | Stat:
        """Return size and modification time; costs a call for a local file, and nothing for a remote one."""


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """One name in a remote folder, as the listing tells it."""

    name: str
    info: Mapping[str, Any]
    """What fsspec's `ls` tells of it."""

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool(self.info["type"] == "directory")

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self.info["type"] == "file")

    def stat(self) -> Stat:
        """Return size and modification time."""
        return Stat(int(self.info.get("size") or 0), _modified_at(self.info))

    @property
    def version(self) -> str:
        """What differs from one content of this name to another."""
        told = next((self.info[key] for key in _VERSIONS if key in self.info), "")
        return f"{told} {self.stat()}"


class RemotePath:
    """A file or a folder that is not on this machine."""

    def __init__(self, system: Any, uri: str) -> None:
        """`system` is an `AbstractFileSystem` of fsspec, and `uri` what Spark calls the place."""
        self._system = system
        self._uri = uri.rstrip("/")
        self._path = system._strip_protocol(self._uri)

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self._path).name

    view_seconds = None

    @property
    def has_folders(self) -> bool:
        """Whether folders are things of their own; otherwise, one that is absent is empty."""
        return bool(getattr(self._system, "has_folders", True))

    @property
    def lags(self) -> bool:
        """Whether a file that is being written may hold more than its listed size."""
        return bool(getattr(self._system, "lags", False))

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self._system, f"{self._uri}/{name}")

    def __str__(self) -> str:
        return self._uri

    def __repr__(self) -> str:
        return f"RemotePath({self._uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other._uri == self._uri

    def __hash__(self) -> int:
        return hash(self._uri)

    def scan(self) -> list[RemoteEntry]:
        """Return what is in the folder, by one request."""
        found = self._ask("ls", detail=True)
        if [self._system._strip_protocol(info["name"]) for info in found] == [self._path]:
            raise NotADirectoryError(f"{self} is a file, not a folder")
        entries = (RemoteEntry(str(info["name"]).rstrip("/").rpartition("/")[2], info) for info in found)
        return [entry for entry in entries if entry.name]

    def versions(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return the folder's files by name, with what differs from one content to another; none without folder."""
        del names  # one request tells all
        try:
            return {entry.name: entry.version for entry in self.scan() if entry.is_file()}
        except FileNotFoundError:
            return {}

    def stat(self) -> Stat:
        """Return size and modification time."""
        return RemoteEntry(self.name, self._ask("info")).stat()

    def is_dir(self) -> bool:
        """Whether there is such a folder."""
        return self._type() == "directory"

    def is_file(self) -> bool:
        """Whether there is such a file."""
        return self._type() == "file"

    def read(self, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from `offset` on; fewer only at the end of the file."""
        return bytes(self._ask("cat_file", start=offset, end=offset + length))

    def read_bytes(self) -> bytes:
        """Return the whole file; raise `OSError` if it is larger than `WHOLE_BYTES`."""
        return _whole(self, self.read(0, WHOLE_BYTES + 1))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the whole file."""
        return self.read_bytes().decode(encoding)

    def replace(self, data: bytes) -> None:
        """Write the whole file, whatever was there; readers see the old one or the new one."""
        self._ask("replace_file", data)

    def create(self, data: bytes) -> bool:
        """Write the whole file if there is none; of several who do that at once, one succeeds."""
        return bool(self._ask("create_file", data))

    def swap(self, was: bytes, data: bytes) -> bool:
        """Write the whole file if it still holds what it was; only some file systems do that in one step."""
        if hasattr(self._system, "swap_file"):
            return bool(self._ask("swap_file", was, data))
        if self.read_bytes() != was:
            return False
        self.replace(data)
        return True

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""
        try:
            self._ask("rm_file")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def _type(self) -> str | None:
        try:
            return str(self._ask("info")["type"])
        except FileNotFoundError:
            return None

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._system, method)(self._path, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - each file system of fsspec raises errors of its own
            self._explain(error)

    def _explain(self, error: Exception) -> NoReturn:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{self}: there is no such file or folder") from None
        advice = "" if isinstance(error, KerberosError) else getattr(self._system, "advice", "")
        kind = PermissionError if isinstance(error, PermissionError) else OSError
        raise kind(f"{self}: {str(error).splitlines()[0] if str(error) else type(error).__name__}{advice}") from error


Place = Path | RemotePath


class Files:
    """Finds places by what Spark calls them. Thread-safe."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`options` are those of the setting `files`: by scheme, or by scheme and authority."""
        self._options = options or {}
        self._systems: dict[str, Any] = {}
        self._lock = threading.Lock()

    def place(self, location: str) -> Place:
        """Return a path, or the place of a URI; raise `FilesError` if it is in a file system that is not known here.

        As in Spark, `%20` and `#` stand for themselves; only for event logs they do not: see `log_place`. Asks nobody:
        whether there is such a file is not known yet.
        """
        try:
            parts = urlsplit(location)
        except ValueError as error:
            raise FilesError(f"{location}: {error}") from None
        if parts.scheme == "":
            return Path(location)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost"):
                raise FilesError(f"{location}: a file: URI names a path of this machine, not of {parts.netloc}")
            return Path(_ROOT.sub("", location, count=1))
        if "://" not in location:
            raise FilesError(f"{location}: a URI must be like {parts.scheme}://host:port/path")
        root = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            if root not in self._systems:
                self._systems[root] = self._open(parts.scheme, parts.netloc, location)
            return RemotePath(self._systems[root], location)

    def log_place(self, location: str) -> Place:
        """Return the place of a directory of event logs; raise `FilesError`."""
        return self.place(log_directory(location))

    def remote(self, location: str) -> RemotePath:
        """Return the place of a URI that is not on this machine; raise `FilesError`."""
        place = self.place(location)
        if isinstance(place, Path):
            raise FilesError(f"{location} is on this machine")
        return place

    def near(self, location: str) -> bool:
        """Return whether a location is on this machine, so that looks cost next to nothing."""
        return isinstance(self.place(location), Path)

    def _open(self, scheme: str, authority: str, location: str) -> Any:
        options = {**self._options.get(scheme, {}), **self._options.get(f"{scheme}://{authority}", {})}
        extra = {"hdfs": "tidegate[hdfs]", "s3": "tidegate[s3]", "s3a": "tidegate[s3]"}.get(scheme, "fsspec")
        try:
            if scheme in ("s3", "s3a"):
                from tidegate.remote.s3 import open_s3  # noqa: PLC0415 - needs the extra `s3`

                return open_s3(**options)
            if scheme == "hdfs":
                from tidegate.remote.webhdfs import open_hdfs  # noqa: PLC0415 - needs the extra `hdfs`

                return open_hdfs(authority, **options)
            import fsspec  # noqa: PLC0415 - only for places that are not on this machine

            return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **options)
        except ImportError as error:
            raise FilesError(f"{location}: {error}; install it: pip install '{extra}'") from None
        except (ValueError, TypeError) as error:
            raise FilesError(
                f"{location}: {error}; use a path, a file:, hdfs: or s3a: URI, or one of a file system of fsspec with"
                f" its options in TIDEGATE_FILES"
            ) from None
        except Exception as error:  # some connect at once, and raise errors of their own
            raise FilesError(f"{location}: {type(error).__name__}: {error}") from error


WITHOUT_OPTIONS = Files()
"""File systems that need no settings."""


def log_directory(location: str) -> str:
    """Return a directory of event logs as Spark finds it: only there, Spark decodes a `%20` if it is in a URI."""
    return unquote(location) if _ROOT.match(location) else location


def log_uri(uri: str) -> str:
    """Return the URI in which Spark finds a directory of event logs: the opposite of `log_directory`."""
    root = _ROOT.match(uri)
    return uri if root is None else root[0] + quote(uri[root.end() :])


def scan(folder: Place) -> Sequence[Entry]:
    """Return what is in a folder. Raises `FileNotFoundError`, `NotADirectoryError`, `OSError`."""
    if isinstance(folder, RemotePath):
        return folder.scan()
    with os.scandir(folder) as found:
        return list(found)


def entries(folder: Place) -> Sequence[Entry]:
    """Return what is in a folder; nothing if there is no such folder."""
    try:
        return scan(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def names(folder: Place) -> list[str]:
    """Return the names in a folder; none if there is no such folder."""
    return [entry.name for entry in entries(folder)]


def contents(file: Place) -> bytes:
    """Return a whole file. Raises `FileNotFoundError`; `OSError` also if it is larger than `WHOLE_BYTES`."""
    if isinstance(file, RemotePath):
        return file.read_bytes()
    with regular(file) as opened:
        return _whole(file, opened.read(WHOLE_BYTES + 1))


def _whole(file: Place, raw: bytes) -> bytes:
    """Return what was read of a file if it is all. Jobs write these files: a large one must not fill the memory."""
    if len(raw) > WHOLE_BYTES:
        raise OSError(f"{file} has more than {WHOLE_BYTES} bytes")
    return raw


def regular(path: Path) -> BinaryIO:
    """Open a file of this machine to read it; raise `OSError` if it is none.

    Jobs write these folders. To open a pipe waits until somebody writes to it, and a device may never end.
    """
    opened = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(f"{path} is a pipe or a device, not a file")
    return opened


def chunks(file: Place, offset: int, limit: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `offset` on, at most `limit`: fewer mean that it has no more."""
    if isinstance(file, Path):
        with regular(file) as opened:
            opened.seek(offset)
            while limit > 0 and (raw := opened.read(min(CHUNK, limit))):
                limit -= len(raw)
                yield raw
        return
    while limit > 0:
        asked = min(REMOTE_CHUNK, limit)
        raw = file.read(offset, asked)
        if raw:
            yield raw
        if len(raw) < asked:
            return
        offset, limit = offset + len(raw), limit - len(raw)


def _modified_at(info: Mapping[str, Any]) -> float:
    key = next((key for key in _TIMES if info.get(key)), None)
    if key is None:
        return 0.0
    at = info[key]
    if isinstance(at, datetime):
        return at.timestamp()
    return float(at) / _MILLIS if key == _TIMES[0] else float(at)
