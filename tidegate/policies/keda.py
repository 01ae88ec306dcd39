"""`keda`: the rule of KEDA's Kafka scaler, which drives the Horizontal Pod Autoscaler.

    total   = Σ over partitions (end offset - committed offset), at most partitions · threshold
    size    = ceil( total / threshold )         the current size if that is within the tolerance

- total: records. threshold: `lag_threshold`, records per slot.
- `allow_idle_consumers` lifts the limit by partitions. The guard `partitions` has a limit of its own.

A micro-batch job commits once per batch, so its lag is never below what arrives during a batch. Set `lag_threshold`
well above a slot's share of that. With KEDA's 10 records, a job with a few hundred records/s asks for its maximum.

KEDA scales an inactive job to zero; here it keeps its minimum size. If the offsets could not be measured, the size
stays. The proposed size then goes through the [behaviour](behaviour.md).

When to choose it: You run KEDA's Kafka scaler and want the same sizes.

Set first: `lag_threshold`, always: with KEDA's default of 10 records most jobs run at their maximum.

Source: kedacore/keda `pkg/scalers/kafka_scaler.go`. Options have KEDA's names and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.events.snapshot import Part
from tidegate.policies import hpa_rules, keda_rules
from tidegate.policies.behaviour import BEHAVIOUR_REASONS, Behaviour, BehaviourMemory, BehaviourOptions
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, clamp


@dataclass(frozen=True, slots=True)
class KedaOptions(BehaviourOptions):
    """Options of `keda`, with KEDA's defaults."""

    lag_threshold: int = option(10, "lag per slot to aim at", unit="records", ge=1)
    activation_lag_threshold: int = option(
        0, "lag over all partitions up to which the minimum size is enough", unit="records", ge=0
    )
    allow_idle_consumers: bool = option(False, "allow more slots than partitions")
    limit_to_partitions_with_lag: bool = option(False, "ask for at most one slot per partition with lag")
    ensure_even_distribution_of_partitions: bool = option(False, "ask only for sizes that divide the partitions")
    exclude_persistent_lag: bool = option(False, "ignore the lag of partitions whose offset does not move")
    persistent_lag_polls: int = option(
        1, "snapshots without movement until a lag is ignored; KEDA's 1 is shorter than a long batch", ge=1
    )
    offset_reset_policy: str = option(
        "latest",
        "lag of a partition without a committed offset: `latest` 1 record, `earliest` all its records; "
        "`unknown` keeps the size",
        choices=("latest", "earliest", "unknown"),
    )
    cut_negative_lag: bool = option(
        False,
        "fix KEDA's sum: a negative lag (the topic was created again) hides the lag of other partitions",
    )
    scale_to_zero_on_invalid_offset: bool = option(False, "a partition without a committed offset has no lag")
    whole_consumers: bool = option(
        False, "fix KEDA's rounding, by which a lag of 44 on 4 partitions asks for 5 slots at a threshold of 10"
    )
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)

    @property
    def window_seconds(self) -> float:
        """One minute: the rule uses the newest offsets, and only the expected effect needs a window."""
        return 60.0

    def __post_init__(self) -> None:
        """Refuse what KEDA refuses next to `limit_to_partitions_with_lag`."""
        for name in ("allow_idle_consumers", "ensure_even_distribution_of_partitions"):
            if self.limit_to_partitions_with_lag and getattr(self, name):
                raise ValueError(f"{name}: cannot be set together with limit_to_partitions_with_lag, found true")


class KedaMemory(NamedTuple):
    """What `keda` remembers."""

    behaviour: BehaviourMemory = BehaviourMemory()
    offsets: tuple[int, ...] = ()
    """Committed offset of each partition at the last snapshot; only with `exclude_persistent_lag`."""
    polls: tuple[int, ...] = ()
    """Snapshots in a row at which each of them had not moved."""


class Keda(Rule[KedaOptions, KedaMemory]):
    """KEDA's Kafka scaler: the lag over a threshold per slot."""

    name: ClassVar[str] = "keda"
    Options: ClassVar[type] = KedaOptions
    Memory: ClassVar[type] = KedaMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "KEDA_LAG": Reason("{lag} records are waiting, which at {threshold} per slot calls for a size of {wanted}"),
        "KEDA_ON_TARGET": Reason("{lag} records are waiting, within tolerance of {threshold} per slot"),
        "KEDA_INACTIVE": Reason("{lag} records are waiting, not more than the activation threshold of {activation}"),
    } | BEHAVIOUR_REASONS

    def __init__(self, options: KedaOptions) -> None:
        super().__init__(options)
        self.behaviour = Behaviour(options)

    def propose(self, case: Case, memory: KedaMemory) -> Proposal[KedaMemory]:
        """Return the size by KEDA's total lag and the rule of the autoscaler."""
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
            proposed = hpa_rules.per_pod_replicas(
                case.current, total, o.lag_threshold, down=o.tolerance_down, up=o.tolerance_up
            )
        else:
            proposed = case.spec.scaling.min_parallelism
        proposed = clamp(case, proposed)
        size, limited_by, behaviour = self.behaviour.apply(case, memory.behaviour, proposed)
        code = "KEDA_LAG" if active else "KEDA_INACTIVE"
        if active and proposed == case.current:
            code = "KEDA_ON_TARGET"
        numbers |= {"wanted": proposed, "size": size, "activation": o.activation_lag_threshold}
        return self._proposal(case, size, limited_by or code, numbers, memory._replace(behaviour=behaviour))

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
        """Return which offsets could not be measured, in words."""
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
        """Return (lags, total with persistent lag, the memory with the offsets that do not move)."""
        o = self.options
        if None not in offsets and not o.exclude_persistent_lag:
            lags = [self._cut(lag) for lag in map(sub, latest, offsets)]
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
            lags.append(self._cut(lag))
            whole += self._cut(persistent)
            counts.append(min(count, o.persistent_lag_polls))
        if not o.exclude_persistent_lag:
            return lags, whole, memory._replace(offsets=(), polls=())
        seen = tuple(keda_rules.INVALID_OFFSET if done is None else done for done in offsets)
        return lags, whole, memory._replace(offsets=seen, polls=tuple(counts))

    def _cut(self, lag: int) -> int:
        """Return the lag of a partition as it goes into the sum: a negative one as it is, or 0."""
        return max(0, lag) if self.options.cut_negative_lag else lag
