"""The options of `tide`."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.engine.options import option


@dataclass(frozen=True, slots=True)
class TideOptions:
    """Options of `tide`."""

    horizon_seconds: float = option(600.0, "how far ahead each size is played through", unit="s", gt=0)
    window_seconds: float = option(120.0, "window that the figures are taken from", unit="s", gt=0)
    headroom: float = option(0.02, "share of capacity kept free of the expected load", unit="share", ge=0, le=0.9)
    doubt: float = option(
        0.1,
        "share by which the capacity of a smaller size not yet run may fall short",
        unit="share",
        ge=0,
        le=0.9,
    )
    confidence: float = option(1.0, "forecast error to be ready for", unit="deviations", ge=0)
    core_price: float = option(1.0, "price of a slot for a second", unit="slot-seconds", gt=0)
    late_price: float = option(
        2.0, "price of a second over the lag objective, per slot of the largest size", unit="slot-seconds", ge=0
    )
    restart_price: float = option(
        30.0, "price of a restart besides its lateness, per slot of the largest size", unit="slot-seconds", ge=0
    )
    catch_up: bool = option(True, "whether lag is worth slots; if not, sizes are for arrivals alone, as in DS2")
    margin: float = option(0.03, "share of the present cost that a change must save", unit="share", ge=0)
    restart_seconds: float = option(45.0, "assumed downtime of a restart until some were measured", unit="s", ge=0)
    reserve: float = option(0.1, "share of the lag objective that growth keeps free", unit="share", ge=0, le=0.9)
    patience: float = option(1.5, "what a reduction must have spared before it is made", unit="restart prices", ge=0)
    patience_max: float = option(16.0, "most that patience may grow to", unit="restart prices", ge=0)
    level_seconds: float = option(800.0, "memory of the line through the arrivals", unit="s", gt=0)
    swing_seconds: float = option(60.0, "how long a swing around the level lasts, until it is learned", unit="s", gt=0)
    damping_seconds: float = option(300.0, "how long a trend lasts", unit="s", gt=0)
    silence_seconds: float = option(900.0, "how long a silence is not taken for the end of the load", unit="s", ge=0)
    min_batches: int = option(3, "micro-batches to see before the first decision", unit="batches", ge=1)
    useless_seconds: float = option(3600.0, "how long a size that brought nothing is left alone", unit="s", ge=0)
    useless_gain: float = option(
        0.25, "share of the expected gain below which growth brought nothing", unit="share", ge=0, le=1
    )
