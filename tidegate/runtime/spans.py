"""Traces: from a snapshot over its decision and its command to each phase of the change and the first committed batch.

    snapshot ── decision ── rescale ─┬─ accepted
                                     ├─ stopped …
                                     └─ verified ── first batch

A span is a function of events alone: its ids come from their ids (as those in their `traceparent` do), its times are
theirs. So no event carries anything for a trace, a service that is restarted goes on with it, and a replay of the same
events gives the same trace. Only decisions with a command become traces; the others change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision
from tidegate.events.envelope import span_of, trace_of
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.wire import Scalar, identity

BAD = (Phase.REJECTED, Phase.FAILED, Phase.ROLLED_BACK)


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One step of a chain of events; ids are hexadecimal, as in W3C Trace Context."""

    trace_id: str
    span_id: str
    parent_id: str | None
    service: str
    name: str
    start: datetime
    end: datetime
    attributes: dict[str, Scalar] = field(default_factory=dict)
    error: str | None = None
    """Why the step failed; None if it did not."""


Trace = Callable[[Sequence[TraceSpan]], None]
"""Exports spans; never waits, and never raises."""


def no_trace(spans: Sequence[TraceSpan]) -> None:
    """Export nothing."""


def spans_of_decision(
    snapshot: MetricSnapshot, decision: Decision, command: ScalingCommand, trace_id: str | None
) -> tuple[TraceSpan, ...]:
    """Return the spans of a snapshot and of the decision that ordered a command."""
    trace, due = trace_id or trace_of(snapshot.snapshot_id), datetime.fromtimestamp(snapshot.sequence, UTC)
    job: dict[str, Scalar] = {"tidegate.job_id": decision.job_id, "tidegate.pipeline_id": decision.pipeline_id}
    measured = TraceSpan(
        trace,
        span_of(snapshot.snapshot_id),
        None,
        "collector",
        "snapshot",
        min(due, snapshot.observed_at),
        snapshot.observed_at,
        job | {"tidegate.snapshot_id": snapshot.snapshot_id, "tidegate.job_state": snapshot.state.value},
    )
    decided = TraceSpan(
        trace,
        span_of(decision.decision_id),
        measured.span_id,
        "decider",
        "decision",
        min(snapshot.observed_at, decision.decided_at),
        decision.decided_at,
        job
        | {
            "tidegate.decision_id": decision.decision_id,
            "tidegate.status": decision.status.value,
            "tidegate.reason_codes": ",".join(entry.code for entry in decision.trail),
            "tidegate.from_slots": command.from_parallelism,
            "tidegate.to_slots": command.to_parallelism,
            "tidegate.explanation": decision.sentence,
        },
    )
    return measured, decided


def spans_of_result(
    command: ScalingCommand, earlier: Sequence[ActionResult], result: ActionResult, trace_id: str | None
) -> tuple[TraceSpan, ...]:
    """Return the spans that end with a result: its phase, the first batch, and with the last one the whole command.

    `earlier` are the command's results before it, oldest first.
    """
    trace, whole = trace_id or trace_of(command.snapshot_id), span_of(identity("command", command.command_id))
    attributes: dict[str, Scalar] = {
        "tidegate.job_id": command.job_id,
        "tidegate.decision_id": command.command_id,
        "tidegate.code": result.code,
        "tidegate.slots": result.parallelism,
        "tidegate.attempt": result.attempt,
        "tidegate.explanation": result.sentence,
    }
    if result.way is not None:
        attributes["tidegate.way"] = result.way.value
    error = f"{result.code}: {result.sentence}" if result.phase in BAD else None
    since = earlier[-1].at if earlier else command.issued_at
    phase = TraceSpan(
        trace,
        span_of(result.result_id),
        whole,
        "actuator",
        result.phase.value,
        min(since, result.at),
        result.at,
        attributes,
        error,
    )
    spans = [phase]
    committed = result.details.get("first_commit_at")
    if isinstance(committed, (int, float)) and not any("first_commit_at" in each.details for each in earlier):
        at = datetime.fromtimestamp(committed, UTC)
        batch = attributes | {"tidegate.batch_id": result.details.get("first_batch_id", -1)}
        first = span_of(identity("first-batch", result.result_id))
        spans.append(TraceSpan(trace, first, phase.span_id, "actuator", "first batch", min(since, at), at, batch))
    if result.phase.terminal:
        name, order = command.kind.value, span_of(command.command_id)
        start = min(command.issued_at, result.at)
        spans.append(TraceSpan(trace, whole, order, "actuator", name, start, result.at, attributes, error))
    return tuple(spans)
