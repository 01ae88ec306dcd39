"""The lab's figures in README and docs/tide.md are written by a tool, from one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import lab_page


def cell(workload: str, policy: str, cost: float, late: float = 0.0, restarts: int = 2) -> dict[str, Any]:
    """Return one cell of the lab's scores."""
    return {
        "workload": workload,
        "policy": policy,
        "cost_over_oracle": cost,
        "violated_seconds": late,
        "restarts": restarts,
        "rescales": restarts,
        "cost": 1000.0 * cost,
    }


RESULT = {
    "engine_version": "9",
    "seed": 3,
    "ways": ["restart"],
    "cells": [
        cell("step", "oracle", 1.0, restarts=1),
        cell("noise", "oracle", 1.0, restarts=0),
        cell("step", "hpa", 2.0, 1500.0),
        cell("noise", "hpa", 3.0),
        cell("step", "hpa (tuned)", 1.5),
        cell("noise", "hpa (tuned)", 1.7, 20.0),
        cell("step", "tide", 1.05),
        cell("noise", "tide", 1.15),
        cell("step", "pid", 1.01),
    ],
}


def test_the_tables_compare_policies_with_the_oracle() -> None:
    """The cheapest policy comes first; a policy that did not run on every workload is left out."""
    assert lab_page.summary_table(RESULT).splitlines()[2:] == [
        "| **`tide`**, the default | 1.10 | 0 s | - | - |",
        "| `hpa` | 2.50 | 1,500 s | 1.60 | 20 s |",
    ]
    assert lab_page.policy_table(RESULT).splitlines()[2:] == [
        "| `tide` | 1.10 | 1.15 | 0 s | 4 |",
        "| `hpa`, tuned | 1.60 | 1.70 | 20 s | 4 |",
        "| `hpa` | 2.50 | 3.00 | 1,500 s | 4 |",
    ]
    assert lab_page.workload_table(RESULT).splitlines()[2:] == [
        "| step | 1.05 | 0 s | 2 | 1 |",
        "| noise | 1.15 | 0 s | 2 | 0 |",
    ]


IN_PLACE = {
    **RESULT,
    "ways": ["in_place", "handover", "restart"],
    "cells": [
        {**cell("step", "oracle", 1.0), "cost": 500.0},
        {**cell("noise", "oracle", 1.0), "cost": 1000.0},
        cell("step", "tide", 1.1, restarts=4),
        cell("noise", "tide", 1.2, restarts=3),
    ],
}


def test_the_run_in_place_is_compared_with_the_same_policy_by_restart() -> None:
    """By restart `tide` costs 1,050 and 1,150 where the oracle in place costs 500 and 1,000."""
    assert lab_page.in_place_table(IN_PLACE, RESULT).splitlines()[2:] == ["| `tide` | 1.15 | 1.62 | 0 s | 7 |"]


def test_runs_given_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    """The first run must be the one by restart."""
    scores = tmp_path / "lab.json"
    scores.write_text(json.dumps(IN_PLACE), encoding="utf-8")
    with pytest.raises(ValueError, match="must be one by restart, found in_place, handover, restart"):
        lab_page.main(["--from", str(scores), str(scores)])


def test_both_documents_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are replaced, with engine version, commit and seed; all around them stays."""
    for name in ("README", "PAGE"):
        path = tmp_path / f"{name}.md"
        path.write_text("before\n<!-- lab:begin -->\nold\n<!-- lab:end -->\nafter\n", encoding="utf-8")
        monkeypatch.setattr(lab_page, name, path)
    monkeypatch.setattr(lab_page, "commit_here", lambda: "abc1234567")
    scores, in_place = tmp_path / "lab.json", tmp_path / "in-place.json"
    scores.write_text(json.dumps(RESULT), encoding="utf-8")
    in_place.write_text(json.dumps(IN_PLACE), encoding="utf-8")
    assert lab_page.main(["--from", str(scores), str(in_place)]) == 0
    for name in ("README", "PAGE"):
        text = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith("before\n<!-- lab:begin -->\nEach change of size is a restart;")
        assert "| `tide` | 1.15 | 1.62 | 0 s | 7 |" in text
        assert text.endswith("Engine version 9, commit `abc1234567`, seed 3.\n<!-- lab:end -->\nafter\n")
        assert "old" not in text


@pytest.mark.parametrize("text", ["no marks", "<!-- lab:begin -->\n<!-- lab:end -->\n" * 2])
def test_a_document_without_its_block_is_refused(text: str) -> None:
    """The tool does not guess where the figures belong."""
    with pytest.raises(ValueError, match="one block"):
        lab_page.with_block(text, "figures")


def test_both_documents_have_their_block() -> None:
    """README and docs/tide.md each have one block, which the tool finds, with the source of its figures."""
    for path in (lab_page.README, lab_page.PAGE):
        text = path.read_text(encoding="utf-8")
        assert lab_page.with_block(text, "figures") != text
        assert "Engine version" in text
