"""The rule of KEDA's Kafka scaler on the cases of its own tests and issues, and the policy that uses it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import case, policy, propose
from tests.support.events import START, job, snapshot
from tidegate.engine.case import Case
from tidegate.engine.cron import parse
from tidegate.engine.options import BadOption
from tidegate.engine.plan import ZeroPolicy
from tidegate.events.snapshot import Part, SourceOffsets
from tidegate.policies import keda_rules as rules
from tidegate.policies.keda import KedaMemory


def test_factors() -> None:
    """The divisors of a number, in order."""
    assert rules.factors(10) == [1, 2, 5, 10]
    assert rules.factors(100) == [1, 2, 4, 5, 10, 20, 25, 50, 100]
    assert rules.factors(0) == []


@pytest.mark.parametrize(
    ("lag", "want"), [(10, 1), (20, 2), (40, 4), (50, 5), (99, 10), (100, 10), (101, 20), (5000, 100)]
)
def test_the_next_factor(lag: int, want: int) -> None:
    """KEDA's own cases: the smallest divisor of 100 partitions that takes the lag at 10 each."""
    assert rules.next_factor(lag, 100, 10) == want


@pytest.mark.parametrize(
    ("consumer", "latest", "more", "want"),
    [
        (90, 100, {}, (10, 10)),
        (rules.INVALID_OFFSET, 100, {}, (1, 1)),
        (rules.INVALID_OFFSET, 100, {"scale_to_zero_on_invalid_offset": True}, (0, 0)),
        (rules.INVALID_OFFSET, 100, {"offset_reset_policy": "earliest"}, (100, 100)),
        (rules.INVALID_OFFSET, None, {"offset_reset_policy": "earliest"}, (0, 0)),
        (90, None, {}, (0, 0)),
        (90, 100, {"previous_offset": 90, "exclude_persistent_lag": True}, (0, 10)),
        (90, 100, {"previous_offset": 80, "exclude_persistent_lag": True}, (10, 10)),
        (90, 100, {"exclude_persistent_lag": True}, (10, 10)),
    ],
)
def test_the_lag_of_a_partition(consumer: int, latest: int | None, more: dict[str, Any], want: tuple[int, int]) -> None:
    """With and without a committed offset, missing from the answer, and with an offset that does not move."""
    given = {
        "previous_offset": None,
        "offset_reset_policy": "latest",
        "scale_to_zero_on_invalid_offset": False,
        "exclude_persistent_lag": False,
    }
    assert rules.partition_lag(consumer, latest, **given | more) == want


@pytest.mark.parametrize(
    ("lags", "more", "want"),
    [
        ([10, 10, 12, 12], {}, 44),  # 44 // 10 = 4 is not above 4 partitions: a defect, it makes 5 consumers
        ([20, 20, 20, 20], {}, 40),
        ([20, 20, 20, 20], {"allow_idle_consumers": True}, 80),
        ([80, 0, 0, 0], {"limit_to_partitions_with_lag": True}, 10),
        ([12, 12, 6, 0, 0, 0], {"ensure_even_distribution": True}, 30),  # 3 consumers of 6 partitions
        ([12, 12, 12, 0, 0, 0], {"ensure_even_distribution": True}, 60),  # 4 do not divide 6, so 6
        ([30, 30, 1, 0, 0, 0, 0], {"ensure_even_distribution": True}, 70),  # 7 is prime: from 1 to all
    ],
)
def test_the_total(lags: list[int], more: dict[str, Any], want: int) -> None:
    """The cap by partitions, by partitions with lag, and the even distribution."""
    given = dict.fromkeys(("allow_idle_consumers", "limit_to_partitions_with_lag", "ensure_even_distribution"), False)
    assert rules.total_lag(lags, 10, **given | more) == want


def lagging(lag: int, *, current: int = 2, **state: Any) -> Case:
    """Return a case with some lag, spread over the partitions."""
    shot = snapshot(0, arrived=1000 + lag, committed=1000, partitions=4, slots=current)
    return case(current=current, shot=shot, spec=job(max_parallelism=64), **state)


def test_the_policy_lets_one_idle_consumer_through_as_keda_does() -> None:
    """A lag of 44 at 10 per slot on 4 partitions asks for 5 slots, and for 4 with the cap fixed."""
    assert propose("keda", lagging(44)).size == 5
    assert propose("keda", lagging(44), whole_consumers=True).size == 4


def test_the_policy_counts_lag_and_tolerates_a_tenth() -> None:
    """30 records ask for 3 of 2; 21 records are 1.05 times the target and change nothing."""
    assert propose("keda", lagging(30)).size == 3
    assert propose("keda", lagging(21)).code == "KEDA_ON_TARGET"


def test_activity_changes_no_size_above_zero() -> None:
    """Up to the activation threshold KEDA goes to zero if it may; a minimum keeps the size that the lag asks for."""
    quick = {"stabilization_down_seconds": 0.0}
    proposal = propose("keda", lagging(5), activation_lag_threshold=5, **quick)
    assert (proposal.size, proposal.code) == (1, "KEDA_INACTIVE")
    assert propose("keda", lagging(5), activation_lag_threshold=4, **quick).code == "KEDA_LAG"
    assert propose("keda", lagging(25, current=4), activation_lag_threshold=50, **quick).size == 3


def test_a_partition_without_a_committed_offset_is_read_as_keda_reads_it() -> None:
    """Its default is `latest`: 1 record each (`getLagForPartition`). 4 records at 1 per slot ask for 4."""
    shot = snapshot(0, arrived=1000, committed=None, partitions=4, slots=2)
    given = case(current=2, shot=shot)
    proposal = propose("keda", given, lag_threshold=1)
    assert (proposal.size, proposal.code, proposal.numbers["lag"]) == (4, "KEDA_LAG", 4)
    assert propose("keda", given, offset_reset_policy="earliest").size == 4


def test_offsets_that_could_not_be_measured_keep_the_size() -> None:
    """A failed measurement is not an empty group, and `unknown` treats a missing offset like one."""
    shot = snapshot(0, arrived=1000, committed=None, partitions=4, slots=2)
    assert propose("keda", case(current=2, shot=shot), offset_reset_policy="unknown").code == "EVIDENCE_MISSING"
    shot = shot.model_copy(update={"missing": (Part.COMMITTED_OFFSETS,)})
    assert propose("keda", case(current=2, shot=shot), offset_reset_policy="earliest").code == "EVIDENCE_MISSING"


@pytest.mark.parametrize("more", [{}, {"exclude_persistent_lag": True}])
def test_a_negative_lag_is_summed_as_keda_sums_it(more: dict[str, Any]) -> None:
    """KEDA adds `latestOffset - consumerOffset` as it is: 80 - 50 asks for 3 slots. Cut at 0, 80 is capped to 4."""
    source = SourceOffsets(topic="in", end_offsets=(180, 50, 0, 0), committed_offsets=(100, 100, 0, 0))
    given = case(current=2, shot=snapshot(0, slots=2).model_copy(update={"sources": (source,)}))
    proposal = propose("keda", given, **more)
    assert (proposal.size, proposal.numbers["lag"]) == (3, 30)
    fixed = propose("keda", given, cut_negative_lag=True, **more)
    assert (fixed.size, fixed.numbers["lag"]) == (4, 80)


def test_lag_that_stands_still_asks_for_nothing() -> None:
    """If persistent lag is excluded, the lag of an offset that has not moved for some polls does not count."""
    keda = policy("keda", exclude_persistent_lag=True, persistent_lag_polls=2, stabilization_down_seconds=0.0)
    memory = keda.Memory()
    sizes = []
    for number in range(4):
        proposal = keda.propose(lagging(80, after=10.0 * number), memory)
        memory = proposal.memory
        sizes.append(proposal.size)
    assert sizes == [4, 4, 1, 1]


def test_one_hot_partition_asks_for_one_slot() -> None:
    """With the limit to partitions with lag, a single lagging partition asks for one slot."""
    source = SourceOffsets(topic="in", end_offsets=(500, 0, 0, 0), committed_offsets=(0, 0, 0, 0))
    shot = snapshot(0, slots=2).model_copy(update={"sources": (source,)})
    given = case(current=2, shot=shot)
    assert propose("keda", given).size == 4
    quick = {"limit_to_partitions_with_lag": True, "stabilization_down_seconds": 0.0}
    assert propose("keda", given, **quick).size == 1


def test_options_that_exclude_each_other_are_refused() -> None:
    """KEDA refuses the limit to partitions with lag together with idle consumers or even distribution."""
    with pytest.raises(BadOption, match="allow_idle_consumers"):
        policy("keda", limit_to_partitions_with_lag=True, allow_idle_consumers=True)


@pytest.mark.parametrize(
    ("last_active", "created", "more", "want"),
    [
        (100.0, 0.0, {}, False),
        (99.9, 0.0, {}, True),  # strictly after the period
        (None, 399.9, {}, True),  # never active: the period does not apply
        (None, 400.0, {}, False),
        (None, 100.0, {"initial_cooldown_period": 300.0}, False),
        (None, 99.0, {"initial_cooldown_period": 300.0}, True),
        (390.0, 0.0, {"cooldown_period": 5.0}, True),
    ],
)
def test_the_cooldown_period(last_active: float | None, created: float, more: dict[str, Any], want: bool) -> None:
    """`scaleToZeroOrIdle` at second 400: since the last activity, or since creation if there was none."""
    given = {"cooldown_period": 300.0, "initial_cooldown_period": 0.0} | more
    assert rules.cooled_down(400.0, last_active=last_active, created=created, **given) is want


@pytest.mark.parametrize(
    ("behavior", "current", "want"),
    [
        ("static", 8, 5),
        ("currentReplicas", 8, 8),
        ("currentReplicasIfHigher", 8, 8),
        ("currentReplicasIfHigher", 2, 5),
        ("currentReplicasIfLower", 8, 5),
        ("currentReplicasIfLower", 2, 2),
    ],
)
def test_the_fallback(behavior: str, current: int, want: int) -> None:
    """`doFallback` with 5 replicas."""
    assert rules.fallback_replicas(behavior, 5, current) == want


def zero_case(lag: int, after: float, *, current: int = 1, missing: tuple[Part, ...] = ()) -> Case:
    """Return a case of a job that may be scaled to zero."""
    shot = snapshot(0, arrived=1000 + lag, committed=1000, partitions=4, slots=current, missing=missing)
    return case(current=current, shot=shot, spec=job(max_parallelism=64, min_parallelism=0), after=after)


def test_an_inactive_job_is_stopped_after_the_cooldown_period() -> None:
    """The period runs from the last look that found it active; looks are `polling_interval_seconds` apart."""
    keda = policy("keda")
    memory = keda.Memory()
    sizes: dict[float, int] = {}
    for number in range(60):
        proposal = keda.propose(zero_case(5 if number <= 9 else 0, 10.0 * number), memory)
        memory, sizes[10.0 * number] = proposal.memory, proposal.size
    # Active at the looks at 0, 30, 60 and 90 s; the first look more than 300 s after the last one is at 420 s.
    assert [at for at, size in sizes.items() if size == 0] == [420.0, 450.0, 480.0, 510.0, 540.0, 570.0]


def test_lag_up_to_the_activation_threshold_waits_at_zero() -> None:
    """Activation decides between zero and one, in both directions."""
    keda = policy("keda", activation_lag_threshold=5, cooldown_period_seconds=0.0, polling_interval_seconds=10.0)
    assert isinstance(keda, ZeroPolicy)
    stopped = keda.propose(zero_case(5, 10.0), KedaMemory(active_at=1.0))
    assert (stopped.size, stopped.code) == (0, "KEDA_ZERO")
    assert keda.propose(zero_case(6, 10.0), KedaMemory(active_at=1.0)).size == 1
    assert (keda.wake(zero_case(5, 20.0, current=0), KedaMemory()).size) == 0
    woken = keda.wake(zero_case(900, 20.0, current=0), KedaMemory())
    assert (woken.size, woken.code) == (1, "KEDA_ACTIVE")  # from zero to one; the autoscaler does the rest
    assert woken.memory is not None
    assert woken.memory.active_at == woken.memory.polled_at


def test_a_job_at_zero_is_looked_at_every_polling_interval() -> None:
    """Between two looks nobody sees what waits."""
    keda = policy("keda")
    assert isinstance(keda, ZeroPolicy)
    memory = keda.wake(zero_case(0, 0.0, current=0), KedaMemory()).memory
    assert memory is not None
    assert [keda.wake(zero_case(9, at, current=0), memory).size for at in (10.0, 20.0, 30.0)] == [0, 0, 1]


WINDOW = {"cron": "0 11 * * *|0 13 * * *|3", "stabilization_up_seconds": 0.0}
"""Open at 12:00, when the cases are."""


def test_a_cron_window_keeps_the_job_active_and_asks_for_its_size() -> None:
    """The second trigger: its replicas while the window is open, one otherwise; the larger answer counts."""
    opened = propose("keda", zero_case(0, 0.0), **WINDOW)
    assert (opened.size, opened.code) == (3, "KEDA_CRON")
    assert propose("keda", zero_case(60, 0.0), **WINDOW).size == 4  # the cap by partitions
    keda = policy("keda", cooldown_period_seconds=0.0, stabilization_down_seconds=0.0, **WINDOW)
    assert isinstance(keda, ZeroPolicy)
    late = 2 * 3600.0
    assert keda.propose(zero_case(0, late, current=3), KedaMemory(active_at=1.0)).code == "KEDA_ZERO"
    assert keda.wake(zero_case(0, late, current=0), KedaMemory()).size == 0
    woken = keda.wake(zero_case(0, 0.0, current=0), KedaMemory())
    assert (woken.size, woken.code) == (1, "KEDA_CRON")


@pytest.mark.parametrize(
    ("start", "end", "hour", "opened"),
    [
        ("0 9 * * *", "0 17 * * *", 12, True),
        ("0 9 * * *", "0 17 * * *", 17, False),
        ("0 22 * * *", "0 6 * * *", 3, True),
        ("0 8 * * *", "0 8,18 * * *", 20, True),  # both come next at 8:00
        ("0 8 30 2 *", "0 18 * * *", 20, True),  # never starts
        ("0 8 * * *", "0 18 30 2 *", 9, False),  # never ends
        ("0 8 30 2 *", "0 18 30 2 *", 9, True),
    ],
)
def test_a_cron_window_is_open_as_in_keda(start: str, end: str, hour: int, opened: bool) -> None:
    """`GetMetricsAndActivity` of KEDA's `cron_scaler.go`, with what its comparisons give for equal and zero times."""
    at = START.replace(hour=hour)
    first, last = (parse(f"0 {text}", "standard") for text in (start, end))
    assert rules.window_open(first, last, at) is opened


@pytest.mark.parametrize(
    "cron",
    [
        "0 9 * * *|0 17 * * *",
        "9 o'clock|0 17 * * *|2",
        "0 9 * * *|0 17 * * *|-2",
        "0 9 * * *|0 17 * * *|0",
        "0 9 * * *|0  9 * * *|2",
    ],
)
def test_a_bad_cron_window_is_refused(cron: str) -> None:
    """The text names the option. KEDA refuses a window without replicas, and one that ends when it starts."""
    with pytest.raises(BadOption, match=r"policy_options\.cron"):
        policy("keda", cron=cron)


def test_the_fallback_applies_after_more_failures_than_the_threshold() -> None:
    """Three failures keep the size, the fourth asks for the fallback; one success starts over."""
    keda = policy("keda", fallback_replicas=6)
    memory = keda.Memory()
    codes = []
    for number, missing in enumerate([True] * 4 + [False] + [True] * 3):
        part = (Part.END_OFFSETS,) if missing else ()
        proposal = keda.propose(zero_case(20, 10.0 * number, current=2, missing=part), memory)
        memory = proposal.memory
        codes.append((proposal.size, proposal.code))
    assert codes[:4] == [(2, "EVIDENCE_MISSING")] * 3 + [(6, "KEDA_FALLBACK")]
    assert codes[5:] == [(2, "EVIDENCE_MISSING")] * 3


@pytest.mark.parametrize(
    ("options", "want"), [({}, None), ({"fallback_replicas": 0}, 4), ({"fallback_replicas": 4}, 4)]
)
def test_without_offsets_a_job_at_zero_starts_only_with_a_fallback(options: dict[str, Any], want: int | None) -> None:
    """A fallback makes its trigger active, so the fourth look that fails starts one slot (`scaleFromZeroOrIdle`)."""
    keda, memory = policy("keda", polling_interval_seconds=10.0, **options), KedaMemory()
    assert isinstance(keda, ZeroPolicy)
    for look in range(1, 6):
        unknown = zero_case(0, 10.0 * look, current=0, missing=(Part.END_OFFSETS,))
        proposal = keda.wake(unknown, memory)
        started = want is not None and look >= want
        assert (proposal.size, proposal.code) == ((1, "KEDA_FALLBACK") if started else (0, "EVIDENCE_MISSING"))
        assert proposal.memory is not None
        memory = proposal.memory
        assert memory.active_at == (unknown.measured_at if started else None)


def test_a_job_is_active_while_the_fallback_applies() -> None:
    """So the cooldown period begins when the offsets are back (`getScalerState`)."""
    keda = policy("keda", fallback_replicas=2)
    memory: KedaMemory | None = KedaMemory(active_at=1.0)
    stopped_at = None
    for number in range(60):
        part = (Part.END_OFFSETS,) if number < 10 else ()
        proposal = keda.propose(zero_case(0, 10.0 * number, missing=part), memory)
        memory = proposal.memory
        if proposal.size == 0 and stopped_at is None:
            stopped_at = 10.0 * number
    # The fourth failure is at 30 s, the looks are at 30, 60 and 90 s; 390 s is not yet more than 300 s later.
    assert stopped_at == 420.0
