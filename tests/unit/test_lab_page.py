"""The lab's figures in README, docs/lab.md and docs/tide.md are written by a tool, from two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import lab_page


def row(seed: int, kind: str, label: str, cost: float, late: float = 0.0) -> dict[str, Any]:
    """Return one outcome of the lab."""
    return {
        "pair": {"set": "report", "round": 0, "kind": kind, "load": "step", "seed": seed},
        "label": label,
        "ratio": cost,
        "parts": {"slots": cost - 0.1, "lateness": 0.06, "changes": 0.04},
        "late_seconds": late,
        "changes": 2,
        "over_restarting": cost / 2,
        "slots_per_second": 10.0 * cost,
    }


RESULT: dict[str, Any] = {
    "engine_version": "9",
    "ways": ["restart"],
    "slot_hour": 0.05,
    "outcomes": [
        row(1, "few", "hpa", 2.0, 1500.0),
        row(2, "tiny", "hpa", 3.0),
        row(1, "few", "hpa (tuned)", 1.0),
        row(2, "tiny", "hpa (tuned)", 2.0),
        row(1, "few", "tide", 1.05),
        row(2, "tiny", "tide", 1.15),
        row(1, "few", "pid", 1.01),
    ],
}
IN_PLACE: dict[str, Any] = {**RESULT, "ways": ["in_place", "handover", "restart"]}


def test_policies_are_listed_by_their_cost_with_its_spread() -> None:
    """The cheapest policy comes first; one that did not run on every pair is left out."""
    assert lab_page.policy_table(RESULT["outcomes"], 0.05).splitlines()[2:] == [
        "| **`tide`**, the default | 1.10 ± 0.05 | 1.00 | 0.06 | 0.04 | 1.15 | 0 s | 4 | 396 |",
        "| `hpa (tuned)` | 1.50 ± 0.50 | 1.40 | 0.06 | 0.04 | 2.00 | 0 s | 4 | 540 |",
        "| `hpa` | 2.50 ± 0.50 | 2.40 | 0.06 | 0.04 | 3.00 | 1,500 s | 4 | 900 |",
    ]


def test_each_group_shows_the_best_other_policy() -> None:
    """A kind of job on which another policy is cheaper cannot hide in the mean."""
    table = lab_page.group_table(RESULT["outcomes"], "kind", lambda row: row["pair"]["kind"])
    assert table.splitlines()[2:] == [
        "| few | 1.05 | 1.05 | `hpa (tuned)` | 1.00 |",
        "| tiny | 1.15 | 1.15 | `hpa (tuned)` | 2.00 |",
    ]


def test_the_run_in_place_is_compared_with_two_plans() -> None:
    """What is attainable in place, and what is attainable by restart."""
    first = lab_page.in_place_table(IN_PLACE["outcomes"]).splitlines()[2]
    assert first == "| **`tide`**, the default | 1.10 ± 0.05 | 0.55 ± 0.02 | 0 s | 4 |"


def test_runs_given_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """The first run must be the one by restart."""
    scores = tmp_path / "lab.json"
    scores.write_text(json.dumps(IN_PLACE), encoding="utf-8")
    with pytest.raises(ValueError, match="must be one by restart, found in_place, handover, restart"):
        lab_page.main(["--from", str(scores), str(scores)])


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (RESULT, "must be one in place, found restart"),
        ({**IN_PLACE, "engine_version": "8"}, "engine version 8"),
        ({**IN_PLACE, "outcomes": IN_PLACE["outcomes"][:1]}, "1 pairs"),
    ],
)
def test_a_second_run_of_other_pairs_or_another_engine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any], told: str
) -> None:
    """One line says where the figures of both tables come from, so it must be true of both."""
    for name in ("README", "LAB", "TIDE"):
        path = tmp_path / f"{name}.md"
        path.write_text("<!-- lab:begin -->\nold\n<!-- lab:end -->\n", encoding="utf-8")
        monkeypatch.setattr(lab_page, name, path)
    scores, in_place = tmp_path / "lab.json", tmp_path / "in-place.json"
    scores.write_text(json.dumps(RESULT), encoding="utf-8")
    in_place.write_text(json.dumps(second), encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        lab_page.main(["--from", str(scores), str(in_place)])
    assert "old" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_all_documents_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are replaced, with set, rounds, engine version and commit; all around them stays."""
    for name in ("README", "LAB", "TIDE"):
        path = tmp_path / f"{name}.md"
        path.write_text("before\n<!-- lab:begin -->\nold\n<!-- lab:end -->\nafter\n", encoding="utf-8")
        monkeypatch.setattr(lab_page, name, path)
    monkeypatch.setattr(lab_page, "commit_here", lambda: "abc1234567")
    scores, in_place = tmp_path / "lab.json", tmp_path / "in-place.json"
    scores.write_text(json.dumps(RESULT), encoding="utf-8")
    in_place.write_text(json.dumps(IN_PLACE), encoding="utf-8")
    assert lab_page.main(["--from", str(scores), str(in_place)]) == 0
    source = "Set `report`, 1 round, 2 pairs; engine version 9, commit `abc1234567`."
    for name, told in (("README", "0.55 ± 0.02"), ("LAB", "| `hpa (tuned)` |"), ("TIDE", "| tiny |")):
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith("before\n<!-- lab:begin -->\n")
        assert told in text
        assert text.endswith(f"{source}\n<!-- lab:end -->\nafter\n")
        assert "old" not in text


@pytest.mark.parametrize("text", ["no marks", "<!-- lab:begin -->\n<!-- lab:end -->\n" * 2])
def test_a_document_without_its_block_is_refused(text: str) -> None:
    """The tool does not guess where the figures belong."""
    with pytest.raises(ValueError, match="one block"):
        lab_page.with_block(text, "figures")


def test_all_documents_have_their_block() -> None:
    """README, docs/lab.md and docs/tide.md each have one block, which the tool finds."""
    for path in (lab_page.README, lab_page.LAB, lab_page.TIDE):
        text = path.read_text(encoding="utf-8")
        assert lab_page.with_block(text, "figures") != text
