"""The control files of a job in a folder that is on neither side's machine, such as one in HDFS or on S3.

The actuator reaches it through `tidegate/remote/files.py`, the driver through its JVM (`HadoopPath`). In HDFS, both
write a file under another name and rename it, so a reader sees a whole file or none. HDFS renames without overwriting
in one step: of several who create a file, one succeeds. S3 writes whole files, and on a condition.

Orders are looked for many times a second, and a server must not notice. So reads are answered from a view, which is at
most `VIEW_SECONDS` old, or older where each look has a price: what has changed since is one listing, or a look at each
file. What a run decides on, such as the fence before its first write, is read from the file itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Protocol, TypeVar

from tidegate.launcher.control.network import VIEW_SECONDS, patiently

T = TypeVar("T")


class SharedPlace(Protocol):
    """A file or a folder that both sides reach. Raises `OSError`, and `FileNotFoundError` only for what is absent.

    A `ConnectionError` says that nobody will ever answer.
    """

    def __truediv__(self, name: str) -> SharedPlace:
        """Return a file or folder in this folder."""

    @property
    def view_seconds(self) -> float | None:
        """How old a view of this folder may be, if each look has a price."""

    def versions(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Return the files of this folder by name, with what differs from one content to another; none without folder.

        With `names`, others may be left out.
        """

    def read_bytes(self) -> bytes:
        """Return the file."""

    def replace(self, data: bytes) -> None:
        """Write the whole file, whatever was there; readers see the old one or the new one."""

    def create(self, data: bytes) -> bool:
        """Write the whole file if there is none; of several who do that at once, one succeeds."""

    def swap(self, was: bytes, data: bytes) -> bool:
        """Write the whole file if it still holds what it was."""

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the file."""


class RemoteFolderStore:
    """The files of one job. Thread-safe.

    A swap looks at other files than its own just before it writes, not at the same instant, and HDFS looks at its own
    in the same way if it must be something else than absent: as in a folder, Redis decides between two actuators.
    """

    def __init__(self, place: str, open_folder: Callable[[str], SharedPlace], *, patience_seconds: float) -> None:
        """`open_folder` finds the folder at a place, and may raise `OSError` each time that it is needed."""
        self.place = place
        self._open_folder = open_folder
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._versions: dict[str, str] = {}
        self._texts: dict[str, tuple[str, str]] = {}
        """By name, with the version that was seen before the text was read."""
        self._seen_at = float("-inf")
        self._covered: set[str] = set()
        """The names of which the view tells whether they are there."""
        self._asked: set[str] = set()
        """The names that were asked for since the view grew old."""

    @cached_property
    def _folder(self) -> SharedPlace:
        return self._open_folder(self.place)

    def read(self, name: str, *, newest: bool = False) -> str | None:
        """Return the text of a file; None if there is none."""
        with self._lock:
            if newest:
                self._forget_view()  # what is decided next is not to be older than this
                return self._patiently(lambda: self._read(name))
            self._asked.add(name)
            if time.monotonic() >= self._seen_at + (self._folder.view_seconds or VIEW_SECONDS):
                self._look(self._asked)
                self._asked = set()
            elif name not in self._covered:
                self._look(self._covered | {name})
            version = self._versions.get(name)
            if version is None:
                return None
            known = self._texts.get(name)
            if known is None or known[0] != version:
                text = self._read(name)
                if text is None:
                    return None
                known = self._texts[name] = (version, text)
            return known[1]

    def names(self) -> list[str]:
        """Return the names of all files."""
        with self._lock:
            return [name for name in self._folder.versions() if not name.startswith(".")]

    def write(self, name: str, text: str) -> None:
        """Write a file, whatever was there."""
        with self._lock:
            self._patiently(lambda: self._replace(name, text))

    def remove(self, names: Collection[str]) -> None:
        """Remove files."""
        with self._lock:
            there = self._folder.versions(names)
            for name in there.keys() & set(names):
                (self._folder / name).unlink(missing_ok=True)
            self._forget_view()

    def swap(self, seen: Mapping[str, str | None], name: str, text: str) -> bool:
        """Write a file if those in `seen` are still what they were."""
        with self._lock:
            return self._patiently(lambda: self._swap(seen, name, text))

    def _swap(self, seen: Mapping[str, str | None], name: str, text: str) -> bool:
        if any(self._read(one) != was for one, was in seen.items()):
            return self._read(name) == text  # an earlier try of this swap, whose answer was lost
        was, file = seen.get(name), self._folder / name
        done = file.create(text.encode()) if was is None else file.swap(was.encode(), text.encode())
        self._forget_view()
        return done or self._read(name) == text  # S3's client tries again by itself

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_bytes().decode()
        except FileNotFoundError:
            return None

    def _replace(self, name: str, text: str) -> None:
        (self._folder / name).replace(text.encode())
        self._forget_view()

    def _look(self, names: set[str]) -> None:
        self._versions = self._folder.versions(names)
        self._covered = names
        self._texts = {name: known for name, known in self._texts.items() if name in self._versions}
        self._seen_at = time.monotonic()

    def _forget_view(self) -> None:
        self._seen_at = float("-inf")

    def _patiently(self, action: Callable[[], T]) -> T:
        for_good = (PermissionError, ConnectionError)  # who asks may not, or the driver's JVM has gone
        return patiently(action, self._patience, lambda error: not isinstance(error, for_good))
