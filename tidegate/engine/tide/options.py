"""The options of `tide`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.options import option


@dataclass(frozen=True, slots=True)
class TideOptions:
    """Options of `tide`."""

    removed: ClassVar[frozenset[str]] = frozenset(
        {
            *("core_price", "damping_seconds", "doubt", "extrapolation_margin", "ineffective_gain"),
            *("ineffective_seconds", "lag_headroom", "level_seconds", "margin", "min_batches", "outage_seconds"),
            *("patience", "reserve", "residual_seconds", "silence_seconds"),  # codespell:ignore patience
            *("swing_seconds", "switching_threshold", "switching_threshold_max", "window_seconds"),
        }
    )
    """Options of earlier engines."""

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
    horizon_seconds: float = option(600.0, "how far ahead each size is simulated", unit="s", gt=0)
    headroom: float = option(
        0.02,
        "share of the capacity kept free of the expected demand, if batches do not vary",
        unit="share",
        ge=0,
        le=0.9,
    )
    confidence: float = option(1.0, "width of the forecast interval to plan for", unit="deviations", ge=0)
    catch_up: bool = option(True, "whether lag is worth slots; if not, sizes are for arrivals alone, as in DS2")
    restart_seconds: float = option(
        45.0, "outage and delay of a restart to assume until one was measured", unit="s", ge=0
    )
