"""The checks: each `.sql` file in `checks/` is one, and says at its top what it means.

    -- title: Offsets have no gaps
    -- hop: topics
    -- severity: error
    -- invariant: I1            (where it is one)
    -- needs: event logs        (where it needs more than the topics)
    --
    -- What it means, in as many lines as that takes.
    SELECT …

The query returns a row per thing that it looked at, with the columns of `COLUMNS`: its verdict, its job, its place on a
topic, its time, what was found and what should have been. A row may stand for `n` things.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files

COLUMNS = ("verdict", "job", "topic", "partition", "offset", "at", "found", "expected", "n")
FIELDS = ("title", "hop", "severity", "invariant", "needs")


class Hop(StrEnum):
    """The hops of the flow, in its order."""

    TOPICS = "topics"
    MEASURED = "log to snapshot"
    DECIDED = "snapshot to decision"
    ORDERED = "decision to command"
    DONE = "command to results"
    RESERVED = "Redis and topics"
    ASKED = "operators"


class Severity(StrEnum):
    """What a finding means."""

    ERROR = "error"
    """Tidegate never does this: something is wrong, or somebody has changed the record."""
    WARNING = "warning"
    """This may happen, and a person should know of it."""


class Need(StrEnum):
    """What a check needs besides the topics."""

    EVENT_LOGS = "event logs"
    REDIS = "Redis"
    RECORDING = "a recording"


class BadCheck(ValueError):
    """A file is not a check; the text names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One check."""

    name: str
    title: str
    hop: Hop
    severity: Severity
    meaning: str
    sql: str
    invariant: str | None = None
    needs: Need | None = None


def parse_check(name: str, text: str) -> AuditCheck:
    """Return the check in a file's text, or raise `BadCheck`."""
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    comment = [line.removeprefix("--").strip() for line in lines[:end]]
    split = comment.index("") if "" in comment else len(comment)
    fields: dict[str, str] = {}
    for line in comment[:split]:
        key, colon, value = line.partition(":")
        if not colon or key not in FIELDS or not value.strip():
            raise BadCheck(f"{name}.sql: {line!r} is not one of {', '.join(FIELDS)} with a value")
        fields[key] = value.strip()
    if missing := [field for field in FIELDS[:3] if field not in fields]:
        raise BadCheck(f"{name}.sql: its top does not give {', '.join(missing)}")
    meaning, sql = " ".join(comment[split + 1 :]), "\n".join(lines[end:]).strip().rstrip(";")
    if not meaning or not sql:
        raise BadCheck(f"{name}.sql: it needs its meaning, after a line with only --, and then a query")
    try:
        return AuditCheck(
            name,
            fields["title"],
            Hop(fields["hop"]),
            Severity(fields["severity"]),
            meaning,
            sql,
            fields.get("invariant"),
            Need(fields["needs"]) if "needs" in fields else None,
        )
    except ValueError as error:
        raise BadCheck(f"{name}.sql: {error}") from None


def all_checks() -> tuple[AuditCheck, ...]:
    """Return all checks, by hop and name."""
    folder = files(__package__).joinpath("checks")
    found = [
        parse_check(path.name.removesuffix(".sql"), path.read_text("utf-8"))
        for path in folder.iterdir()
        if path.name.endswith(".sql")
    ]
    hops = list(Hop)
    return tuple(sorted(found, key=lambda check: (hops.index(check.hop), check.name)))
