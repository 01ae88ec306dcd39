"""`numaflow`: the rule of Numaflow, for one micro-batch job.

The job is one vertex. By default it is a *source* with one partition, as in Numaflow's Kafka source: its pending
records are the lag over all Kafka partitions. With `vertex: udf` its source topic counts as a buffer of
`buffer_length` records.

    source   desired = round( pending / rate / target · ready )
    buffer   desired = round( free / ((limit - pending) / ready) )        if less than `free` is left of the buffer

- pending: mean lag, records. rate: growth of the committed offsets, records/s. Both cover the lookback, which starts
  at `lookback_seconds` and grows to the longest time without a commit.
- target: `target_processing_seconds`. ready: slots that the cluster granted.
- limit: `buffer_length` · `buffer_usage_limit`, records; a fuller buffer adds one step. free: `buffer_length` ·
  `target_buffer_availability` / 100, records.

The size moves towards the desired one in steps of `replicas_per_scale_up` and `replicas_per_scale_down`, at least an
executor, with a cooldown after each change. It stays within the bounds of the window in `cron` that is open:
`start|end|min|max; ...`, where start and end are cron expressions with six fields (seconds first), in the spec's
`time_zone`. The bounds of the spec hold as well; in Numaflow those of the window replace them.

The job does not scale up at its rate limit or under back pressure. Back pressure means that the mean lag of a job
downstream fills `back_pressure_threshold` of its buffer limit. If that job reads this job's output directly, this job
even gives up a slot. A `mono_vertex` knows no back pressure, as in Numaflow.

Jobs that feed each other in a circle are downstream of each other. Once all of them are full, each gives up its slots
for the next one, down to its minimum, and none grows again by itself: that is Numaflow's rule. Choose another policy
for such jobs, or give them a size with `tidegate scale` and keep it with `tidegate pause`.

With `min_parallelism: 0` the job is stopped once nothing was processed and nothing waits over the whole lookback. A
source then starts every `zero_replica_sleep_seconds` to look for records, although Tidegate knows the end offsets: that
is Numaflow's rule. A `udf` starts as soon as records wait. Both start with one slot. An open window in `cron` whose
minimum is above 0 starts the job at once, and one whose maximum is 0 keeps it stopped.

When to choose it: You know Numaflow, or your jobs feed each other and none should outrun the next. Restarts must be
short.

Set first: `target_processing_seconds`, `replicas_per_scale_up`, `replicas_per_scale_down`.

Source: numaproj/numaflow `pkg/reconciler`, `pkg/daemon` (`numaflow_rules`). Options and defaults are Numaflow's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies import numaflow_rules as rules
from tidegate.policies.numaflow_options import NumaflowOptions, cron_windows
from tidegate.policies.numaflow_pressure import DownstreamLag, remember
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, clamp, clamp_to_zero, step_to


class NumaflowMemory(NamedTuple):
    """What `numaflow` remembers. Times are epoch seconds."""

    lookback: float | None = None
    """Seconds; None until one was found."""
    seen: tuple[float, int] | None = None
    """When the committed offsets last moved, and their sum."""
    spells: tuple[tuple[float, float], ...] = ()
    """(from, to) of the times without a commit."""
    downstream: tuple[DownstreamLag, ...] = ()
    """Lags of the jobs downstream within the lookback."""


class Numaflow(Rule[NumaflowOptions, NumaflowMemory]):
    """Numaflow's rule: the slots that work off the lag in a given time, step by step."""

    name: ClassVar[str] = "numaflow"
    Options: ClassVar[type] = NumaflowOptions
    Memory: ClassVar[type] = NumaflowMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "NUMAFLOW_PENDING": Reason(
            "{pending} records are waiting and {rate:rate}/s are processed, "
            "and working them off in {target} s calls for a size of {desired}"
        ),
        "NUMAFLOW_IDLE": Reason("no records are waiting and none are processed, so a size of {size} is enough"),
        "NUMAFLOW_STILL": Reason("{pending} records are waiting and none were processed in {lookback:.0f} s"),
        "NUMAFLOW_COOLDOWN": Reason("the desired size is {desired}, and the last change was only {since:.0f} s ago"),
        "NUMAFLOW_STEP": Reason("the desired size is {desired}, and the next step towards it is {size}"),
        "NUMAFLOW_DIRECT_PRESSURE": Reason(
            "the desired size is {desired}, and a job that reads this one's output is full, so no slots are added",
            "scale up the job downstream first: it processes less than this job writes",
        ),
        "NUMAFLOW_DOWNSTREAM_PRESSURE": Reason(
            "the desired size is {desired}, and a job further downstream is full, so no slots are added",
            "scale up the job downstream first: it processes less than it receives",
        ),
        "NUMAFLOW_RATE_LIMIT": Reason(
            "the desired size is {desired}, and the job already processes {rate:rate} records/s, its rate limit"
        ),
        "NUMAFLOW_WINDOW": Reason("the open cron window allows {low} to {high} slots"),
        "NUMAFLOW_FIXED": Reason("the minimum and the maximum are both {low} slots"),
        "NUMAFLOW_ASLEEP": Reason(
            "the job was stopped {since:.0f} s ago because nothing waited and none were processed"
        ),
        "NUMAFLOW_PEEK": Reason("the job has slept for {since:.0f} s, and starts to look for records"),
        "NUMAFLOW_AWAKE": Reason("{pending} records are waiting for the stopped job"),
    }

    def __init__(self, options: NumaflowOptions) -> None:
        super().__init__(options)
        self.windows = cron_windows(options.cron)
        self.limit = rules.buffer_limit(options.buffer_length, options.buffer_usage_limit)

    def propose(self, case: Case, memory: NumaflowMemory) -> Proposal[NumaflowMemory]:
        """Return the size by one pass of Numaflow's loop."""
        o, current = self.options, case.current
        memory, lookback = self._lookback(case, memory)
        lags = remember(memory.downstream, case.observed.neighbours, case.measured_at, lookback)
        memory = memory._replace(downstream=lags)
        since = _since_last_scale(case)
        low, high, opened = self._bounds(case)
        numbers: dict[str, Figure] = {"low": low, "high": high, "lookback": lookback}
        if since < math.inf:
            numbers["since"] = since
        if opened and not low <= current <= high:
            size = clamp_to_zero(case, step_to(case, self._paced(current, max(low, min(current, high)), since)))
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
            "target": o.target_processing_seconds,
            "desired": desired,
        }
        if o.rate_limit is not None and desired > current and rules.at_rate_limit(rate, o.rate_limit):
            return self._proposal(case, current, "NUMAFLOW_RATE_LIMIT", numbers, memory)
        direct, downstream = self._pressure(case, lags)
        size, held = rules.scaled(
            current,
            desired,
            minimum=low,
            maximum=high,
            since_last_scale=since,
            up_cooldown=o.scale_up_cooldown_seconds,
            down_cooldown=o.scale_down_cooldown_seconds,
            up_step=o.replicas_per_scale_up,
            down_step=o.replicas_per_scale_down,
            direct_pressure=direct,
            downstream_pressure=downstream,
            fix_pressure_cooldown=o.fix_pressure_cooldown,
        )
        numbers["size"] = size = clamp_to_zero(case, step_to(case, size))
        if held:
            code = f"NUMAFLOW_{held.replace(' ', '_').upper()}"
        elif rate == 0:
            code = "NUMAFLOW_STILL" if pending else "NUMAFLOW_IDLE"
        else:
            code = "NUMAFLOW_PENDING"
        return self._proposal(case, size, code, numbers, memory)

    def wake(self, case: Case, memory: NumaflowMemory) -> Proposal[NumaflowMemory]:
        """Return the size of a job that was scaled to zero: by its cron window, its sleep, or what waits."""
        o, since = self.options, _since_last_scale(case)
        low, high, opened = self._bounds(case)
        numbers: dict[str, Figure] = {"low": low, "high": high, "since": since, "pending": case.evidence.lag_records}
        if opened and (low > 0 or low == high):
            size = self._paced(0, low, since)
            return Proposal(clamp_to_zero(case, size), "NUMAFLOW_WINDOW", numbers)
        size = rules.replicas_from_zero(
            source=o.vertex != "udf",
            pending=case.evidence.lag_records,
            since_last_scale=since,
            zero_replica_sleep=o.zero_replica_sleep_seconds,
            up_cooldown=o.scale_up_cooldown_seconds,
            down_cooldown=o.scale_down_cooldown_seconds,
        )
        if size == 0:
            return Proposal(0, "NUMAFLOW_ASLEEP", numbers)
        # The sleep is no still spell: nothing was there to process anything.
        memory = memory._replace(seen=None, spells=())
        return Proposal(
            clamp(case, size), "NUMAFLOW_AWAKE" if o.vertex == "udf" else "NUMAFLOW_PEEK", numbers, None, memory
        )

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
            wrap_pending=not o.fix_pending_overflow,
        )

    def _ready(self, case: Case) -> int:
        """Return the ready replicas: slots that the cluster granted, at most the current size."""
        return min(case.current, case.snapshot.slots_granted or case.current)

    def _measure(self, case: Case, lookback: float) -> tuple[float | None, int | None]:
        """Return (records/s, mean pending records) over the lookback; None if unknown."""
        inside = [piece for piece in case.state.window if piece.at >= case.measured_at - lookback]
        counts = [(piece.at, piece.committed) for piece in inside if piece.committed is not None]
        waiting = [lag for piece in inside if (lag := piece.lag) is not None]
        if not inside or inside[-1].lag is None:
            return None, None
        seconds = counts[-1][0] - counts[0][0] if counts else 0.0
        rate = (counts[-1][1] - counts[0][1]) / seconds if seconds > 0 else None  # a clock may go back
        return rate, max(0, sum(waiting) // len(waiting))

    def _lookback(self, case: Case, memory: NumaflowMemory) -> tuple[NumaflowMemory, float]:
        """Return (memory, lookback now). A spell without commits is remembered as long as three lookbacks reach it.

        Kept are spells that can lengthen the configured lookback, less those that a later one is as long as.
        """
        o = self.options
        current = float(o.lookback_seconds if memory.lookback is None else memory.lookback)
        count = case.state.window[-1].committed if case.state.window else None
        if not o.adaptive_lookback or count is None:
            return memory, current
        seen_at, seen = memory.seen or (case.measured_at, count)
        oldest = case.measured_at - 3 * current
        spells = [(start, end) for start, end in memory.spells if end > oldest]
        if count != seen:
            lasted = case.measured_at - seen_at
            if count > seen and rules.lengthens(lasted, o.lookback_seconds):
                spells = [spell for spell in spells if spell[1] - spell[0] > lasted]
                spells.append((seen_at, case.measured_at))
            seen_at, seen = case.measured_at, count
        ongoing = case.measured_at - max(seen_at, oldest) if seen else 0.0
        still = max([end - max(start, oldest) for start, end in spells] + [ongoing])
        lookback = rules.next_lookback(current, still, o.lookback_seconds)
        return memory._replace(lookback=lookback, seen=(seen_at, seen), spells=tuple(spells)), lookback

    def _bounds(self, case: Case) -> tuple[int, int, bool]:
        """Return (minimum, maximum, whether a cron window is open); the first open window counts."""
        scaling = case.spec.scaling
        low, high = scaling.min_parallelism, scaling.max_parallelism
        if self.options.vertex != "udf":
            at = case.local(case.snapshot.observed_at)
            for window in self.windows:
                if rules.window_active(window.start, window.end, at):
                    least = low if window.minimum is None else window.minimum
                    return least, high if window.maximum is None else window.maximum, True
        return low, high, False

    def _paced(self, current: int, target: int, since: float) -> int:
        """Return the next size on the way to the bounds of a cron window."""
        o = self.options
        cooldown = o.scale_up_cooldown_seconds if target > current else o.scale_down_cooldown_seconds
        if since < cooldown:
            return current
        return rules.stepped(current, target, o.replicas_per_scale_up, o.replicas_per_scale_down)[0]

    def _pressure(self, case: Case, lags: Iterable[DownstreamLag]) -> tuple[bool, bool]:
        """Return (back pressure from a direct reader of our output, from any job downstream)."""
        if self.options.vertex == "mono_vertex":
            return False, False
        threshold = self.options.back_pressure_threshold
        full = {lag.job_id for lag in lags if rules.back_pressure(lag.mean, self.limit, threshold)}
        downstream = (n for n in case.observed.neighbours if not n.upstream and n.job_id in full)
        return any(neighbour.distance is None for neighbour in downstream), bool(full)


def _since_last_scale(case: Case) -> float:
    """Return the seconds since the last change of size, stops and starts for want of records included."""
    return math.inf if case.state.last_action_at is None else case.decided_at - case.state.last_action_at
