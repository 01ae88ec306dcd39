"""The documents name only what exists, and all that they must."""

from __future__ import annotations

import re
from pathlib import Path

from services.actuator.admission import CODES
from tidegate.events.envelope import Unreadable
from tidegate.installed import engine

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_each_guarantee_names_tests_that_exist() -> None:
    """docs/guarantees.md has every invariant, each with a test, and names no test that is not in the tree."""
    text = (DOCS / "guarantees.md").read_text("utf-8")
    rows = re.findall(r"^\| (I\d+) \|.*$", text, re.MULTILINE)
    assert rows == [f"I{n}" for n in range(1, 14)]
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", text))
    assert named - defined == set()
    for line in text.splitlines():
        if line.startswith("| I"):
            assert "`test_" in line, line[:60]


def test_the_runbook_knows_the_codes_and_no_others() -> None:
    """docs/runbook.md has the codes of results and dead letters, all codes with a remedy, and no unknown code."""
    engine()  # registers the codes of all policies
    text = (DOCS / "runbook.md").read_text("utf-8")
    found = set(re.findall(r"`([A-Z][A-Z_0-9]{3,})`", text)) - {"ENGINE_VERSION"}
    assert found - set(engine().reasons) - set(CODES) - set(Unreadable.CODES) == {"NO_JOB"}
    assert set(CODES) - found == set()
    assert set(Unreadable.CODES) - found == set()
    assert {code for code, reason in engine().reasons.items() if reason.remedy} - found == set()


def test_the_index_lists_each_decision_record() -> None:
    """docs/decisions/README.md links to every record, and to each once."""
    records = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    assert LINK.findall((DOCS / "decisions" / "README.md").read_text("utf-8")) == records
