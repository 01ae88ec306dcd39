"""Workloads: the shapes of load that scalers are judged on, each from one formula and with a reason to exist.

Every shape is `shape(peak, seconds) -> Load`: `peak` in records/s is the highest rate asked for (noise may pass it),
`seconds` the length of the run. What each is for stands beside it; `SHAPES` is the table of them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidegate.twin.load import STEP_SECONDS, Load

Shape = Callable[[float, float], Load]

WORST_PERIOD_SECONDS = 900.0
"""Up long enough to be believed and down just when the growth has been paid for: the cooldown of a scale-up (60 s),
a restart, the cooldown of a scale-down (300 s) and another restart fit twice into it, so a scaler that follows every
edge pays both restarts and gets neither benefit."""


def sampled(share: Callable[[float], float], peak: float, seconds: float) -> Load:
    """Return the load of a share of the peak as a function of the second, taken at the middle of each step."""
    steps = max(1, math.ceil(seconds / STEP_SECONDS))
    return Load(max(0.0, peak * share((step + 0.5) * STEP_SECONDS)) for step in range(steps))


def step(peak: float, seconds: float) -> Load:
    """Up to the peak after a quarter, down again after three: how fast, how exact, never over."""
    return sampled(lambda t: 1.0 if seconds / 4 <= t < 3 * seconds / 4 else 0.25, peak, seconds)


def ramp(peak: float, seconds: float) -> Load:
    """A steady rise over the middle half: does it run ahead of the load, or behind it?"""
    return sampled(lambda t: 0.2 + 0.8 * min(1.0, max(0.0, 2 * t / seconds - 0.5)), peak, seconds)


def spike(peak: float, seconds: float) -> Load:
    """Two minutes of peak in a calm run: is a restart dearer than waiting it out?"""
    return sampled(lambda t: 1.0 if 0 <= t - seconds / 2 < 120 else 0.3, peak, seconds)


def diurnal(peak: float, seconds: float) -> Load:
    """One day of a sine, squeezed into the run: slow, foreseeable, up and down."""
    return sampled(lambda t: 0.575 - 0.425 * math.cos(2 * math.pi * t / seconds), peak, seconds)


def sine(peak: float, seconds: float, period: float = 7200.0) -> Load:
    """Return a sine of a given period between 30 % and 100 % of the peak."""
    return sampled(lambda t: 0.65 - 0.35 * math.cos(2 * math.pi * t / period), peak, seconds)


def sawtooth(peak: float, seconds: float, period: float = WORST_PERIOD_SECONDS) -> Load:
    """Up slowly and down at once, at the period that hurts a follower most: nothing may flap."""
    return sampled(lambda t: 0.25 + 0.75 * (t % period) / period, peak, seconds)


def noise(peak: float, seconds: float) -> Load:
    """A constant load under strong noise: the right answer is to do nothing."""
    return sampled(lambda _: 0.6, peak, seconds).noisy(0.2, seed=11)


def slow_leak(peak: float, seconds: float) -> Load:
    """A rise too slow for any window's trend: is it seen before the lag is?"""
    return sampled(lambda t: 0.3 + 0.6 * t / seconds, peak, seconds)


def flash_crowd(peak: float, seconds: float) -> Load:
    """Calm, a rise to the peak within a minute, and a slow return (time constant an eighth of the run)."""
    start = seconds / 4

    def share(t: float) -> float:
        if t < start:
            return 0.15
        if t < start + 60:
            return 0.15 + 0.85 * (t - start) / 60
        return 0.15 + 0.85 * math.exp(-(t - start - 60) / (seconds / 8))

    return sampled(share, peak, seconds)


def decay(peak: float, seconds: float) -> Load:
    """From the peak downwards: how much is paid for what is no longer needed?"""
    return sampled(lambda t: 0.1 + 0.9 * math.exp(-4 * t / seconds), peak, seconds)


def outage(peak: float, seconds: float) -> Load:
    """The producers fall silent for ten minutes, then deliver what they kept back: silence is not the end of load."""
    start, silent = seconds / 3, 600.0
    back = start + silent
    # What was kept back (0.5 * 600 s) comes on top of the usual half as the other half of the peak: 600 s of peak.
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
