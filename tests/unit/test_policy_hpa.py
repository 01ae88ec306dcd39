"""The rules of the Horizontal Pod Autoscaler on the cases of its own tests, and the policy that uses them."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import pytest

from tests.support.cases import AT, case, decide, evidence, policy, propose
from tests.support.engine import check_spec
from tests.support.events import job, snapshot, steady
from tidegate.engine.state import JobState
from tidegate.policies import hpa_rules as rules
from tidegate.policies.behaviour import RATE_POLICIES
from tidegate.policies.hpa_rules import RatePolicy


@pytest.mark.parametrize(
    ("current", "usage", "target", "more", "want"),
    [
        (3, [300, 500, 700], 30, {}, 5),  # 50 % of 1000m against 30 %: 1.67 * 3
        (3, [300, 500, 700], 50, {}, 3),  # exactly on target
        (3, [1010, 1030, 1020], 100, {}, 3),  # 1.02 is within the tolerance
        (5, [100, 300, 500, 250, 250], 50, {}, 3),  # 28 %: 0.56 * 5 = 2.8
        (3, [400, 600], 30, {"unready": 1}, 3),  # 50 %; with one at 0: 33 % / 30 % = 1.1, just within
        (3, [500, 700], 30, {"unready": 1}, 4),  # 60 %; with one at 0: 40 % / 30 % = 1.33 * 3
        (3, [100, 200], 50, {"unready": 1}, 1),  # 15 %: on the way down it is left out, 0.3 * 2
        (4, [100, 450], 100, {"missing": 2}, 3),  # 27 %; with two at 100 %: 63 % of 4 = 2.52
        (4, [100, 450], 30, {"missing": 2}, 4),  # 27 %; with two at 100 %: 63 % / 30 % turns the direction
        (2, [400, 500], 30, {"missing": 1}, 2),  # 45 %; with one at 0: 30 % is on target
        (10, [900, 900, 900], 50, {"missing": 1}, 10),  # 67 % / 50 % = 1.34 * 4 = 6: up must not end below the present
        (3, [500, 500, 500], 25, {"missing": 1}, 6),  # 50 %; with one at 0: 37 % / 25 % = 1.48 * 4
    ],
)
def test_resource_replicas(current: int, usage: list[int], target: int, more: dict[str, int], want: int) -> None:
    """Ratio, tolerance and ceiling; pods that are missing or not ready count against the change."""
    assert rules.resource_replicas(current, usage, 1000, target, down=0.1, up=0.1, **more) == want


@pytest.mark.parametrize(
    ("current", "value", "target", "want"),
    [(3, 8600, 2150, 4), (3, 8600, 2867, 3), (0, 45, 10, 5), (63, 640, 10, 63), (60, 640, 10, 60), (57, 640, 10, 64)],
)
def test_per_pod_replicas(current: int, value: int, target: int, want: int) -> None:
    """A total shared by all pods; 640 / (10 * 63) = 1.016 freezes 63 of 64 (issue 2908 of KEDA)."""
    assert rules.per_pod_replicas(current, value, target, down=0.1, up=0.1) == want


@pytest.mark.parametrize(
    ("proposals", "want"),
    [([3, 7], 7), ([5, None], 5), ([3, None], None), ([None, None], None), ([], None), ([3, 2], 3)],
)
def test_several_metrics(proposals: list[int | None], want: int | None) -> None:
    """The largest wins. If one failed, scaling up is allowed and scaling down is not (4 pods run)."""
    assert rules.combine(4, proposals) == want


def test_stabilization_takes_the_extreme_of_the_window() -> None:
    """A scale-down goes to the largest size of 300 s, a scale-up to the smallest of its window."""
    records = [(0.0, 9), (100.0, 6), (200.0, 5)]
    stabilize = partial(rules.stabilize, up_window=0.0, down_window=300.0)
    assert stabilize(8, 3, records, 350.0) == 6
    assert stabilize(8, 3, records, 299.0) == 8  # 9 is above the current size: the scale-down window does not scale up
    assert stabilize(4, 12, records, 350.0) == 12
    assert stabilize(4, 12, records, 350.0, up_window=300.0) == 5


@pytest.mark.parametrize(
    ("current", "events", "select", "want"),
    [
        (2, [], "Max", 6),  # 2 + 4 pods beats 100 %
        (10, [], "Max", 20),  # 100 % beats 4 pods
        (10, [], "Min", 14),
        (10, [], "Disabled", 10),
        (6, [(95.0, 4)], "Max", 6),  # 4 of this period's 4 were added to 2: the limit is 6
        (6, [(80.0, 4)], "Max", 12),  # too old to count
        (6, [(95.0, 4), (98.0, -2)], "Max", 8),  # it began the period with 4
    ],
)
def test_rate_policies_up(current: int, events: list[tuple[float, int]], select: str, want: int) -> None:
    """The default policies: 4 pods or 100 % per 15 s, whichever is more."""
    policies = [RatePolicy("Pods", 4, 15), RatePolicy("Percent", 100, 15)]
    assert rules.scale_up_limit(current, events, policies, select, 100.0) == want


def test_rate_policies_down() -> None:
    """10 % of 15 is 1.5, so int(13.5) = 13 pods may stay; pods that were removed in the period count."""
    policies = [RatePolicy("Percent", 10, 60), RatePolicy("Pods", 4, 60)]
    assert rules.scale_down_limit(15, [], policies, "Max", 100.0) == 11
    assert rules.scale_down_limit(15, [], policies, "Min", 100.0) == 13
    assert rules.scale_down_limit(13, [(90.0, -2)], policies, "Min", 100.0) == 13
    assert rules.scale_down_limit(13, [], policies, "Disabled", 100.0) == 13


def test_the_limit_without_behaviours() -> None:
    """max(2 * current, 4)."""
    assert [rules.legacy_up_limit(n) for n in (1, 2, 3, 10)] == [4, 4, 6, 20]


def test_without_behaviours_every_change_goes_to_the_largest_of_the_window() -> None:
    """`stabilizeRecommendation` knows one window, and its largest size counts for growth as well."""
    rule = policy("hpa", limits="legacy", target_utilization_percent=0, target_lag_records_per_slot=100)
    memory, size, sizes, spec = rule.Memory(), 4, [], job(max_parallelism=64)
    for second, lag in ((0, 4000), (15, 800), (30, 800)):
        of = case(evidence(lag_records=lag), current=size, after=second, spec=spec)
        proposal = rule.propose(of, memory)
        memory = rule.ordered(of, proposal.memory, proposal, proposal.size)
        size = proposal.size
        sizes.append(size)
    assert sizes == [8, 16, 32]


def test_without_behaviours_growth_has_no_window() -> None:
    """`stabilization_up_seconds` is part of a `behavior`."""
    busy = case(evidence(utilization=1.0))
    assert propose("hpa", busy, stabilization_up_seconds=300.0).size == 4
    assert propose("hpa", busy, stabilization_up_seconds=300.0, limits="legacy").size == 5


@pytest.mark.parametrize(("name", "code"), [("hpa", "HPA_RATIO"), ("varga", "VARGA_UTILIZATION")])
def test_a_job_at_its_maximum_is_not_called_on_target(name: str, code: str) -> None:
    """It needs more than it may have, and says how much."""
    seen = evidence(utilization=1.0, arrival_rate=800.0)
    proposal = propose(name, case(seen, spec=job(max_parallelism=4)))
    assert (proposal.size, proposal.code) == (4, code)
    assert proposal.numbers["wanted"] > 4  # type: ignore[operator]


def test_the_policy_grows_with_utilization() -> None:
    """100 % busy against 80 %: ceil(1.25 * 4) = 5."""
    proposal = propose("hpa", case(evidence(utilization=1.0)))
    assert (proposal.size, proposal.code) == (5, "HPA_RATIO")


def test_slots_not_granted_count_as_unready_pods() -> None:
    """Pending pods are unready (`groupPods`): 0 on the way up, left out on the way down (`GetResourceReplicas`)."""
    shot = snapshot(0, slots=2)
    quick = {"stabilization_down_seconds": 0.0}
    # 100 % busy on 2 of 4 slots: with two at 0 % the ratio falls from 1.25 to 0.625 and changes direction
    assert propose("hpa", case(evidence(utilization=1.0), shot=shot), **quick).size == 4
    # 40 % busy: the ratio 0.5 applies to the two granted slots alone, ceil(0.5 * 2) = 1
    assert propose("hpa", case(evidence(utilization=0.4), shot=shot), **quick).size == 1


def test_slots_not_granted_can_count_as_missing_pods() -> None:
    """40 % busy on 2 of 4 slots: with two at 100 % it is 70 % / 80 %, so ceil(0.875 * 4) = 4."""
    given = case(evidence(utilization=0.4), shot=snapshot(0, slots=2))
    assert propose("hpa", given, ungranted_slots="missing", stabilization_down_seconds=0.0).size == 4


def test_an_unknown_metric_forbids_scaling_down() -> None:
    """With an unknown lag an idle job keeps its size, but a known lag alone can still scale it up."""
    unknown: dict[str, Any] = {"target_lag_records_per_slot": 100}
    down = propose("hpa", case(evidence(utilization=0.1, lag_records=None)), **unknown)
    assert (down.size, down.code) == (4, "HPA_METRIC_MISSING")
    up = propose("hpa", case(evidence(utilization=None, lag_records=800)), **unknown)
    assert up.size == 8


def test_a_new_job_is_not_shrunk_before_the_window_is_over() -> None:
    """The current size is the first recommendation, so a scale-down takes 300 s."""
    spec = job(policy="hpa", policy_options={})
    shots = steady(40, rate=40, capacity=400)
    state = JobState.new()
    first = None
    for number, shot in enumerate(shots):
        state, decision = decide(spec, [shot], state=state)
        if decision.command and first is None:
            first = number
    assert first == 31  # the second snapshot is the first that measures, and 30 more are 300 s


def test_the_rate_limit_is_remembered() -> None:
    """After a scale-up, the next one in the same period is limited by the slots that were added."""
    hpa = policy("hpa", up_policies="2 Pods/600s")
    before = case(evidence(utilization=1.0, slots_granted=16), current=16, spec=job(max_parallelism=64))
    proposal = hpa.propose(before, hpa.Memory())
    assert (proposal.size, proposal.code) == (18, "HPA_LIMITED")
    memory = hpa.ordered(before, proposal.memory, proposal, 18)
    again = hpa.propose(
        case(evidence(utilization=1.0, slots_granted=18), current=18, spec=job(max_parallelism=64), after=60), memory
    )
    assert (again.size, again.code) == (18, "HPA_LIMITED")


@pytest.mark.parametrize(
    ("policies", "select", "want"),
    [
        ("2 Pods/600s", "Max", 18),
        ("2 Pods/600s; 50 Percent/60s", "Max", 24),  # ceil(16 * 1.5)
        ("2 Pods/600s; 50 Percent/60s", "Min", 18),
        ("2 Pods/600s; 50 Percent/60s; 3 Pods/15s", "Max", 24),
        ("3 Pods/15s;5 Pods/60s", "Max", 21),
        ("4 Pods/15s; 100 Percent/15s", "Disabled", 16),
        ("", "Max", 64),
    ],
)
def test_growth_takes_any_list_of_rate_policies(policies: str, select: str, want: int) -> None:
    """`behavior.scaleUp.policies` is a list (`calculateScaleUpLimitWithScalingRules`); 64 of 16 slots are proposed."""
    given = case(evidence(lag_records=6400, slots_granted=16), current=16, spec=job(max_parallelism=64))
    options: dict[str, Any] = {"up_policies": policies, "up_select": select, "target_lag_records_per_slot": 100}
    assert propose("hpa", given, **options).size == want


@pytest.mark.parametrize(
    ("policies", "select", "want"),
    [
        ("10 Percent/60s", "Max", 14),  # trunc(16 * 0.9)
        ("10 Percent/60s; 4 Pods/60s", "Max", 12),
        ("10 Percent/60s; 4 Pods/60s", "Min", 14),
        ("10 Percent/60s", "Disabled", 16),
        ("", "Max", 2),  # ceil(0.1 / 0.8 * 16)
    ],
)
def test_reduction_takes_any_list_of_rate_policies(policies: str, select: str, want: int) -> None:
    """`behavior.scaleDown.policies` likewise (`calculateScaleDownLimitWithBehaviors`)."""
    given = case(evidence(utilization=0.1, slots_granted=16), current=16, spec=job(max_parallelism=64))
    options: dict[str, Any] = {"down_policies": policies, "down_select": select, "stabilization_down_seconds": 0.0}
    assert propose("hpa", given, **options).size == want


def test_each_rate_policy_looks_back_over_its_own_period() -> None:
    """3 slots were added 30 s ago: 3 more fit into the last 15 s, but only 1 into the 4 of the last 60 s."""
    hpa = policy("hpa", up_policies="3 Pods/15s; 4 Pods/60s", up_select="Min")
    before = case(evidence(utilization=1.0), current=16, spec=job(max_parallelism=64))
    first = hpa.propose(before, hpa.Memory())
    assert first.size == 19
    memory = hpa.ordered(before, first.memory, first, first.size)
    later = case(evidence(utilization=1.0), current=19, spec=job(max_parallelism=64), after=30)
    assert hpa.propose(later, memory).size == 20


@pytest.mark.parametrize(("current", "bound"), [(2, 4), (20, 16)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hpa", {"target_lag_records_per_slot": 100, "up_policies": "1 Pods/60s", "down_policies": "1 Pods/60s"}),
        ("keda", {"up_policies": "1 Pods/60s", "down_policies": "1 Pods/60s"}),
        ("varga", {"up_policies": "1 Pods/60s", "down_policies": "1 Pods/60s"}),
    ],
)
def test_a_size_outside_the_bounds_first_goes_to_the_bound(
    name: str, options: dict[str, Any], current: int, bound: int
) -> None:
    """`reconcileAutoscaler` looks at no metric and no rate policy then, and adds no recommendation."""
    rule = policy(name, **options)
    spec = job(min_parallelism=4, max_parallelism=16)
    seen = evidence(utilization=1.0, lag_records=800, slots_granted=current)
    first = rule.propose(case(seen, current=current, spec=spec), rule.Memory())
    assert (first.size, first.code) == (bound, "HPA_OUT_OF_BOUNDS")
    behaviour: Any = getattr(first.memory, "behaviour", first.memory)
    assert behaviour.highs == ((AT, current),), "the first recommendation of all is the current size"


def test_an_outdated_event_is_replaced_by_the_next_one_of_its_direction() -> None:
    """Growth is outdated after 15 s, so the next one takes its place, and the 60 s of scale-downs miss it.

    `storeScaleEvent` replaces one event: at 16 slots, of which 4 were added in each of two steps, the scale-down limit
    counts 4 of 8 if the steps were 20 s apart, and all of them after 10 s.
    """
    options: dict[str, Any] = {"down_policies": "10 Pods/60s", "stabilization_down_seconds": 0.0}
    for apart, want in ((10.0, 16 - 8 - 10), (20.0, 16 - 4 - 10)):
        hpa = policy("hpa", **options)
        memory = hpa.Memory()
        for number, before in enumerate((8, 12)):
            of = case(evidence(utilization=1.0), current=before, spec=job(max_parallelism=64), after=apart * number)
            proposal = hpa.propose(of, memory)
            memory = hpa.ordered(of, proposal.memory, proposal, before + 4)
        events, limit = memory.events, rules.scale_down_limit
        assert limit(16, events, [RatePolicy("Pods", 10, 60)], "Max", AT + apart + 1) == want


def test_a_recommendation_may_be_below_the_minimum() -> None:
    """The raw one is recorded: with a minimum that is lower now, it was no reason to keep 8 slots for 300 s."""
    hpa, memory = policy("hpa"), None
    for after, least, want in ((0.0, 8, 8), (200.0, 8, 8), (301.0, 1, 1), (302.0, 1, 1)):
        of = case(evidence(utilization=0.01), current=8, after=after, spec=job(min_parallelism=least))
        proposal = hpa.propose(of, memory or hpa.Memory())
        assert proposal.size == want
        memory = proposal.memory


def test_without_behaviours_a_record_as_old_as_the_window_counts() -> None:
    """`stabilizeRecommendation` drops what is older than 300 s; with a `behavior` only what is younger counts."""
    idle = evidence(utilization=0.1)
    for limits, want in (("legacy", 4), ("behavior", 1)):
        hpa = policy("hpa", limits=limits)
        first = hpa.propose(case(idle), hpa.Memory())
        assert hpa.propose(case(idle, after=300.0), first.memory).size == want
        assert hpa.propose(case(idle, after=300.5), first.memory).size == 1


@pytest.mark.parametrize("option", ["stabilization_up_seconds", "stabilization_down_seconds"])
def test_a_stabilization_window_has_an_hour_at_most(option: str) -> None:
    """As Kubernetes validates it, in both directions."""
    assert check_spec(job(policy="hpa", policy_options={option: 3600.0})) == []
    (found,) = check_spec(job(policy="hpa", policy_options={option: 3601.0}))
    assert found == f"scaling.policy_options.{option}: must be at most 3600, found 3601.0"


@pytest.mark.parametrize("name", ["hpa", "keda", "varga"])
@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ("4 Pod/15s", "must be VALUE TYPE/PERIOD"),
        ("4 pods/15s", "must be VALUE TYPE/PERIOD"),
        ("4 Pods per 15s", "must be VALUE TYPE/PERIOD"),
        ("4 Pods/15s;", "found ''"),
        ("04 Pods/15s", "must be VALUE TYPE/PERIOD"),
        ("-4 Pods/15s", "found '-4 Pods/15s'"),
        ("0 Pods/15s", "a value of at least 1"),
        ("4 Pods/0s", "a period from 1 to 1800 s"),
        ("4 Pods/15s; 10 Percent/1801s", "found '10 Percent/1801s'"),
    ],
)
def test_a_rate_policy_that_cannot_be_read_is_refused(name: str, policies: str, problem: str) -> None:
    """The same values as Kubernetes permits, each problem with its option and the policy that has it."""
    for option in ("up_policies", "down_policies"):
        (found,) = check_spec(job(policy=name, policy_options={option: policies}))
        assert found.startswith(f"scaling.policy_options.{option}: ")
        assert problem in found
        assert not re.search(RATE_POLICIES, policies)


@pytest.mark.parametrize(
    "policies", ["", "4 Pods/15s", "4 Pods/1s;100 Percent/1800s ; 1 Pods/1799s", " 10 Percent/60s "]
)
def test_a_rate_policy_that_can_be_read_fits_the_schema_too(policies: str) -> None:
    """An editor that checks `job.yaml` by the JSON Schema accepts what `tidegate apply` accepts."""
    assert check_spec(job(policy="hpa", policy_options={"up_policies": policies})) == []
    assert re.search(RATE_POLICIES, policies)


@pytest.mark.parametrize(
    ("value", "replicas"), [(math.inf, 2**31 - 1), (-math.inf, -(2**31)), (-1e300, -(2**31)), (2.1, 3)]
)
def test_replicas_are_an_int32(value: float, replicas: int) -> None:
    """A ratio over a vanishing rate is infinite, in either direction; the replicas stay within an int32."""
    assert rules.ceil_replicas(value) == replicas
