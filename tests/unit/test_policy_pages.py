"""The pages of docs/policies say what the code says, and the code says enough."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from tests.support.engine import OURS, check_spec
from tests.support.events import job
from tidegate.engine.guards import GUARDS
from tidegate.engine.reasons import Reason, merge
from tidegate.installed import engine, is_compiled
from tools import policy_pages

pytestmark = pytest.mark.skipif(
    is_compiled(), reason="the pages are made of docstrings, and the classes of a compiled engine have none"
)


def test_the_pages_are_up_to_date() -> None:
    """Whoever changes a policy, guard or reason code writes the pages again: `python -m tools.policy_pages`."""
    assert policy_pages.main(["--check"]) == 0


def test_stale_missing_and_extra_pages_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check names each page and the command to run, and running it repairs all three."""
    monkeypatch.setattr(policy_pages, "FOLDER", tmp_path / "policies")
    assert policy_pages.main([]) == 0
    folder = policy_pages.FOLDER
    (folder / "hpa.md").write_text("old")
    (folder / "keda.md").unlink()
    (folder / "gone.md").write_text("a policy that was removed")
    assert policy_pages.main(["--check"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "policies/gone.md is extra: run `make schemas`",
        "policies/hpa.md is stale: run `make schemas`",
        "policies/keda.md is missing: run `make schemas`",
    ]
    assert policy_pages.main([]) == 0
    assert policy_pages.main(["--check"]) == 0


@pytest.mark.parametrize("owner", OURS, ids=lambda owner: owner.name)
def test_every_policy_says_what_to_know_before_it_is_chosen(owner: Any) -> None:
    """Its page has a source, when to choose it and what to set first; the index repeats the last two."""
    made = policy_pages.pages()
    labelled = policy_pages.described(owner).labelled
    page, index = made[f"{owner.name}.md"], made["README.md"]
    assert "\nSource: " in page
    for label in ("When to choose it", "Set first"):
        assert f"**{label}:** {labelled[label]}" in page
        assert labelled[label] in index


def test_every_link_of_a_page_leads_somewhere() -> None:
    """A page links to pages of the folder, to their headings, or to files of the repository."""
    made = policy_pages.pages()
    for name, text in made.items():
        for page, heading in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
            if page.startswith("../"):
                assert (policy_pages.FOLDER / page).exists(), (name, page)
                continue
            target = made[page or name]
            headings = {line.lstrip("# ").lower().replace(" ", "-") for line in target.splitlines() if line[:1] == "#"}
            assert not heading or heading in headings, (name, page, heading)


@pytest.mark.parametrize("owner", [*OURS, *GUARDS], ids=lambda owner: owner.name)
def test_every_option_is_declared_in_full(owner: Any) -> None:
    """Each option has a meaning, and its default is one that a spec may give."""
    options = owner.Options if owner in OURS else owner
    for declared in fields(options):
        assert declared.metadata["doc"], declared.name
    given = {f.name: f.default for f in fields(options) if f.default is not None}
    spec = job(policy=owner.name, policy_options=given) if owner in OURS else job(guards={owner.name: given})
    assert check_spec(spec) == []


def test_explanations_can_be_joined() -> None:
    """An explanation is a clause: it begins small, ends without a full stop, and its values are named."""
    for code, reason in engine().reasons.items():
        assert code == code.upper()
        assert not reason.explanation.endswith("."), code
        assert reason.explanation[0].islower() or reason.explanation[0] in "{R", code
        assert all(name for _, name, _, _ in Formatter().parse(reason.explanation) if name is not None), code


def test_a_code_means_one_thing() -> None:
    """Two owners may share a code only with the same explanation."""
    table = engine().reasons
    assert merge((table, table)) == table
    with pytest.raises(ValueError, match="reason code PAUSED already means something else"):
        merge((table, {"PAUSED": Reason("the job has a break")}))
