"""What must have held in a run: one check per promise, each with its numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from demo.ledger import Ledger
from demo.watch import Sample, Timeline
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision
from tidegate.events.result import ActionResult, Phase

STEADY_SECONDS = 10.0
"""Lag is back once it has been under the objective for so long without a break."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and whether it held."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Lived:
    """A phase of the load as it was."""

    name: str
    rate: float
    began: float
    ended: float
    reached: bool
    """Whether its goal was met in time."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What recomputing all decisions gave."""

    identical: int
    differing: int
    other: int
    """Decisions that could not be recomputed."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of size, from order to outcome."""

    at: float
    before: int
    after: int
    outcome: str
    seconds: float | None
    """From the order to the verified first batch."""
    downtime_seconds: float | None
    peak_lag: int
    """Records, from the order until lag was back, or to the end."""
    back_seconds: float | None
    """From the first batch of the new size until lag was under the objective to stay; None when it never was."""


def changes(timeline: Timeline, objective_seconds: float) -> list[Change]:
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
        back = None if done is None else back_at(timeline.samples, done, objective_seconds)
        lags = [s.lag for s in timeline.samples if at <= s.at <= (back or float("inf"))]
        found.append(
            Change(
                at,
                command.from_parallelism,
                end.parallelism if end is not None else command.to_parallelism,
                end.phase.value if end is not None else "did not end",
                done - at if done is not None else None,
                end.downtime_seconds if end is not None else None,
                max(lags, default=0),
                back - done if back is not None and done is not None else None,
            )
        )
    return found


def back_at(samples: Sequence[Sample], since: float, objective_seconds: float) -> float | None:
    """Return the first instant from `since` on from which lag stayed under the objective; None if there was none.

    Right after a restart the capacity is known badly and lag in seconds may dip, so it must stay for a while, or until
    the samples end.
    """
    back = None
    for sample in samples:
        if sample.at < since:
            continue
        if sample.lag_seconds is None or sample.lag_seconds > objective_seconds:
            back = None
        elif back is None:
            back = sample.at
        elif sample.at - back >= STEADY_SECONDS:
            return back
    return back


def judge(
    timeline: Timeline,
    stages: Sequence[Lived],
    ledger: Ledger | None,
    recomputed: Recomputed | None,
    objective_seconds: float,
) -> list[Check]:
    """Return every check of a run; the run passed when all did. What could not be looked at did not pass."""
    return [
        *_loads(timeline, stages, objective_seconds),
        *_sizes(timeline, objective_seconds),
        _commands(timeline.decisions, timeline.results),
        _records(ledger),
        _decisions(recomputed),
        _watched(timeline),
    ]


def _loads(timeline: Timeline, stages: Sequence[Lived], objective: float) -> Iterator[Check]:
    for stage in stages:
        samples = [s for s in timeline.samples if stage.began <= s.at <= stage.ended]
        last = samples[-1] if samples else None
        under = last is not None and last.lag_seconds is not None and last.lag_seconds <= objective
        peak = max((s.lag for s in samples), default=0)
        state = f"at its end lag was {_seconds(last.lag_seconds if last else None)} (peak {peak:,} records)"
        goal = "its goal was met" if stage.reached else "ITS GOAL WAS NOT MET"
        text = f"{stage.rate:,.0f} records/s for {stage.ended - stage.began:.0f} s: {goal}; {state}"
        yield Check(f"load '{stage.name}': lag under {objective:g} s", under and stage.reached, text)


def _sizes(timeline: Timeline, objective: float) -> Iterator[Check]:
    found = [c for c in changes(timeline, objective) if c.outcome == Phase.VERIFIED.value]
    way = " -> ".join(str(n) for n in _sizes_in_turn(found)) or "no change of size"
    yield Check("the job grew under the load", any(c.after > c.before for c in found), way)
    yield Check("the job shrank after it", any(c.after < c.before for c in found), way)
    for change in found:
        name = f"lag back under {objective:g} s after {change.before} -> {change.after}"
        down = _seconds(change.downtime_seconds)
        back = "never" if change.back_seconds is None else f"{change.back_seconds:.0f} s after the first batch"
        yield Check(name, change.back_seconds is not None, f"{back}; downtime {down}, peak {change.peak_lag:,} records")


def _sizes_in_turn(found: Sequence[Change]) -> list[int]:
    return [found[0].before, *(c.after for c in found)] if found else []


def _commands(decisions: Sequence[Decision], results: Sequence[ActionResult]) -> Check:
    ordered = {d.command.command_id: d.command for d in decisions if d.command is not None}
    ended = {r.command_id: r for r in results if r.phase.terminal}
    wrong = []
    for identity, command in ordered.items():
        end = ended.get(identity)
        if end is None or end.phase is not Phase.VERIFIED:
            became = "no end" if end is None else f"{end.phase.value}, {end.code}"
            wrong.append(f"{command.kind.value} to {command.to_parallelism}: {became}")
    text = f"{len(ordered) - len(wrong)} of {len(ordered)} verified" + (": " + "; ".join(wrong) if wrong else "")
    return Check("every command was carried out", bool(ordered) and not wrong, text)


def _records(ledger: Ledger | None) -> Check:
    name = "nothing was lost"
    if ledger is None:
        return Check(name, False, "the output was not read")
    text = f"{ledger.total:,} records in, {ledger.missing:,} without output, {ledger.duplicates:,} duplicates"
    if ledger.missing:
        text += f"; first missing: {', '.join(ledger.first_missing())}"
    if ledger.strangers:
        text += f"; {ledger.strangers:,} outputs that name no input"
    return Check(name, ledger.total > 0 and ledger.missing == 0 and ledger.strangers == 0, text)


def _decisions(recomputed: Recomputed | None) -> Check:
    name = "every decision recomputed is identical"
    if recomputed is None:
        return Check(name, False, "they were not recomputed")
    total = recomputed.identical + recomputed.differing + recomputed.other
    text = f"{recomputed.identical} of {total} identical"
    if recomputed.differing or recomputed.other:
        text += f", {recomputed.differing} differ, {recomputed.other} could not be recomputed; {recomputed.detail}"
    return Check(name, total > 0 and recomputed.identical == total, text)


def _watched(timeline: Timeline) -> Check:
    wrong = [*timeline.broken, *timeline.unreadable]
    return Check("the run was watched without a gap", not wrong, "; ".join(wrong) or "every event could be read")


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} s"
