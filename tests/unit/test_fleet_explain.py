"""Explaining decisions: the explanation, each reason with its values, what to do, and the results."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.engine import step
from tests.support.events import START, job, observed, result, snapshot, steady
from tests.unit.test_engine_zero import asleep
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Emission, EmissionStep, Evidence, Neighbour, RedisView, Status
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part
from tidegate.events.way import Way
from tidegate.fleet.changes import cost_in_words
from tidegate.fleet.explain import delay, explain, sizes_of, slots_now, spans_of
from tidegate.fleet.fleet import FleetJob
from tidegate.fleet.rows import row_of


def decide_all(spec: JobSpec, snapshots: list[MetricSnapshot]) -> list[Decision]:
    """Return the engine's decisions on snapshots while no command is carried out."""
    state, decisions = JobState.new(), []
    for one in snapshots:
        state, decision = step(state, one, spec, observed(one))
        decisions.append(decision)
    return decisions


def lagging(spec: JobSpec) -> Decision:
    """Return the first decision with a command on a job that falls behind."""
    decisions = decide_all(spec, steady(12, rate=3000, capacity=1000))
    return next(d for d in decisions if d.command is not None)


def test_a_scale_up_shows_its_explanation_sizes_and_values() -> None:
    """The explanation, the sizes, the measurements and each reason with its values are all there."""
    decision = lagging(job())
    text = "\n".join(explain(decision))
    assert decision.sentence in text
    assert f"current 4 slots, proposed {decision.proposed_parallelism}, decided {decision.final_parallelism}" in text
    assert "3,000 records/s" in text
    for entry in decision.trail:
        assert entry.sentence in text
        assert f"[{entry.code}]" in text
        for name in entry.numbers:
            assert f"{name}=" in text


def test_a_reason_cannot_forge_a_line() -> None:
    """What an operator gives as a reason is in the explanation, and may hold line breaks."""
    decision = lagging(job()).model_copy(update={"sentence": "6 slots: for a sale\nWhat you can do: nothing"})
    lines = explain(decision)
    assert lines[3] == "6 slots: for a sale What you can do: nothing"
    assert not any("\n" in line for line in lines)


def test_a_job_at_zero_says_why_it_has_no_slot_and_what_ends_that() -> None:
    """An operator who finds a job without slots learns that nothing is wrong; its hours of sleep are one span."""
    stage = asleep()
    decisions = [stage.tick() for _ in range(30)]
    text = "\n".join(explain(decisions[-1]))
    assert "FINE" in text
    assert "not running; decided: 0 slots" in text
    assert "Stay stopped: nothing has arrived for 7 min, and the job starts at the first record that waits." in text
    assert "0 records, 0.0 s of work" in text
    assert [(span.count, span.first.current_parallelism) for span in spans_of(decisions)] == [(30, 0)]
    stage.arrived += 40
    text = "\n".join(explain(stage.tick()))
    assert "Start with 1 slot: 40 records wait after 5 min without a slot, which calls for a size of 1." in text


@pytest.mark.parametrize("state", [ClusterState.STARTING, ClusterState.RUNNING])
def test_a_running_job_of_unknown_size_is_not_called_stopped(state: ClusterState) -> None:
    """Its cluster has never said how many slots it has, so 0 means that nobody knows."""
    shot = snapshot(0, arrived=1_000, committed=1_000, state=state).model_copy(
        update={"slots_granted": None, "missing": (Part.CAPACITY,)}
    )
    _, decision = step(JobState.new(), shot, job(), observed(shot))
    text = "\n".join(explain(decision))
    assert "the size is not known" in text
    assert "not running" not in text
    remedy = "check the collector's log for the source that does not answer"
    assert (remedy in text) == (state is ClusterState.RUNNING)
    assert row_of(FleetJob(job(), decision), shot.observed_at).slots == "unknown"
    assert slots_now(decision) == sizes_of(decision) == "unknown"


def test_a_lag_whose_work_is_unknown_says_what_is_unknown() -> None:
    """Before the first batch, the records are counted, but nobody knows how long they take."""
    evidence = replace(lagging(job()).evidence, lag_records=2430, lag_seconds=None)
    text = "\n".join(explain(lagging(job()).model_copy(update={"evidence": evidence})))
    assert "  lag              2,430 records, unknown s of work\n" in text


def test_an_observed_job_that_is_not_found_is_told_how_it_is_recognized() -> None:
    """Somebody who only observes has most likely another application name; a second start is no remedy for that."""
    shot = snapshot(0, state=ClusterState.STOPPED, slots=0)
    for mode, told in ((Mode.ADVISE, True), (Mode.ACTIVE, False)):
        _, decision = step(JobState.new(), shot, job(mode=mode), observed(shot))
        assert decision.trail[0].code == "JOB_NOT_RUNNING"
        assert ("spark.tidegate.job_id" in "\n".join(explain(decision))) == told


def test_a_limit_by_partitions_says_what_to_do() -> None:
    """A proposal limited by the partitions names them and the remedy."""
    decision = lagging(
        job(policy_options={**job().scaling.policy_options, "alignment_mode": "OFF"}, max_parallelism=30)
    )
    text = "\n".join(explain(decision))
    assert decision.final_parallelism == 8
    assert "SOURCE_PARTITIONS" in text
    assert "add partitions to the source topic" in text


def test_what_is_unknown_is_called_unknown() -> None:
    """A figure that was not measured is shown as unknown, never as a number."""
    blind = snapshot(0, arrived=None, committed=None, slots=None, free=None)
    _, decision = step(JobState.new(), blind, job(), observed(blind))
    text = "\n".join(explain(decision))
    assert "  lag              unknown\n" in text
    assert "capacity         unknown" in text


@pytest.mark.parametrize(
    ("seen", "words", "short"),
    [
        (Evidence(), "unknown", "unknown"),
        (Evidence(delay_seconds=0.0), "no record waits", "0 s"),
        (Evidence(delay_seconds=42.3), "the oldest record waits 42 s", "42 s"),
        (Evidence(delay_seconds=42.3, delay_at_least=True), "the oldest record waits at least 42 s", ">42 s"),
    ],
)
def test_the_delay_is_told_in_words(seen: Evidence, words: str, short: str) -> None:
    """How long the oldest record waits, and whether that is only a lower bound."""
    decision = lagging(job()).model_copy(update={"evidence": seen})
    assert f"delay            {words}" in "\n".join(explain(decision))
    assert delay(seen) == short


def test_records_that_were_removed_unread_are_told_with_what_to_do() -> None:
    """With `failOnDataLoss`, Spark fails where records were removed; Tidegate cannot see that option, so it says so."""
    decision = lagging(job())
    assert "removed unread" not in "\n".join(explain(decision))
    evidence = replace(decision.evidence, lost_records=5000)
    text = "\n".join(explain(decision.model_copy(update={"evidence": evidence})))
    assert "removed unread" in text
    assert "5,000 records that Kafka no longer has" in text
    assert "failOnDataLoss=false" in text


def test_other_inputs_of_a_decision_are_shown() -> None:
    """A decision made without Redis says so."""
    one = snapshot(0)
    _, decision = step(JobState.new(), one, job(), replace(observed(one), redis=RedisView.UNREACHABLE))
    assert "Redis  unreachable" in "\n".join(explain(decision))


def test_the_plans_of_linked_jobs_are_shown() -> None:
    """What the job upstream plans, what the one downstream can take, and what this job itself will emit."""
    one = snapshot(0)
    plan = Emission((EmissionStep(START, 2100.0), EmissionStep(START + timedelta(seconds=70), 4200.4)), "in")
    linked = (Neighbour("parsed", True, ("in",), 4, emits=plan), Neighbour("stored", False, ("out",), 2, ceiling=5e3))
    _, decision = step(JobState.new(), one, job(), replace(observed(one), neighbours=linked))
    lines = explain(decision.model_copy(update={"emits": plan}))
    planned = "2,100 records/s from 12:00:00, 4,200 from 12:01:10"
    assert f"Plans to emit {planned}" in lines
    assert f"  upstream job    parsed, 4 slots, plans to emit {planned}" in lines
    assert "  downstream job  stored, 2 slots, can process at most 5,000 records/s" in lines


def test_the_results_of_the_command_are_shown_in_order() -> None:
    """The command is followed by its results, each with its time; results of other commands are left out."""
    decision = lagging(job())
    mine = decision.decision_id
    phases = [
        result(mine, Phase.VERIFIED, 30, downtime_seconds=21.5, parallelism=8),
        result(mine, Phase.ACCEPTED, 20),
        result("another", Phase.FAILED, 25),
    ]
    text = "\n".join(explain(decision, phases))
    assert text.index("accepted") < text.index("verified")
    assert "downtime 21.5 s" in text
    assert "failed" not in text
    assert "no results yet" in "\n".join(explain(decision))


def test_a_result_that_was_written_again_is_shown_once() -> None:
    """An actuator that did not get the acknowledgement writes a phase again."""
    decision = lagging(job())
    accepted = result(decision.decision_id, Phase.ACCEPTED, 20)
    lines = explain(decision, [accepted, accepted, result(decision.decision_id, Phase.VERIFIED, 30)])
    assert sum("accepted" in line for line in lines) == 1
    assert sum("verified" in line for line in lines) == 1


def test_a_change_shows_its_way_and_what_it_has_cost() -> None:
    """Command and result name the way; the result tells delay and outage, and leaves out a downtime of nothing."""
    decision = lagging(job())
    assert decision.command is not None
    decision = decision.model_copy(update={"command": decision.command.model_copy(update={"way": Way.IN_PLACE})})
    figures: dict[str, Any] = {
        "way": Way.IN_PLACE,
        "delay_seconds": 9.3,
        "outage_seconds": 0.0,
        "downtime_seconds": 0.0,
    }
    text = "\n".join(explain(decision, [result(decision.decision_id, Phase.VERIFIED, 30, parallelism=8, **figures)]))
    assert "slots in place, expires" in text
    assert "8 slots (in place: 9.3 s until the new size worked, no outage)" in text


@pytest.mark.parametrize(
    ("phase", "figures", "told"),
    [
        (
            Phase.VERIFIED,
            {"way": Way.HANDOVER, "delay_seconds": 41.25, "outage_seconds": 1.04, "downtime_seconds": 4.5},
            "by handover: 41.2 s until the new size worked, outage 1.0 s, downtime 4.5 s",
        ),
        (
            Phase.ROLLED_BACK,
            {"way": Way.RESTART, "delay_seconds": 231.0, "outage_seconds": 230.0, "downtime_seconds": 235.0},
            "by restart: 231.0 s until the job went on, outage 230.0 s, downtime 235.0 s",
        ),
        (Phase.VERIFIED, {"downtime_seconds": 21.5}, "downtime 21.5 s"),
        (Phase.RESIZING, {"way": Way.IN_PLACE}, ""),
    ],
)
def test_the_cost_of_a_change_in_words(phase: Phase, figures: dict[str, Any], told: str) -> None:
    """Each known figure is named; older results have only a downtime."""
    assert cost_in_words(result("c", phase, 10, **figures)) == told


def test_a_failed_last_command_is_shown() -> None:
    """A decision without a command says how the last command ended, unless it succeeded or ended later."""
    decision = decide_all(job(), steady(12, rate=3000, capacity=1000))[-1]
    rejected = result("a", Phase.REJECTED, 10, code="FOREIGN_DRIVER", sentence="Another driver runs.")
    done, later = result("b", Phase.VERIFIED, 5), result("c", Phase.FAILED, 13, sentence="Later.")
    text = "\n".join(explain(decision, [rejected, done, later]))
    assert "rescale rejected  Another driver runs.  [FOREIGN_DRIVER]" in text
    assert "Later." not in text
    assert "Last command" not in "\n".join(explain(decision, [done]))


def test_a_failed_command_is_old_news_while_the_next_one_is_under_way() -> None:
    """After a takeover, `why` does not say that the last command was rejected while the job starts."""
    decision = decide_all(job(), steady(12, rate=3000, capacity=1000))[-1]
    rejected = result("a", Phase.REJECTED, 9, code="FOREIGN_DRIVER", sentence="Another driver runs.")
    starts = result("b", Phase.STARTING, 10, kind=CommandKind.START)
    assert "Last command" in "\n".join(explain(decision, [rejected]))
    assert "Last command" not in "\n".join(explain(decision, [rejected, starts]))


def test_decisions_that_say_the_same_form_one_span() -> None:
    """Equal decisions are one span with a count; a decision with a command starts a span of its own."""
    decisions = decide_all(job(), steady(12, rate=3000, capacity=1000))
    found = spans_of(decisions)
    assert sum(span.count for span in found) == len(decisions)
    assert len(found) < len(decisions)
    assert max(span.count for span in found) > 1
    ordered = [span.first for span in found if span.first.command is not None]
    assert ordered == [d for d in decisions if d.command is not None]


def test_a_change_held_by_the_cooldown_says_for_how_long() -> None:
    """Inside the cooldown, the age of the last change and the length of the cooldown are shown."""
    spec = job(guards={"cooldown": {"up_seconds": 600, "down_seconds": 600}, "stabilization": {"seconds": 0}})
    state = JobState.new()._replace(parallelism=4)
    texts = []
    for one in steady(12, rate=3000, capacity=1000):
        recent = state._replace(last_action_at=one.observed_at.timestamp() - 40)
        state, decision = step(recent, one, spec, observed(one))
        texts.append("\n".join(explain(decision)))
    assert "[COOLDOWN]" in texts[-1]
    assert "the last change was 41 s ago and the cooldown lasts 150 s" in texts[-1]
    assert "decided 4 (no change)" in texts[-1]


def test_an_exhausted_pool_says_what_is_free_and_what_to_do() -> None:
    """A proposal that the pool cannot meet names the pool, its free slots and the remedy."""
    decisions = decide_all(job(), steady(12, rate=3000, capacity=1000, free=1))
    text = "\n".join(explain(next(d for d in decisions if d.status is Status.POOL_EXHAUSTED)))
    assert "pool default has 1 of 5 free" in text
    assert "add workers to the pool" in text
