"""The control files as JSON objects. What is not as it should be is refused, with the file.

What the file holds is not quoted: the driver may have put a link there to a file that only the reader may read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.launcher.control.store import Store


class ControlError(ValueError):
    """A control file is not as it should be; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class JsonFile:
    """What one file says."""

    place: str
    data: dict[str, Any]

    def text(self, field: str) -> str:
        """Return the text in a field; an empty one if there is none."""
        return str(self.data.get(field, ""))

    def number(self, field: str) -> float:
        """Return the number in a field, which is finite and at least 0."""
        value = self.data.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ControlError(f"{self.place}: {field} must be a number of at least 0, found {value!r}")
        return value


class JsonFiles:
    """The files of one job. Readers see a whole file or none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def text(self, name: str, *, newest: bool = False) -> str | None:
        """Return the text of a file; None if there is none. See `Store.read` for `newest`."""
        try:
            return self._store.read(name, newest=newest)
        except UnicodeDecodeError as error:
            raise ControlError(f"{self._place_of(name)}: not text: {error}") from None

    def read(self, name: str, *, newest: bool = False) -> JsonFile | None:
        """Return what a file says; None if there is none."""
        text = self.text(name, newest=newest)
        if text is None:
            return None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ControlError(f"{self._place_of(name)}: not JSON: {error}") from None
        if not isinstance(data, dict):
            raise ControlError(f"{self._place_of(name)}: expected a JSON object, found a {type(data).__name__}")
        return JsonFile(self._place_of(name), data)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a file, whatever was there."""
        self._store.write(name, json.dumps(data))

    def swap(self, seen: Mapping[str, str | None], name: str, data: Mapping[str, Any]) -> bool:
        """Write a file if the texts of those in `seen` are still what they were; return whether it is written."""
        return self._store.swap(seen, name, json.dumps(data))

    def _place_of(self, name: str) -> str:
        return f"{self._store.place}/{name}"
