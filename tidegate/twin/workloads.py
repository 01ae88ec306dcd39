"""Workloads: the load shapes that scalers are tested on, each given by one formula and each for a reason.

Every shape is `shape(peak, seconds) -> Load`: `peak` is the highest nominal rate in records/s (noise may exceed it),
`seconds` the length of the run. Each docstring says what the shape tests. `SHAPES` is the table of all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidegate.twin.load import STEP_SECONDS, Load

Shape = Callable[[float, float], Load]

WORST_PERIOD_SECONDS = 900.0
"""The load stays up long enough to look real and falls just when the scale-up has paid off. Two scale-up cooldowns (60
s), two scale-down cooldowns (300 s) and their restarts fit into one period, so a scaler that follows every edge pays
for both restarts and gains from neither."""


def sampled(share: Callable[[float], float], peak: float, seconds: float) -> Load:
    """Return the load given by a share of the peak as a function of time, sampled at the middle of each step."""
    steps = max(1, math.ceil(seconds / STEP_SECONDS))
    return Load(max(0.0, peak * share((step + 0.5) * STEP_SECONDS)) for step in range(steps))


def step(peak: float, seconds: float) -> Load:
    """Up to the peak after one quarter, down after three. Tests speed and accuracy, and that nothing overshoots."""
    return sampled(lambda t: 1.0 if seconds / 4 <= t < 3 * seconds / 4 else 0.25, peak, seconds)


def ramp(peak: float, seconds: float) -> Load:
    """A steady rise over the middle half. Tests whether the scaler leads the load or trails it."""
    return sampled(lambda t: 0.2 + 0.8 * min(1.0, max(0.0, 2 * t / seconds - 0.5)), peak, seconds)


def spike(peak: float, seconds: float) -> Load:
    """Two minutes of peak in a calm run. Tests whether the scaler sees that waiting is cheaper than a restart."""
    return sampled(lambda t: 1.0 if 0 <= t - seconds / 2 < 120 else 0.3, peak, seconds)


def diurnal(peak: float, seconds: float) -> Load:
    """One day's sine, compressed into the run: slow and predictable."""
    return sampled(lambda t: 0.575 - 0.425 * math.cos(2 * math.pi * t / seconds), peak, seconds)


def sine(peak: float, seconds: float, period: float) -> Load:
    """Return a sine of a given period between 30 % and 100 % of the peak."""
    return sampled(lambda t: 0.65 - 0.35 * math.cos(2 * math.pi * t / period), peak, seconds)


def sawtooth(peak: float, seconds: float, period: float = WORST_PERIOD_SECONDS) -> Load:
    """A slow rise and a sudden fall, at the period that hurts most if the scaler follows it. Tests for flapping."""
    return sampled(lambda t: 0.25 + 0.75 * (t % period) / period, peak, seconds)


def noise(peak: float, seconds: float) -> Load:
    """A constant load with strong noise. The right answer is to do nothing."""
    return sampled(lambda _: 0.6, peak, seconds).noisy(0.2, seed=11)


def slow_leak(peak: float, seconds: float) -> Load:
    """A rise too slow to show in any window's trend. Tests whether the scaler sees it before lag builds up."""
    return sampled(lambda t: 0.3 + 0.6 * t / seconds, peak, seconds)


def flash_crowd(peak: float, seconds: float) -> Load:
    """Calm, a rise to the peak within a minute, then a slow return (time constant: an eighth of the run)."""
    start = seconds / 4

    def share(t: float) -> float:
        if t < start:
            return 0.15
        if t < start + 60:
            return 0.15 + 0.85 * (t - start) / 60
        return 0.15 + 0.85 * math.exp(-(t - start - 60) / (seconds / 8))

    return sampled(share, peak, seconds)


def decay(peak: float, seconds: float) -> Load:
    """A decline from the peak. Tests how much is paid for slots that are no longer needed."""
    return sampled(lambda t: 0.1 + 0.9 * math.exp(-4 * t / seconds), peak, seconds)


def outage(peak: float, seconds: float) -> Load:
    """Producers stop for ten minutes, then deliver what they held back. An outage is not the end of the load."""
    start, silent = seconds / 3, 600.0
    back = start + silent
    # The records held back (0.5 * 600 s) arrive on top of the usual half, so the peak lasts 600 s.
    return sampled(lambda t: 0.5 if t < start or t >= back + silent else 0.0 if t < back else 1.0, peak, seconds)


SHAPES: dict[str, Shape] = {
    "step": step,
    "ramp": ramp,
    "spike": spike,
    "diurnal": diurnal,
    "sawtooth": sawtooth,
    "noise": noise,
    "slow_leak": slow_leak,
    "flash_crowd": flash_crowd,
    "decay": decay,
    "outage": outage,
}
"""Every workload of the lab by name."""
