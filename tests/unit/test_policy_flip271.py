"""The options of the Flink autoscaler's policy are refused outside Flink's ranges, wherever a spec is checked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import policy
from tests.support.engine import check_spec
from tests.support.events import job
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import parse_specs
from tidegate.engine.options import BadOption


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"utilization_max": 0.5}, "utilization_max: must be from utilization_target (0.7) to 1, found 0.5"),
        ({"utilization_max": 1.2}, "utilization_max: must be at most 1, found 1.2"),
        ({"utilization_min": 0.8}, "utilization_min: must be from 0 to utilization_target (0.7), found 0.8"),
        (
            {"utilization_target": 0.4, "utilization_min": 0.5},
            "utilization_min: must be from 0 to utilization_target (0.4), found 0.5",
        ),
        ({"scalability_coefficient_min": 0.005}, "scalability_coefficient_min: must be at least 0.01, found 0.005"),
        ({"scalability_coefficient_min": 1.2}, "scalability_coefficient_min: must be at most 1, found 1.2"),
    ],
)
def test_options_outside_the_ranges_of_flink_are_refused(options: dict[str, Any], problem: str) -> None:
    """The ranges of Flink's `DefaultValidator`: max in [target, 1], min in [0, target], coefficient in [0.01, 1]."""
    assert check_spec(job(policy="flip271", policy_options=options)) == [f"scaling.policy_options.{problem}"]


def test_the_limits_of_the_ranges_are_permitted() -> None:
    """Both edges may lie on the target, and the coefficient may be 0.01."""
    options = {"utilization_max": 0.7, "utilization_min": 0.7, "scalability_coefficient_min": 0.01}
    assert check_spec(job(policy="flip271", policy_options=options)) == []


def test_both_edges_are_reported_at_once() -> None:
    """Someone who mixed up the two edges reads about both."""
    with pytest.raises(BadOption, match=r"utilization_max: .* found 0\.2; .*utilization_min: .* found 0\.9"):
        policy("flip271", utilization_max=0.2, utilization_min=0.9)


def test_a_spec_file_is_refused_with_the_line_of_the_edge() -> None:
    """`tidegate apply` names file, line, field, value and range."""
    spec = job(policy="flip271", policy_options={"utilization_max": 0.5}).model_dump_json(indent=1)
    line = next(number for number, text in enumerate(spec.splitlines(), 1) if '"utilization_max"' in text)
    with pytest.raises(Problem) as caught:
        parse_specs(spec, "job.json")
    said = "scaling.policy_options.utilization_max: must be from utilization_target (0.7) to 1, found 0.5"
    assert f"job.json:{line}: {said}" in str(caught.value)
