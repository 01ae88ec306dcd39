"""The bill of a run in money: what a month like it would cost by the job's prices."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.events.job import Tariff
from tidegate.lab.score import Parts, Score

MONTH_SECONDS = 30 * 86_400.0
"""A month, wherever costs of one are told."""


@dataclass(frozen=True, slots=True)
class Bill(Parts):
    """Costs in one currency."""

    currency: str


def monthly_bill(prices: Tariff, found: Score) -> Bill:
    """Return what a month would cost in which everything goes on as in a run."""
    whole = bill(prices, found.core_seconds, found.violated_seconds, found.rescales)
    months = found.seconds / MONTH_SECONDS
    return Bill(*whole.over(months).values, prices.currency)


def bill(prices: Tariff, slot_seconds: float, late_seconds: float, changes: int) -> Bill:
    """Return what slots, time above the lag objective and changes of size cost."""
    return Bill(
        prices.slot_hour * slot_seconds / 3600,
        prices.late_minute * late_seconds / 60,
        (prices.change or 0.0) * changes,
        prices.currency,
    )


def bill_in_words(bill: Bill) -> str:
    """Return the total and its parts."""
    parts = f"slots {bill.slots:,.2f}, lateness {bill.lateness:,.2f}, changes {bill.changes:,.2f}"
    return f"{bill.total:,.2f} {bill.currency} ({parts})"
