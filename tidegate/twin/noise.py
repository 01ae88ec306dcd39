"""Noise as a pure function: the same seed and keys give the same number, in any order, on any machine.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) used as a hash of
a counter. There is no hidden state, so one job's numbers never shift another job's.
"""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class Noise:
    """A stream of numbers addressed by whole-number keys."""

    __slots__ = ("_seed",)

    def __init__(self, seed: int, name: str = "") -> None:
        """`name` separates streams of one seed, such as one per job."""
        state = _mix((seed * _GOLDEN + _GOLDEN) & _MASK)
        for byte in name.encode():
            state = _mix((state + byte + _GOLDEN) & _MASK)
        self._seed = state

    def uniform(self, *keys: int) -> float:
        """Return a number in [0, 1) for the keys."""
        state = self._seed
        for key in keys:
            state = _mix((state + (key + 1) * _GOLDEN) & _MASK)
        return (state >> 11) * 2.0**-53

    def between(self, low: float, high: float, *keys: int) -> float:
        """Return a number in [low, high) for the keys."""
        return low + (high - low) * self.uniform(*keys)

    def normal(self, *keys: int) -> float:
        """Return a standard normal number for the keys (Box-Muller)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform(*keys, 0)))
        return radius * math.cos(2.0 * math.pi * self.uniform(*keys, 1))
