"""docs/policies.md is what the code says, and the code says enough."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from tests.support.engine import OURS, check_spec
from tests.support.events import job
from tidegate.engine.guards import GUARDS
from tidegate.engine.reasons import Reason, merge
from tidegate.installed import engine
from tools import policy_pages as catalogue


def test_the_document_is_up_to_date() -> None:
    """Whoever changes a policy, guard or reason code writes the document anew: `python -m tools.policy_pages`."""
    assert catalogue.TARGET.read_text(encoding="utf-8") == catalogue.catalogue()
    assert catalogue.main(["--check"]) == 0


def test_a_stale_document_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check says what to do, and writing mends it."""
    monkeypatch.setattr(catalogue, "TARGET", tmp_path / "policies.md")
    assert catalogue.main(["--check"]) == 1
    assert "python -m tools.policy_pages" in capsys.readouterr().err
    assert catalogue.main([]) == 0
    assert catalogue.main(["--check"]) == 0


def test_every_policy_says_when_to_choose_it() -> None:
    """A newcomer can tell the policies apart; each of ours is found by its name."""
    assert {policy.name for policy in OURS} <= set(catalogue.WHEN)
    text = catalogue.catalogue()
    for policy in OURS:
        section = text.split(f"### {policy.name}\n")[1].split("\n### ")[0]
        assert "Source:" in section, policy.name
        assert "When to choose it:" in section


@pytest.mark.parametrize("owner", [*OURS, *GUARDS], ids=lambda owner: owner.name)
def test_every_option_is_declared_in_full(owner: Any) -> None:
    """Each option has a meaning, and its default is one that a spec may give."""
    options = owner.Options if owner in OURS else owner
    for declared in fields(options):
        assert declared.metadata["doc"], declared.name
    given = {f.name: f.default for f in fields(options) if f.default is not None}
    spec = job(policy=owner.name, policy_options=given) if owner in OURS else job(guards={owner.name: given})
    assert check_spec(spec) == []


def test_sentences_are_whole() -> None:
    """A sentence begins small and ends without a full stop, for it is joined to others; its numbers are named."""
    for code, reason in engine().reasons.items():
        assert code == code.upper()
        assert not reason.explanation.endswith("."), code
        assert reason.explanation[0].islower() or reason.explanation[0] in "{R", code
        assert all(name for _, name, _, _ in Formatter().parse(reason.explanation) if name is not None), code


def test_a_code_means_one_thing() -> None:
    """Two policies may share a code only with the same explanation."""
    with pytest.raises(ValueError, match="reason code PAUSED already means something else"):
        merge((engine().reasons, {"PAUSED": Reason("the job has a break")}))
    assert merge((engine().reasons, engine().reasons)) == engine().reasons
