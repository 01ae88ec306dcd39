"""The Flink autoscaler's policy over a window: what it measures, and the options that it refuses as Flink does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import AT, case, evidence, policy
from tests.support.engine import check_spec, step
from tests.support.events import batch, job, observed, result, snapshot
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import parse_specs
from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.case import Proposal
from tidegate.engine.options import BadOption
from tidegate.engine.state import JobState, Slice
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.policies.flip271 import Executed, Flip271Memory

WINDOW = {"metrics_window_seconds": 60.0, "stabilization_interval_seconds": 0.0, "alignment_mode": "OFF"}


def sample(second: int, *, lag: int = 0, busy: float = 5.0, rate: int = 100) -> Slice:
    """Return ten seconds at a steady rate, in records/s, that end `second` seconds after the start of the run."""
    done = second * rate
    sums = BatchSums(2, rate * 10, busy, rate * rate * 50, rate * busy * 5)
    return Slice(AT + second, done + lag, done, 10.0, busy, sums)


def decided(samples: list[Slice]) -> list[Proposal[Any]]:
    """Return what the policy proposes after each sample of a run, each time with a window of 60 s."""
    rule, proposals = policy("flip271", **WINDOW), []
    memory = rule.Memory()
    for count in range(1, len(samples) + 1):
        after = samples[count - 1].at - AT
        window = [piece for piece in samples[:count] if piece.at >= AT + after - 60]
        seen = evidence(lag_records=window[-1].lag, partitions=8)
        of = case(seen, window=window, after=after, run_since=AT, window_since=AT)
        proposals.append(rule.propose(of, memory))
        memory = proposals[-1].memory
    return proposals


def test_a_capacity_that_was_observed_is_remembered_for_the_whole_run() -> None:
    """Flink keeps the mean of earlier samples as a sample of its own, so it feeds itself (`computeDataRateMetrics`).

    Twice the job lags and does 100/s, then it is busy for half of the time: busy time alone would say 200/s.
    """
    run = [sample(10), *(sample(second, lag=9_000) for second in (20, 30)), *(sample(10 * n) for n in range(4, 60))]
    assert [proposal.capacity for proposal in decided(run)[7:]] == [100.0] * 52


def test_one_observation_alone_is_not_used() -> None:
    """`observed_min_observations` is 2, and a mean of too few is no sample."""
    run = [sample(10), sample(20, lag=9_000), *(sample(10 * n) for n in range(3, 20))]
    assert {proposal.capacity for proposal in decided(run)[7:]} == {200.0}


def test_a_change_of_size_forgets_the_observed_capacity() -> None:
    """The window starts over, as Flink drops its samples when the job runs again."""
    run = [sample(10), *(sample(second, lag=9_000) for second in (20, 30)), *(sample(10 * n) for n in range(4, 12))]
    rule, memory = policy("flip271", **WINDOW), decided(run)[-1].memory
    assert memory is not None
    assert memory.observed
    restarted = [sample(10 * n) for n in range(100, 107)]
    of = case(window=restarted, after=1060.0, run_since=AT + 990, window_since=AT + 1000)
    assert rule.propose(of, memory._replace(first_at=AT + 1000)).capacity == 200.0


def test_a_change_in_place_starts_the_window_over() -> None:
    """In Flink every rescale is a new run, so its samples are dropped (`collect`).

    4 slots that can do 400/s get 600/s. With what they had shown, 9 slots in place seemed to do no more than 400/s, and
    went to 20, 43 and 64 slots at the next three snapshots.
    """
    options = {"stabilization_interval_seconds": 30.0, "restart_time_seconds": 0.0, "scale_down_interval_seconds": 0.0}
    spec = job(max_parallelism=64, policy_options=WINDOW | options)
    state, slots, arrived, done, results = JobState.new(), 4, 0, 0, list[ActionResult]()
    changes: dict[int, int] = {}
    for number in range(60):
        arrived += 6000
        records = min(arrived - done, 1000 * slots)
        done += records
        batches = (batch(number, number, records, records / (100 * slots)),)
        shot = snapshot(number, arrived=arrived, committed=done, slots=slots, partitions=64, batches=batches)
        state, decision = step(state, shot, spec, observed(shot, results=results))
        results = []
        if decision.command is not None:
            assert decision.command.way is Way.IN_PLACE
            changes[10 * number] = slots = decision.command.to_parallelism
            results = [result(decision.command.command_id, Phase.VERIFIED, number, parallelism=slots, way=Way.IN_PLACE)]
    assert changes == {90: 9}


def test_idle_samples_are_remembered_as_unlimited() -> None:
    """The memory goes to the wire, which has no infinity."""
    run = [sample(10 * n, rate=0, busy=0.0) for n in range(1, 9)]
    last = decided(run)[-1]
    assert (last.code, last.capacity) == ("SCALE_DOWN_DELAYED", None)
    assert last.memory is not None
    assert {rate.records_per_second for rate in last.memory.observed} == {None}


@pytest.mark.parametrize(
    ("missing", "waits"),
    [
        ((), []),
        ((160,), []),  # what follows is a window old when it is asked
        ((160, 170), [230]),
        ((160, 170, 180), [230, 240]),
        (tuple(range(160, 290, 10)), [290, 300, 310, 320, 330, 340]),  # longer than the window: it fills from the start
    ],
)
def test_a_gap_at_the_start_of_the_window_delays_decisions(missing: tuple[int, ...], waits: list[int]) -> None:
    """A full window drops what is older, and is full again when the first sample left is a window old.

    With nothing at 160 and 170, the round of 220 s still decides and drops the sample of 150 s. It leaves 180 as the
    first, and 180 + 60 is 240 (`getWindowFullTime`).
    """
    run = [sample(second) for second in range(10, 400, 10) if second not in missing]
    pairs = zip(run, decided(run), strict=True)
    waited = [piece.at - AT for piece, proposal in pairs if proposal.code == "WINDOW_FILLING"]
    assert waited == [10, 20, 30, 40, 50, 60, *waits]


def test_each_sample_of_the_load_is_rounded() -> None:
    """Flink stores the busy share of each sample with three decimals, and does not round their mean (`roundMetric`).

    Seven samples of 0.5004 and 0.5006 in turn are 0.500 and 0.501: a mean of 0.5005, not of 0.501.
    """
    run = [sample(10 * n, busy=5.004 if n % 2 else 5.006) for n in range(1, 8)]
    assert decided(run)[-1].capacity == 199.8
    assert round(100 / 0.5005, 3) == 199.8
    assert round(100 / 0.501, 3) != 199.8


def test_the_size_may_be_aligned_up_to_the_present_one() -> None:
    """A job of 20 slots that may have 10 needs 11: 12, a divisor of 12 partitions (`parallelismUpperLimit`)."""
    run = [sample(10 * n, rate=1000, busy=3.5) for n in range(1, 9)]
    options = {"scale_down_interval_seconds": 0.0, "restart_time_seconds": 0.0, "alignment_mode": "BALANCED"}
    rule = policy("flip271", **(WINDOW | options))
    seen = evidence(lag_records=0, partitions=12)
    spec = job(max_parallelism=10)
    of = case(seen, spec=spec, current=20, window=run[1:], after=80.0, run_since=AT, window_since=AT)
    proposal = rule.propose(of, Flip271Memory(first_at=AT + 10))
    assert proposal.numbers["wanted"] == 1429.0
    assert proposal.size == 12


def test_a_scale_down_of_an_idle_job_is_in_the_history() -> None:
    """Its capacity is unlimited; without it, an older command would count as the last one."""
    rule = policy("flip271", **WINDOW, scale_down_interval_seconds=0.0)
    run = [sample(10 * n, rate=0, busy=0.0) for n in range(1, 9)]
    of = case(evidence(lag_records=0), window=run[1:], after=80.0, run_since=AT, window_since=AT)
    memory = Flip271Memory(first_at=AT + 10, history=(Executed(AT - 50, 2, 4, 500.0),))
    proposal = rule.propose(of, memory)
    assert proposal.code == "IDLE"
    kept = rule.ordered(of, proposal.memory, proposal, proposal.size)
    assert kept.history[-1] == Executed(AT + 80, 4, proposal.size, None)


def test_a_size_that_somebody_asked_for_is_not_in_the_history() -> None:
    """There is no capacity to compare with: the rule had measured nothing yet."""
    rule = policy("flip271", **WINDOW)
    of = case(window=[sample(10)], after=10.0, run_since=AT, window_since=AT)
    proposal = rule.propose(of, rule.Memory())
    assert proposal.code == "WINDOW_FILLING"
    assert rule.ordered(of, proposal.memory, proposal, 8).history == ()


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
