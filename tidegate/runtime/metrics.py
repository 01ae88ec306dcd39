"""The one table of metric names: code, docs and deploy files come from it.

Services make their metrics from it. `python -m tools.observe` writes docs/metrics.md, the dashboards and the alerts.

Names follow OpenMetrics: base units, which end the name, and `_total` for counters. A figure that is not known has no
sample; it is never written as zero. The label for a job is `job_id`, because Prometheus uses `job` itself. Labels have
few values: ids of jobs and pools, and words from fixed lists. Series of a removed job are removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from tidegate.events.envelope import Unreadable
from tidegate.events.topics import Topic

COLLECTOR, DECIDER, ACTUATOR = "collector", "decider", "actuator"
SERVICES = (COLLECTOR, DECIDER, ACTUATOR)
Kind = Literal["gauge", "counter", "histogram"]
UNITS = ("records_per_second", "seconds", "records", "bytes", "slots", "ratio")
QUICK_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
CHANGE_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in queries, what it says, which services have it."""

    name: str
    kind: Kind
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


_OWNERS = {"job": DECIDER, "pool": DECIDER} | {service: service for service in SERVICES}
"""By the first word of a metric's name, the service that has it; every service has the others."""


def _metric(kind: Kind, name: str, says: str, *labels: str, buckets: tuple[float, ...] = QUICK_SECONDS) -> Metric:
    """Add a metric to the table; one whose name begins with `job` also has the label for a job."""
    of = name.partition("_")[0]
    services = (_OWNERS[of],) if of in _OWNERS else SERVICES
    labels = ("job_id", *labels) if of == "job" else labels
    TABLE.append(Metric(f"tidegate_{name}", kind, says, labels, services, buckets))
    return TABLE[-1]


_gauge, _counter, _histogram = partial(_metric, "gauge"), partial(_metric, "counter"), partial(_metric, "histogram")

# --- a job, as its newest snapshot and decision tell it
JOB_INFO = _gauge("job_info", "1 for each job, with what its spec says", "pipeline_id", "pool_id", "policy", "mode")
JOB_DELAY = _gauge("job_delay_seconds", "Age of the oldest record that is not committed")
JOB_OBJECTIVE = _gauge("job_lag_objective_seconds", "The delay that the spec allows")
JOB_LAG = _gauge("job_lag_records", "Records that arrived and are not committed")
JOB_ARRIVAL = _gauge("job_arrival_records_per_second", "Records that arrive")
JOB_CAPACITY = _gauge("job_capacity_records_per_second", "Records that the job could process at its present size")
JOB_UTILIZATION = _gauge("job_utilization_ratio", "Share of time inside micro-batches")
JOB_STATE = _gauge("job_state_bytes", "Size of the job's state")
JOB_CURRENT = _gauge("job_current_slots", "Size of the running job; 0 while it does not run")
JOB_PROPOSED = _gauge("job_proposed_slots", "Size that the policy proposed")
JOB_FINAL = _gauge("job_final_slots", "Size that the guards made of it")
JOB_GRANTED = _gauge("job_granted_slots", "Slots that the cluster has given to the job")
JOB_MINIMUM = _gauge("job_minimum_slots", "Smallest size that the spec allows")
JOB_MAXIMUM = _gauge("job_maximum_slots", "Largest size that the spec allows")
JOB_SHOULD_RUN = _gauge("job_should_run", "1 if the spec says that the job runs, 0 if it says that the job is stopped")
JOB_STATUS = _gauge("job_status", "1 for the status of the newest decision, 0 for the others", "status")
JOB_PHASE = _gauge("job_change_phase", "1 for the phase of the command under way; absent without one", "kind", "phase")
JOB_CHANGE_SINCE = _gauge("job_change_timestamp_seconds", "When the command under way was ordered; absent without one")
JOB_CHANGE_DEADLINE = _gauge(
    "job_change_deadline_seconds", "How long a command may take, by the deadlines in the spec: a stop and two starts"
)
JOB_FAILED_STARTS = _gauge("job_failed_starts", "Failed starts in a row; at 3 the job is not started again")
JOB_RESTARTS_LEFT = _gauge("job_restarts_left", "Restarts that the restart budget still allows in these 24 hours")
JOB_INTERVAL = _gauge("job_interval_seconds", "Time between two snapshots of the job")
JOB_SNAPSHOT_AT = _gauge(
    "job_snapshot_timestamp_seconds",
    "When the newest decided snapshot was measured; before the first one, since when the job has been known",
)
JOB_DECISIONS = _counter("job_decisions_total", "Decisions by status", "status")
JOB_REASONS = _counter(
    "job_decision_reasons_total", "Reasons of decisions, by reason code and by who gave them", "by", "code"
)
JOB_HOLDS = _counter("job_guard_holds_total", "Changes that a guard stopped, so that the job kept its size", "guard")
JOB_COMMANDS = _counter("job_commands_total", "Commands by kind and assumed way", "kind", "way")
JOB_RESULTS = _counter("job_results_total", "Results by phase and code", "phase", "code")
JOB_OUTAGE = _histogram(
    "job_change_outage_seconds", "Time without commits of each change", "way", buckets=CHANGE_SECONDS
)
JOB_CHANGE_DELAY = _histogram(
    "job_change_delay_seconds", "From the order of each change until the new size worked", "way", buckets=CHANGE_SECONDS
)
POOL_SLOTS = _gauge("pool_slots", "Slots of a pool", "pool_id")
POOL_USED = _gauge("pool_used_slots", "Slots of a pool that are in use", "pool_id")

# --- every service
SERVICE_INFO = _gauge("service_info", "1 for each service, with its version", "service", "version")
LOOP_AGE = _gauge("main_loop_age_seconds", "Time since the last pass of the service's main loop")
DEAD_LETTERS = _counter("dead_letters_total", "Records sent to the dead letters", "topic", "code")
DEPENDENCY_UP = _gauge("dependency_up", "1 if Kafka or Redis answered the newest question, else 0", "dependency")
DEPENDENCY_SECONDS = _histogram("dependency_answer_seconds", "How long Kafka and Redis took to answer", "dependency")
DEPENDENCY_ERRORS = _counter("dependency_errors_total", "Questions that Kafka or Redis did not answer", "dependency")

# --- collector
COLLECTED_JOBS = _gauge("collector_jobs", "Measured jobs")
COLLECTED = _counter("collector_snapshots_total", "Snapshots made")
MISSING = _counter("collector_missing_parts_total", "Parts missing from snapshots", "part")
PART_AT = _gauge("collector_part_timestamp_seconds", "Newest snapshot of the job that has this part", "job_id", "part")
SOURCE_AT = _gauge("collector_source_timestamp_seconds", "When a source answered last", "source", "place")
SOURCE_FAILURES = _counter(
    "collector_source_failures_total", "Questions to a source that failed or took too long", "source"
)
DELIVERED = _counter("collector_delivered_events_total", "Events that the broker acknowledged")
UNDELIVERED = _counter("collector_undelivered_events_total", "Events that did not reach the broker")
BROKEN_LINES = _counter("collector_broken_lines_total", "Unreadable lines of event logs")
OVERDUE = _counter("collector_overdue_snapshots_total", "Snapshots skipped because they were overdue")
ROUND_SECONDS = _histogram("collector_round_seconds", "Duration of a round, until its last snapshot is queued")

# --- decider
DECIDED = _counter("decider_snapshots_total", "Snapshots by outcome: decided, dropped, dead_lettered", "outcome")
TAKEN = _counter("decider_results_total", "Results by outcome: taken, dropped, dead_lettered", "outcome")
RESERVATIONS = _counter("decider_reservations_total", "Requested reservations by answer", "answer")
LOST_STATES = _counter("decider_lost_states_total", "States in the changelog that could not be read")
REBUILDS = _counter("decider_redis_rebuilds_total", "Rebuilds of Redis from the topics")
DECIDE_SECONDS = _histogram("decider_decide_seconds", "Time from a snapshot to its stored state")
DECIDER_LAG = _gauge("decider_lag_records", "Snapshots and results not yet handled on own partitions")

# --- actuator
ENDED = _counter("actuator_commands_total", "Commands that ended, by last phase; `repeated` had ended before", "phase")
RUNNING = _gauge("actuator_running_commands", "Commands being carried out")
WAITING = _gauge("actuator_waiting_commands", "Commands received that wait for their turn")


def new_registry(service: str) -> CollectorRegistry:
    """Return a registry with the metrics of the process itself, and which service it is."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the series, and say what Prometheus sees anyway
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    SERVICE_INFO.gauge(registry).labels(service, version("tidegate")).set(1)
    return registry


def dead_letters(registry: CollectorRegistry, *topics: Topic) -> Counter:
    """Return the counter of dead letters, at 0 for each code: a counter that appears with a value shows no increase."""
    letters = DEAD_LETTERS.counter(registry)
    for topic in topics:
        for code in Unreadable.CODES:
            letters.labels(topic.suffix, code)
    return letters
