"""A decision as text: what was measured, what was proposed, which guards changed it, and what is expected. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision, Emission, Evidence, Expectation, Figure, Neighbour, RedisView
from tidegate.events.result import ActionResult, Phase
from tidegate.fleet.changes import HOW, result_in_words
from tidegate.installed import engine
from tidegate.words import clock, figure, size

LOST_REMEDY = (
    "Kafka has removed records that the job has not read, and Spark fails there unless its source has "
    "failOnDataLoss=false: set that, or start from a new checkpoint; a longer retention of the topic prevents it"
)

NOT_SEEN_REMEDY = (
    "if the job does run, Tidegate does not see it: start it with its job_id as application name, or with "
    "--conf spark.tidegate.job_id=JOB, and with its event log in the spec's event_log_dir"
)


def explain(decision: Decision, results: Sequence[ActionResult] = ()) -> list[str]:
    """Return the lines that explain a decision; `results` are results of the job around that time."""
    lines = [
        f"{decision.job_id}  {clock(decision.decided_at)} UTC  {decision.status.value}",
        _sizes(decision),
        "",
        decision.sentence,
        "",
        _heading(decision.evidence),
        *_columns(measured(decision.evidence)),
        "",
        *_reasons(decision),
        *_expected(decision),
        *_emitted(decision),
        *_other_inputs(decision),
        *_remedies(decision),
        *_command(decision, results),
        "",
        f"decision {decision.decision_id}, sequence {decision.sequence}",
        f"spec version {decision.spec_version}, policy {decision.policy}, engine {decision.engine_version}",
    ]
    return [line.replace("\n", " ") for line in lines]  # anyone's reason must not look like a line of ours


def slots_now(decision: Decision) -> str:
    """Return the size that a job has, as a figure."""
    return str(decision.current_parallelism) if decision.size_is_known else "unknown"


def sizes_of(decision: Decision) -> str:
    """Return the size that a job has and the decided one, such as `4 -> 6`."""
    if not decision.size_is_known:
        return "unknown"
    return f"{decision.current_parallelism} -> {decision.final_parallelism}"


def _sizes(decision: Decision) -> str:
    if not decision.size_is_known:
        return "the size is not known"
    if decision.current_parallelism == 0:
        return f"not running; decided: {size(decision.final_parallelism)}"
    unchanged = " (no change)" if decision.final_parallelism == decision.current_parallelism else ""
    return (
        f"current {size(decision.current_parallelism)}, proposed {decision.proposed_parallelism}, "
        f"decided {decision.final_parallelism}{unchanged}"
    )


def measured(evidence: Evidence) -> list[tuple[str, str]]:
    """Return what was measured, as names and values."""
    rows = [
        ("arrival rate", figure(evidence.arrival_rate, "records/s")),
        ("processing rate", figure(evidence.processing_rate, "records/s")),
        ("capacity", figure(evidence.true_processing_rate, "records/s")),
        ("utilization", "unknown" if evidence.utilization is None else f"{evidence.utilization:.0%}"),
        ("lag", _lag(evidence)),
        ("delay", waiting(evidence)),
        ("lag trend", "unknown" if evidence.lag_trend is None else f"{evidence.lag_trend:+,.1f} records/s"),
        ("batch duration", figure(evidence.batch_seconds, "s", 2)),
        ("partitions", figure(evidence.partitions)),
        ("slots granted", figure(evidence.slots_granted)),
    ]
    if evidence.state_bytes is not None:
        rows.append(("state", figure(evidence.state_bytes / 1e6, "MB", 1)))
    if evidence.task_skew is not None:
        rows.append(("task skew", f"slowest task takes {evidence.task_skew:.1f} times the median"))
    if evidence.single_task_share is not None:
        rows.append(("single-task stages", f"{evidence.single_task_share:.0%} of the time"))
    if evidence.gc_ratio is not None:
        rows.append(("garbage collection", f"{evidence.gc_ratio:.0%} of the time"))
    if evidence.lost_records:
        rows.append(("removed unread", f"{figure(evidence.lost_records, 'records')} that Kafka no longer has"))
    if evidence.missing:
        rows.append(("missing", ", ".join(evidence.missing)))
    return rows


def _lag(evidence: Evidence) -> str:
    if evidence.lag_records is None:
        return "unknown"
    work = "unknown s of work" if evidence.lag_seconds is None else figure(evidence.lag_seconds, "s of work", 1)
    return f"{figure(evidence.lag_records, 'records')}, {work}"


def _heading(evidence: Evidence) -> str:
    plural = "" if evidence.snapshots == 1 else "s"
    return f"Measured over {figure(evidence.window_seconds, 's')} ({evidence.snapshots} snapshot{plural}):"


def waiting(evidence: Evidence) -> str:
    """Return in words how long the oldest record that is not committed has waited."""
    if evidence.delay_seconds is None:
        return "unknown"
    if evidence.delay_seconds == 0 and not evidence.delay_at_least:
        return "no record waits"
    least = "at least " if evidence.delay_at_least else ""
    return f"the oldest record waits {least}{figure(evidence.delay_seconds, 's')}"


def delay(evidence: Evidence) -> str:
    """Return the delay as a figure, with `>` if it is only a lower bound."""
    return (">" if evidence.delay_at_least else "") + figure(evidence.delay_seconds, "s")


def _reasons(decision: Decision) -> list[str]:
    if not decision.trail:
        return ["Reasons: none"]
    steps = [(f"{e.before} -> {e.after}", e.by, e.sentence, values_of(e.numbers)) for e in decision.trail]
    wide, by = max(len(s[0]) for s in steps), max(len(s[1]) for s in steps)
    lines = ["Reasons:"]
    for entry, (move, who, explanation, values) in zip(decision.trail, steps, strict=True):
        lines.append(f"  {move:<{wide}}  {who:<{by}}  {explanation}  [{entry.code}]")
        if values:
            lines.append(f"  {'':<{wide}}  {'':<{by}}  {values}")
    return lines


def values_of(values: dict[str, Figure]) -> str:
    """Return the values of a reason in a line."""
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Figure) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "unknown" if value is None else str(value)


def _expected(decision: Decision) -> list[str]:
    known = expected_of(decision)
    return ["", f"Expected with {size(decision.final_parallelism)}:", *_columns(known)] if known else []


def expected_of(decision: Decision) -> list[tuple[str, str]]:
    """Return what is expected of the decided size, as names and values."""
    expected = decision.expectation
    if expected is None:
        return []
    rows = [
        ("capacity", expected.processing_rate, "records/s", 0),
        ("lag", expected.lag_seconds, "s of work", 1),
        ("time to catch up", expected.catch_up_seconds, "s", 0),
        ("outage", _outage(expected), "s", 1),
        ("time until it works", expected.delay_seconds, "s", 1),
        ("cost", expected.core_seconds, "slot-seconds", 0),
    ]
    return [(name, figure(value, unit, digits)) for name, value, unit, digits in rows if value is not None]


def _outage(expected: Expectation) -> float | None:
    """Return the expected outage; older decisions knew only restarts."""
    return expected.restart_seconds if expected.outage_seconds is None else expected.outage_seconds


def _emitted(decision: Decision) -> list[str]:
    """Return what the jobs downstream are told."""
    planned = _plan(decision.emits)
    return ["", f"Plans to emit {planned}"] if planned else []


def _plan(emits: Emission | None) -> str:
    """Return the steps of a plan in words; "" if there are none."""
    if emits is None or not emits.steps:
        return ""
    first, *later = emits.steps
    steps = "".join(f", {figure(step.rate)} from {step.at:%H:%M:%S}" for step in later)
    return f"{figure(first.rate, 'records/s')} from {first.at:%H:%M:%S}{steps}"


def _linked(neighbour: Neighbour) -> tuple[str, str]:
    """Return a linked job, what it plans to emit, and what it could process at most."""
    upstream, planned, most = neighbour.upstream, _plan(neighbour.emits), neighbour.ceiling
    text = f"{neighbour.job_id}, {size(neighbour.parallelism)}"
    if upstream and planned:
        text += f", plans to emit {planned}"
    elif not upstream and most is not None:
        text += f", can process at most {figure(most, 'records/s')}"
    return f"{'upstream' if upstream else 'downstream'} job", text


def _other_inputs(decision: Decision) -> list[str]:
    rows = other_inputs(decision)
    return ["", "Other inputs:", *_columns(rows)] if rows else []


def other_inputs(decision: Decision) -> list[tuple[str, str]]:
    """Return what the decision depended on besides the measurements and the spec, as names and values."""
    seen = decision.observed
    rows: list[tuple[str, str]] = []
    if seen.redis is not RedisView.OK:
        rows.append(("Redis", seen.redis.value))
    if seen.cooldown_until is not None:
        rows.append(("cooldown ends", f"{clock(seen.cooldown_until)} UTC"))
    if seen.pool_reserved:
        rows.append(("reserved for other jobs", size(seen.pool_reserved)))
    if seen.reservation_refused:
        rows.append(("reservation", "refused"))
    rows += map(_linked, seen.neighbours)
    return rows


def _remedies(decision: Decision) -> list[str]:
    found = remedies(decision)
    return ["", "What you can do:", *(f"  {remedy}" for remedy in found)] if found else []


def remedies(decision: Decision) -> list[str]:
    """Return what an operator can do about the reasons, and about what was measured."""
    reasons = engine().reasons
    codes = dict.fromkeys(entry.code for entry in decision.trail)
    found = [remedy for code in codes if code in reasons and (remedy := reasons[code].remedy)]
    if codes.keys() >= {"JOB_NOT_RUNNING", "ADVISE_ONLY"}:
        found = [NOT_SEEN_REMEDY, *found]
    return [*found, LOST_REMEDY] if decision.evidence.lost_records else found


def _command(decision: Decision, results: Sequence[ActionResult]) -> list[str]:
    command = decision.command
    if command is None:
        return _last_failure(decision, results)
    lines = ["", ordered(command)]
    for result in phases_of(command, results):
        after = (result.at - command.issued_at).total_seconds()
        text = result_in_words(result, size(result.parallelism))
        lines.append(f"  {after:+7.1f} s  {result.phase.value:<11}  {text}")
    return lines if len(lines) > 2 else [*lines, "  no results yet"]


def phases_of(command: ScalingCommand, results: Iterable[ActionResult]) -> list[ActionResult]:
    """Return the results of a command, oldest first and each once: an actuator may write one again."""
    found: dict[str, ActionResult] = {}
    for result in results:
        if result.command_id == command.command_id:
            found.setdefault(result.result_id, result)
    return sorted(found.values(), key=attrgetter("at"))


def _last_failure(decision: Decision, results: Sequence[ActionResult]) -> list[str]:
    """Return how the last command before this decision ended, unless it succeeded or is still under way."""
    before = [r for r in results if r.at <= decision.decided_at and r.job_id == decision.job_id]
    last = max(before, key=lambda r: (r.at, r.phase.terminal), default=None)
    if last is None or not last.phase.terminal or last.phase is Phase.VERIFIED:
        return []
    ended = f"{last.kind.value} {last.phase.value}"
    return ["", f"Last command, ended {clock(last.at)} UTC:", f"  {ended}  {last.sentence}  [{last.code}]"]


def ordered(command: ScalingCommand) -> str:
    """Return what a command orders, and until when."""
    target = f" to {size(command.to_parallelism)}" if command.to_parallelism else ""
    how = f" {HOW[command.way]}" if command.way is not None else ""
    return f"Command: {command.kind.value}{target}{how}, expires {clock(command.expires_at)} UTC"


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    wide = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{wide}}  {value}" for name, value in rows]


@dataclass(frozen=True, slots=True)
class DecisionSpan:
    """Consecutive decisions that said the same."""

    first: Decision
    count: int


def spans_of(decisions: Iterable[Decision]) -> list[DecisionSpan]:
    """Group the decisions of one job, oldest first: a new span starts where anything but figures differs."""
    found: list[DecisionSpan] = []
    for decision in decisions:
        if found and _said(found[-1].first) == _said(decision) and decision.command is None:
            found[-1] = DecisionSpan(found[-1].first, found[-1].count + 1)
        else:
            found.append(DecisionSpan(decision, 1))
    return found


def _said(decision: Decision) -> tuple[object, ...]:
    codes = tuple(entry.code for entry in decision.trail)
    return decision.status, decision.current_parallelism, decision.final_parallelism, codes
