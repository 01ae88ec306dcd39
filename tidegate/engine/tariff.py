"""A job's prices in money as prices in slot-seconds, which are what policies calculate in.

    slot-second   = price of a slot-hour / 3600
    late second   = price of a late minute / 60, in slot-seconds
    lag           = late second / lag objective: what a second of work costs that waits for a second, if work worth the
                    objective is to cost as much as being late

An option of a policy that is such a price says so where it is declared. If the spec has prices, and does not set the
option itself, the option gets it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from tidegate.events.job import Scaling
from tidegate.events.wire import Scalar


class SlotSecondPrices(NamedTuple):
    """Prices in slot-seconds. A share is per slot of the job's largest size."""

    slot: float
    late: float
    late_share: float
    lag: float
    change: float | None
    change_share: float | None


def slot_second_prices(scaling: Scaling) -> SlotSecondPrices | None:
    """Return the prices of a job that has some."""
    prices = scaling.prices
    if prices is None:
        return None
    late = 60 * prices.late_minute / prices.slot_hour
    change = None if prices.change is None else 3600 * prices.change / prices.slot_hour
    return SlotSecondPrices(
        slot=1.0,
        late=late,
        late_share=late / scaling.max_parallelism,
        lag=late / scaling.lag_objective_seconds,
        change=change,
        change_share=None if change is None else change / scaling.max_parallelism,
    )


def priced_options(options: type, scaling: Scaling) -> dict[str, Scalar]:
    """Return the options that a spec sets for its policy, and those that follow from its prices."""
    declared: Any = options
    given, prices = scaling.policy_options, slot_second_prices(scaling)
    if prices is None:
        return given
    follows = {f.name: getattr(prices, f.metadata["price"]) for f in fields(declared) if f.metadata["price"]}
    return {name: value for name, value in follows.items() if value is not None} | given
