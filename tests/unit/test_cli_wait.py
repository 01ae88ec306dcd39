"""Which decisions and results `tidegate scale --wait` follows."""

from __future__ import annotations

from tests.support.engine import step
from tests.support.events import START, job, result, snapshot, steady
from tidegate.cli.wait import RequestTracker
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, Part
from tidegate.operate import with_mode, with_size

FIRST = job(min_parallelism=2, max_parallelism=8)
MINE = with_size(FIRST, 6, "noon", START)


def _decided(spec: JobSpec) -> Decision:
    """Return the decision on a job that has run under its first spec for a while, and whose newest spec is `spec`."""
    state = JobState.new()
    *earlier, newest = steady(12, rate=900, capacity=1000)
    for one in earlier:
        state, _ = step(state, one, FIRST, Observed(at=one.observed_at))
    state = state._replace(in_flight=None, last_action_at=None)
    _, decision = step(state, newest, spec, Observed(at=newest.observed_at))
    return decision


def _tracker() -> RequestTracker:
    assert MINE.manual is not None
    return RequestTracker(MINE.version, MINE.manual)


def test_the_command_of_a_request_is_followed_to_its_end() -> None:
    """Also if the spec has had another version since, which kept the request."""
    for spec in (MINE, with_mode(MINE, Mode.PAUSED)):
        decision, request = _decided(spec), _tracker()
        assert decision.command is not None
        request.decision(decision)
        request.result(result(decision.command.command_id, Phase.VERIFIED, parallelism=6))
        assert (request.ended, request.succeeded) == (True, True)


def test_a_request_that_another_one_has_replaced_ends_without_success() -> None:
    """The command of the other request says nothing about this one, not even if both were written at once."""
    for other in (with_size(MINE, 3, "night", START), with_size(FIRST, 3, "night", START)):
        decision, request = _decided(other), _tracker()
        assert decision.command is not None
        request.decision(decision)
        request.result(result(decision.command.command_id, Phase.VERIFIED, parallelism=3))
        assert (request.ended, request.succeeded) == (True, False)
        assert request.lines[-1][2] == "Another request has replaced this one."


def test_a_request_for_the_present_size_waits_for_another_change_that_is_under_way() -> None:
    """The job has 4 slots, and soon another size: the request is served after that."""
    kept = with_size(FIRST, 4, "noon", START)
    assert kept.manual is not None
    state = JobState.new()
    for number, shot in enumerate(steady(12, rate=1800, capacity=1000)):
        state, decision = step(state, shot, FIRST if number < 11 else kept, Observed(at=shot.observed_at))
    assert (state.in_flight is not None, decision.current_parallelism) == (True, 4)
    request = RequestTracker(kept.version, kept.manual)
    request.decision(decision)
    assert not request.ended
    assert len(request.lines) == 1


def test_a_stop_is_not_taken_for_the_request() -> None:
    """A spec that says that the job should not run comes first; that the job has stopped is no success."""
    stopped = MINE.model_copy(update={"running": False, "version": MINE.version + 1})
    decision, request = _decided(stopped), _tracker()
    assert decision.command is not None
    request.decision(decision)
    request.result(result(decision.command.command_id, Phase.VERIFIED, parallelism=0))
    assert not request.succeeded


def test_a_job_of_unknown_size_is_not_taken_for_one_without_slots() -> None:
    """Nobody knows whether it runs: the request for 0 slots is served when that is known."""
    spec = job(min_parallelism=0)
    asked = with_size(spec, 0, "night", START)
    assert asked.manual is not None
    shot = snapshot(0, state=ClusterState.UNKNOWN, slots=None, free=None, missing=(Part.JOB_STATE, Part.CAPACITY))
    _, decision = step(JobState.new(), shot, asked, Observed(at=shot.observed_at))
    assert (decision.current_parallelism, decision.command) == (0, None)
    request = RequestTracker(asked.version, asked.manual)
    request.decision(decision)
    assert not request.ended
