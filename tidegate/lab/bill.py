"""The bill of a run in money: what a month like it would cost by the job's prices."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.events.job import Tariff
from tidegate.lab.score import Score

MONTH_SECONDS = 30 * 86_400.0
"""A month, wherever costs of one are told."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Costs in one currency."""

    currency: str
    slots: float
    lateness: float
    changes: float

    @property
    def total(self) -> float:
        """All costs together."""
        return self.slots + self.lateness + self.changes


def monthly_bill(prices: Tariff, found: Score) -> Bill:
    """Return what a month would cost in which everything goes on as in a run."""
    whole = bill(prices, found.core_seconds, found.violated_seconds, found.rescales)
    months = found.seconds / MONTH_SECONDS
    return Bill(prices.currency, whole.slots / months, whole.lateness / months, whole.changes / months)


def bill(prices: Tariff, slot_seconds: float, late_seconds: float, changes: int) -> Bill:
    """Return what slots, time above the lag objective and changes of size cost."""
    return Bill(
        prices.currency,
        prices.slot_hour * slot_seconds / 3600,
        prices.late_minute * late_seconds / 60,
        (prices.change or 0.0) * changes,
    )


def bill_in_words(bill: Bill) -> str:
    """Return the total and its parts."""
    parts = f"slots {bill.slots:,.2f}, lateness {bill.lateness:,.2f}, changes {bill.changes:,.2f}"
    return f"{bill.total:,.2f} {bill.currency} ({parts})"
