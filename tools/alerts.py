"""The alert rules: when each fires, what the operator reads, and where the runbook goes on.

Few, and each asks for something to be done. `python -m tools.observe` writes them to deploy/prometheus/rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.engine.supervisor import MAX_FAILURES
from tidegate.runtime import metrics as m

RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule."""

    name: str
    """Also the heading of its section in the runbook."""
    expr: str
    wait: str
    """How long the expression must hold."""
    severity: Literal["critical", "warning"]
    summary: str
    """What happened, with the names and figures."""
    todo: str
    """What it means and what to do."""

    def rule(self) -> dict[str, object]:
        """Return the rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.todo,
                "runbook": f"{RUNBOOK}#{self.name.lower()}",
            },
        }


def by_job(metric: m.Metric) -> str:
    """Return the query of a gauge of every job, whichever decider has it."""
    return f"max by (job_id) ({metric.name})"


JOB = "Job {{ $labels.job_id }}"

ALERTS = (
    Alert(
        "TidegateServiceDown",
        f'up{{service=~"{"|".join(m.SERVICES)}"}} == 0 or {m.LOOP_AGE.name} > 60'
        + "".join(f' or absent(up{{service="{service}"}})' for service in m.SERVICES),
        "1m",
        "critical",
        "The {{ $labels.service }} does not run, or its main loop hangs.",
        "Without the collector no job is measured, without the decider nothing is decided, without the actuator "
        "nothing changes size; the jobs themselves go on. Read the last lines of its log and restart it: that is safe "
        "at any time.",
    ),
    Alert(
        "TidegateJobNotMeasured",
        f"abs(time() - {by_job(m.JOB_SNAPSHOT_AT)}) > 6 * {by_job(m.JOB_INTERVAL)}",
        "1m",
        "critical",
        f"{JOB} has had no decision for {{{{ $value | humanizeDuration }}}}, or a clock was so far ahead.",
        "Its size does not follow its load. Either nobody measures it or nobody decides: if "
        "`tidegate tail snapshots --job {{ $labels.job_id }}` shows new snapshots, look at the decider, otherwise at "
        "the collector.",
    ),
    Alert(
        "TidegateSourceFails",
        f"sum by (source) (increase({m.SOURCE_FAILURES.name}[10m])) > 5",
        "5m",
        "warning",
        "The collector gets no answers from a source: {{ $labels.source }}.",
        "Snapshots lack what it tells, so the jobs keep their size. The collector's log names the source and the "
        "error; fix that.",
    ),
    Alert(
        "TidegateJobStuck",
        f"deriv({m.JOB_DELAY.name}[5m]) > 0.95 and on (job_id) {m.JOB_DELAY.name} > {m.JOB_OBJECTIVE.name} "
        f"and on (job_id) {m.JOB_CURRENT.name} > 0",
        "5m",
        "critical",
        f"{JOB} commits nothing although records wait.",
        "Its delay grows by a second each second, so its size is not the cause. Look in the driver's log for a sink "
        "that hangs or a record that fails every time.",
    ),
    Alert(
        "TidegateJobLate",
        f"{by_job(m.JOB_DELAY)} > {by_job(m.JOB_OBJECTIVE)} and on (job_id) {by_job(m.JOB_SHOULD_RUN)} == 1",
        "15m",
        "warning",
        f"{JOB} is {{{{ $value | humanizeDuration }}}} late, for 15 minutes more than its objective allows.",
        "Run `tidegate why {{ $labels.job_id }}`: it names what holds the job back, and what to do about it.",
    ),
    Alert(
        "TidegateStartFailed",
        f"{by_job(m.JOB_FAILED_STARTS)} > 0",
        "0m",
        "warning",
        f"{JOB} did not start. Failed starts in a row: {{{{ $value }}}}.",
        f"Tidegate tries {MAX_FAILURES} times. `tidegate tail results --job {{{{ $labels.job_id }}}}` says what the "
        "new run died of; fix that.",
    ),
    Alert(
        "TidegateJobGivenUp",
        f"{by_job(m.JOB_FAILED_STARTS)} >= {MAX_FAILURES}",
        "0m",
        "critical",
        f"{JOB} is down: it failed to start {{{{ $value }}}} times, and Tidegate does not start it again.",
        "Read the driver's log and fix the cause, then run `tidegate resume {{ $labels.job_id }}`.",
    ),
    Alert(
        "TidegateStateLimit",
        f'max by (job_id, status) ({m.JOB_STATUS.name}{{status=~"STOPPED_STATE_LIMIT|FAILED_STATE_LIMIT"}}) == 1',
        "0m",
        "critical",
        f"{JOB} was stopped because its state is too large ({{{{ $labels.status }}}}).",
        "After STOPPED_STATE_LIMIT make the state smaller, then run `tidegate resume {{ $labels.job_id }}`; "
        "after FAILED_STATE_LIMIT start the job under another name with an empty checkpoint.",
    ),
    Alert(
        "TidegatePoolExhausted",
        f'max by (job_id) ({m.JOB_STATUS.name}{{status="POOL_EXHAUSTED"}}) == 1',
        "10m",
        "warning",
        f"{JOB} needs more slots than its pool has free.",
        "Add workers to the pool, or stop or shrink other jobs in it.",
    ),
    Alert(
        "TidegateRestartBudgetUsedUp",
        f"{by_job(m.JOB_RESTARTS_LEFT)} == 0",
        "0m",
        "warning",
        f"{JOB} has used up its restarts of 24 hours, so its size does not follow its load by restarts any more.",
        "`tidegate why {{ $labels.job_id }} --since 24h` shows why the size keeps changing. Correct the policy's "
        "options, or raise `guards.restart_budget.per_day`.",
    ),
    Alert(
        "TidegateChangeHangs",
        # The decider gives the command up after 1800 s, or after the deadlines if they are longer.
        f"time() - {by_job(m.JOB_CHANGE_SINCE)} > clamp_min(0.9 * {by_job(m.JOB_CHANGE_DEADLINE)}, 1200)",
        "1m",
        "warning",
        f"A change of size of {JOB.lower()} was ordered {{{{ $value | humanizeDuration }}}} ago and has not ended.",
        "`tidegate tail results --job {{ $labels.job_id }}` shows how far it came. If no actuator runs, start one: it "
        "finishes the change or takes it back.",
    ),
    Alert(
        "TidegateDeadLetters",
        f"sum by (service, topic, code) (increase({m.DEAD_LETTERS.name}[10m])) > 0",
        "0m",
        "warning",
        "The {{ $labels.service }} cannot use records on the topic {{ $labels.topic }}: {{ $labels.code }}.",
        "`tidegate tail dead-letters --since 10m` shows field, value and place of each. Fix their producer; nothing is "
        "lost, the letters have the original bytes.",
    ),
    Alert(
        "TidegateRedisUnreachable",
        f'{m.DEPENDENCY_UP.name}{{dependency="redis"}} == 0',
        "1m",
        "critical",
        "The {{ $labels.service }} cannot use Redis.",
        "Until it can, no job changes size; nothing else suffers. The service's log says why, and what to do.",
    ),
    Alert(
        "TidegateKafkaUnreachable",
        f'{m.DEPENDENCY_UP.name}{{dependency="kafka"}} == 0',
        "1m",
        "critical",
        "The {{ $labels.service }} cannot reach Kafka.",
        "No job is measured or changes size until the broker answers. Check the broker, the network, and "
        "`tidegate doctor`.",
    ),
)


def rules() -> dict[str, object]:
    """Return the rule file."""
    return {"groups": [{"name": "tidegate", "rules": [alert.rule() for alert in ALERTS]}]}
