"""Loads drawn by seed: shapes whose every parameter is drawn, so that no policy can be fitted to them by accident.

A shape is `shape(draw, seconds) -> Share`: the load at a second as a share of its peak. `drawn` samples it, and puts on
it noise of drawn strength and memory, so two loads of one shape have little in common but the idea.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tidegate.twin.load import STEP_SECONDS, Load
from tidegate.twin.noise import Noise

Share = Callable[[float], float]


@dataclass(slots=True)
class Draw:
    """Numbers drawn one after another: the same seed and name give the same ones."""

    seed: int
    name: str
    _noise: Noise = field(init=False)
    _drawn: count[int] = field(init=False)

    def __post_init__(self) -> None:
        """Start with the first number."""
        self._noise = Noise(self.seed, self.name)
        self._drawn = count()

    def between(self, low: float, high: float) -> float:
        """Return a number in [low, high), all equally likely."""
        return self._noise.between(low, high, next(self._drawn))

    def scale(self, low: float, high: float) -> float:
        """Return a number in [low, high), all orders of magnitude equally likely."""
        return math.exp(self.between(math.log(low), math.log(high)))

    def whole(self, low: int, high: int) -> int:
        """Return a whole number in low..high."""
        return low + int(self.between(0.0, 1.0) * (high - low + 1))

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self.between(0.0, 1.0) < share

    def wait(self, mean: float) -> float:
        """Return the time until the next event of a Poisson process (exponential)."""
        return -mean * math.log(1.0 - self.between(0.0, 1.0))

    def normal(self) -> float:
        """Return a standard normal number."""
        return self._noise.normal(next(self._drawn))


def step(draw: Draw, seconds: float) -> Share:
    """One to three levels, one after another."""
    return _levels(draw, seconds, [seconds / draw.whole(2, 4) * draw.between(0.8, 1.2) for _ in range(5)])


def regimes(draw: Draw, seconds: float) -> Share:
    """Levels of any height that hold for any time, minutes to an hour."""
    mean = draw.scale(300.0, 2400.0)
    lengths = [60.0 + draw.wait(mean) for _ in range(int(seconds / 60.0))]
    return _levels(draw, seconds, lengths)


def ramp(draw: Draw, seconds: float) -> Share:
    """A rise or a fall between two levels."""
    low, start = draw.between(0.05, 0.4), draw.between(0.1, 0.5) * seconds
    length, falls = draw.scale(300.0, 0.5 * seconds), draw.chance(0.3)

    def share(t: float) -> float:
        risen = min(1.0, max(0.0, (t - start) / length))
        return low + (1.0 - low) * (1.0 - risen if falls else risen)

    return share


def spike(draw: Draw, seconds: float) -> Share:
    """One to three short peaks in a calm run."""
    base = draw.between(0.1, 0.5)
    peaks = [
        (draw.between(0.1, 0.9) * seconds, draw.scale(30.0, 400.0), draw.between(0.6, 1.0))
        for _ in range(draw.whole(1, 3))
    ]
    return lambda t: max(base, *(height if at <= t < at + length else 0.0 for at, length, height in peaks))


def waves(draw: Draw, seconds: float) -> Share:
    """A sine with two harmonics of drawn strength and phase: a day at some speed."""
    period = draw.scale(1800.0, 2 * seconds)
    parts = [(k, draw.between(0.2, 1.0) / k, draw.between(0.0, 2 * math.pi)) for k in (1, 2, 3)]
    total = math.fsum(strength for _, strength, _ in parts)
    low = draw.between(0.05, 0.5)

    def share(t: float) -> float:
        wave = math.fsum(s * math.sin(2 * math.pi * k * t / period + phase) for k, s, phase in parts)
        return low + (1.0 - low) * (0.5 + 0.5 * wave / total)

    return share


def sawtooth(draw: Draw, seconds: float) -> Share:
    """A slow rise and a sudden fall, or a sudden rise and a slow fall, over and over."""
    period, low, falls = draw.scale(400.0, seconds / 2), draw.between(0.1, 0.5), draw.chance(0.5)
    phase = draw.between(0.0, period)

    def share(t: float) -> float:
        passed = ((t + phase) % period) / period
        return low + (1.0 - low) * (1.0 - passed if falls else passed)

    return share


def flat(draw: Draw, seconds: float) -> Share:
    """A constant load; its noise is all there is."""
    del seconds
    level = draw.between(0.4, 0.9)
    return lambda _: level


def leak(draw: Draw, seconds: float) -> Share:
    """A change too slow to show in any window."""
    first, last = draw.between(0.1, 0.9), draw.between(0.1, 0.9)
    return lambda t: first + (last - first) * t / seconds


def flash_crowd(draw: Draw, seconds: float) -> Share:
    """Calm, a rise within a minute or two, a slow return."""
    base, start = draw.between(0.05, 0.3), draw.between(0.1, 0.5) * seconds
    rise, back = draw.between(20.0, 150.0), draw.scale(400.0, seconds / 3)

    def share(t: float) -> float:
        if t < start:
            return base
        return base + (1.0 - base) * min(1.0, (t - start) / rise) * math.exp(-max(0.0, t - start - rise) / back)

    return share


def decay(draw: Draw, seconds: float) -> Share:
    """A decline from the peak."""
    low, length = draw.between(0.03, 0.3), seconds / draw.between(1.5, 8.0)
    return lambda t: low + (1.0 - low) * math.exp(-t / length)


def outage(draw: Draw, seconds: float) -> Share:
    """Producers stop; afterwards they send what they kept back, as fast as the peak allows."""
    usual, start = draw.between(0.25, 0.6), draw.between(0.15, 0.6) * seconds
    silent = draw.scale(180.0, 2400.0)
    back = start + silent
    fast = min(1.0, usual * draw.between(1.5, 3.0))
    replayed = back + usual * silent / (fast - usual)
    return lambda t: usual if t < start or t >= replayed else 0.0 if t < back else fast


def silence(draw: Draw, seconds: float) -> Share:
    """Arrivals stop once or twice for some time, and nothing is kept back."""
    usual, gaps = waves(draw, seconds), []
    for _ in range(draw.whole(1, 2)):
        start = draw.between(0.1, 0.8) * seconds
        gaps.append((start, start + draw.scale(120.0, 2400.0)))
    return lambda t: 0.0 if any(start <= t < end for start, end in gaps) else usual(t)


def bursts(draw: Draw, seconds: float) -> Share:
    """Bursts that come at any time (Poisson), of any length and height."""
    base, mean, length = draw.between(0.1, 0.4), draw.scale(300.0, 2400.0), draw.scale(20.0, 300.0)
    found, at = [], draw.wait(mean)
    while at < seconds:
        found.append((at, at + 10.0 + draw.wait(length), draw.between(0.4, 1.0)))
        at += draw.wait(mean)
    return lambda t: max([base, *(height for start, end, height in found if start <= t < end)])


def walk(draw: Draw, seconds: float) -> Share:
    """A random walk of the logarithm, pulled back to its middle."""
    pace, memory, level = draw.scale(0.02, 0.12), draw.scale(1200.0, 7200.0), draw.between(-0.5, 0.5)
    steps = [level]
    for _ in range(math.ceil(seconds / 30.0) + 1):
        steps.append(steps[-1] * math.exp(-30.0 / memory) + pace * draw.normal())
    top = max(steps)

    def share(t: float) -> float:
        place = int(t / 30.0)
        part = t / 30.0 - place
        return math.exp(steps[place] * (1.0 - part) + steps[place + 1] * part - top)

    return share


SHAPES: dict[str, Callable[[Draw, float], Share]] = {
    "step": step,
    "regimes": regimes,
    "ramp": ramp,
    "spike": spike,
    "waves": waves,
    "sawtooth": sawtooth,
    "flat": flat,
    "leak": leak,
    "flash crowd": flash_crowd,
    "decay": decay,
    "outage": outage,
    "silence": silence,
    "bursts": bursts,
    "walk": walk,
}
"""Every drawn shape by name."""


def drawn(shape: str, seed: int, seconds: float) -> Load:
    """Return a load of a shape with all its parameters drawn; its peak is 1 before noise."""
    draw = Draw(seed, f"load {shape}")
    share = SHAPES[shape](draw, seconds)
    steps = max(1, math.ceil(seconds / STEP_SECONDS))
    # Half an interval late: outside a lab, no load changes with a snapshot.
    late = draw.between(0.0, 10.0)
    load = Load(max(0.0, share(max(0.0, (place + 0.5) * STEP_SECONDS - late))) for place in range(steps)).scaled(1.0)
    strength = draw.between(0.08, 0.25) if shape == "flat" else draw.between(0.0, 0.12)
    return load.noisy(strength, seed, correlation_seconds=draw.scale(20.0, 300.0))


def _levels(draw: Draw, seconds: float, lengths: list[float]) -> Share:
    """Return random levels that last for the given lengths."""
    starts, levels, at = [0.0], [draw.between(0.08, 1.0)], 0.0
    for length in lengths:
        at += length
        if at >= seconds:
            break
        starts.append(at)
        levels.append(draw.between(0.08, 1.0))
    return lambda t: levels[bisect_right(starts, t) - 1]
