"""The decision round: which questions it asks, in which order, and what the answers lead to."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.support.events import job, steady
from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.links import Link, find_links
from tidegate.engine.reservations import Hold, ReservationView
from tidegate.engine.round import BrokenPromise, Look, Reserve, Round
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision, Observed, RedisView, decision_id
from tidegate.events.snapshot import MetricSnapshot
from tidegate.installed import engine

FREE = ReservationView(RedisView.OK)
SPEC = job()


@dataclass
class Asked:
    """A round driven with prepared answers; keeps what it asked."""

    views: list[ReservationView]
    taken: bool = True
    requests: list[Look | Reserve] = field(default_factory=list)

    def finish(self, round_: Round) -> tuple[JobState, Decision]:
        """Answer until the round ends; the last view is repeated."""
        request = next(round_)
        while True:
            self.requests.append(request)
            try:
                if isinstance(request, Look):
                    request = round_.send(self.views.pop(0) if len(self.views) > 1 else self.views[0])
                else:
                    request = round_.send(self.taken)
            except StopIteration as ended:
                result: tuple[JobState, Decision] = ended.value
                return result

    @property
    def kinds(self) -> list[str]:
        """What was asked, in short."""
        return [
            ("fresh" if request.fresh else "cached") if isinstance(request, Look) else "reserve"
            for request in self.requests
        ]


def started(rate: int) -> tuple[JobState, MetricSnapshot]:
    """Return the state after six of seven snapshots of a job that gets `rate` and can do 400 records/s; the seventh."""
    state = JobState.new()
    *before, last = steady(7, rate=rate, capacity=400)
    for shot in before:
        state, _ = engine().step(state, shot, SPEC, Observed(at=shot.observed_at, redis=RedisView.REBUILDING))
    return state, last


def known(shot: MetricSnapshot) -> Observed:
    """Return what is known one second after a snapshot."""
    return Observed(at=shot.observed_at + timedelta(seconds=1))


def test_without_a_command_one_cached_look_is_all() -> None:
    """A job that stays as it is costs no fresh look and no reservation."""
    state, shot = started(rate=280)
    asked = Asked([FREE])
    _, decision = asked.finish(engine().round(state, shot, SPEC, known(shot)))
    assert decision.command is None
    assert asked.kinds == ["cached"]


def test_a_command_needs_a_fresh_look_and_a_reservation() -> None:
    """A command goes out with the hold it needs: the slots it adds, owned by the decision."""
    state, shot = started(rate=800)
    asked = Asked([FREE])
    after, decision = asked.finish(engine().round(state, shot, SPEC, known(shot)))
    assert decision.command is not None
    assert asked.kinds == ["cached", "fresh", "reserve"]
    request = asked.requests[-1]
    assert isinstance(request, Reserve)
    assert isinstance(request.hold, Hold)
    assert request.hold.decision_id == decision.decision_id
    assert request.hold.slots == decision.final_parallelism - 4
    assert request.free == 100
    assert (after, decision) == engine().step(state, shot, SPEC, known(shot))


def test_a_fresh_look_that_differs_decides_again() -> None:
    """What a cached view let through, a fresh one can stop; nothing is reserved then."""
    state, shot = started(rate=800)
    asked = Asked([FREE, ReservationView(RedisView.UNREACHABLE)])
    _, decision = asked.finish(engine().round(state, shot, SPEC, known(shot)))
    assert decision.command is None
    assert decision.observed.redis is RedisView.UNREACHABLE
    assert asked.kinds == ["cached", "fresh"]


def test_a_refused_reservation_decides_once_more_without_a_command() -> None:
    """Refused, the round looks again and ends with a decision that says the reservation was lost."""
    state, shot = started(rate=800)
    asked = Asked([FREE, FREE, ReservationView(RedisView.OK, pool_reserved=5)], taken=False)
    after, decision = asked.finish(engine().round(state, shot, SPEC, known(shot)))
    assert asked.kinds == ["cached", "fresh", "reserve", "fresh"]
    assert decision.command is None
    assert decision.observed.reservation_refused
    assert decision.observed.pool_reserved == 5
    assert decision.trail[-1].code == "RESERVATION_LOST"
    assert after.in_flight is None


def test_a_command_after_a_refusal_is_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the engine ever order what was refused, the round raises and publishes nothing."""
    state, shot = started(rate=800)
    _, with_command = engine().step(state, shot, SPEC, known(shot))
    monkeypatch.setattr("tidegate.engine.round.step", lambda *_: (state, with_command))
    with pytest.raises(BrokenPromise, match="a command that nobody reserved"):
        Asked([FREE], taken=False).finish(engine().round(state, shot, SPEC, known(shot)))


def test_a_cooldown_held_by_this_very_decision_does_not_stop_it() -> None:
    """After a crash the reservation of the same decision is still there: it is its own, so it does not count."""
    state, shot = started(rate=800)
    until = shot.observed_at + timedelta(seconds=300)
    mine = decision_id(SPEC.job_id, shot.snapshot_id, SPEC.version, ENGINE_VERSION)
    for owner, kind in ((mine, CommandKind.RESCALE), ("another decision", None)):
        view = ReservationView(RedisView.OK, cooldown_until=until, cooldown_owner=owner)
        spec = SPEC.model_copy(
            update={"scaling": SPEC.scaling.model_copy(update={"guards": {"stabilization": {"seconds": 0}}})}
        )
        _, decision = Asked([view]).finish(engine().round(state, shot, spec, known(shot)))
        assert (decision.command and decision.command.kind) == kind
        assert decision.observed.cooldown_owner == (None if owner == mine else owner)


def test_an_answer_that_does_not_fit_is_refused() -> None:
    """A driver that answers a look with a yes, or a reservation with a view, is told so."""
    state, shot = started(rate=800)
    wrong = engine().round(state, shot, SPEC, known(shot))
    next(wrong)
    with pytest.raises(TypeError, match="a look is answered with a ReservationView"):
        wrong.send(True)
    wrong = engine().round(state, shot, SPEC, known(shot))
    next(wrong)
    wrong.send(FREE)
    assert isinstance(wrong.send(FREE), Reserve)
    with pytest.raises(TypeError, match="a reservation is answered with True or False"):
        wrong.send(FREE)


def test_jobs_of_a_pipeline_that_share_a_topic_are_linked() -> None:
    """Links name the topic and the direction, in the order of job ids; other pipelines and lone jobs have none."""
    specs = [
        job(name, pipeline_id=pipeline).model_copy(update={"sources": sources, "sinks": sinks})
        for name, pipeline, sources, sinks in (
            ("sink", "shop", ("b", "c"), ()),
            ("raw", "shop", ("a",), ("b", "c", "x")),
            ("lone", "shop", ("z",), ()),
            ("other", "elsewhere", ("b",), ("a",)),
        )
    ]
    assert find_links(specs) == {
        "raw": (Link("sink", False, ("b", "c")),),
        "sink": (Link("raw", True, ("b", "c"), only_reader=True),),
    }
    assert find_links(specs[3:]) == {}
