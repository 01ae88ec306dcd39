"""The control files as people and drivers see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.control.json_files import JsonFile, JsonFiles


def stopped(control: Control, token: Token) -> dict[str, Any] | None:
    """Return what a run wrote about the end of its queries, or None if it wrote nothing."""
    file = Path(control.place) / f"stopped-{token}.json"
    if not file.exists():
        return None
    facts: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return facts


def see_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have whoever does not ask for the newest fence see none, as in a view of a ConfigMap from just before."""
    read = JsonFiles.read

    def seen(files: JsonFiles, name: str, *, newest: bool = False) -> JsonFile | None:
        return read(files, name, newest=newest) if newest or name != "fence" else None

    monkeypatch.setattr(JsonFiles, "read", seen)
