"""Where control files are kept: a shared folder, a folder in HDFS, or the keys of one ConfigMap per job.

A *place* names it: the path or the URI of a folder, or `configmap:NAMESPACE`. From it, `store_at` makes a job's store.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from tidegate.launcher.control.config_map import ConfigMapStore
from tidegate.launcher.control.remote_folder import RemoteFolderStore, SharedPlace
from tidegate.launcher.kubernetes.api import Api

JOB_ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
FILE_CHARACTERS = 1024 * 1024
"""How large a file may be. They have some kB, and a whole ConfigMap holds 1 MiB."""
CONFIG_MAP = "configmap:"
"""How a place starts that is a namespace of Kubernetes."""


class Store(Protocol):
    """Small texts by name. Raises `OSError` if it cannot be reached."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    def read(self, name: str, *, newest: bool = False) -> str | None:
        """Return a text, or None if there is none. Without `newest` it may be some tenths of a second old."""

    def write(self, name: str, text: str) -> None:
        """Write a text, whatever was there."""

    def swap(self, seen: Mapping[str, str | None], name: str, text: str) -> bool:
        """Write a text if those in `seen` are still what they were, None for absent; return whether it is written."""

    def names(self) -> list[str]:
        """Return the names of all texts."""

    def remove(self, names: Collection[str]) -> None:
        """Remove texts; those that are not there do not count."""


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe, which a driver may have put there, is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


class FolderStore:
    """The files of a folder. Readers see a whole file or none, but for one that is being created exclusively.

    If all that a swap asks is that its own file is absent, one writer alone can create it; a reader may see it empty.
    That others have not changed is looked up just before the write, not at the same instant: between two actuators,
    Redis decides (`fence.py` there).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.path)

    def read(self, name: str, *, newest: bool = False) -> str | None:
        """Return the text of a file; None if there is none."""
        del newest  # a folder has no older view
        try:
            file = open(self.path / name, encoding="utf-8", opener=_without_waiting)  # noqa: SIM115
        except FileNotFoundError:
            return None
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{self.path / name} is a pipe or a device, not a file")
            text = file.read(FILE_CHARACTERS + 1)
        if len(text) > FILE_CHARACTERS:  # a driver may have written it: it must not fill the memory of the actuator
            raise OSError(f"{self.path / name} has more than {FILE_CHARACTERS} characters")
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file under another name, then rename it."""
        self.path.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes a private file, and the driver may run as another user than the actuator
            Path(temporary).chmod(0o644)
            Path(temporary).replace(self.path / name)
        except BaseException:
            Path(temporary).unlink()
            raise

    def swap(self, seen: Mapping[str, str | None], name: str, text: str) -> bool:
        """Write a file if those in `seen` are still what they were."""
        if any(self.read(one) != was for one, was in seen.items()):
            return False
        if dict(seen) != {name: None}:
            self.write(name, text)
            return True
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            file = (self.path / name).open("x", encoding="utf-8")
        except FileExistsError:
            return False
        try:
            with file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:  # such as a full disk: an empty file would be nobody's, for ever
            (self.path / name).unlink(missing_ok=True)
            raise
        return True

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [path.name for path in self.path.iterdir()] if self.path.is_dir() else []

    def remove(self, names: Collection[str]) -> None:
        """Remove files."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)


def store_at(
    place: str | Path,
    job_id: str,
    *,
    api: Api | None = None,
    patience_seconds: float = 0.0,
    open_folder: Callable[[str], SharedPlace] | None = None,
) -> Store:
    """Return the store of a job at a place; raise `ValueError` if there can be none, or the id cannot name one.

    A ConfigMap is reached through `api`, or else with what `ApiAccess.find` finds; a folder that is not on this machine
    through `open_folder`. For `patience_seconds`, writes and fresh reads are tried again while the API server,
    or the file system, does not answer.
    """
    if not JOB_ID.fullmatch(job_id) or ".." in job_id:
        raise ValueError(f"job_id {job_id[:80]!r} cannot name a directory")
    text = str(place)
    if text.startswith(CONFIG_MAP):
        return ConfigMapStore(api or Api(), text.removeprefix(CONFIG_MAP), job_id, patience_seconds=patience_seconds)
    parts = urlsplit(text)
    if parts.scheme == "":
        return FolderStore(Path(place) / job_id)
    if parts.scheme == "file":
        return FolderStore(Path(unquote(parts.path)) / job_id)
    if open_folder is None:
        raise ValueError(f"control_dir {text!r} cannot be reached from here: it must be a path")
    return RemoteFolderStore(f"{text.rstrip('/')}/{job_id}", open_folder, patience_seconds=patience_seconds)
