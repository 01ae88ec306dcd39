"""Reads what only people read in a control directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidegate.launcher.control.files import Control, Token


def stopped(control: Control, token: Token) -> dict[str, Any] | None:
    """Return what a run wrote about the end of its queries, or None if it wrote nothing."""
    file = Path(control.place) / f"stopped-{token}.json"
    if not file.exists():
        return None
    facts: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return facts
