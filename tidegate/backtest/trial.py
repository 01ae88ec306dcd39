"""One trial: the engine on the twin under the load of the past. What was and what would have been are scored alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.backtest.delays import mean_delays, quantile
from tidegate.engine.plan import Policies
from tidegate.events.job import JobSpec
from tidegate.lab.bill import MONTH_SECONDS, monthly_bill
from tidegate.lab.score import score
from tidegate.lab.simulate import EngineDecider, JobRecording, Scenario, TopicPlan, play, simulate
from tidegate.lab.tunings import DEFAULTS, Tuning
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel


@dataclass(frozen=True, slots=True)
class Replica:
    """The twin of a job, its load and its spec: all that a trial needs. It travels to Spark's executors."""

    model: JobModel
    shares: tuple[float, ...]
    load: Load
    spec: JobSpec
    size: int
    """The job's size at the begin."""
    lag_records: int
    """Records that wait at the begin."""
    epoch: int
    """Epoch second of the begin."""

    def scenario(self, tuning: Tuning, seconds: float) -> Scenario:
        """Return the scenario of the first `seconds` under a setting of the spec's policy and guards."""
        options = {**self.spec.scaling.policy_options, **tuning.options}
        scenario = Scenario(
            models=(self.model,),
            specs=(self.spec,),
            topics={self.model.sources[0]: TopicPlan(self.shares, self.load, waiting_records=self.lag_records)},
            pools={self.spec.pool_id: 2 * self.spec.scaling.max_parallelism},  # a handover holds two sizes
            sizes={self.spec.job_id: self.size},
            seconds=min(seconds, self.load.seconds),
            epoch=self.epoch,
        )
        return scenario.with_policy(self.spec.scaling.policy, options, tuning.guards)

    def run(self, tuning: Tuning, seconds: float = math.inf, policies: Policies | None = None) -> JobRecording:
        """Run the engine on the twin; raises `ValueError` for options that exclude each other."""
        scenario = self.scenario(tuning, seconds)
        return simulate(scenario, EngineDecider(scenario.specs, policies))[self.spec.job_id]

    def constant(self, size: int) -> JobRecording:
        """Return what a size that never changes would have brought."""
        return play(replace(self.scenario(DEFAULTS, math.inf), sizes={self.spec.job_id: size}), ())


@dataclass(frozen=True, slots=True)
class Result:
    """What a run brought, or what was."""

    seconds: float
    slot_seconds: float
    delay_median: float
    """Of the mean delays of windows, seconds."""
    delay_p95: float
    delay_worst: float
    late_seconds: float
    """Above the lag objective."""
    changes: int
    """Changes of size."""
    cost: float
    """What is to be low: money per month if there are prices, slot-seconds otherwise."""

    @property
    def slot_hours_a_month(self) -> float:
        """Slot-hours of a month like it."""
        return self.slot_seconds / self.seconds * (MONTH_SECONDS / 3600)


def result_of(recording: JobRecording, replica: Replica, window: float) -> Result:
    """Return the figures of a recording."""
    spec, commits = replica.spec, recording.commits
    found = score(replica.model, spec, replica.shares, recording)
    ticks = recording.ticks
    sizes = [tick.slots for tick in ticks if tick.slots]
    changes = found.rescales or sum(a != b for a, b in pairwise(sizes))
    prices = spec.scaling.prices
    cost = found.cost if prices is None else monthly_bill(prices, found).total
    delays = sorted(mean_delays(commits, ticks[-1].at, window))
    return Result(
        seconds=found.seconds,
        slot_seconds=found.core_seconds,
        delay_median=quantile(delays, 0.5),
        delay_p95=quantile(delays, 0.95),
        delay_worst=found.worst_age_seconds,
        late_seconds=found.violated_seconds,
        changes=changes,
        cost=cost,
    )


def cost_of(shared: tuple[Replica, Policies], tuning: Tuning, seconds: float, window: float) -> float:
    """Return the cost of a setting on the first `seconds`; infinite for options that exclude each other.

    It runs on Spark's executors, which are sent the replica and the policies.
    """
    replica, policies = shared
    try:
        recording = replica.run(tuning, seconds, policies)
    except ValueError:
        return math.inf
    return result_of(recording, replica, window).cost


def part(recording: JobRecording, begin: float, end: float, epoch: float) -> JobRecording:
    """Return a recording from one second to another, its times counted from the first."""
    commits = [(at - begin, oldest - begin) for at, oldest in recording.commits if begin < at <= end]
    rest = next((oldest for at, oldest in recording.commits if at > end), None)
    if rest is not None:
        commits.append((end - begin, rest - begin))
    return JobRecording(
        ticks=[replace(tick, at=tick.at - begin) for tick in recording.ticks if begin <= tick.at <= end],
        commits=commits,
        decisions=[each for each in recording.decisions if begin <= each.decided_at.timestamp() - epoch <= end],
        commands=[each for each in recording.commands if begin <= each.issued_at.timestamp() - epoch <= end],
        results=[each for each in recording.results if begin <= each.at.timestamp() - epoch <= end],
    )
