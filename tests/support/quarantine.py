"""The list of known flaky tests: who is on it, why, and until when."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

FIELDS = {"id": str, "reason": str, "until": date}


class BadQuarantine(ValueError):
    """The list cannot be used; the text names the entry and what to change."""


def quarantined(path: Path, today: date) -> dict[str, str]:
    """Return the reason of each listed test by its id. Raises `BadQuarantine` for a bad entry or a date in the past."""
    try:
        listed = tomllib.loads(path.read_text("utf-8")).get("test", [])
    except tomllib.TOMLDecodeError as error:
        raise BadQuarantine(f"{path}: {error}") from None
    found = {}
    for place, entry in enumerate(listed):
        if set(entry) != set(FIELDS) or any(type(entry[name]) is not kind for name, kind in FIELDS.items()):
            raise BadQuarantine(f"{path}: entry {place} needs id (text), reason (text) and until (date), found {entry}")
        if entry["until"] < today:
            raise BadQuarantine(f"{path}: the quarantine of {entry['id']} ended on {entry['until']}: fix the test")
        found[entry["id"]] = entry["reason"]
    return found
