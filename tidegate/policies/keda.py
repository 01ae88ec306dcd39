"""`keda`: the rule of KEDA's Kafka scaler, which drives the Horizontal Pod Autoscaler.

    total   = Σ over partitions (end offset - committed offset), at most partitions · threshold
    size    = ceil( total / threshold )         the current size if that is within the tolerance

- total: records. threshold: `lag_threshold`, records per slot.
- `allow_idle_consumers` lifts the limit by partitions. The guard `partitions` has a limit of its own.

A micro-batch job commits once per batch, so its lag is never below what arrives during a batch. Set `lag_threshold`
well above a slot's share of that. With KEDA's 10 records, a job with a few hundred records/s asks for its maximum.

The proposed size then goes through the [behaviour](behaviour.md).

**Zero.** The job is *active* while the total, persistent lag included, is above `activation_lag_threshold`, or a window
of `cron` is open. KEDA looks every `polling_interval_seconds`. With `min_parallelism: 0` a job that has been inactive
for `cooldown_period_seconds` is stopped, and started with one slot when a look finds it active. Otherwise activity
changes nothing: the lag decides.

**Cron.** `start|end|replicas; ...` is a second trigger: while a window is open, it asks for so many slots, otherwise
for none; the larger answer counts. Start and end are cron expressions with five fields (minutes first), in the spec's
`time_zone`.

**Fallback.** If the offsets could not be measured, the size stays. With `fallback_replicas` set, more than
`fallback_failure_threshold` such snapshots in a row ask for that size, and the job counts as active; the guard
`complete` still keeps a running job from changing. A stopped job starts with one slot after so many looks that failed.

Left out: `idleReplicaCount` (the spec's minimum says it), triggers other than Kafka and cron.

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
from tidegate.engine.cron import Cron
from tidegate.engine.options import BadOption, option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.events.snapshot import Part
from tidegate.policies import hpa_rules, keda_rules
from tidegate.policies.behaviour import BEHAVIOUR_REASONS, Behaviour, BehaviourMemory, BehaviourOptions
from tidegate.policies.cron_windows import cron_items
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, clamp

FORM = "start|end|replicas"
"""How a window of `cron` is written."""


@dataclass(frozen=True, slots=True)
class KedaOptions(BehaviourOptions):
    """Options of `keda`, with KEDA's defaults."""

    lag_threshold: int = option(10, "lag per slot to aim at", unit="records", ge=1)
    activation_lag_threshold: int = option(
        0, "lag over all partitions up to which the job is not active", unit="records", ge=0
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
    polling_interval_seconds: float = option(
        30.0, "time between two looks at whether the job is active", unit="s", gt=0
    )
    cooldown_period_seconds: float = option(
        300.0, "time without activity after which a job with `min_parallelism: 0` is stopped", unit="s", ge=0
    )
    initial_cooldown_period_seconds: float = option(
        0.0, "the same for a job that was never active, from the policy's first snapshot of it", unit="s", ge=0
    )
    cron: str = option("", f"windows with a size of their own, as `{FORM}; ...`")
    fallback_failure_threshold: int = option(3, "snapshots without offsets that change nothing", unit="snapshots", ge=0)
    fallback_replicas: int | None = option(
        None, "size after more such snapshots; no fallback when absent", unit="slots", ge=0
    )
    fallback_behavior: str = option(
        "static",
        "`static`: that size; otherwise the current one, always, if it is higher, or if it is lower",
        choices=("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"),
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
    created_at: float | None = None
    """The policy's first snapshot of the job, epoch seconds."""
    polled_at: float | None = None
    """The last look at whether the job is active."""
    active_at: float | None = None
    """The last look that found it active."""
    failures: int = 0
    """Snapshots in a row whose offsets could not be measured; of a stopped job, looks."""


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
        "KEDA_ZERO": Reason(
            "{lag} records are waiting, not more than the activation threshold of {activation}, and so it has been for "
            "the cooldown period of {cooldown:.0f} s"
        ),
        "KEDA_ASLEEP": Reason("the job was scaled to zero, and no look has found it active since"),
        "KEDA_ACTIVE": Reason("{lag} records are waiting, more than the activation threshold of {activation}"),
        "KEDA_CRON": Reason("the open cron window calls for {cron} slots"),
        "KEDA_FALLBACK": Reason("the offsets could not be measured {failures} times in a row, so the fallback applies"),
    } | BEHAVIOUR_REASONS

    def __init__(self, options: KedaOptions) -> None:
        super().__init__(options)
        self.behaviour = Behaviour(options)
        self.windows = _windows(options.cron)

    def propose(self, case: Case, memory: KedaMemory) -> Proposal[KedaMemory]:
        """Return the size by KEDA's total lag and the rule of the autoscaler."""
        o = self.options
        latest = list(chain.from_iterable(s.end_offsets for s in case.snapshot.sources))
        offsets = list(chain.from_iterable(s.committed_offsets for s in case.snapshot.sources))
        memory = memory._replace(created_at=memory.created_at or case.measured_at)
        if missing := self._missing(case, latest, offsets):
            return self._failed(case, memory._replace(failures=memory.failures + 1), missing)
        memory = memory._replace(failures=0)
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
        lagging, opened = with_persistent > o.activation_lag_threshold, self._window(case)
        active = lagging or opened is not None
        proposed = self._replicas(case, total, o.lag_threshold)
        by_cron = 0 if opened is None else self._replicas(case, opened, 1)
        code = "KEDA_LAG" if lagging else "KEDA_INACTIVE"
        if opened is not None and by_cron > max(case.spec.smallest_size, proposed):
            code = "KEDA_CRON"
        elif active and proposed == case.current:
            code = "KEDA_ON_TARGET"
        proposed = max(proposed, by_cron)
        wanted = max(case.spec.smallest_size, proposed)
        size, limited_by, behaviour = self.behaviour.apply(case, memory.behaviour, proposed)
        numbers |= {"wanted": wanted, "size": size, "activation": o.activation_lag_threshold, "cron": opened}
        memory = memory._replace(behaviour=behaviour)
        if self._looks(case, memory):
            memory = memory._replace(
                polled_at=case.measured_at, active_at=case.measured_at if active else memory.active_at
            )
            if not active and case.spec.scaling.min_parallelism == 0 and self._cooled_down(case, memory):
                return Proposal(0, "KEDA_ZERO", numbers | {"cooldown": o.cooldown_period_seconds}, memory=memory)
        return self._proposal(case, size, limited_by or code, numbers, memory)

    def wake(self, case: Case, memory: KedaMemory) -> Proposal[KedaMemory]:
        """Return one slot if a look finds the job active, which it is while the fallback applies, else none."""
        o = self.options
        if not self._looks(case, memory):
            return Proposal(0, "KEDA_ASLEEP")
        memory = memory._replace(polled_at=case.measured_at)
        latest = list(chain.from_iterable(s.end_offsets for s in case.snapshot.sources))
        offsets = list(chain.from_iterable(s.committed_offsets for s in case.snapshot.sources))
        opened = self._window(case)
        lag: int | None = None
        if missing := self._missing(case, latest, offsets):
            memory = memory._replace(failures=memory.failures + 1)
            if opened is None and not self._falls_back(memory):
                return Proposal(0, "EVIDENCE_MISSING", {"missing": missing}, memory=memory)
            if opened is None:
                memory = memory._replace(active_at=case.measured_at)
                return Proposal(clamp(case, 1), "KEDA_FALLBACK", {"failures": memory.failures}, memory=memory)
        else:
            _, lag, memory = self._lags(latest, offsets, memory._replace(failures=0))
        numbers: dict[str, Figure] = {"lag": lag, "activation": o.activation_lag_threshold, "cron": opened}
        if opened is None and (lag is None or lag <= o.activation_lag_threshold):
            return Proposal(0, "KEDA_ASLEEP", numbers, memory=memory)
        code = "KEDA_ACTIVE" if lag is not None and lag > o.activation_lag_threshold else "KEDA_CRON"
        return Proposal(clamp(case, 1), code, numbers, memory=memory._replace(active_at=case.measured_at))

    def ordered(
        self,
        case: Case,
        memory: KedaMemory,
        proposal: Proposal[KedaMemory],  # noqa: ARG002
        final: int,
    ) -> KedaMemory:
        """Remember the scale event."""
        return memory._replace(behaviour=self.behaviour.ordered(case, memory.behaviour, final))

    def _replicas(self, case: Case, value: int, target: int) -> int:
        o = self.options
        return hpa_rules.per_pod_replicas(case.current, value, target, down=o.tolerance_down, up=o.tolerance_up)

    def _window(self, case: Case) -> int | None:
        """Return the largest size of the open cron windows; None if none is open."""
        at = case.local(case.snapshot.observed_at)
        return max((size for start, end, size in self.windows if keda_rules.window_open(start, end, at)), default=None)

    def _looks(self, case: Case, memory: KedaMemory) -> bool:
        """Whether it is time to see again whether the job is active."""
        last = memory.polled_at
        return last is None or case.measured_at - last >= self.options.polling_interval_seconds

    def _cooled_down(self, case: Case, memory: KedaMemory) -> bool:
        return keda_rules.cooled_down(
            case.measured_at,
            last_active=memory.active_at,
            created=memory.created_at or case.measured_at,
            cooldown_period=self.options.cooldown_period_seconds,
            initial_cooldown_period=self.options.initial_cooldown_period_seconds,
        )

    def _failed(self, case: Case, memory: KedaMemory, missing: str) -> Proposal[KedaMemory]:
        """Return the fallback after enough failures, else the present size."""
        o = self.options
        if o.fallback_replicas is None or not self._falls_back(memory):
            return Proposal(case.current, "EVIDENCE_MISSING", {"missing": missing}, memory=memory)
        if self._looks(case, memory):  # a fallback makes the trigger active (`getScalerState`)
            memory = memory._replace(polled_at=case.measured_at, active_at=case.measured_at)
        wanted = keda_rules.fallback_replicas(o.fallback_behavior, o.fallback_replicas, case.current)
        proposed = max(case.spec.smallest_size, self._replicas(case, wanted * o.lag_threshold, o.lag_threshold))
        size, limited_by, behaviour = self.behaviour.apply(case, memory.behaviour, proposed)
        numbers: dict[str, Figure] = {"failures": memory.failures, "wanted": proposed, "size": size, "missing": missing}
        memory = memory._replace(behaviour=behaviour)
        return self._proposal(case, size, limited_by or "KEDA_FALLBACK", numbers, memory)

    def _falls_back(self, memory: KedaMemory) -> bool:
        """Whether more measurements in a row have failed than the fallback lets pass (`GetMetricsWithFallback`)."""
        o = self.options
        return o.fallback_replicas is not None and memory.failures > o.fallback_failure_threshold

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
        before, polls = memory.offsets, memory.polls
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


def _windows(text: str) -> tuple[tuple[Cron, Cron, int], ...]:
    """Return (start, end, size) of each window of a `cron` option, or raise `BadOption`."""
    windows = []
    for item, start, end, (replicas,) in cron_items(text, FORM, seconds="0 "):
        if not (replicas.isascii() and replicas.isdigit()):
            raise BadOption(f"scaling.policy_options.cron: must be {FORM}, found {item!r}")
        if not int(replicas):
            raise BadOption(f"scaling.policy_options.cron: replicas must be at least 1, found {item!r}")
        windows.append((start, end, int(replicas)))
    return tuple(windows)
