"""The Grafana dashboards: the fleet, one job, the services themselves.

`python -m tools.observe` writes them to deploy/grafana/dashboards. Every query uses names from the one table of
metrics, and a test runs it on a Prometheus.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import Dashboard, VariableRefresh

from tidegate.engine.supervisor import MAX_FAILURES
from tidegate.runtime import metrics as m
from tidegate.runtime.metrics import Metric
from tools.alerts import by_job
from tools.grafana import SOURCE, Panel, board, each, number

RATE = "$__rate_interval"
ONE_JOB = '{job_id="$job_id"}'


def _job(metric: Metric, **labels: str) -> str:
    """Return the query of one job's gauge, whichever decider has it."""
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f'max({metric.name}{{job_id="$job_id"{more}}})'


def _rate(metric: Metric, by: str) -> str:
    return f"sum by ({by}) (rate({metric.name}[{RATE}]))"


def _count(metric: Metric, by: str, where: str = "", span: str = "1h") -> str:
    return _increase(f"{metric.name}{where}", by, span)


def _mean_of_hour(metric: Metric, where: str = "") -> str:
    return f"{_increase(f'{metric.name}_sum{where}', 'way')} / {_increase(f'{metric.name}_count{where}', 'way')}"


def _increase(series: str, by: str, span: str = "1h") -> str:
    """Return by how much counters have risen. One that is new began at 0, which `increase` alone does not know."""
    return f"sum by ({by}) (({series} unless {series} offset {span}) or increase({series}[{span}]))"


def _slowest(metric: Metric, by: str) -> str:
    """Return the 95th percentile."""
    return f"histogram_quantile(0.95, sum by (le, {by}) (rate({metric.name}_bucket[{RATE}])))"


FLEET: dict[str, tuple[Panel, ...]] = {
    "Now": (
        number("Jobs that should run", f"sum({by_job(m.JOB_SHOULD_RUN)})"),
        number("Late jobs", f"count({by_job(m.JOB_DELAY)} > {by_job(m.JOB_OBJECTIVE)}) or vector(0)"),
        number("Longest delay", f"max({m.JOB_DELAY.name})", "s"),
        number("Slots in use", f"sum({by_job(m.JOB_CURRENT)})"),
        number("Jobs down after failed starts", f"count({by_job(m.JOB_FAILED_STARTS)} >= {MAX_FAILURES}) or vector(0)"),
        number("Changes under way", f"count({by_job(m.JOB_CHANGE_SINCE)}) or vector(0)"),
    ),
    "Jobs": (
        Panel(
            "Delay, longest first",
            ((f"sort_desc({by_job(m.JOB_DELAY)})", "delay"),),
            "s",
            "table",
        ),
        each("Delay over objective, worst ten", f"topk(10, {by_job(m.JOB_DELAY)} / {by_job(m.JOB_OBJECTIVE)})",
             "{{job_id}}", "percentunit"),
        each("Jobs by status", f"sum by (status) (max by (job_id, status) ({m.JOB_STATUS.name}))", "{{status}}"),
        Panel(
            "Records",
            ((f"sum({by_job(m.JOB_ARRIVAL)})", "arriving"), (f"sum({by_job(m.JOB_CAPACITY)})", "capacity")),
            "cps",
        ),
        each("Lag, worst ten", f"topk(10, {by_job(m.JOB_LAG)})", "{{job_id}}"),
        each("Lowest restart budgets", f"bottomk(10, {by_job(m.JOB_RESTARTS_LEFT)})", "{{job_id}}"),
    ),
    "Slots": (
        Panel(
            "Pools",
            (
                (f"max by (pool_id) ({m.POOL_SLOTS.name})", "{{pool_id}}: all"),
                (f"max by (pool_id) ({m.POOL_USED.name})", "{{pool_id}}: used"),
            ),
        ),
        Panel(
            "Slots of all jobs",
            (
                (f"sum({by_job(m.JOB_PROPOSED)})", "proposed"),
                (f"sum({by_job(m.JOB_FINAL)})", "final"),
                (f"sum({by_job(m.JOB_GRANTED)})", "granted"),
            ),
        ),
        each("Slots by job, ten largest", f"topk(10, {by_job(m.JOB_CURRENT)})", "{{job_id}}"),
    ),
    "Decisions and changes": (
        each("Decisions by reason code, an hour", _count(m.JOB_REASONS, "code"), "{{code}}"),
        each("Changes held by guards, an hour", _count(m.JOB_HOLDS, "guard"), "{{guard}}"),
        each("Commands, an hour", _count(m.JOB_COMMANDS, "kind, way"), "{{kind}} {{way}}"),
        each("Ended commands, an hour", _count(m.JOB_RESULTS, "phase, code",
             '{phase=~"verified|rolled_back|failed|rejected"}'), "{{phase}} {{code}}"),
        each("Outage of a change, mean of an hour", _mean_of_hour(m.JOB_OUTAGE), "{{way}}", "s"),
        each("Delay of a change, mean of an hour", _mean_of_hour(m.JOB_CHANGE_DELAY), "{{way}}", "s"),
    ),
}  # fmt: skip

JOB: dict[str, tuple[Panel, ...]] = {
    "Now": (
        number("Delay", _job(m.JOB_DELAY), "s"),
        number("Lag", _job(m.JOB_LAG)),
        number("Slots", _job(m.JOB_CURRENT)),
        number("Since the newest snapshot", f"time() - {_job(m.JOB_SNAPSHOT_AT)}", "s"),
        number("Failed starts in a row", _job(m.JOB_FAILED_STARTS)),
        number("Restarts left today", _job(m.JOB_RESTARTS_LEFT)),
    ),
    "Load": (
        Panel("Delay", ((_job(m.JOB_DELAY), "delay"), (_job(m.JOB_OBJECTIVE), "objective")), "s"),
        Panel("Rate", ((_job(m.JOB_ARRIVAL), "arriving"), (_job(m.JOB_CAPACITY), "capacity")), "cps"),
        each("Lag", _job(m.JOB_LAG), "records"),
        Panel(
            "Size",
            (
                (_job(m.JOB_PROPOSED), "proposed"),
                (_job(m.JOB_FINAL), "final"),
                (_job(m.JOB_GRANTED), "granted"),
                (_job(m.JOB_MINIMUM), "minimum"),
                (_job(m.JOB_MAXIMUM), "maximum"),
            ),
        ),
        each("Utilization", _job(m.JOB_UTILIZATION), "share of time in batches", "percentunit"),
        each("State", _job(m.JOB_STATE), "state", "bytes"),
    ),
    "Decisions": (
        Panel("Status", ((f"max by (status) ({m.JOB_STATUS.name}{ONE_JOB}) == 1", "{{status}}"),), kind="states",
              width=12),
        Panel("Change under way", ((f"max by (kind, phase) ({m.JOB_PHASE.name}{ONE_JOB})", "{{kind}}: {{phase}}"),),
              kind="states", width=12),
        each("Reasons, ten minutes", _count(m.JOB_REASONS, "by, code", ONE_JOB, "10m"), "{{by}}: {{code}}"),
        each("Held by guards, ten minutes", _count(m.JOB_HOLDS, "guard", ONE_JOB, "10m"), "{{guard}}"),
        each("Decisions by status, ten minutes", _count(m.JOB_DECISIONS, "status", ONE_JOB, "10m"), "{{status}}"),
    ),
    "Changes": (
        each("Commands, an hour", _count(m.JOB_COMMANDS, "kind, way", ONE_JOB), "{{kind}} {{way}}"),
        each("Results, an hour", _count(m.JOB_RESULTS, "phase, code", ONE_JOB), "{{phase}} {{code}}"),
        each("Outage, mean of an hour", _mean_of_hour(m.JOB_OUTAGE, ONE_JOB), "{{way}}", "s"),
        each("Delay of changes, mean of an hour", _mean_of_hour(m.JOB_CHANGE_DELAY, ONE_JOB), "{{way}}", "s"),
        each("Age of each part of the snapshots", f"time() - max by (part) ({m.PART_AT.name}{ONE_JOB})", "{{part}}",
             "s"),
    ),
}  # fmt: skip

OURS = f'{{service=~"{"|".join(m.SERVICES)}"}}'
SERVICES: dict[str, tuple[Panel, ...]] = {
    "All": (
        Panel("Up", ((f"max by (service) (up{OURS})", "{{service}}"),), kind="states", width=12),
        each("Main loop: time since its last pass", f"max by (service) ({m.LOOP_AGE.name})", "{{service}}", "s",
             width=12),
        each("CPU", f"sum by (service) (rate(process_cpu_seconds_total{OURS}[{RATE}]))", "{{service}}", "percentunit"),
        each("Memory", f"sum by (service) (process_resident_memory_bytes{OURS})", "{{service}}", "bytes"),
        each("Dead letters, an hour", _count(m.DEAD_LETTERS, "service, topic, code"), "{{service}} {{topic}} {{code}}"),
    ),
    "Kafka and Redis": (
        Panel("Reachable", ((f"min by (service, dependency) ({m.DEPENDENCY_UP.name})",
                             "{{dependency}} for {{service}}"),), kind="states"),
        each("Time to answer, 95 %", _slowest(m.DEPENDENCY_SECONDS, "service, dependency"),
             "{{dependency}} for {{service}}", "s"),
        each("Errors", _rate(m.DEPENDENCY_ERRORS, "service, dependency"), "{{dependency}} for {{service}}", "cps"),
    ),
    "Collector": (
        each("Measured jobs", f"sum({m.COLLECTED_JOBS.name})", "jobs"),
        each("Duration of a round, 95 %", _slowest(m.ROUND_SECONDS, "service"), "round", "s"),
        Panel(
            "Events",
            (
                (f"sum(rate({m.COLLECTED.name}[{RATE}]))", "snapshots made"),
                (f"sum(rate({m.DELIVERED.name}[{RATE}]))", "delivered"),
                (f"sum(rate({m.UNDELIVERED.name}[{RATE}]))", "not delivered"),
                (f"sum(rate({m.OVERDUE.name}[{RATE}]))", "overdue"),
            ),
            "cps",
        ),
        each("Time since a source answered", f"time() - max by (source, place) ({m.SOURCE_AT.name})",
             "{{source}} {{place}}", "s"),
        each("Failures of sources", _rate(m.SOURCE_FAILURES, "source"), "{{source}}", "cps"),
        Panel(
            "Missing",
            (
                (_rate(m.MISSING, "part"), "{{part}}"),
                (f"sum(rate({m.BROKEN_LINES.name}[{RATE}]))", "broken lines of event logs"),
            ),
            "cps",
        ),
    ),
    "Decider": (
        each("Snapshots by outcome", _rate(m.DECIDED, "outcome"), "{{outcome}}", "cps"),
        each("Time to decide and store, 95 %", _slowest(m.DECIDE_SECONDS, "service"), "decision", "s"),
        each("Not yet handled", f"sum({m.DECIDER_LAG.name})", "records"),
        each("Results by outcome", _rate(m.TAKEN, "outcome"), "{{outcome}}", "cps"),
        each("Reservations by answer, an hour", _count(m.RESERVATIONS, "answer"), "{{answer}}"),
        Panel(
            "Recoveries, a day",
            (
                (f"sum(increase({m.REBUILDS.name}[1d]))", "Redis rebuilt"),
                (f"sum(increase({m.LOST_STATES.name}[1d]))", "states lost"),
            ),
        ),
    ),
    "Actuator": (
        Panel(
            "Commands",
            ((f"sum({m.RUNNING.name})", "being carried out"), (f"sum({m.WAITING.name})", "waiting")),
            width=12,
        ),
        each("Ended commands, an hour", _count(m.ENDED, "phase"), "{{phase}}", width=12),
    ),
}  # fmt: skip


def dashboards() -> dict[str, Dashboard]:
    """Return the dashboards by the name of their file."""
    one_job = (
        dashboard.QueryVariable("job_id")
        .label("Job")
        .datasource(SOURCE)
        .query(f"label_values({m.JOB_INTERVAL.name}, job_id)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    return {
        "fleet": board("fleet", "Tidegate: fleet", FLEET).build(),
        "job": board("job", "Tidegate: one job", JOB).with_variable(one_job).build(),
        "services": board("services", "Tidegate: services", SERVICES).build(),
    }
