"""The formulas of Varga, Balassi and Kiss for autoscaling Flink on Kubernetes: pure functions of numbers.

Source: B. Varga, M. Balassi, A. Kiss, "Towards autoscaling of Apache Flink jobs", Acta Universitatis Sapientiae,
Informatica 13(1), 2021, 39-59, section on the scaling policy. Both metrics are made so that the Horizontal Pod
Autoscaler's `replicas = ceil(replicas · metric / target)` multiplies the size by the factor that is needed:

    relative lag change rate = deriv(total lag) / total rate of consumed records     (dimensionless)
    lag metric               = 1 + relative lag change rate, target 1: the size at which the lag stays constant
    utilization              = 1 - idle share of time, target below 1

A falling lag does not mean that the size is too large (the job may be catching up), so the lag metric only scales up.
The utilization scales down.
"""

from __future__ import annotations

from tidegate.policies.hpa_rules import ceil_replicas, within_tolerance


def lag_metric(lag_derivative: float, total_rate: float) -> float:
    """Return the factor on the size at which the lag stays constant; 1 if nothing is processed."""
    return 1.0 + (lag_derivative / total_rate if total_rate else 0.0)


def desired_replicas(current: int, metric: float, target: float, down: float, up: float) -> int:
    """Return the Horizontal Pod Autoscaler's answer: `ceil(current · metric / target)`, outside the tolerances."""
    ratio = metric / target
    return current if within_tolerance(ratio, down, up) else ceil_replicas(current * ratio)
