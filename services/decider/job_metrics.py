"""The metrics of the jobs, from the decisions that this decider made and the results that it read.

Gauges come from each job's newest decision when Prometheus asks for them; counters and histograms are kept as events
come. Whatever the decider no longer decides on, because the job was removed or its partition went to another decider,
is forgotten with all its series.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.engine.guards.worth import RestartBudget
from tidegate.engine.history import restarts_of_the_day
from tidegate.engine.plan import guard_of
from tidegate.engine.state import InFlight, JobState
from tidegate.engine.ways import longest_change_seconds
from tidegate.events.decision import Decision, Status
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.runtime import metrics
from tidegate.runtime.metrics import Metric

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class _Newest:
    """What is known of one job."""

    spec: JobSpec
    snapshot: MetricSnapshot
    decision: Decision
    state: JobState
    """The state after the decision."""
    change: InFlight | None
    """The command under way."""


Figures = dict[Metric, Callable[[_Newest], float | None]]

FIGURES: Figures = {
    metrics.JOB_DELAY: lambda job: job.decision.evidence.delay_seconds,
    metrics.JOB_OBJECTIVE: lambda job: job.spec.scaling.lag_objective_seconds,
    metrics.JOB_LAG: lambda job: job.decision.evidence.lag_records,
    metrics.JOB_ARRIVAL: lambda job: job.decision.evidence.arrival_rate,
    metrics.JOB_CAPACITY: lambda job: job.decision.evidence.true_processing_rate,
    metrics.JOB_UTILIZATION: lambda job: job.decision.evidence.utilization,
    metrics.JOB_STATE: lambda job: job.decision.evidence.state_bytes,
    metrics.JOB_CURRENT: lambda job: _if_known(job, job.decision.current_parallelism),
    metrics.JOB_PROPOSED: lambda job: _if_known(job, job.decision.proposed_parallelism),
    metrics.JOB_FINAL: lambda job: _if_known(job, job.decision.final_parallelism),
    metrics.JOB_GRANTED: lambda job: job.snapshot.slots_granted,
    metrics.JOB_MINIMUM: lambda job: job.spec.scaling.min_parallelism,
    metrics.JOB_MAXIMUM: lambda job: job.spec.scaling.max_parallelism,
    metrics.JOB_SHOULD_RUN: lambda job: float(job.spec.running),
    metrics.JOB_CHANGE_SINCE: lambda job: None if job.change is None else job.change.issued_at,
    metrics.JOB_CHANGE_DEADLINE: lambda job: longest_change_seconds(job.spec.application),
    metrics.JOB_FAILED_STARTS: lambda job: job.state.failures,
    metrics.JOB_RESTARTS_LEFT: lambda job: _restarts_left(job.spec, job.state, job.decision),
    metrics.JOB_INTERVAL: lambda job: job.spec.interval_seconds,
    metrics.JOB_SNAPSHOT_AT: lambda job: job.snapshot.observed_at.timestamp(),
}
"""How each gauge with no label but the job's is read; None is unknown, and has no sample."""


class JobMetrics(Collector):
    """The series of all jobs that this decider decides on. Prometheus asks in another thread than events come in."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._jobs: dict[str, _Newest] = {}
        self._counted: set[str] = set()
        self._known: dict[str, tuple[JobSpec, float]] = {}
        """Every job that should be measured, and since when it has been known here."""
        self._lock = threading.Lock()
        self._decisions = metrics.JOB_DECISIONS.counter(registry)
        self._reasons = metrics.JOB_REASONS.counter(registry)
        self._holds = metrics.JOB_HOLDS.counter(registry)
        self._commands = metrics.JOB_COMMANDS.counter(registry)
        self._results = metrics.JOB_RESULTS.counter(registry)
        self._outage = metrics.JOB_OUTAGE.histogram(registry)
        self._delay = metrics.JOB_CHANGE_DELAY.histogram(registry)
        self._labelled = [each for each in vars(self).values() if isinstance(each, Counter | Histogram)]
        registry.register(self)

    def decided(self, spec: JobSpec, snapshot: MetricSnapshot, state: JobState, decision: Decision) -> None:
        """Take in a decision and the state after it."""
        with self._lock:
            self._jobs[spec.job_id] = _Newest(spec, snapshot, decision, state, state.in_flight)
            self._counted.add(spec.job_id)
        self._decisions.labels(spec.job_id, decision.status.value).inc()
        for entry in decision.trail:
            self._reasons.labels(spec.job_id, entry.by, entry.code).inc()
            if entry.before != entry.after == decision.current_parallelism:
                self._holds.labels(spec.job_id, entry.by).inc()
        command = decision.command
        if command is not None:
            self._commands.labels(spec.job_id, command.kind.value, command.way or "none").inc()

    def result(self, result: ActionResult) -> None:
        """Take in a result: its phase applies at once, before the job's next decision."""
        self._results.labels(result.job_id, result.phase.value, result.code).inc()
        if result.outage_seconds is not None:
            self._outage.labels(result.job_id, result.way or "none").observe(result.outage_seconds)
        if result.delay_seconds is not None:
            self._delay.labels(result.job_id, result.way or "none").observe(result.delay_seconds)
        with self._lock:
            self._counted.add(result.job_id)
            job = self._jobs.get(result.job_id)
            if job is not None and job.change is not None and job.change.command_id == result.command_id:
                change = None if result.phase.terminal else job.change._replace(phase=result.phase.value)
                self._jobs[result.job_id] = replace(job, change=change)

    def follow(self, specs: Iterable[JobSpec], now: datetime) -> None:
        """Forget the jobs that are not among `specs`; from now on each of `specs` is known, decided on or not."""
        at = now.timestamp()
        with self._lock:
            self._known = {spec.job_id: (spec, self._known.get(spec.job_id, (spec, at))[1]) for spec in specs}
            gone = self._counted.difference(self._known)
            self._counted -= gone
            for job_id in gone:
                self._jobs.pop(job_id, None)
        for job_id in gone:
            for metric in self._labelled:
                metric.remove_by_labels({"job_id": job_id})

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges."""
        with self._lock:
            jobs = list(self._jobs.values())
            waiting = [known for job_id, known in self._known.items() if job_id not in self._jobs]
        # A job without a decision counts from when it was first known, so that one that nobody measures is noticed.
        undecided: dict[Metric, list[Sample]] = {
            metrics.JOB_SNAPSHOT_AT: [((spec.job_id,), since) for spec, since in waiting],
            metrics.JOB_INTERVAL: [((spec.job_id,), spec.interval_seconds) for spec, _ in waiting],
        }
        for metric, figure in FIGURES.items():
            known = [((job.spec.job_id,), value) for job in jobs if (value := figure(job)) is not None]
            yield _family(metric, [*known, *undecided.get(metric, ())])
        yield _family(metrics.JOB_INFO, ((_info(job.spec), 1.0) for job in jobs))
        yield _family(
            metrics.JOB_STATUS,
            (((job.spec.job_id, each), float(each is job.decision.status)) for job in jobs for each in Status),
        )
        yield _family(
            metrics.JOB_PHASE,
            (((job.spec.job_id, job.change.kind, job.change.phase), 1.0) for job in jobs if job.change is not None),
        )
        jobs.sort(key=lambda job: job.snapshot.observed_at)  # the newest snapshot tells how its pool is
        pools = {pool.pool_id: pool for job in jobs if (pool := job.snapshot.pool) is not None}
        yield _family(metrics.POOL_SLOTS, (((pool_id,), pool.slots_total) for pool_id, pool in pools.items()))
        yield _family(metrics.POOL_USED, (((pool_id,), pool.slots_used) for pool_id, pool in pools.items()))


def _family(metric: Metric, samples: Iterable[Sample]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.family, metric.says, labels=metric.labels, unit=metric.unit)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _info(spec: JobSpec) -> tuple[str, ...]:
    return spec.job_id, spec.pipeline_id, spec.pool_id, spec.scaling.policy, spec.scaling.mode.value


def _if_known(job: _Newest, slots: int) -> int | None:
    """Return a size that a decision tells, unless nobody knows how large the job is."""
    return slots if job.decision.size_is_known else None


def _restarts_left(spec: JobSpec, state: JobState, decision: Decision) -> int:
    """Return what the restart budget still allows."""
    used = restarts_of_the_day(state.history, decision.decided_at.timestamp())
    return max(0, guard_of(RestartBudget, spec).per_day - len(used))
