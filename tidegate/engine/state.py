"""What the engine remembers of one job: small enough to be written with every snapshot (≤ 4 kB as JSON).

The window holds *slices*. A slice has the counters at the end of a stretch of time, and sums over what happened in it.
Rates over counters need only the ends of the window, and sums add up, so slices can be merged to at most `MAX_SLICES`
per window without changing any rate.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from tidegate.engine.batch_sums import NO_BATCHES, BatchSums
from tidegate.engine.costs import NO_CHANGES, ChangeMemory, changes_from_wire, changes_to_wire
from tidegate.engine.delay import NO_ARRIVALS, Arrivals, arrivals_from_wire, arrivals_to_wire
from tidegate.engine.history import EMPTY, History, history_from_wire, history_to_wire
from tidegate.engine.memory import Recorded, read_memory, write_memory
from tidegate.engine.records import known, quick_replace
from tidegate.events.way import ALL_WAYS, Way

MAX_SLICES: Final = 20


class Slice(NamedTuple):
    """One stretch of the window. Counters are cumulative; sums are over the stretch. Times are epoch seconds."""

    at: float
    arrived: int | None
    """Sum of the broker's end offsets at `at`."""
    committed: int | None
    """Sum of the committed offsets at `at`; records that were removed before they were read count as committed."""
    covered_seconds: float = 0.0
    """Time the sums account for; 0 when the stretch could not be seen whole."""
    busy_seconds: float = 0.0
    sums: BatchSums = NO_BATCHES
    """Of the batches that finished in the stretch."""
    outputs: int | None = None

    @property
    def lag(self) -> int | None:
        """Records that had arrived and were not committed; None when either is unknown."""
        if self.arrived is None or self.committed is None:
            return None
        return self.arrived - self.committed


class InFlight(NamedTuple):
    """A command that was ordered and has not ended."""

    command_id: str
    kind: str
    to_parallelism: int
    issued_at: float
    expires_at: float
    """When it can no longer be started; once it has started, when it did."""
    phase: str = "ordered"
    way: Way | None = None
    """The way that the command names; None for a start, a stop, or a command of an older engine."""


class ZeroMemory(NamedTuple):
    """What is remembered of a job that may be scaled to zero, see `tidegate.engine.zero`. Times are epoch seconds."""

    stopped_at: float | None = None
    """When it was stopped for want of records; None while it runs, or if it ended for another reason."""
    stopped_run: str | None = None
    """The run that was stopped."""
    by_request: bool | None = None
    """True if an operator asked for the stop."""
    committed: int | None = None
    """Sum of the committed offsets at the stop, as in the window."""
    seen_at: float | None = None
    """When the end offsets were last known."""
    arrived: int = 0
    """Their sum then."""
    silent_since: float = 0.0
    """The last snapshot with new records, or the first of all."""
    rate: float | None = None
    """Growth of the end offsets up to the newest snapshot, records/s."""
    unknown_since: float | None = None
    """Since when the end offsets have been unknown."""
    gaps: tuple[int, ...] = ()
    """Seconds of the last silences that have ended, oldest first."""
    sizes: tuple[tuple[int, float], ...] = ()
    """(slots, records/s) of the sizes whose capacity was measured last, the newest last."""
    starts: tuple[float, ...] = ()
    """Seconds that the last starts took, from the order to the first work."""


@quick_replace
class JobState(NamedTuple):
    """The engine's memory of one job."""

    decisions: int = 0
    """Decisions since the state was new; every `KEYFRAME_EVERY`-th carries the state."""
    last_sequence: int = -1
    """Sequence of the newest snapshot decided on; a snapshot at or below it is done."""
    engine_version: str = ""
    spec_version: int = 0
    spec_digest: str | None = None
    """Checksum of the spec at the last decision; None if an older engine made it."""
    incarnation: str | None = None
    run_since: float | None = None
    parallelism: int | None = None
    """Size of the running incarnation as the results say, or as first seen."""
    topics: tuple[tuple[str, int], ...] = ()
    """Source topics and their partition counts; a change is a discontinuity."""
    widest_stage: int | None = None
    """Tasks of the widest stage that does a real share of the work, when stages were seen last."""
    window: tuple[Slice, ...] = ()
    window_since: float | None = None
    """When the window last started over."""
    arrivals: Arrivals = NO_ARRIVALS
    """End offsets over time, as far back as records wait."""
    lost: int | None = None
    """Records between the committed offsets and those that are still there; None if there are none."""
    busy_until: float = 0.0
    """Up to here time inside micro-batches has been accounted for."""
    last_batch_id: int | None = None
    tasks_finished: int | None = None
    """Of the running batches, at the newest snapshot; None while none of them is known."""
    task_at: float | None = None
    """When that number last changed: a batch whose tasks go on finishing is at work."""
    in_flight: InFlight | None = None
    last_action_at: float | None = None
    """When the last rescale was ordered."""
    changes: ChangeMemory = NO_CHANGES
    """What past changes of size have shown."""
    application: str | None = None
    """Digest of the application that runs, once a result has told it."""
    outdated: bool | None = None
    """True if the spec says another application than the one that runs."""
    failures: int = 0
    """Failed starts in a row."""
    manual_done: str | None = None
    policy: str = ""
    memory: object = Recorded()
    """What the policy remembers, as its own type; as `Recorded` from the wire until the next decision."""
    history: History = EMPTY
    """What the guards remember."""
    zero: ZeroMemory | None = None
    """None for a job that always keeps a slot."""

    @staticmethod
    def new() -> JobState:
        """Return the state of a job never seen."""
        return JobState()


_NESTED = ("topics", "window", "arrivals", "in_flight", "changes", "memory", "history", "zero")
_PLAIN = tuple(name for name in JobState._fields if name not in _NESTED)


def to_wire(state: JobState) -> dict[str, JsonValue]:
    """Return the state as JSON values. Floats survive exactly: JSON writes their shortest round-trip form."""
    wire: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(state, name)) is not None}
    wire["memory"] = write_memory(state.memory)
    wire["topics"] = [list(topic) for topic in state.topics]
    wire["window"] = [[*piece[:5], *piece.sums, piece.outputs] for piece in state.window]
    if state.arrivals.knots:
        wire["arrivals"] = arrivals_to_wire(state.arrivals)
    if state.changes != NO_CHANGES:
        wire["changes"] = changes_to_wire(state.changes)
    if state.in_flight is not None:
        wire["in_flight"] = list(state.in_flight)
    if state.history != EMPTY:
        wire["history"] = history_to_wire(state.history)
    if state.zero is not None:
        wire["zero"] = write_memory(state.zero)
    return wire


def from_wire(wire: dict[str, Any]) -> JobState:
    """Return the state that `to_wire` wrote; what a newer engine has added is dropped.

    During an upgrade, a decider may take over jobs from a newer one. So a new field has a name of its own, or stands
    last in the row of its record.
    """
    in_flight = wire.get("in_flight")
    return JobState(
        **{name: wire[name] for name in _PLAIN if name in wire},
        topics=tuple((topic, partitions) for topic, partitions in wire.get("topics", ())),
        window=tuple(_slice(*row) for row in wire.get("window", ())),
        # Engines before the seventh kept no arrivals.
        arrivals=arrivals_from_wire(wire["arrivals"]) if "arrivals" in wire else NO_ARRIVALS,
        # Engines before the sixth knew only restarts and their downtime.
        changes=changes_from_wire(wire.get("changes", {}), wire.get("restarts", ())),
        in_flight=_command(*in_flight) if in_flight else None,
        memory=Recorded(wire.get("memory", {})),
        history=history_from_wire(wire.get("history", {})),
        zero=read_memory(ZeroMemory, wire["zero"]) if "zero" in wire else None,
    )


def _command(*row: Any) -> InFlight:
    """Return the command of a row; engines before the sixth wrote no way, and a newer one may know further ways."""
    command = InFlight(*known(InFlight, row))
    return command._replace(way=Way(command.way) if command.way in ALL_WAYS else None)


def _slice(at: float, arrived: int | None, committed: int | None, covered: float, busy: float, *rest: Any) -> Slice:
    """Return the slice of a row as `to_wire` writes it: the sums stand in it one by one."""
    sums = known(BatchSums, rest)
    return Slice(at, arrived, committed, covered, busy, BatchSums(*sums), rest[len(sums)])


NEW_STATE = to_wire(JobState.new())
"""In the keyframe of a job whose state the decider had lost, or never had."""
