"""Processes of this machine."""

from __future__ import annotations

from pathlib import Path


def command_line(pid: int) -> list[bytes]:
    """Return the words of a process's command line; an empty one of a process that has just started has one empty word.

    Returns nothing if there is no such process.
    """
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
