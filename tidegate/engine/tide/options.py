"""The options of `tide`."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.engine.options import option


@dataclass(frozen=True, slots=True)
class TideOptions:
    """Options of `tide`."""

    horizon_seconds: float = option(600.0, "how far ahead each size is simulated", unit="s", gt=0)
    window_seconds: float = option(120.0, "window of the measurements", unit="s", gt=0)
    headroom: float = option(0.02, "share of the capacity kept free of the expected demand", unit="share", ge=0, le=0.9)
    extrapolation_margin: float = option(
        0.1,
        "share taken off the capacity of a smaller size that has not run yet",
        unit="share",
        ge=0,
        le=0.9,
        formerly="doubt",
    )
    confidence: float = option(1.0, "width of the forecast interval to plan for", unit="deviations", ge=0)
    core_price: float = option(1.0, "price of a slot for a second", unit="slot-seconds", gt=0, price="slot")
    late_price: float = option(
        2.0,
        "price of a second over the lag objective, per slot of the largest size",
        unit="slot-seconds",
        ge=0,
        price="late_share",
    )
    restart_price: float = option(
        30.0,
        "price of a restart besides its lateness, per slot of the largest size",
        unit="slot-seconds",
        ge=0,
        price="change_share",
    )
    change_price: float = option(
        2.0,
        "price of a change in place or by handover, per slot of the largest size",
        unit="slot-seconds",
        ge=0,
        price="change_share",
    )
    catch_up: bool = option(True, "whether lag is worth slots; if not, sizes are for arrivals alone, as in DS2")
    margin: float = option(0.03, "share of the price of the present slots that a change must save", unit="share", ge=0)
    restart_seconds: float = option(
        45.0, "outage and delay of a restart to assume until one was measured", unit="s", ge=0
    )
    lag_headroom: float = option(
        0.1, "share of the lag objective that a scale-up keeps free", unit="share", ge=0, le=0.9, formerly="reserve"
    )
    switching_threshold: float = option(
        1.0,
        "how much too many slots must have cost before the job switches to fewer, per what the switch costs",
        unit="costs of the switch",
        ge=0,
        formerly="patience",
    )
    switching_threshold_max: float = option(
        8.0,
        "how far the switching threshold may rise after scale-downs that did not pay, as a multiple",
        unit="multiple",
        ge=1,
    )
    level_seconds: float = option(800.0, "memory of the level of the arrivals", unit="s", gt=0)
    residual_seconds: float = option(
        60.0,
        "how long a deviation from the level lasts, until that is learned",
        unit="s",
        gt=0,
        formerly="swing_seconds",
    )
    damping_seconds: float = option(300.0, "how long a trend lasts", unit="s", gt=0)
    outage_seconds: float = option(
        900.0, "how long the load is expected back after arrivals stop", unit="s", ge=0, formerly="silence_seconds"
    )
    min_batches: int = option(
        3, "micro-batches to see before the first decision; one counts once per 20 s it lasts", unit="batches", ge=1
    )
