"""A decision in plain words: what was measured, what was wanted, who bent it and why, what is expected. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision, Evidence, Figure, RedisView
from tidegate.events.result import ActionResult, Phase
from tidegate.installed import engine
from tidegate.terminal import clock, figure, size


def explain(decision: Decision, results: Sequence[ActionResult] = ()) -> list[str]:
    """Return the lines that explain a decision; `results` are the phases of its command, if it had one."""
    return [
        f"{decision.job_id}  {clock(decision.decided_at)} UTC  {decision.status.value}",
        f"{_sizes(decision)}",
        "",
        decision.sentence,
        "",
        *_measured(decision.evidence),
        "",
        *_trail(decision),
        *_expected(decision),
        *_beside(decision),
        *_remedies(decision),
        *_command(decision, results),
        "",
        f"decision {decision.decision_id}, sequence {decision.sequence}",
        f"spec version {decision.spec_version}, policy {decision.policy}, engine {decision.engine_version}",
    ]


def _sizes(decision: Decision) -> str:
    if decision.current_parallelism == 0:
        return f"does not run; {size(decision.final_parallelism)} decided"
    text = f"{size(decision.current_parallelism)} now, {decision.proposed_parallelism} wanted, "
    kept = decision.final_parallelism == decision.current_parallelism
    return text + (f"kept at {decision.final_parallelism}" if kept else f"{decision.final_parallelism} decided")


def _measured(evidence: Evidence) -> list[str]:
    rows = [
        ("records arriving", figure(evidence.arrival_rate, "records/s")),
        ("records processed", figure(evidence.processing_rate, "records/s")),
        ("capacity when busy", figure(evidence.true_processing_rate, "records/s")),
        ("busy", "unknown" if evidence.utilization is None else f"{evidence.utilization:.0%} of the time"),
        ("lag", f"{figure(evidence.lag_records, 'records')}, {figure(evidence.lag_seconds, 's of work', 1)}"),
        ("lag trend", "unknown" if evidence.lag_trend is None else f"{evidence.lag_trend:+,.1f} records/s"),
        ("micro-batch", figure(evidence.batch_seconds, "s", 2)),
        ("partitions", figure(evidence.partitions)),
        ("slots granted", figure(evidence.slots_granted)),
    ]
    if evidence.state_bytes is not None:
        rows.append(("state", figure(evidence.state_bytes / 1e6, "MB", 1)))
    if evidence.task_skew is not None:
        rows.append(("slowest task / median", figure(evidence.task_skew, "x", 1)))
    if evidence.single_task_share is not None:
        rows.append(("time in single tasks", f"{evidence.single_task_share:.0%}"))
    if evidence.gc_ratio is not None:
        rows.append(("garbage collection", f"{evidence.gc_ratio:.0%}"))
    if evidence.missing:
        rows.append(("missing", ", ".join(evidence.missing)))
    heading = f"measured over {figure(evidence.window_seconds, 's')}, {evidence.snapshots} snapshots"
    return [heading, *_columns(rows)]


def _trail(decision: Decision) -> list[str]:
    if not decision.trail:
        return ["nothing bent it"]
    steps = [(f"{e.before} -> {e.after}", e.by, e.sentence, _numbers(e.numbers)) for e in decision.trail]
    wide, by = max(len(s[0]) for s in steps), max(len(s[1]) for s in steps)
    lines = ["how it came about"]
    for entry, (move, who, sentence, numbers) in zip(decision.trail, steps, strict=True):
        lines.append(f"  {move:<{wide}}  {who:<{by}}  {sentence}  [{entry.code}]")
        if numbers:
            lines.append(f"  {'':<{wide}}  {'':<{by}}  {numbers}")
    return lines


def _numbers(numbers: dict[str, Figure]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in numbers.items())


def _short(value: Figure) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "unknown" if value is None else str(value)


def _expected(decision: Decision) -> list[str]:
    expected = decision.expectation
    if expected is None:
        return []
    rows = [
        ("capacity", expected.processing_rate, "records/s", 0),
        ("lag", expected.lag_seconds, "s of work", 1),
        ("time to catch up", expected.catch_up_seconds, "s", 0),
        ("restart", expected.restart_seconds, "s", 1),
        ("cost", expected.core_seconds, "core-seconds", 0),
    ]
    known = [(name, figure(value, unit, digits)) for name, value, unit, digits in rows if value is not None]
    return ["", f"expected of {size(decision.final_parallelism)}", *_columns(known)] if known else []


def _beside(decision: Decision) -> list[str]:
    seen, rows = decision.observed, []
    if seen.redis is not RedisView.OK:
        rows.append(("Redis", seen.redis.value))
    if seen.cooldown_until is not None:
        rows.append(("cooldown until", f"{clock(seen.cooldown_until)} UTC"))
    if seen.pool_reserved:
        rows.append(("promised to other jobs", size(seen.pool_reserved)))
    if seen.reservation_refused:
        rows.append(("reservation", "refused"))
    rows += [
        (f"{'upstream' if n.upstream else 'downstream'} job", f"{n.job_id}, {size(n.parallelism)}")
        for n in seen.neighbours
    ]
    return ["", "seen beside the measurements", *_columns(rows)] if rows else []


def _remedies(decision: Decision) -> list[str]:
    reasons = engine().reasons
    codes = dict.fromkeys(entry.code for entry in decision.trail)
    remedies = [reasons[code].remedy for code in codes if code in reasons and reasons[code].remedy]
    return ["", "what can be done", *(f"  {remedy}" for remedy in remedies)] if remedies else []


def _command(decision: Decision, results: Sequence[ActionResult]) -> list[str]:
    command = decision.command
    if command is None:
        return _came_to_nothing(decision, results)
    lines = [
        "",
        _ordered(command),
    ]
    for result in sorted((r for r in results if r.command_id == command.command_id), key=lambda r: r.at):
        after = (result.at - command.issued_at).total_seconds()
        text = result.sentence or size(result.parallelism)
        if result.downtime_seconds is not None:
            text += f" (downtime {result.downtime_seconds:.1f} s)"
        lines.append(f"  {after:+7.1f} s  {result.phase.value:<11}  {text}")
    return lines if len(lines) > 2 else [*lines, "  no result yet"]


def _came_to_nothing(decision: Decision, results: Sequence[ActionResult]) -> list[str]:
    """Return how the last command before a decision without one ended, if its size is not what the job has."""
    ends = [r for r in results if r.phase.terminal and r.at <= decision.decided_at and r.job_id == decision.job_id]
    last = max(ends, key=lambda r: r.at, default=None)
    if last is None or last.phase is Phase.VERIFIED:
        return []
    ended = f"{last.kind.value} {last.phase.value}"
    return ["", f"the last command, {clock(last.at)} UTC", f"  {ended}  {last.sentence}  [{last.code}]"]


def _ordered(command: ScalingCommand) -> str:
    what = (
        command.kind.value if command.to_parallelism == 0 else f"{command.kind.value} to {size(command.to_parallelism)}"
    )
    return f"ordered: {what}, void after {clock(command.expires_at)} UTC"


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    wide = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{wide}}  {value}" for name, value in rows]


@dataclass(frozen=True, slots=True)
class Change:
    """A stretch of decisions that said the same."""

    first: Decision
    last_at: datetime
    count: int


def changes(decisions: Iterable[Decision]) -> list[Change]:
    """Return stretches of decisions of one job, oldest first; a new one begins where anything but numbers differs."""
    found: list[Change] = []
    for decision in decisions:
        if found and _gist(found[-1].first) == _gist(decision) and decision.command is None:
            found[-1] = Change(found[-1].first, decision.decided_at, found[-1].count + 1)
        else:
            found.append(Change(decision, decision.decided_at, 1))
    return found


def _gist(decision: Decision) -> tuple[object, ...]:
    codes = tuple(entry.code for entry in decision.trail)
    return decision.status, decision.current_parallelism, decision.final_parallelism, codes
