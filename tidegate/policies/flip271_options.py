"""The options of `flip271`, with the names, ranges and defaults of the Flink autoscaler."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.engine.options import option

HISTORY = 3
"""Executed decisions that are remembered."""


@dataclass(frozen=True, slots=True)
class Flip271Options:
    """Options of `flip271`, with the defaults of the Flink autoscaler."""

    metrics_window_seconds: float = option(900.0, "window that rates are averaged over", unit="s", gt=0)
    stabilization_interval_seconds: float = option(
        300.0, "time after a start or a change of size in which samples do not count", unit="s", ge=0
    )
    utilization_target: float = option(0.7, "utilization to aim at", unit="share", gt=0, le=1)
    utilization_boundary: float = option(0.3, "half-width of the band around the target", unit="share", ge=0, le=1)
    utilization_max: float | None = option(
        None, "upper edge of the band, from the target to 1; absent: target + boundary", unit="share", ge=0, le=1
    )
    utilization_min: float | None = option(
        None, "lower edge of the band, from 0 to the target; absent: target - boundary", unit="share", ge=0, le=1
    )
    catch_up_duration_seconds: float = option(
        1800.0, "time to work off the lag in; 0: the lag is ignored", unit="s", ge=0
    )
    restart_time_seconds: float = option(
        300.0, "assumed restart time, until `restart_time_tracking` has measured one", unit="s", ge=0
    )
    restart_time_tracking: bool = option(False, "use the longest of the last 3 measured restarts")
    restart_time_limit_seconds: float = option(900.0, "longest restart time that is used", unit="s", ge=0)
    scale_up_max_factor: float = option(
        100_000.0, "largest scale-up at once, as a share of the size", unit="share", ge=0
    )
    scale_down_max_factor: float = option(
        0.6, "largest scale-down at once, as a share of the size", unit="share", ge=0, le=1
    )
    scale_down_interval_seconds: float = option(
        3600.0, "how long a scale-down waits for a larger proposal", unit="s", ge=0
    )
    backlog_lag_threshold_seconds: float = option(
        300.0, "lag, in seconds of input, above which the job does not scale down", unit="s", ge=0
    )
    observed_lag_threshold_seconds: float = option(
        30.0, "lag, in seconds of input, from which the processing rate shows the capacity", unit="s", ge=0
    )
    observed_min_observations: int = option(2, "samples needed for the observed capacity", unit="samples", ge=1)
    observed_switch_threshold: float = option(
        0.15, "how far C must be above the observed capacity to be replaced by it", unit="share", ge=0
    )
    alignment_mode: str = option(
        "BALANCED",
        "`BALANCED`: up to a size with fewer partitions per slot; `EVENLY_SPREAD`: up to a divisor of the partitions; "
        "`OFF`: no alignment; `LEGACY_…`: the rules of release 1.15",
        choices=("BALANCED", "EVENLY_SPREAD", "OFF", "LEGACY_EVENLY_SPREAD", "LEGACY_MAXIMIZE_UTILISATION"),
    )
    observed_scalability: bool = option(
        False, "divide by a coefficient: how close the last changes came to linear scaling"
    )
    scalability_min_observations: int = option(
        3, "decisions needed for the coefficient", unit="decisions", ge=2, le=HISTORY
    )
    scalability_coefficient_min: float = option(0.5, "smallest coefficient", unit="share", ge=0.01, le=1)
    ineffective_detection: bool = option(False, "block a scale-up after one without effect")
    ineffective_threshold: float = option(
        0.1, "share of the expected gain below which a scale-up had no effect", unit="share", ge=0, le=1
    )

    def __post_init__(self) -> None:
        """Refuse edges of the band on the wrong side of the target (`DefaultValidator.validateAutoscalerOptions`)."""
        target, low, high, problems = self.utilization_target, self.utilization_min, self.utilization_max, []
        if high is not None and high < target:
            problems.append(f"utilization_max: must be from utilization_target ({target:g}) to 1, found {high:g}")
        if low is not None and low > target:
            problems.append(f"utilization_min: must be from 0 to utilization_target ({target:g}), found {low:g}")
        if problems:
            raise ValueError("; ".join(problems))
