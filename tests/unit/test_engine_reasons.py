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


@pytest.mark.parametrize(
    ("clause", "value", "said"),
    [
        ("a lag trend of {value:.0f} records/s", -0.3, "a lag trend of 0 records/s"),
        ("{value:.0%} of the gain", -0.001, "0% of the gain"),
        ("worth {value:.2f}, not more", -0.001, "worth 0.00, not more"),
        ("worth {value:.2f}.", -0.01, "worth -0.01."),
        ("worth {value:.0f}.", -3.0, "worth -3."),
        ("the topic {value}", "orders-0", "the topic orders-0"),
        ("the period {value}", "0:00:00-0:30:00", "the period 0:00:00-0:30:00"),
    ],
)
def test_nothing_is_minus_zero(clause: str, value: float | str, said: str) -> None:
    """A small negative number that is rounded to zero reads as zero."""
    assert explained({"CODE": Reason(clause)}, "varga", "CODE", 1, 1, {"value": value}).sentence == said


@pytest.mark.parametrize(
    ("clause", "value", "said"),
    [
        ("{value:rate}/s", 0.0166, "0.017/s"),
        ("{value:rate}/s", 5.04, "5/s"),
        ("{value:rate}/s", 9.49, "9.5/s"),
        ("{value:rate}/s", 9.96, "10/s"),
        ("{value:rate}/s", 1234.5, "1234/s"),
        ("{value:,rate}/s", 1234.5, "1,234/s"),
        ("{value:rate}/s", 0, "0/s"),
        ("{value:rate}/s", 1e-9, "0/s"),
        ("{value:rate}/s", -0.0, "0/s"),
        ("{value:rate}/s", None, "?/s"),
        ("{value:rate}/s", float("inf"), "inf/s"),
        ("{value:rate}/s in {value:.0f} s, {value}", 2.5, "2.5/s in 2 s, 2.5"),
    ],
)
def test_a_small_rate_is_not_told_as_none(clause: str, value: float | None, said: str) -> None:
    """Of one record a minute, nobody wants to read that none are expected."""
    assert explained({"CODE": Reason(clause)}, "tide", "CODE", 1, 1, {"value": value}).sentence == said
