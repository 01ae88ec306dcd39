"""`numaflow`: Numaflow's rule, for one micro-batch job.

The job is one vertex. By default it is a *source*, as in Numaflow's Kafka source: one partition, whose pending is the
lag over all Kafka partitions. With `vertex: udf` its source topic is taken for a buffer of `buffer_length` records.

    source   desired = round( pending / rate / target · ready )
    buffer   desired = round( free / ((limit - pending) / ready) )        once less than `free` is left of the buffer

- pending: mean lag, records; rate: growth of committed offsets, records/s; both over the lookback, which starts at
  `lookback_seconds` and is lengthened to the longest time in which no offset was committed.
- target: `target_processing_seconds`. ready: granted slots.
- limit: `buffer_length` · `buffer_usage_limit`, records; from there on a step is added. free: `buffer_length` ·
  `target_buffer_availability` / 100, records.

The size goes there by steps of `replicas_per_scale_up` and `replicas_per_scale_down`, with a cooldown after each
change, within the bounds of the spec or of an open cron window (`start|end|min|max; ...`, UTC, cron with six fields,
the first of them seconds). Nothing is added at the rate limit, nor under back pressure: when the lag of a job
downstream fills `back_pressure_threshold` of its limit. One that reads our sink even costs a slot. A Spark job keeps at
least one slot, so there is no scaling to zero.

Source: numaproj/numaflow `pkg/reconciler`, `pkg/daemon` (`numaflow_rules`). Options and defaults are Numaflow's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from tidegate.engine.case import Case, Proposal
from tidegate.engine.cron import BadCron, Cron
from tidegate.engine.cron import parse as parse_cron
from tidegate.engine.options import BadOption, option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies import numaflow_rules as rules
from tidegate.policies.shared import EVIDENCE_MISSING, clamp, expect, restart_seconds


@dataclass(frozen=True, slots=True)
class NumaflowOptions:
    """Options of `numaflow`, with Numaflow's defaults; least and most replicas are the spec's."""

    vertex: str = option(
        "source",
        "`source` and `mono_vertex`: by pending alone; `udf`: by the free buffer too",
        choices=("source", "mono_vertex", "udf"),
    )
    lookback_seconds: int = option(
        120, "time that rate and pending are averaged over, at least", unit="s", ge=10, le=600
    )
    adaptive_lookback: bool = option(
        True, "lengthen the lookback when offsets stand still for longer, to 600 s at most"
    )
    target_processing_seconds: int = option(20, "time in which the pending is to be worked off", unit="s", ge=1)
    scale_up_cooldown_seconds: float = option(90.0, "time after a change before the next growth", unit="s", ge=0)
    scale_down_cooldown_seconds: float = option(90.0, "time after a change before the next reduction", unit="s", ge=0)
    replicas_per_scale_up: int = option(2, "most slots added at a time", unit="slots", ge=1)
    replicas_per_scale_down: int = option(2, "most slots taken away at a time", unit="slots", ge=1)
    buffer_length: int = option(30_000, "records a buffer holds: ours as `udf`, and a downstream job's", ge=1)
    buffer_usage_limit: float = option(0.8, "share of a buffer that may be used", unit="share", gt=0, le=1)
    target_buffer_availability: int = option(50, "how much of the buffer is to be free", unit="%", ge=1, le=100)
    back_pressure_threshold: float = option(
        0.9, "fill of a downstream buffer from which it presses back", unit="share", gt=0
    )
    rate_limit: float | None = option(
        None, "rate at which the job is throttled; no growth there", unit="records/s", gt=0
    )
    cron: str = option("", "windows with their own bounds, as `start|end|min|max; ...`")
    mend_pending_overflow: bool = option(False, "mend Numaflow's 32-bit overflow: a pending over 2^31 asks for 1 slot")
    mend_pressure_cooldown: bool = option(False, "let the step down under back pressure wait for the cooldown too")
    assumed_restart_seconds: float = option(
        30.0, "restart time in the decision's expectation until one was measured", unit="s", ge=0
    )


@dataclass(frozen=True, slots=True)
class CronWindow:
    """One window with its own bounds; a bound not given is the spec's."""

    start: Cron
    end: Cron
    minimum: int | None
    maximum: int | None


class Numaflow:
    """Numaflow's rule: the slots that work off the lag in a given time, step by step."""

    name: ClassVar[str] = "numaflow"
    Options: ClassVar[type] = NumaflowOptions
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "NUMAFLOW_PENDING": Reason(
            "{pending} records wait and {rate:.0f}/s are processed; "
            "{target} s to work them off ask for a size of {desired}"
        ),
        "NUMAFLOW_IDLE": Reason("nothing waits and nothing is processed; {size} slots will do"),
        "NUMAFLOW_STILL": Reason("{pending} records wait and none was processed in {lookback:.0f} s"),
        "NUMAFLOW_COOLDOWN": Reason("the size wanted is {desired}, but the last change is {since:.0f} s old"),
        "NUMAFLOW_STEP": Reason("the size wanted is {desired}, and the next step on the way is {size}"),
        "NUMAFLOW_DIRECT_PRESSURE": Reason(
            "the size wanted is {desired}, but the next job downstream is full, so nothing is added",
            "scale the downstream job first: it takes less than this one gives it",
        ),
        "NUMAFLOW_DOWNSTREAM_PRESSURE": Reason(
            "the size wanted is {desired}, but a job further downstream is full, so nothing is added",
            "scale the downstream job first: it takes less than this one gives it",
        ),
        "NUMAFLOW_RATE_LIMIT": Reason("the size wanted is {desired}, but {rate:.0f} records/s is the rate limit"),
        "NUMAFLOW_WINDOW": Reason("the cron window asks for {low} to {high} slots"),
        "NUMAFLOW_FIXED": Reason("least and most are both {low} slots, so there is nothing to choose"),
    }

    def __init__(self, options: NumaflowOptions) -> None:
        self.options = options
        self.windows = _windows(options.cron)
        self.limit = rules.buffer_limit(options.buffer_length, options.buffer_usage_limit)

    @property
    def window_seconds(self) -> float:
        """The longest the lookback can become."""
        o = self.options
        return float(rules.MAX_LOOKBACK_SECONDS if o.adaptive_lookback else o.lookback_seconds)

    def propose(self, case: Case) -> Proposal:
        """Return the size by one pass of Numaflow's loop."""
        memory, lookback = self._lookback(case)
        since = math.inf if case.state.last_action_at is None else case.decided_at - case.state.last_action_at
        low, high, opened = self._bounds(case)
        numbers: dict[str, Figure] = {"low": low, "high": high, "lookback": lookback}
        if since < math.inf:
            numbers["since"] = since
        current = case.current
        if opened and not low <= current <= high:
            size = clamp(case, self._paced(current, max(low, min(current, high)), since))
            return self._proposal(case, size, "NUMAFLOW_WINDOW", numbers, memory)
        if low == high == current:
            return self._proposal(case, current, "NUMAFLOW_FIXED", numbers, memory)
        rate, pending = self._measure(case, lookback)
        if rate is None or pending is None or case.snapshot.slots_granted == 0:
            missing = "pending records" if pending is None else "processing rate" if rate is None else "ready slots"
            return self._proposal(case, current, "EVIDENCE_MISSING", {"missing": missing}, memory)
        desired = self._desired(case, rate, pending)
        numbers |= {
            "rate": rate,
            "pending": pending,
            "target": self.options.target_processing_seconds,
            "desired": desired,
        }
        if (
            self.options.rate_limit is not None
            and desired > current
            and rules.at_rate_limit(rate, self.options.rate_limit)
        ):
            return self._proposal(case, current, "NUMAFLOW_RATE_LIMIT", numbers, memory)
        direct, downstream = self._pressure(case)
        size, held = rules.scaled(
            current,
            desired,
            minimum=low,
            maximum=high,
            since_last_scale=since,
            up_cooldown=self.options.scale_up_cooldown_seconds,
            down_cooldown=self.options.scale_down_cooldown_seconds,
            up_step=self.options.replicas_per_scale_up,
            down_step=self.options.replicas_per_scale_down,
            direct_pressure=direct,
            downstream_pressure=downstream,
            mend_pressure_cooldown=self.options.mend_pressure_cooldown,
        )
        numbers["size"] = size = clamp(case, size)
        if held:
            code = f"NUMAFLOW_{held.replace(' ', '_').upper()}"
        elif rate == 0:
            code = "NUMAFLOW_STILL" if pending else "NUMAFLOW_IDLE"
        else:
            code = "NUMAFLOW_PENDING"
        return self._proposal(case, size, code, numbers, memory)

    def ordered(self, case: Case, proposal: Proposal, final: int) -> dict[str, JsonValue]:  # noqa: ARG002
        """Keep the memory; the cooldown is reckoned from the state's last action."""
        return dict(proposal.memory or {})

    def _proposal(
        self, case: Case, size: int, code: str, numbers: Mapping[str, Figure], memory: dict[str, JsonValue]
    ) -> Proposal:
        restart = restart_seconds(case, self.options.assumed_restart_seconds)
        return Proposal(size, code, numbers, expect(case, size, restart), memory)

    def _desired(self, case: Case, rate: float, pending: int) -> int:
        o = self.options
        if o.vertex == "mono_vertex":
            return rules.mono_vertex_desired(
                rate,
                pending,
                target_processing_seconds=o.target_processing_seconds,
                ready_replicas=self._ready(case),
                replicas=case.current,
            )
        if rate == 0 and pending == 0:
            return 0
        return rules.desired_replicas(
            [rate],
            [pending],
            target_processing_seconds=o.target_processing_seconds,
            ready_replicas=self._ready(case),
            source=o.vertex == "source",
            buffer_length=o.buffer_length,
            buffer_length_limit=self.limit,
            target_available_length=rules.target_available(o.buffer_length, o.target_buffer_availability),
            replicas=case.current,
            replicas_per_scale_up=o.replicas_per_scale_up,
            wrap_pending=not o.mend_pending_overflow,
        )

    def _ready(self, case: Case) -> int:
        """Return the ready replicas: slots really granted, at most the size ordered."""
        return min(case.current, case.snapshot.slots_granted or case.current)

    def _measure(self, case: Case, lookback: float) -> tuple[float | None, int | None]:
        """Return (records/s, mean records pending) over the lookback; None where it cannot be told."""
        inside = [piece for piece in case.state.window if piece.at >= case.measured_at - lookback]
        counts = [(piece.at, piece.committed) for piece in inside if piece.committed is not None]
        waiting = [lag for piece in inside if (lag := piece.lag) is not None]
        newest = inside[-1].lag if inside else None
        if len(counts) < 2 or newest is None:
            return None, None if newest is None else max(0, sum(waiting) // len(waiting))
        rate = (counts[-1][1] - counts[0][1]) / (counts[-1][0] - counts[0][0])
        return rate, max(0, sum(waiting) // len(waiting))

    def _lookback(self, case: Case) -> tuple[dict[str, JsonValue], float]:
        """Return (memory, lookback now): still spells are remembered while three lookbacks reach back to them.

        Only spells longer than the configured lookback can lengthen it, so only those are kept.
        """
        o, memory = self.options, dict[str, Any](case.state.memory)
        current = float(memory.get("lookback", o.lookback_seconds))
        count = case.state.window[-1].committed if case.state.window else None
        if not o.adaptive_lookback or count is None:
            return memory, current
        seen_at, seen = memory.get("seen", (case.measured_at, count))
        began = case.measured_at - 3 * current
        spells = [[start, end] for start, end in memory.get("spells", ()) if end > began]
        if count != seen:
            if count > seen and case.measured_at - seen_at > o.lookback_seconds:
                spells.append([seen_at, case.measured_at])
            seen_at, seen = case.measured_at, count
        ongoing = case.measured_at - max(seen_at, began) if seen else 0.0
        still = max([end - max(start, began) for start, end in spells] + [ongoing])
        lookback = rules.next_lookback(current, still, o.lookback_seconds)
        kept: dict[str, JsonValue] = {"lookback": lookback, "seen": [seen_at, seen]}
        if spells:
            kept["spells"] = spells  # type: ignore[assignment]
        return kept, lookback

    def _bounds(self, case: Case) -> tuple[int, int, bool]:
        """Return (least, most, whether a cron window is open); the first open window counts."""
        scaling = case.spec.scaling
        low, high = scaling.min_parallelism, scaling.max_parallelism
        if self.options.vertex != "udf":
            for window in self.windows:
                if rules.window_active(window.start, window.end, case.snapshot.observed_at):
                    least = low if window.minimum is None else window.minimum
                    return least, high if window.maximum is None else window.maximum, True
        return low, high, False

    def _paced(self, current: int, target: int, since: float) -> int:
        """Return the next size on the way into a cron window's bounds."""
        o = self.options
        cooldown = o.scale_up_cooldown_seconds if target > current else o.scale_down_cooldown_seconds
        if since < cooldown:
            return current
        return rules.stepped(current, target, o.replicas_per_scale_up, o.replicas_per_scale_down)[0]

    def _pressure(self, case: Case) -> tuple[bool, bool]:
        """Return (back pressure from a directly connected job, from any job downstream)."""
        direct = downstream = False
        for neighbour in case.observed.neighbours:
            lag = neighbour.evidence.lag_records if neighbour.evidence is not None else None
            if neighbour.upstream or lag is None:
                continue
            if rules.back_pressure(lag, self.limit, self.options.back_pressure_threshold):
                downstream = True
                direct = direct or _reads_ours(neighbour.topics, case.spec.sinks)
        return direct, downstream


def _reads_ours(topics: Sequence[str], sinks: Sequence[str]) -> bool:
    """Whether a downstream job reads one of our sinks itself; with no sinks told, it is taken to."""
    return not sinks or any(topic in sinks for topic in topics)


def _windows(text: str) -> tuple[CronWindow, ...]:
    """Return the windows of a `cron` option, or raise `BadOption`."""
    windows = []
    for item in filter(None, (part.strip() for part in text.split(";"))):
        fields = [field.strip() for field in item.split("|")]
        if len(fields) != 4:
            raise BadOption(f"scaling.policy_options.cron: must be start|end|min|max, found {item!r}")
        try:
            start, end = parse_cron(fields[0], "standard"), parse_cron(fields[1], "standard")
        except BadCron as error:
            raise BadOption(f"scaling.policy_options.cron: {error}") from None
        windows.append(CronWindow(start, end, _bound(fields[2], item), _bound(fields[3], item)))
    return tuple(windows)


def _bound(text: str, item: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise BadOption(
            f"scaling.policy_options.cron: min and max must be whole numbers from 1, found {text!r} in {item!r}"
        )
    return int(text)
