"""The one table of metric names: code, docs and deploy files come from it.

Services make their metrics from it. `python -m tools.observe` writes docs/metrics.md, the dashboards and the alerts.

Names follow OpenMetrics: base units, which end the name, and `_total` for counters. A figure that is not known has no
sample; it is never written as zero. The label for a job is `job_id`, because Prometheus uses `job` itself. Labels have
few values: ids of jobs and pools, and words from fixed lists. Series of a removed job are removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from tidegate.events.envelope import Unreadable

COLLECTOR, DECIDER, ACTUATOR = "collector", "decider", "actuator"
SERVICES = (COLLECTOR, DECIDER, ACTUATOR)
UNITS = ("records_per_second", "seconds", "records", "bytes", "slots", "ratio")
QUICK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
CHANGE_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in queries, what it says, which services have it."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    says: str
    labels: tuple[str, ...] = ()
    services: tuple[str, ...] = SERVICES
    buckets: tuple[float, ...] = QUICK_SECONDS

    @property
    def family(self) -> str:
        """The name of the family: that of a counter lacks `_total`."""
        return self.name.removesuffix("_total")

    @property
    def unit(self) -> str:
        """The base unit that ends the name, or ""."""
        return next((unit for unit in UNITS if self.family.endswith(f"_{unit}")), "")

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        """Return the gauge of this name in a registry."""
        return Gauge(self.family, self.says, self.labels, unit=self.unit, registry=registry)

    def counter(self, registry: CollectorRegistry) -> Counter:
        """Return the counter of this name in a registry."""
        return Counter(self.family, self.says, self.labels, unit=self.unit, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        """Return the histogram of this name in a registry."""
        return Histogram(self.family, self.says, self.labels, unit=self.unit, registry=registry, buckets=self.buckets)


TABLE: list[Metric] = []


def _gauge(name: str, says: str, *labels: str, services: tuple[str, ...] = SERVICES) -> Metric:
    TABLE.append(Metric(f"tidegate_{name}", "gauge", says, labels, services))
    return TABLE[-1]


def _counter(name: str, says: str, *labels: str, services: tuple[str, ...] = SERVICES) -> Metric:
    TABLE.append(Metric(f"tidegate_{name}", "counter", says, labels, services))
    return TABLE[-1]


def _histogram(
    name: str,
    says: str,
    *labels: str,
    services: tuple[str, ...] = SERVICES,
    buckets: tuple[float, ...] = QUICK_SECONDS,
) -> Metric:
    TABLE.append(Metric(f"tidegate_{name}", "histogram", says, labels, services, buckets))
    return TABLE[-1]


_D, _C, _A = (DECIDER,), (COLLECTOR,), (ACTUATOR,)

# --- a job, as its newest snapshot and decision tell it
JOB_INFO = _gauge(
    "job_info",
    "1 for each job, with what its spec says",
    "job_id",
    "pipeline_id",
    "pool_id",
    "policy",
    "mode",
    services=_D,
)
JOB_DELAY = _gauge("job_delay_seconds", "Age of the oldest record that is not committed", "job_id", services=_D)
JOB_OBJECTIVE = _gauge("job_lag_objective_seconds", "The delay that the spec allows", "job_id", services=_D)
JOB_LAG = _gauge("job_lag_records", "Records that arrived and are not committed", "job_id", services=_D)
JOB_ARRIVAL = _gauge("job_arrival_records_per_second", "Records that arrive", "job_id", services=_D)
JOB_CAPACITY = _gauge(
    "job_capacity_records_per_second", "Records that the job could process at its present size", "job_id", services=_D
)
JOB_UTILIZATION = _gauge("job_utilization_ratio", "Share of time inside micro-batches", "job_id", services=_D)
JOB_STATE = _gauge("job_state_bytes", "Size of the job's state", "job_id", services=_D)
JOB_CURRENT = _gauge("job_current_slots", "Size of the running job; 0 while it does not run", "job_id", services=_D)
JOB_PROPOSED = _gauge("job_proposed_slots", "Size that the policy proposed", "job_id", services=_D)
JOB_FINAL = _gauge("job_final_slots", "Size that the guards made of it", "job_id", services=_D)
JOB_GRANTED = _gauge("job_granted_slots", "Slots that the cluster has given to the job", "job_id", services=_D)
JOB_MINIMUM = _gauge("job_minimum_slots", "Smallest size that the spec allows", "job_id", services=_D)
JOB_MAXIMUM = _gauge("job_maximum_slots", "Largest size that the spec allows", "job_id", services=_D)
JOB_SHOULD_RUN = _gauge(
    "job_should_run",
    "1 if the spec says that the job runs, 0 if it says that the job is stopped",
    "job_id",
    services=_D,
)
JOB_STATUS = _gauge(
    "job_status", "1 for the status of the newest decision, 0 for the others", "job_id", "status", services=_D
)
JOB_PHASE = _gauge(
    "job_change_phase",
    "1 for the phase of the command under way; absent without one",
    "job_id",
    "kind",
    "phase",
    services=_D,
)
JOB_CHANGE_SINCE = _gauge(
    "job_change_timestamp_seconds", "When the command under way was ordered; absent without one", "job_id", services=_D
)
JOB_FAILED_STARTS = _gauge(
    "job_failed_starts", "Failed starts in a row; at 3 the job is not started again", "job_id", services=_D
)
JOB_RESTARTS_LEFT = _gauge(
    "job_restarts_left", "Restarts that the restart budget still allows in these 24 hours", "job_id", services=_D
)
JOB_INTERVAL = _gauge("job_interval_seconds", "Time between two snapshots of the job", "job_id", services=_D)
JOB_SNAPSHOT_AT = _gauge(
    "job_snapshot_timestamp_seconds",
    "When the newest decided snapshot was measured; before the first one, since when the job has been known",
    "job_id",
    services=_D,
)
JOB_DECISIONS = _counter("job_decisions_total", "Decisions by status", "job_id", "status", services=_D)
JOB_REASONS = _counter(
    "job_decision_reasons_total",
    "Reasons of decisions, by reason code and by who gave them",
    "job_id",
    "by",
    "code",
    services=_D,
)
JOB_HOLDS = _counter(
    "job_guard_holds_total",
    "Changes that a guard stopped, so that the job kept its size",
    "job_id",
    "guard",
    services=_D,
)
JOB_COMMANDS = _counter("job_commands_total", "Commands by kind and assumed way", "job_id", "kind", "way", services=_D)
JOB_RESULTS = _counter("job_results_total", "Results by phase and code", "job_id", "phase", "code", services=_D)
JOB_OUTAGE = _histogram(
    "job_change_outage_seconds",
    "Time without commits of each change",
    "job_id",
    "way",
    services=_D,
    buckets=CHANGE_SECONDS,
)
JOB_CHANGE_DELAY = _histogram(
    "job_change_delay_seconds",
    "From the order of each change until the new size worked",
    "job_id",
    "way",
    services=_D,
    buckets=CHANGE_SECONDS,
)
POOL_SLOTS = _gauge("pool_slots", "Slots of a pool", "pool_id", services=_D)
POOL_USED = _gauge("pool_used_slots", "Slots of a pool that are in use", "pool_id", services=_D)

# --- every service
SERVICE_INFO = _gauge("service_info", "1 for each service, with its version", "service", "version")
LOOP_AGE = _gauge("main_loop_age_seconds", "Time since the last pass of the service's main loop")
DEAD_LETTERS = _counter("dead_letters_total", "Records sent to the dead letters", "topic", "code")
DEPENDENCY_UP = _gauge("dependency_up", "1 if Kafka or Redis answered the newest question, else 0", "dependency")
DEPENDENCY_SECONDS = _histogram("dependency_answer_seconds", "How long Kafka and Redis took to answer", "dependency")
DEPENDENCY_ERRORS = _counter("dependency_errors_total", "Questions that Kafka or Redis did not answer", "dependency")

# --- collector
COLLECTED_JOBS = _gauge("collector_jobs", "Measured jobs", services=_C)
COLLECTED = _counter("collector_snapshots_total", "Snapshots made", services=_C)
MISSING = _counter("collector_missing_parts_total", "Parts missing from snapshots", "part", services=_C)
PART_AT = _gauge(
    "collector_part_timestamp_seconds", "Newest snapshot of the job that has this part", "job_id", "part", services=_C
)
SOURCE_AT = _gauge("collector_source_timestamp_seconds", "When a source answered last", "source", "place", services=_C)
SOURCE_FAILURES = _counter(
    "collector_source_failures_total", "Questions to a source that failed or took too long", "source", services=_C
)
DELIVERED = _counter("collector_delivered_events_total", "Events that the broker acknowledged", services=_C)
UNDELIVERED = _counter("collector_undelivered_events_total", "Events that did not reach the broker", services=_C)
BROKEN_LINES = _counter("collector_broken_lines_total", "Unreadable lines of event logs", services=_C)
OVERDUE = _counter("collector_overdue_snapshots_total", "Snapshots skipped because they were overdue", services=_C)
ROUND_SECONDS = _histogram(
    "collector_round_seconds", "Duration of a round, until its last snapshot is queued", services=_C
)

# --- decider
DECIDED = _counter(
    "decider_snapshots_total", "Snapshots by outcome: decided, dropped, dead_lettered", "outcome", services=_D
)
TAKEN = _counter("decider_results_total", "Results by outcome: taken, dropped, dead_lettered", "outcome", services=_D)
RESERVATIONS = _counter("decider_reservations_total", "Requested reservations by answer", "answer", services=_D)
LOST_STATES = _counter("decider_lost_states_total", "States in the changelog that could not be read", services=_D)
REBUILDS = _counter("decider_redis_rebuilds_total", "Rebuilds of Redis from the topics", services=_D)
DECIDE_SECONDS = _histogram("decider_decide_seconds", "Time from a snapshot to its stored state", services=_D)
DECIDER_LAG = _gauge("decider_lag_records", "Snapshots and results not yet handled on own partitions", services=_D)

# --- actuator
ENDED = _counter(
    "actuator_commands_total", "Commands that ended, by last phase; `repeated` had ended before", "phase", services=_A
)
RUNNING = _gauge("actuator_running_commands", "Commands being carried out", services=_A)
WAITING = _gauge("actuator_waiting_commands", "Commands received that wait for their turn", services=_A)


def new_registry(service: str) -> CollectorRegistry:
    """Return a registry with the metrics of the process itself, and which service it is."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series, and say what Prometheus sees anyway
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    SERVICE_INFO.gauge(registry).labels(service, version("tidegate")).set(1)
    return registry


def count_from_zero(letters: Counter, topics: Iterable[str]) -> None:
    """Give each topic its series at 0 for every code: a counter that appears with a value shows no increase."""
    for topic in topics:
        for code in Unreadable.CODES:
            letters.labels(topic, code)
