"""Prices in money: what they are in slot-seconds, whom they reach, and what a month costs by them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import case, evidence
from tests.support.events import job
from tidegate.engine.options import parse
from tidegate.engine.tariff import SlotSecondPrices, priced_options, slot_second_prices
from tidegate.events.job import Scaling, Tariff
from tidegate.installed import engine
from tidegate.lab.bill import bill_in_words, monthly_bill
from tidegate.lab.score import Score
from tidegate.policies.cost import CostOptions

EUROS = Tariff(currency="EUR", slot_hour=0.06, late_minute=0.5, change=0.01)
"""A slot-second costs 1/60,000 EUR, so a late second (1/120 EUR) costs as much as 500 of them, a change as 600."""


def test_money_in_slot_seconds() -> None:
    """Late seconds and changes in slot-seconds; shares are per slot of the largest size, lag is per objective."""
    made = slot_second_prices(Scaling(prices=EUROS, max_parallelism=8, lag_objective_seconds=50.0))
    assert made == pytest.approx(SlotSecondPrices(1.0, 500.0, 62.5, 10.0, 600.0, 75.0))
    assert slot_second_prices(Scaling()) is None


def test_policies_go_by_the_prices_of_the_job() -> None:
    """Each option that is a price follows; what the spec sets itself, and a change without a price, stay."""
    spec = job(policy="tide", policy_options={"change_price": 3.0}, prices=EUROS, max_parallelism=8)
    rule: Any = engine().plan(spec).policy
    options = rule.options
    assert options.late_price == pytest.approx(62.5)
    assert (options.restart_price, options.change_price) == pytest.approx((75.0, 3.0))
    free = EUROS.model_copy(update={"change": None})
    made = parse(CostOptions, priced_options(CostOptions, Scaling(prices=free, lag_objective_seconds=50.0)), "")
    assert (made.slot_price, made.lag_price, made.restart_price) == pytest.approx((1.0, 10.0, 60.0))
    assert parse(CostOptions, priced_options(CostOptions, Scaling()), "") == CostOptions()


def test_policies_without_prices_do_not_mind() -> None:
    """A job may have prices whatever its policy."""
    for name in engine().policies:
        assert engine().check(job(policy=name, policy_options={}, prices=EUROS)) == []


def test_dear_lateness_buys_slots() -> None:
    """`cost` proposes more slots when missing the objective is dear than when it is cheap."""
    seen = case(evidence(arrival_rate=300.0, true_processing_rate=400.0, lag_records=40_000))

    def size(late_minute: float) -> int:
        prices = EUROS.model_copy(update={"late_minute": late_minute})
        rule = engine().plan(job(policy="cost", policy_options={}, prices=prices)).policy
        return rule.propose(seen, rule.Memory()).size

    assert size(10.0) > size(0.01)


def test_what_a_month_costs() -> None:
    """A day with 10 slot-hours, 6 late minutes and 3 changes, times 30 days, as in the tables of the lab."""
    figures = dict.fromkeys(Score.__dataclass_fields__, 0.0)
    told = figures | {"seconds": 86_400.0, "core_seconds": 36_000.0, "violated_seconds": 360.0, "rescales": 3}
    bill = monthly_bill(EUROS, Score(**told))  # type: ignore[arg-type]
    assert (bill.slots, bill.lateness, bill.changes) == pytest.approx((0.6 * 30, 3.0 * 30, 0.03 * 30))
    assert bill_in_words(bill) == "108.90 EUR (slots 18.00, lateness 90.00, changes 0.90)"
