"""The documents name only what exists, and all that they must."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidegate.events.decision import Status
from tidegate.events.envelope import Unreadable
from tidegate.events.result import CODES
from tidegate.events.topics import DECISIONS, JOBS
from tidegate.installed import engine
from tools.schemas import json_schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("schemas/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([a-z]+/[\w./-]+\.py)`")


def sections(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_section_that_exist(page: Path) -> None:
    """No link between the documents, or from them into the code, is broken."""
    broken = []
    for link in LINK.findall(page.read_text("utf-8")):
        if "://" in link:
            continue
        path, _, section = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (section and section not in sections(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_module_a_page_names_exists(page: Path) -> None:
    """A path such as `services/actuator/machine.py` in the text is one of the tree."""
    named = set(CODE.findall(page.read_text("utf-8")))
    assert {name for name in named if not (ROOT / name).is_file()} == set()


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
    assert found - set(engine().reasons) - set(CODES) - set(Unreadable.CODES) - set(Status) == set()
    assert set(CODES) - found == set()
    assert set(Unreadable.CODES) - found == set()
    assert {code for code, reason in engine().reasons.items() if reason.remedy} - found == set()


def test_the_index_lists_each_decision_record() -> None:
    """docs/decisions/README.md links to every record, and to each once."""
    records = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    assert LINK.findall((DOCS / "decisions" / "README.md").read_text("utf-8")) == records


def test_the_reference_explains_each_field_of_a_job_file_and_of_the_evidence() -> None:
    """No field that an operator sets, and no figure that a decision rests on, is only a name."""
    jobs, decisions = json_schema(JOBS), json_schema(DECISIONS)
    of_jobs = {name: jobs["$defs"][name] for name in ("Application", "KubernetesPods", "Scaling", "Volume")}
    tables = {"JobSpec": jobs, **of_jobs, "Evidence": decisions["$defs"]["Evidence"]}
    fields = [(name, *item) for name, table in tables.items() for item in table["properties"].items()]
    assert [(name, field) for name, field, part in fields if "$ref" not in part and "description" not in part] == []
