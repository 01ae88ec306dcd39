"""The options of `numaflow`, with Numaflow's names and defaults where it has them, and its cron windows."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.engine.cron import Cron
from tidegate.engine.options import BadOption, option
from tidegate.policies.cron_windows import cron_items
from tidegate.policies.numaflow_rules import MAX_LOOKBACK_SECONDS


@dataclass(frozen=True, slots=True)
class NumaflowOptions:
    """Options of `numaflow`, with Numaflow's defaults; the spec has the minimum and maximum of replicas."""

    vertex: str = option(
        "source",
        "`source` and `mono_vertex`: by pending records alone; `udf`: by the free buffer too",
        choices=("source", "mono_vertex", "udf"),
    )
    lookback_seconds: int = option(
        120, "time that rate and pending records are averaged over, at least", unit="s", ge=10, le=MAX_LOOKBACK_SECONDS
    )
    adaptive_lookback: bool = option(
        True, f"lengthen the lookback when no offset is committed for longer, to at most {MAX_LOOKBACK_SECONDS} s"
    )
    target_processing_seconds: int = option(20, "time to work off the pending records in", unit="s", ge=1)
    scale_up_cooldown_seconds: float = option(90.0, "time from a change to the next scale-up", unit="s", ge=0)
    scale_down_cooldown_seconds: float = option(90.0, "time from a change to the next scale-down", unit="s", ge=0)
    zero_replica_sleep_seconds: float = option(
        120.0, "time from a stop for want of records to the next look, for a source", unit="s", ge=0
    )
    replicas_per_scale_up: int = option(2, "slots added at a time, at most", unit="slots", ge=1)
    replicas_per_scale_down: int = option(2, "slots removed at a time, at most", unit="slots", ge=1)
    buffer_length: int = option(
        30_000, "records that a buffer holds: of this job as `udf`, and of a job downstream", ge=1
    )
    buffer_usage_limit: float = option(0.8, "share of a buffer that may be used", unit="share", gt=0, le=1)
    target_buffer_availability: int = option(50, "share of the buffer to keep free", unit="%", ge=1, le=100)
    back_pressure_threshold: float = option(
        0.9, "fill level of a downstream buffer that causes back pressure", unit="share", gt=0
    )
    rate_limit: float | None = option(
        None, "rate at which the job is throttled; at this rate it does not scale up", unit="records/s", gt=0
    )
    cron: str = option("", "windows with their own bounds, as `start|end|min|max; ...`")
    fix_pending_overflow: bool = option(
        False,
        "fix Numaflow's 32-bit overflow, by which more than 2^31 pending records ask for 1 slot",
        formerly="mend_pending_overflow",
    )
    fix_pressure_cooldown: bool = option(
        False, "make the step down under back pressure wait for the cooldown, too", formerly="mend_pressure_cooldown"
    )
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)

    @property
    def window_seconds(self) -> float:
        """The longest that the lookback can become."""
        return float(MAX_LOOKBACK_SECONDS if self.adaptive_lookback else self.lookback_seconds)


@dataclass(frozen=True, slots=True)
class CronWindow:
    """A time window with its own bounds; None: the spec's."""

    start: Cron
    end: Cron
    minimum: int | None
    maximum: int | None


def cron_windows(text: str) -> tuple[CronWindow, ...]:
    """Return the windows of a `cron` option, or raise `BadOption`."""
    windows = []
    for item, start, end, (least_text, most_text) in cron_items(text, "start|end|min|max"):
        least, most = _bound(least_text, item), _bound(most_text, item)
        if least is not None and most is not None and least > most:
            raise BadOption(f"scaling.policy_options.cron: min must be at most max, found {item!r}")
        windows.append(CronWindow(start, end, least, most))
    return tuple(windows)


def _bound(text: str, item: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadOption(f"scaling.policy_options.cron: min and max must be whole numbers, found {text!r} in {item!r}")
    return int(text)
