"""Decisions are the same on every version of Python: since 3.12 the builtin `sum` compensates for rounding."""

import builtins
import math
from collections.abc import Callable, Iterable

import pytest

from tidegate.engine.total import total
from tidegate.events.envelope import value_of
from tidegate.events.way import Way
from tidegate.lab.jobs import lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.simulate import simulate
from tidegate.twin.workloads import SHAPES

Sum = Callable[..., float]


def from_left_to_right(values: Iterable[float], start: float = 0) -> float:
    """Add as `sum` did up to Python 3.11."""
    for value in values:
        start += value
    return start


def compensated(values: Iterable[float], start: float = 0) -> float:
    """Add floats as exactly as `sum` may, and whole numbers as it does."""
    numbers = [start, *values]
    return math.fsum(numbers) if any(isinstance(number, float) for number in numbers) else from_left_to_right(numbers)


def test_values_are_added_from_left_to_right() -> None:
    """Each partial sum is rounded, as in a loop; what `fsum` returns is more exact."""
    values = [1e16, 1.0, 1.0, -1e16, 3.0]
    assert math.fsum(values) == 5.0
    assert total(values) == from_left_to_right(values) == 3.0
    assert (total([]), total(iter([2, 0.5]))) == (0.0, 2.5)


def decided_with(version_of_sum: Sum) -> list[bytes]:
    """Return the decisions on a simulated job where `sum` is that one."""
    model = lab_model(ways=(Way.IN_PLACE,))
    load = SHAPES["sawtooth"](lab_peak(model, spec_for(model)), 3600.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "sum", version_of_sum)
        [recording] = simulate(lab_job(load, ways=(Way.IN_PLACE,)).with_policy("tide")).values()
    return list(map(value_of, recording.decisions))


def test_a_decision_does_not_depend_on_the_version_of_sum() -> None:
    """It did: this job's decisions on Python 3.12 were others than on 3.11."""
    assert decided_with(from_left_to_right) == decided_with(compensated)
