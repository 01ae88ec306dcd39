"""Moving recorded events in time, all by the same span of whole seconds, so that a decider takes them as fresh.

A sequence number is the second its snapshot was measured in, and ids are functions of sequence numbers. So sequence
and ids move along: a result names the command that this version's engine orders on the moved snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.events.decision import decision_id
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, result_id
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.events.wire import Wire

W = TypeVar("W", bound=Wire)


def shift_to_now(snapshots: Iterable[MetricSnapshot], speed: float | None, recorded_at: datetime) -> int:
    """Return the seconds by which to move a stream, rounded down so that no snapshot is from the future.

    Up to speed 1 the first snapshot moves to now. Above it the stream's own time runs faster than the clock: the last
    snapshot moves to when it will be published, and the early ones look old. One that was measured after the stream was
    recorded is of a wrong clock, and moves with the others.
    """
    at_pace, instants = speed is not None and speed <= 1, list[datetime]()
    for snapshot in snapshots:
        instants.append(snapshot.observed_at)
        if at_pace and snapshot.observed_at <= recorded_at:
            break  # only the first one of a right clock counts, and there may be millions
    if not instants:
        return 0
    instants = [at for at in instants if at <= recorded_at] or instants
    now, first, last = datetime.now(UTC), instants[0], max(instants)
    if at_pace:
        return int((now - first).total_seconds() // 1)
    takes = (last - first) / speed if speed is not None else timedelta()
    return int((now + takes - last).total_seconds() // 1)


def moved_snapshot(snapshot: MetricSnapshot, seconds: int) -> MetricSnapshot:
    """Return a snapshot with every instant later by `seconds`; all rates and spans stay as they were."""
    sequence = snapshot.sequence + seconds
    return _later(snapshot, timedelta(seconds=seconds)).model_copy(
        update={"sequence": sequence, "snapshot_id": snapshot_id(snapshot.job_id, sequence)}
    )


def moved_result(result: ActionResult, seconds: int, spec_versions: Mapping[str, int]) -> ActionResult | None:
    """Return a result moved by `seconds`; None if its command is not among `spec_versions`, by command id."""
    version = spec_versions.get(result.command_id)
    if version is None:
        return None
    sequence = result.epoch + seconds  # a command's epoch is the sequence of its snapshot
    command = decision_id(result.job_id, snapshot_id(result.job_id, sequence), version, ENGINE_VERSION)
    return _later(result, timedelta(seconds=seconds)).model_copy(
        update={
            "result_id": result_id(command, result.phase, result.attempt),
            "command_id": command,
            "epoch": sequence,
        }
    )


def moved_spec(spec: JobSpec, seconds: int) -> JobSpec:
    """Return a spec whose manual request, if it has one, is later by `seconds`."""
    return _later(spec, timedelta(seconds=seconds))


def _later(event: W, span: timedelta) -> W:
    """Return an event with every instant in it later by `span`, however deep."""
    moved: dict[str, object] = {}
    for name in type(event).model_fields:
        value = getattr(event, name)
        if isinstance(value, datetime):
            moved[name] = value + span
        elif isinstance(value, Wire):
            moved[name] = _later(value, span)
        elif isinstance(value, tuple) and value and isinstance(value[0], Wire):
            moved[name] = tuple([_later(each, span) for each in value])
    return event.model_copy(update=moved)
