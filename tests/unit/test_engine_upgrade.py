"""A new version of the spec with another application reaches the running job, once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.engine import step
from tests.support.events import START, job, observed, result, steady, with_application
from tidegate.engine.history import Growth, History
from tidegate.engine.state import JobState, from_wire, to_wire
from tidegate.events.command import CommandKind
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way

OLD = job(version=1)


def changed(version: int = 2, rescale: tuple[Way, ...] | None = None, **scaling: Any) -> JobSpec:
    """Return a newer spec whose executors have more memory."""
    spec = job(version=version, rescale=rescale, **scaling)
    return with_application(spec, executor_memory_mb=1024 + version)


class Run:
    """A job of 4 slots with nothing to do but its work; it was started with the old spec."""

    def __init__(self) -> None:
        self.state = JobState.new()
        self.shots = iter(steady(60, rate=200, capacity=400))
        started = result("c", Phase.VERIFIED, 0, kind=CommandKind.START, parallelism=4)
        self.decide(OLD, started.model_copy(update={"application": OLD.application.digest}))

    def decide(self, spec: JobSpec, *results: ActionResult) -> Decision:
        """Decide on the next snapshot."""
        shot = next(self.shots)
        self.state, decision = step(self.state, shot, spec, observed(shot, results=results))
        return decision

    def ordered(self, spec: JobSpec) -> ActionResult:
        """Have the upgrade ordered; return a result with the command's id, still without an end."""
        command = self.decide(spec).command
        assert command is not None
        return result(command.command_id, Phase.ACCEPTED, 1, kind=CommandKind.RESCALE, parallelism=4)


def end_of(accepted: ActionResult, phase: Phase, **more: Any) -> ActionResult:
    """Return how the command has ended."""
    return accepted.model_copy(update={"phase": phase, "at": START + timedelta(seconds=90), **more})


def test_a_changed_application_is_handed_over() -> None:
    """The command keeps the size, and changes nothing in place, because executors alone bring no new application."""
    run = Run()
    assert run.decide(OLD).command is None
    decision = run.decide(changed())
    assert decision.command is not None
    assert (decision.command.kind, decision.command.from_parallelism, decision.command.to_parallelism) == (
        CommandKind.RESCALE,
        4,
        4,
    )
    assert decision.command.way is Way.HANDOVER
    assert decision.sentence.startswith("Start the new application with 4 slots by handover: the spec names another")
    assert run.decide(changed()).command is None, "ordered twice"


def test_another_release_is_another_application() -> None:
    """Code that changes under the same path has a release; what only says how to change the job does not count."""
    old = OLD.application
    assert old.model_copy(update={"release": "v2"}).digest != old.digest
    assert old.model_copy(update={"rescale": (Way.RESTART,), "stop_deadline_seconds": 5.0}).digest == old.digest


def test_a_new_version_with_the_same_application_changes_nothing() -> None:
    """Bounds, policies and deadlines reach a running job without a new driver."""
    run = Run()
    assert run.decide(job(version=2, max_parallelism=12)).command is None


def test_a_spec_that_is_applied_again_with_the_same_version_is_another_spec() -> None:
    """It was removed and applied again while no decider ran: its application is noticed, and its keyframe has it."""
    run, again = Run(), changed(version=1)
    run.decide(OLD)
    decision = run.decide(again)
    assert decision.command is not None
    assert decision.sentence.startswith("Start the new application with 4 slots by handover")
    assert decision.keyframe is not None
    assert decision.keyframe.spec == again
    assert run.decide(again).keyframe is None


def test_a_state_of_an_older_engine_does_not_name_its_spec() -> None:
    """The version alone tells then, so what failed once is not tried again because of an upgrade of Tidegate."""
    run = Run()
    run.state = run.state._replace(spec_digest=None, application="the one that works")
    assert run.decide(OLD).command is None
    assert run.state.spec_digest == OLD.digest


def test_the_digest_of_a_spec_survives_its_way_through_kafka() -> None:
    """The order of options and what is left out do not count; every value does."""
    spec = job(guards={"quota": {"slots": 6}, "cooldown": {"up_seconds": 30}}, policy_options={"b": 1, "a": 2})
    assert JobSpec.model_validate_json(spec.model_dump_json()).digest == spec.digest
    turned = job(guards={"cooldown": {"up_seconds": 30}, "quota": {"slots": 6}}, policy_options={"a": 2, "b": 1})
    assert turned.digest == spec.digest
    assert job(max_parallelism=15).digest != job().digest


def test_nothing_is_done_while_nobody_knows_what_runs() -> None:
    """A job started by an older version of Tidegate is left alone."""
    run = Run()
    run.state = run.state._replace(application=None)
    assert run.decide(changed()).command is None


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_a_job_that_must_not_be_changed_is_not(mode: Mode) -> None:
    """Only an active job is upgraded."""
    assert Run().decide(changed(mode=mode)).command is None


def test_a_job_that_may_only_be_resized_in_place_keeps_its_application() -> None:
    """Without handover and restart there is no way."""
    assert Run().decide(changed(rescale=(Way.IN_PLACE,))).command is None


def test_a_verified_upgrade_is_done() -> None:
    """Once the new application runs, nothing more is ordered."""
    run, spec = Run(), changed()
    end = end_of(run.ordered(spec), Phase.VERIFIED, way=Way.HANDOVER, application=spec.application.digest)
    run.decide(spec, end)
    assert not run.state.outdated
    assert run.decide(spec).command is None


@pytest.mark.parametrize("application", [None, OLD.application.digest])
def test_a_failed_upgrade_is_not_repeated_until_the_next_version(application: str | None) -> None:
    """The old application goes on; another version of the spec is another try."""
    run, spec = Run(), changed()
    end = end_of(run.ordered(spec), Phase.ROLLED_BACK, way=Way.HANDOVER, application=application)
    assert run.decide(spec, end).command is None
    assert run.decide(spec).command is None
    assert run.state.application == OLD.application.digest
    assert run.decide(changed(3)).command is not None


def test_an_application_that_fails_delays_no_change_of_size() -> None:
    """Only changes of size that fail count for the guard `backoff`; the last one here was a growth that worked."""
    run, spec = Run(), changed()
    run.state = run.state._replace(history=History(growth=Growth(at=0.0, before=2, after=4, rate=None)))
    run.decide(spec, end_of(run.ordered(spec), Phase.ROLLED_BACK, way=Way.HANDOVER))
    assert run.state.history.failed is None


def test_what_runs_is_compared_with_the_newest_spec() -> None:
    """A spec that went back while its upgrade was under way takes the job back as well."""
    run, spec = Run(), changed()
    accepted = run.ordered(spec)
    assert run.decide(job(version=3)).command is None, "the upgrade is under way"
    end = end_of(accepted, Phase.VERIFIED, way=Way.HANDOVER, application=spec.application.digest)
    assert run.decide(job(version=3), end).command is not None


def test_what_runs_survives_a_keyframe() -> None:
    """The digest and the comparison are part of the state on the wire."""
    run = Run()
    run.state = run.state._replace(outdated=True)
    again = from_wire(to_wire(run.state))
    assert (again.application, again.outdated) == (OLD.application.digest, True)
