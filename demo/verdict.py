"""The checks that a run must pass, each with its figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.audit import RecordAudit
from demo.watch import DemoSample, Timeline
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision
from tidegate.events.result import ActionResult, Phase

STEADY_SECONDS = 10.0
"""Lag has recovered once it has been under the objective for this long."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and whether it was kept."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """A phase of the load, as it went."""

    name: str
    rate: float
    began: float
    ended: float
    reached: bool
    """Whether its goal was met in time."""


@dataclass(frozen=True, slots=True)
class Audited:
    """The outcome of the audit."""

    passed: int
    """Checks that passed."""
    wrong: tuple[str, ...]
    """A line for each check that found something."""
    unsure: tuple[str, ...]
    """Checks that warned, could not prove everything, or could not run."""
    identical: int
    """Decisions that were made again, to the same bytes."""
    other: int
    """Decisions that could not be recomputed."""
    page: Path
    """The audit's report."""


@dataclass(frozen=True, slots=True)
class SizeChange:
    """One change of size, from command to outcome."""

    at: float
    before: int
    after: int
    outcome: str
    seconds: float | None
    """From the command until the new size was verified."""
    way: str
    """How the size was changed; empty if the command has not ended."""
    outage_seconds: float | None
    """Time without commits beyond the normal pace."""
    peak_lag: int
    """In records, from the command until the delay had recovered, or to the end of the run."""
    recovery_seconds: float | None
    """From there until the delay was under the objective for good; None if it never was."""


def changes(timeline: Timeline, objective_seconds: float) -> list[SizeChange]:
    """Return the changes of size of a running job, oldest first."""
    ends = {r.command_id: r for r in timeline.results if r.phase.terminal}
    found = []
    for decision in timeline.decisions:
        command = decision.command
        if command is None or command.kind is not CommandKind.RESCALE:
            continue
        end = ends.get(command.command_id)
        at = command.issued_at.timestamp()
        done = end.at.timestamp() if end is not None else None
        back = None if done is None else recovered_at(timeline.samples, done, objective_seconds)
        lags = [s.lag for s in timeline.samples if at <= s.at <= (back or float("inf"))]
        found.append(
            SizeChange(
                at,
                command.from_parallelism,
                command.to_parallelism,
                _outcome(end),
                done - at if done is not None else None,
                end.way.replace("_", " ") if end is not None and end.way is not None else "",
                end.outage_seconds if end is not None else None,
                max(lags, default=0),
                back - done if back is not None and done is not None else None,
            )
        )
    return found


def _outcome(end: ActionResult | None) -> str:
    if end is None:
        return "unfinished"
    return f"rolled back to {end.parallelism}" if end.phase is Phase.ROLLED_BACK else end.phase.value


def recovered_at(samples: Sequence[DemoSample], since: float, objective_seconds: float) -> float | None:
    """Return the first instant from `since` on after which the delay stayed under the objective; None without one.

    It falls with each batch and rises until the next. So it must stay under the objective for a while, or until the
    samples end.
    """
    recovered = None
    for sample in samples:
        if sample.at < since:
            continue
        if sample.delay_seconds > objective_seconds:
            recovered = None
        elif recovered is None:
            recovered = sample.at
        elif sample.at - recovered >= STEADY_SECONDS:
            return recovered
    return recovered


def judge(
    timeline: Timeline,
    phases: Sequence[PhaseResult],
    audit: RecordAudit | None,
    audited: Audited | None,
    objective_seconds: float,
) -> list[Check]:
    """Return every check of a run. A check whose data is missing fails."""
    return [
        *_loads(timeline, phases, objective_seconds),
        *_sizes(timeline, objective_seconds),
        _commands(timeline.decisions, timeline.results),
        _records(audit),
        _audit(audited),
        _watched(timeline),
    ]


def _loads(timeline: Timeline, phases: Sequence[PhaseResult], objective: float) -> Iterator[Check]:
    for phase in phases:
        samples = [s for s in timeline.samples if phase.began <= s.at <= phase.ended]
        last = samples[-1] if samples else None
        under = last is not None and last.delay_seconds <= objective
        peak = max((s.lag for s in samples), default=0)
        state = f"delay was {seconds(last.delay_seconds if last else None)} at the end (peak lag {peak:,} records)"
        goal = "goal met" if phase.reached else "GOAL NOT MET in this time"
        text = f"{phase.rate:,.0f} records/s for {phase.ended - phase.began:.0f} s; {goal}; {state}"
        name = f"load '{phase.name}' meets its goal in time, with a delay under {objective:g} s"
        yield Check(name, under and phase.reached, text)


def _sizes(timeline: Timeline, objective: float) -> Iterator[Check]:
    found = [c for c in changes(timeline, objective) if c.outcome == Phase.VERIFIED.value]
    sizes = [found[0].before, *(c.after for c in found)] if found else []
    way = " -> ".join(map(str, sizes)) or "the size did not change"
    yield Check("the job grew under the load", any(c.after > c.before for c in found), way)
    yield Check("the job shrank after the load", any(c.after < c.before for c in found), way)
    for change in found:
        name = f"the delay is back under {objective:g} s after {change.before} -> {change.after}"
        recovery = "never" if change.recovery_seconds is None else f"{change.recovery_seconds:.0f} s after the change"
        yield Check(
            name,
            change.recovery_seconds is not None,
            f"{recovery}; {change.way}, outage {seconds(change.outage_seconds)}, peak lag {change.peak_lag:,} records",
        )


def _commands(decisions: Sequence[Decision], results: Sequence[ActionResult]) -> Check:
    ordered = {d.command.command_id: d.command for d in decisions if d.command is not None}
    ended = {r.command_id: r for r in results if r.phase.terminal}
    wrong = []
    for identity, command in ordered.items():
        end = ended.get(identity)
        if end is None or end.phase is not Phase.VERIFIED:
            code = "" if end is None or end.code == "OK" else f" ({end.code})"
            wrong.append(f"{command.kind.value} to {command.to_parallelism}: {_outcome(end)}{code}")
    text = f"{len(ordered) - len(wrong)} of {len(ordered)} verified" + (": " + "; ".join(wrong) if wrong else "")
    return Check("every command was carried out", bool(ordered) and not wrong, text)


def _records(audit: RecordAudit | None) -> Check:
    name = "no record was lost"
    if audit is None:
        return Check(name, False, "the output could not be read")
    text = f"{audit.total:,} records read, {audit.missing:,} without output, {audit.duplicates:,} duplicates"
    if audit.missing:
        text += f"; first missing: {', '.join(audit.first_missing())}"
    if audit.unexpected:
        text += f"; {audit.unexpected:,} outputs without an input"
    return Check(name, audit.total > 0 and audit.missing == 0 and audit.unexpected == 0, text)


def _audit(audited: Audited | None) -> Check:
    name = "the audit proves every hop"
    if audited is None:
        return Check(name, False, "the audit did not come to an end")
    text = f"{audited.passed} checks passed, {audited.identical} decisions recomputed identically; see {audited.page}"
    if audited.other:
        text += f"; {audited.other} decisions could not be recomputed"
    if audited.unsure:
        text += f"; open: {', '.join(audited.unsure)}"
    if audited.wrong:
        text += f"; FOUND: {'; '.join(audited.wrong)}"
    return Check(name, audited.identical > 0 and not audited.other and not audited.wrong, text)


def _watched(timeline: Timeline) -> Check:
    wrong = [*timeline.broken, *timeline.unreadable]
    return Check("the run was observed without a gap", not wrong, "; ".join(wrong) or "every event was readable")


def seconds(value: float | None) -> str:
    """Return seconds as text."""
    return "unknown" if value is None else f"{value:.1f} s"
