"""`keda`: KEDA's Kafka scaler, driven through the Horizontal Pod Autoscaler.

    total   = Σ over partitions (end offset - committed offset), at most partitions · threshold
    size    = ceil( total / threshold )         the present size while within the tolerance

- total: records. threshold: `lag_threshold`, records per slot.
- `allow_idle_consumers` lifts the bound by partitions; the guard `partitions` has one of its own.

A micro-batch job commits once a batch, so its lag is never less than what arrives during one: set `lag_threshold` well
above a slot's part of that. With KEDA's 10 records a job of some hundred records/s asks for its maximum.

KEDA scales to zero where a job is not active; a job here keeps its least size. A committed offset that could not be
measured leaves the size alone, unless `offset_reset_policy` says to read it KEDA's way. After the wish comes the
[behaviour](#behaviour-of-hpa-keda-and-varga).

Source: kedacore/keda `pkg/scalers/kafka_scaler.go`. Options carry KEDA's names and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import BadOption, option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.events.snapshot import Part
from tidegate.policies import hpa_rules, keda_rules
from tidegate.policies.behaviour import LIMITED, STABILIZED, BehaviourMemory, BehaviourOptions, behave
from tidegate.policies.shared import EVIDENCE_MISSING, clamp, expect, restart_seconds

WINDOW_SECONDS = 60.0
"""Only the expectation needs a window; the rule looks at the newest offsets."""


@dataclass(frozen=True, slots=True)
class KedaOptions(BehaviourOptions):
    """Options of `keda`, with KEDA's defaults."""

    lag_threshold: int = option(10, "lag per slot to aim at", unit="records", ge=1)
    activation_lag_threshold: int = option(
        0, "up to this lag, over all partitions, the least size will do", unit="records", ge=0
    )
    allow_idle_consumers: bool = option(False, "ask for more slots than partitions, too")
    limit_to_partitions_with_lag: bool = option(False, "ask for no more slots than partitions that have lag")
    ensure_even_distribution_of_partitions: bool = option(False, "ask only for sizes that divide the partitions")
    exclude_persistent_lag: bool = option(False, "leave out the lag of partitions whose offset did not move")
    persistent_lag_polls: int = option(
        1, "snapshots without movement until its lag is left out; KEDA's one is less than a long batch", ge=1
    )
    offset_reset_policy: str = option(
        "unknown",
        "how a missing committed offset is read: as unknown, or as KEDA reads it (1 record, or the whole partition)",
        choices=("unknown", "latest", "earliest"),
    )
    scale_to_zero_on_invalid_offset: bool = option(False, "read a missing committed offset as no lag")
    whole_consumers: bool = option(
        False, "mend KEDA's rounding, by which a lag of 44 over 4 partitions at a threshold of 10 asks for 5"
    )
    assumed_restart_seconds: float = option(
        30.0, "restart time in the decision's expectation until one was measured", unit="s", ge=0
    )


class KedaMemory(NamedTuple):
    """What `keda` remembers."""

    behaviour: BehaviourMemory = BehaviourMemory()
    offsets: tuple[int, ...] = ()
    """Committed offset of each partition at the last snapshot; only with `exclude_persistent_lag`."""
    polls: tuple[int, ...] = ()
    """Snapshots in a row at which each of them had not moved."""


class Keda:
    """KEDA's Kafka scaler: the lag over a threshold per slot."""

    name: ClassVar[str] = "keda"
    Options: ClassVar[type] = KedaOptions
    Memory: ClassVar[type] = KedaMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "KEDA_LAG": Reason("{lag} records wait, which at {threshold} per slot asks for a size of {wanted}"),
        "KEDA_ON_TARGET": Reason("{lag} records wait, within tolerance of {threshold} per slot"),
        "KEDA_INACTIVE": Reason("{lag} records wait, not more than the activation threshold of {activation}"),
        "HPA_LIMITED": LIMITED,
        "HPA_STABILIZED": STABILIZED,
    }

    def __init__(self, options: KedaOptions) -> None:
        if options.limit_to_partitions_with_lag:
            for name in ("allow_idle_consumers", "ensure_even_distribution_of_partitions"):
                if getattr(options, name):
                    raise BadOption(
                        f"scaling.policy_options.{name}: excluded by limit_to_partitions_with_lag, found True"
                    )
        self.options = options

    @property
    def window_seconds(self) -> float:
        """See `WINDOW_SECONDS`."""
        return WINDOW_SECONDS

    def propose(self, case: Case, memory: KedaMemory) -> Proposal[KedaMemory]:
        """Return the size by KEDA's lag and the autoscaler's rule."""
        o = self.options
        latest = list(chain.from_iterable(s.end_offsets for s in case.snapshot.sources))
        offsets = list(chain.from_iterable(s.committed_offsets for s in case.snapshot.sources))
        if missing := self._missing(case, latest, offsets):
            return Proposal(case.current, "EVIDENCE_MISSING", {"missing": missing})
        lags, with_persistent, memory = self._lags(latest, offsets, memory)
        total = keda_rules.total_lag(
            lags,
            o.lag_threshold,
            allow_idle_consumers=o.allow_idle_consumers,
            limit_to_partitions_with_lag=o.limit_to_partitions_with_lag,
            ensure_even_distribution=o.ensure_even_distribution_of_partitions,
        )
        if o.whole_consumers and not o.allow_idle_consumers:
            bound = sum(1 for lag in lags if lag > 0) if o.limit_to_partitions_with_lag else len(lags)
            total = min(total, bound * o.lag_threshold)
        numbers: dict[str, Figure] = {"lag": with_persistent, "threshold": o.lag_threshold, "told": total}
        active = with_persistent > o.activation_lag_threshold
        if active:
            wanted = hpa_rules.per_pod_replicas(
                case.current, total, o.lag_threshold, down=o.tolerance_down, up=o.tolerance_up
            )
        else:
            wanted = case.spec.scaling.min_parallelism
        wanted = clamp(case, wanted)
        done = behave(case, memory.behaviour, wanted, o)
        code = "KEDA_LAG" if active else "KEDA_INACTIVE"
        if active and wanted == case.current:
            code = "KEDA_ON_TARGET"
        numbers |= {"wanted": wanted, "size": done.size, "activation": o.activation_lag_threshold}
        restart = restart_seconds(case, o.assumed_restart_seconds)
        expectation = expect(case, done.size, restart)
        return Proposal(done.size, done.bent or code, numbers, expectation, memory._replace(behaviour=done.memory))

    def ordered(
        self,
        case: Case,
        memory: KedaMemory,
        proposal: Proposal[KedaMemory],  # noqa: ARG002
        final: int,
    ) -> KedaMemory:
        """Remember the scale event."""
        return memory._replace(behaviour=memory.behaviour.with_event(case, final))

    def _missing(self, case: Case, latest: Sequence[int | None], offsets: Sequence[int | None]) -> str:
        """Return which offsets were not measured, as words."""
        absent = []
        if not latest or None in latest or Part.END_OFFSETS in case.snapshot.missing:
            absent.append("end offsets")
        unread = None in offsets and self.options.offset_reset_policy == "unknown"
        if not offsets or unread or Part.COMMITTED_OFFSETS in case.snapshot.missing:
            absent.append("committed offsets")
        return ", ".join(absent)

    def _lags(
        self, latest: Sequence[int | None], offsets: Sequence[int | None], memory: KedaMemory
    ) -> tuple[list[int], int, KedaMemory]:
        """Return (lags, total with persistent lag, the memory with the offsets that stood still)."""
        o = self.options
        if None not in offsets and not o.exclude_persistent_lag:
            lags = [max(0, lag) for lag in map(sub, latest, offsets)]
            return lags, sum(lags), memory._replace(offsets=(), polls=())
        _, before, polls = memory
        if len(before) != len(offsets):
            before, polls = (-2,) * len(offsets), (0,) * len(offsets)
        lags, whole, counts = [], 0, []
        for end, done, previous, still in zip(latest, offsets, before, polls, strict=True):
            offset = keda_rules.INVALID_OFFSET if done is None else done
            count = still + 1 if offset == previous else 0
            lag, persistent = keda_rules.partition_lag(
                offset,
                end,
                previous_offset=offset if count >= o.persistent_lag_polls else None,
                offset_reset_policy=o.offset_reset_policy,
                scale_to_zero_on_invalid_offset=o.scale_to_zero_on_invalid_offset,
                exclude_persistent_lag=o.exclude_persistent_lag,
            )
            lags.append(max(0, lag))
            whole += max(0, persistent)
            counts.append(min(count, o.persistent_lag_polls))
        if not o.exclude_persistent_lag:
            return lags, whole, memory._replace(offsets=(), polls=())
        seen = tuple(keda_rules.INVALID_OFFSET if done is None else done for done in offsets)
        return lags, whole, memory._replace(offsets=seen, polls=tuple(counts))
