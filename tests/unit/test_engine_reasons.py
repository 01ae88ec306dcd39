"""Reasons: a clause filled in from the values of its trail entry."""

from __future__ import annotations

import pytest

from tidegate.engine.reasons import Reason, explained


@pytest.mark.parametrize(
    ("clause", "size", "said"),
    [
        ("{size} slots have only 40/s", 1, "1 slot has only 40/s"),
        ("{size} slots are enough", 1, "1 slot is enough"),
        ("and {size} slots for 3 s", 1, "and 1 slot for 3 s"),
        ("{size} slots process 40/s", 1, "1 slot processes 40/s"),
        ("{size} slots are enough", 11, "11 slots are enough"),
        ("{size} slots are enough", 2, "2 slots are enough"),
    ],
)
def test_one_slot_is_no_plural(clause: str, size: int, said: str) -> None:
    """A clause is written for many slots and reads well for one."""
    entry = explained({"CODE": Reason(clause)}, "tide", "CODE", 1, 1, {"size": size})
    assert entry.sentence == said
