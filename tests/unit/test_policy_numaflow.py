"""The rule of Numaflow on the cases of its own tests and documentation, and the policy that uses it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.cases import AT, case, evidence, policy, propose
from tests.support.events import job, snapshot, steady
from tidegate.engine.case import Case
from tidegate.engine.cron import parse
from tidegate.engine.options import BadOption
from tidegate.engine.plan import ZeroPolicy
from tidegate.engine.state import Slice
from tidegate.events.decision import Evidence, Neighbour
from tidegate.lab.simulate import EngineDecider
from tidegate.policies import numaflow
from tidegate.policies import numaflow_rules as rules
from tidegate.policies.numaflow_pressure import MAX_SUMS, DownstreamLag, remember


def desired(rates: list[float], pending: list[int], **more: Any) -> int:
    """Return the desired replicas of a source with four replicas, set as Numaflow sets it."""
    given: dict[str, Any] = {
        "target_processing_seconds": 20,
        "ready_replicas": 4,
        "source": True,
        "buffer_length": 30_000,
        "buffer_length_limit": 24_000,
        "target_available_length": 15_000,
        "replicas": 4,
        "replicas_per_scale_up": 2,
        "wrap_pending": True,
    }
    return rules.desired_replicas(rates, pending, **given | more)


def test_the_documented_example() -> None:
    """60,000 pending in 3 s at 5,000/s a pod, so 10,000/s at 2 replicas: 60,000 / (3 * 5,000) = 4."""
    assert desired([10_000], [60_000], target_processing_seconds=3, ready_replicas=2) == 4


@pytest.mark.parametrize(
    ("rates", "pending", "want"),
    [
        ([0, 0], [0, 0], 1),
        ([250, 500, 750], [10010, 800, 1200], 16),  # 10010 / 250 / 5 * 2 = 16.016
        ([450, 500, 750], [10010, 800, 1200], 9),  # 8.898
        ([450, 20, 750], [10010, 800, 1200], 16),  # 800 / 20 / 5 * 2 = 16
        ([450, 20, 750], [18932, 800, 1200], 17),  # 16.83
        ([800, 200, 750], [18932, 800, 24988], 13),  # 24988 / 750 / 5 * 2 = 13.33
        ([800, 210, 750], [18932, 800, 24988], 13),
        ([800, 21, 750], [18932, 800, 24988], 15),  # 800 / 21 / 5 * 2 = 15.24
    ],
)
def test_source_cases_of_numaflow(rates: list[float], pending: list[int], want: int) -> None:
    """The source rule gives what `Test_desiredReplicasSinglePartition` expects (2 ready, 5 s)."""
    assert desired(rates, pending, target_processing_seconds=5, ready_replicas=2) == want


@pytest.mark.parametrize(
    ("rates", "pending", "ready", "want"),
    [
        ([0, 0], [0, 0], 2, 1),
        ([250, 500, 750], [2789, 800, 1200], 2, 4),
        ([250, 500, 750], [2999, 800, 1200], 2, 5),  # 2999 <= 30000 - 27000: by time, 4.798
        ([250, 500, 750], [3001, 800, 1200], 5, 6),  # by buffer: 27000 / ((24000 - 3001) / 5) = 6.43
        ([250, 500, 750], [8001, 800, 1200], 6, 10),
        ([250, 500, 750], [8001, 3882, 4002], 9, 15),
        ([250, 500, 750], [6000, 3882, 4002], 9, 14),  # 13.5 rounds up
        ([650, 570, 790], [6000, 3882, 4002], 9, 14),
        ([650, 570, 790], [3100, 3001, 3223], 11, 14),
        ([650, 570, 790], [2998, 2998, 2998], 13, 14),
        ([650, 570, 790], [2501, 1283, 2044], 14, 11),
    ],
)
def test_buffer_cases_of_numaflow(rates: list[float], pending: list[int], ready: int, want: int) -> None:
    """The buffer rule gives what Numaflow's tests expect (30,000 long, 80 % usable, 90 % to keep free)."""
    assert rules.buffer_limit(30_000, 0.8) == 24_000
    assert rules.target_available(30_000, 90) == 27_000
    given: dict[str, Any] = {"target_processing_seconds": 5, "source": False, "target_available_length": 27_000}
    assert desired(rates, pending, **given, ready_replicas=ready) == want


def test_a_full_buffer_adds_one_step() -> None:
    """At the limit the free part says nothing, so the result is current replicas + replicasPerScaleUp."""
    assert desired([10], [24_000], source=False, replicas=3, replicas_per_scale_up=2) == 5


def test_no_more_replicas_than_messages() -> None:
    """4 slow messages ask for at most 4 replicas (issue 630 had 73): 4 / 0.01 / 20 * 5 = 100."""
    assert desired([0.01], [4], ready_replicas=5) == 4


def test_numaflows_32_bit_overflow_can_be_fixed() -> None:
    """2^31 pending messages turn negative in the cast, and the rule for a vertex gives 1."""
    assert desired([1e6], [2**31]) == 1
    assert desired([1e6], [2**31], wrap_pending=False) == 429  # 429.5 is short of a half


def test_a_number_that_rounds_to_more_than_32_bits_becomes_the_least() -> None:
    """Go rounds first and then casts: 2147483647.6 is 2^31, which an int32 has no place for."""
    assert rules.float_to_int32(2**31 - 0.6) == 2**31 - 1
    assert rules.float_to_int32(2**31 - 0.4) == -(2**31)


def test_a_mono_vertex_that_does_nothing_keeps_its_size() -> None:
    """Rate 0 with pending messages keeps the replicas; only rate 0 without pending messages is idle."""
    given: dict[str, Any] = {"target_processing_seconds": 20, "ready_replicas": 4, "replicas": 4}
    assert rules.mono_vertex_desired(0, 100, **given) == 4
    assert rules.mono_vertex_desired(0, 0, **given) == 0
    assert rules.mono_vertex_desired(100, 4000, **given) == 8  # 4000 / 100 / 20 * 4
    assert rules.mono_vertex_desired(1e-9, 2**40, **given) == 2**31 - 1


@pytest.mark.parametrize(
    ("current", "wanted", "more", "want"),
    [
        (4, 9, {}, (6, "step")),
        (4, 5, {}, (5, "")),
        (4, 1, {}, (2, "step")),
        (4, 9, {"since_last_scale": 89.0}, (4, "cooldown")),
        (4, 1, {"since_last_scale": 89.0}, (4, "cooldown")),
        (4, 9, {"direct_pressure": True}, (3, "direct pressure")),
        (1, 9, {"direct_pressure": True}, (1, "direct pressure")),
        (4, 9, {"direct_pressure": True, "since_last_scale": 89.0}, (4, "cooldown")),  # both cooldowns run
        (
            4,
            9,
            {"direct_pressure": True, "since_last_scale": 10.0, "up_cooldown": 5.0},
            (3, "direct pressure"),
        ),  # defect
        (
            4,
            9,
            {"direct_pressure": True, "since_last_scale": 10.0, "up_cooldown": 5.0, "fix_pressure_cooldown": True},
            (4, "direct pressure"),
        ),
        (4, 9, {"downstream_pressure": True}, (4, "downstream pressure")),
        (4, 1, {"downstream_pressure": True}, (2, "step")),  # back pressure holds growth only
        (70, 9, {}, (9, "")),  # outside its bounds it goes there at once
        (70, 9, {"since_last_scale": 89.0}, (70, "cooldown")),
        (70, 9, {"since_last_scale": 50.0, "up_cooldown": 5.0}, (9, "")),
    ],
)
def test_one_pass(current: int, wanted: int, more: dict[str, Any], want: tuple[int, str]) -> None:
    """Bounds, back pressure, cooldown and step, in Numaflow's order."""
    given: dict[str, Any] = {
        "since_last_scale": 1000.0,
        "up_cooldown": 90.0,
        "down_cooldown": 90.0,
        "up_step": 2,
        "down_step": 2,
        "direct_pressure": False,
        "downstream_pressure": False,
        "fix_pressure_cooldown": False,
    }
    assert rules.scaled(current, wanted, minimum=1, maximum=50, **given | more) == want


@pytest.mark.parametrize(
    ("current", "still", "want"),
    [(120, 30, 120), (120, 121, 180), (120, 700, 600), (600, 65, 120), (600, 550, 600), (180, 170, 180)],
)
def test_the_lookback_follows_the_longest_still_spell(current: float, still: float, want: float) -> None:
    """Whole minutes, at most 600 s on the way up, at least the configured 120 s otherwise."""
    assert rules.next_lookback(current, still, 120) == want


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ({0: 5, 40: 5, 120: 6, 160: 7}, 120.0),
        ({0: 5, 60: 2, 120: 3}, 60.0),
        ({0: 5, 10: 6, 100: 6}, 120.0),
        ({0: 0, 100: 0}, 60.0),
    ],
)
def test_the_longest_still_spell(counts: dict[int, int], want: float) -> None:
    """A rise ends a spell, a fall starts a new one, and a spell that has not ended counts unless nothing came yet."""
    numaflow = policy("numaflow", lookback_seconds=60)
    memory = numaflow.Memory()
    for at, done in counts.items():
        memory = numaflow.propose(case(after=at, window=[Slice(AT + at, done, done)]), memory).memory
    assert memory.lookback == want


@pytest.mark.parametrize(("hour", "active"), [(10, True), (20, False), (9, True), (17, False)])
def test_a_cron_window(hour: int, active: bool) -> None:
    """Open from 9 to 17 o'clock: its next end comes before its next start."""
    start, end = parse("0 0 9 * * *", "standard"), parse("0 0 17 * * *", "standard")
    assert rules.window_active(start, end, datetime(2026, 1, 5, hour, 0, tzinfo=UTC)) is active


def lagging(lag: int, rate: float = 300.0, **figures: Any) -> Evidence:
    """Return the evidence of a job with some lag."""
    return evidence(lag_records=lag, processing_rate=rate, **figures)


def test_the_policy_sizes_by_pending() -> None:
    """12,000 pending at 300/s of 4 slots in 20 s: 12000 / 300 / 20 * 4 = 8, two at a time."""
    proposal = propose("numaflow", case(lagging(12_000)))
    assert (proposal.size, proposal.code) == (6, "NUMAFLOW_STEP")
    assert proposal.numbers["desired"] == 8
    assert propose("numaflow", case(lagging(12_000)), replicas_per_scale_up=9).size == 8


def test_two_measurements_at_one_instant_are_no_rate() -> None:
    """The clock went back between two snapshots, so that they were taken at the same time: nothing is divided by it."""
    window = [Slice(AT, 5, 4), Slice(AT, 9, 6)]
    assert propose("numaflow", case(window=window)).size == 4


def test_the_policy_waits_for_its_cooldowns() -> None:
    """Up and down wait 90 s after the last change."""
    assert propose("numaflow", case(lagging(12_000), last_action_at=AT - 89)).code == "NUMAFLOW_COOLDOWN"
    assert propose("numaflow", case(lagging(12_000), last_action_at=AT - 91)).size == 6


def pressed(*, distance: int | None = None, lag: int = 21_600) -> Case:
    """Return a case with a desired size of 8 and a job downstream that lags."""
    neighbour = Neighbour(
        "next", upstream=False, topics=("out",), evidence=Evidence(lag_records=lag), distance=distance
    )
    return case(lagging(12_000), neighbours=[neighbour])


def test_back_pressure_of_the_next_job_costs_a_slot() -> None:
    """Directly connected, at 90 % of 24,000: one fewer instead of more; just below: no pressure."""
    assert propose("numaflow", pressed()).code == "NUMAFLOW_DIRECT_PRESSURE"
    assert propose("numaflow", pressed()).size == 3
    assert propose("numaflow", pressed(lag=21_599)).size == 6


def test_a_mono_vertex_knows_no_back_pressure() -> None:
    """The scaler of a MonoVertex never looks downstream (`scaleOneMonoVertex`)."""
    assert propose("numaflow", pressed(), vertex="mono_vertex").size == 6
    assert propose("numaflow", pressed(distance=2), vertex="mono_vertex").size == 6


def test_jobs_in_a_circle_hold_each_other_down() -> None:
    """Both are full and need more slots, and each gives some up for the other: Numaflow's rule, told on its page."""
    sizes = {"a": 4, "b": 4}
    for _ in range(5):
        for job_id, other in (("a", "b"), ("b", "a")):
            full = [
                Neighbour(other, upstream=upstream, topics=("t",), evidence=Evidence(lag_records=30_000))
                for upstream in (True, False)
            ]
            proposal = propose("numaflow", case(lagging(30_000), current=sizes[job_id], neighbours=full))
            assert proposal.code == "NUMAFLOW_DIRECT_PRESSURE"
            assert propose("numaflow", case(lagging(30_000), current=sizes[job_id])).size > sizes[job_id]
            sizes[job_id] = proposal.size
    assert sizes == {"a": 1, "b": 1}
    assert "in a circle" in str(numaflow.__doc__)


def test_back_pressure_further_down_holds_the_size() -> None:
    """A full job that reads another job's output keeps this one from scaling up (`hasBackPressure`)."""
    proposal = propose("numaflow", pressed(distance=2))
    assert (proposal.size, proposal.code) == (4, "NUMAFLOW_DOWNSTREAM_PRESSURE")
    assert propose("numaflow", pressed(distance=2, lag=21_599)).size == 6


@pytest.mark.parametrize(
    ("lags", "code"),
    [
        ([0, 0, 0, 30_000], "NUMAFLOW_STEP"),  # the newest lag alone is over 21,600, the mean of 7,500 is not
        ([40_000, 40_000, 20_000], "NUMAFLOW_DIRECT_PRESSURE"),  # the newest is below, the mean of 33,333 is not
        ([40_000, 0, 24_800], "NUMAFLOW_DIRECT_PRESSURE"),  # 64,800 / 3 = 21,600
        ([40_000, 0, 24_799], "NUMAFLOW_STEP"),  # 21,599.67, and pending messages are whole
        ([21_600, None], "NUMAFLOW_DIRECT_PRESSURE"),  # a lag that is not known now does not end the pressure
        ([10**6] + [0] * 12, "NUMAFLOW_DIRECT_PRESSURE"),  # 120 s ago is within the lookback: 1,000,000 / 13
        ([10**6] + [0] * 13, "NUMAFLOW_STEP"),  # 130 s ago is not
    ],
)
def test_back_pressure_is_the_mean_over_the_lookback(lags: list[int | None], code: str) -> None:
    """`hasBackPressure` compares the averaged pending with 90 % of 24,000 = 21,600, not the newest one."""
    numaflow = policy("numaflow", adaptive_lookback=False)
    memory, found = numaflow.Memory(), []
    for number, lag in enumerate(lags):
        neighbour = Neighbour("next", upstream=False, topics=("out",), evidence=Evidence(lag_records=lag))
        proposal = numaflow.propose(case(lagging(12_000), neighbours=[neighbour], after=10.0 * number), memory)
        memory = proposal.memory
        found.append(proposal.code)
    assert found[-1] == code


def test_a_long_lookback_keeps_few_sums_of_lags_and_the_same_mean() -> None:
    """600 s of snapshots are kept as at most 16 sums per job; a job that is no longer linked is forgotten."""
    lags: tuple[DownstreamLag, ...] = ()
    for number in range(60):
        neighbour = Neighbour("next", upstream=False, topics=("out",), evidence=Evidence(lag_records=1000 * number))
        lags = remember(lags, [neighbour], 10.0 * number, 600.0)
        assert len(lags[0].sums) <= MAX_SUMS
        assert lags[0].mean == 500 * number
    assert remember(lags, [], 600.0, 600.0) == ()


def test_a_full_job_two_links_down_holds_the_first() -> None:
    """End to end: three jobs in a row, the mean lag of the last is over its limit, so the first does not scale up."""
    topics = {"raw": ("in", "a"), "clean": ("a", "b"), "report": ("b", "c")}
    specs = {
        name: job(name, pipeline_id="shop", policy="numaflow", policy_options={}).model_copy(
            update={"sources": (read,), "sinks": (written,)}
        )
        for name, (read, written) in topics.items()
    }
    decider = EngineDecider(tuple(specs.values()))
    codes = {}
    for number in range(4):
        for name, lag in (("report", 30_000), ("clean", 0), ("raw", 12_000)):
            shots = steady(number + 1, rate=300, capacity=300, lag=lag, job_id=name, pipeline_id="shop")
            decided = decider.decide(specs[name], shots[-1], shots[-1].observed_at.timestamp(), ()).decision
            assert decided is not None
            codes[name] = decided.trail[0].code
    assert codes["raw"] == "NUMAFLOW_DOWNSTREAM_PRESSURE"


def test_a_cron_window_replaces_the_bounds() -> None:
    """Inside the window the job goes to the minimum size of the window, whatever its metrics say."""
    proposal = propose("numaflow", case(), cron="0 0 11 * * *|0 0 13 * * *|8|10", replicas_per_scale_up=9)
    assert (proposal.size, proposal.code) == (8, "NUMAFLOW_WINDOW")
    outside = propose("numaflow", case(after=7200), cron="0 0 11 * * *|0 0 13 * * *|8|10")
    assert outside.code != "NUMAFLOW_WINDOW"


@pytest.mark.parametrize(
    "cron",
    [
        "0 0 9 * * *|0 0 17 * * *",
        "9 o'clock|0 0 17 * * *|1|2",
        "0 0 9 * * *|0 0 17 * * *|-1|2",
        "0 0 9 * * *|0 0 17 * * *|3|2",
        "0 0 9 * * *|0 0 9 * * *|1|2",
    ],
)
def test_a_bad_cron_window_is_refused(cron: str) -> None:
    """The text names the option and the value."""
    with pytest.raises(BadOption, match=r"policy_options\.cron"):
        policy("numaflow", cron=cron)


def test_the_rate_limit_holds_growth() -> None:
    """A job that already processes as much as its throttle allows would gain nothing."""
    assert propose("numaflow", case(lagging(12_000)), rate_limit=300.0).code == "NUMAFLOW_RATE_LIMIT"


def test_an_idle_job_keeps_one_slot() -> None:
    """Without pending records and processing the job goes to its minimum size, which may be zero."""
    proposal = propose("numaflow", case(lagging(0, rate=0.0)), replicas_per_scale_down=9)
    assert (proposal.size, proposal.code) == (1, "NUMAFLOW_IDLE")
    spec = job(min_parallelism=0)
    proposal = propose("numaflow", case(lagging(0, rate=0.0), spec=spec), replicas_per_scale_down=9)
    assert (proposal.size, proposal.code) == (0, "NUMAFLOW_IDLE")
    assert propose("numaflow", case(lagging(0, rate=0.0), spec=spec)).size == 2  # in steps
    assert propose("numaflow", case(lagging(1, rate=0.0), spec=spec), replicas_per_scale_down=9).size == 1
    assert propose("numaflow", case(lagging(0, rate=1.0), spec=spec), replicas_per_scale_down=9).size == 1


@pytest.mark.parametrize(
    ("source", "pending", "since", "want"),
    [
        (True, 0, 119.0, 0),
        (True, 0, 120.0, 1),  # peeks, whatever waits
        (True, 500, 119.0, 0),  # a source cannot see what waits
        (False, 0, 9999.0, 0),
        (False, 1, 95.0, 1),  # `zeroReplicaSleepSeconds` is for sources
        (False, 1, 60.0, 0),  # both cooldowns run
        (False, None, 9999.0, 0),
    ],
)
def test_from_zero(source: bool, pending: int | None, since: float, want: int) -> None:
    """The zero branch of `scaleOneVertex`: a source sleeps and peeks, another vertex wakes for its buffers."""
    given = {"since_last_scale": since, "zero_replica_sleep": 120.0, "up_cooldown": 90.0, "down_cooldown": 90.0}
    assert rules.replicas_from_zero(source=source, pending=pending, **given) == want


@pytest.mark.parametrize(
    ("options", "lag", "slept", "size", "code"),
    [
        ({}, 0, 119.0, 0, "NUMAFLOW_ASLEEP"),
        ({}, 0, 120.0, 1, "NUMAFLOW_PEEK"),
        ({"zero_replica_sleep_seconds": 600.0}, 900, 599.0, 0, "NUMAFLOW_ASLEEP"),
        ({"vertex": "mono_vertex"}, 0, 120.0, 1, "NUMAFLOW_PEEK"),
        ({"vertex": "udf"}, 0, 9999.0, 0, "NUMAFLOW_ASLEEP"),
        ({"vertex": "udf"}, 3, 91.0, 1, "NUMAFLOW_AWAKE"),
        ({"cron": "0 0 11 * * *|0 0 13 * * *|3|10"}, 0, 91.0, 2, "NUMAFLOW_WINDOW"),
        ({"cron": "0 0 11 * * *|0 0 13 * * *|0|10"}, 0, 91.0, 0, "NUMAFLOW_ASLEEP"),
        ({"cron": "0 0 11 * * *|0 0 13 * * *|0|0"}, 9, 999.0, 0, "NUMAFLOW_WINDOW"),  # same min and max: no peek
    ],
)
def test_the_policy_wakes_a_job_as_numaflow_does(
    options: dict[str, Any], lag: int, slept: float, size: int, code: str
) -> None:
    """A peek after the sleep, pending records of a udf, or a window that wants replicas, in steps of two."""
    rule = policy("numaflow", **options)
    assert isinstance(rule, ZeroPolicy)
    given = case(
        evidence(lag_records=lag), current=0, spec=job(min_parallelism=0), window=(), last_action_at=AT - slept
    )
    proposal = rule.wake(given, rule.Memory(seen=(AT - 700.0, 5)))
    assert (proposal.size, proposal.code) == (size, code)


def test_the_sleep_does_not_lengthen_the_lookback() -> None:
    """No pod was there to read, so the first lookback after it is the configured one."""
    rule = policy("numaflow")
    assert isinstance(rule, ZeroPolicy)
    given = case(evidence(lag_records=0), current=0, spec=job(min_parallelism=0), window=(), last_action_at=AT - 7200)
    memory = rule.wake(given, rule.Memory(seen=(AT - 7200.0, 5), lookback=120.0)).memory
    assert memory is not None
    window = [Slice(AT + 20, 5, 5), Slice(AT + 30, 5, 5)]
    after = rule.propose(case(after=30.0, window=window), memory).memory
    assert after is not None
    assert after.lookback == 120.0


def test_slow_batches_lengthen_the_lookback() -> None:
    """150 s without a commit make the lookback 180 s; later it goes back to 120 s."""
    lookback: list[Any] = []
    numaflow = policy("numaflow")
    memory = numaflow.Memory()
    for number in range(90):
        at, done = AT + 10 * number, 1000 * (min(number, 45) // 15 + 1) + max(0, number - 45)
        window = [Slice(at - 10, done + 10, done), Slice(at, done + 10, done)]
        proposal = numaflow.propose(case(after=10.0 * number, window=window), memory)
        memory = proposal.memory
        assert memory is not None
        lookback.append(memory.lookback)
    assert max(lookback) == 180.0
    assert lookback[0] == lookback[-1] == 120.0


@pytest.mark.parametrize(
    ("configured", "spell", "want"),
    [(90, 70, 120.0), (90, 60, 90.0), (120, 70, 120.0), (30, 20, 60.0), (120, 130, 180.0)],
)
def test_a_still_spell_is_rounded_up_to_minutes_before_it_is_compared(configured: int, spell: int, want: float) -> None:
    """`updateDynamicLookbackSecs`: 70 s become 120 s, more than 90 s, as long as 3 lookbacks reach the spell."""
    numaflow = policy("numaflow", lookback_seconds=configured)
    memory = numaflow.Memory()
    lookback: dict[int, Any] = {}
    for at in range(0, 900, 10):
        done = 1000 if at < spell else 1000 + at
        memory = numaflow.propose(case(after=at, window=[Slice(AT + at, done, done)]), memory).memory
        assert memory is not None
        lookback[at] = memory.lookback
    assert lookback[spell] == lookback[spell + 60] == want
    assert lookback[890] == max(60, configured)  # commits 10 s apart are spells of 10 s


def test_without_a_ready_slot_the_size_stays() -> None:
    """As long as no slot is granted, Numaflow waits for a ready replica."""
    proposal = propose("numaflow", case(lagging(12_000), shot=snapshot(0, slots=0)))
    assert (proposal.size, proposal.code) == (4, "EVIDENCE_MISSING")


def test_unknown_pending_changes_nothing() -> None:
    """Without known offsets the size stays."""
    window = [Slice(AT - 10, None, 5), Slice(AT, None, 5)]
    proposal = propose("numaflow", case(window=window, spec=job(max_parallelism=16)))
    assert (proposal.size, proposal.code) == (4, "EVIDENCE_MISSING")
