"""The decider's handler with fake ports: what it publishes, stores and reserves, and what a crash repeats."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.decider.handler import Handler
from services.decider.job_memory import JobMemory, key_of
from services.decider.metrics import DeciderMetrics
from services.decider.specs import SpecBook
from tests.support.events import START, codes, job, overloaded, result, snapshot, steady
from tests.support.reservations import FakeReservations
from tests.support.set_clock import SetClock
from tidegate.engine.case import Case, Proposal
from tidegate.engine.engine import Engine
from tidegate.engine.reservations import Answer, Hold, ReservationView, holds_in_force
from tidegate.engine.round import Round
from tidegate.engine.state import JobState, to_wire
from tidegate.engine.third_party import checked
from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision, Observed, RedisView
from tidegate.events.envelope import encode
from tidegate.events.job import JobSpec, ManualScale
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.way import Way
from tidegate.events.wire import Wire
from tidegate.installed import engine
from tidegate.policies.hpa import Hpa
from tidegate.policies.threshold import Threshold, ThresholdMemory
from tidegate.runtime.dead_letters import ConsumedRecord, DeadLetterLimit, TooManyDeadLetters
from tidegate.runtime.producer import TooLarge
from tidegate.runtime.spans import Trace, TraceSpan, no_trace


class Crash(Exception):
    """The process was killed here."""


@dataclass
class FakeOutbox:
    """Records what is published, in order; can crash after a number of effects."""

    table: dict[bytes, bytes] = field(default_factory=dict)
    events: list[Wire] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)
    crash_after: int | None = None

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Record an event."""
        encode(event, trace_id=trace_id, key=key)
        self.events.append(event)
        self._did(type(event).__name__)

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:  # noqa: ARG002 - the port's shape
        """Record a state."""
        self.table[key] = value
        self._did("state")

    def kept(self, key: bytes) -> bytes | None:
        """Return the newest state under the key."""
        return self.table.get(key)

    def keys(self) -> Collection[bytes]:
        """Return the keys of all states."""
        return self.table.keys()

    async def drop(self, key: bytes) -> None:
        """Remove a state."""
        del self.table[key]

    def _did(self, what: str) -> None:
        self.trail.append(what)
        if self.crash_after is not None and len(self.trail) >= self.crash_after:
            raise Crash(what)


class Bench:
    """A handler with its fakes. `again` simulates a restart: empty memory, the same stored states."""

    def __init__(self, *specs: JobSpec, limit: int = 10) -> None:
        self.specs: SpecBook = SpecBook(specs or [job()])
        self.clock = SetClock()
        self.reservations = FakeReservations(self.clock)
        self.reservations.condition = RedisView.OK
        self.outbox = FakeOutbox()
        self.limit = limit
        self.trace: Trace = no_trace
        self.again()

    def again(self) -> None:
        """Restart the handler with the same states and reservations."""
        self.outbox.crash_after = None
        self.registry = CollectorRegistry()
        self.handler = Handler(
            specs=self.specs,
            reservations=self.reservations,
            outbox=self.outbox,
            clock=self.clock,
            metrics=DeciderMetrics(self.registry),
            limit=DeadLetterLimit(self.limit),
            trace=self.exported,
        )

    def exported(self, spans: Sequence[TraceSpan]) -> None:
        """Pass spans on, to whatever the test has set."""
        self.trace(spans)

    def take(self, *events: Wire) -> None:
        """Pass events to the handler, each just after its time."""
        for event in events:
            record = encode(event)
            incoming = ConsumedRecord(record.topic.name, 0, 7, record.key, record.value, tuple(record.headers))
            if isinstance(event, MetricSnapshot):
                self.clock.at = max(self.clock.at, event.observed_at + timedelta(seconds=1))
                asyncio.run(self.handler.snapshot(incoming))
            else:
                asyncio.run(self.handler.result(incoming))

    def raw(self, value: bytes | None, key: bytes | None = b"rates") -> None:
        """Pass raw bytes to the handler."""
        asyncio.run(self.handler.snapshot(ConsumedRecord("tidegate.snapshots", 0, 7, key, value)))

    def decisions(self) -> list[Decision]:
        """Return the published decisions."""
        return [e for e in self.outbox.events if isinstance(e, Decision)]

    def commands(self) -> list[ScalingCommand]:
        """Return the published commands."""
        return [e for e in self.outbox.events if isinstance(e, ScalingCommand)]

    def letters(self) -> list[DeadLetter]:
        """Return the published dead letters."""
        return [e for e in self.outbox.events if isinstance(e, DeadLetter)]

    def count(self, name: str, **labels: str) -> float:
        """Return a counter's value."""
        return self.registry.get_sample_value(f"tidegate_decider_{name}_total", labels) or 0.0


def test_a_command_is_reserved_and_follows_its_decision() -> None:
    """The order is decision, command, state; the command's id holds its cooldown and slots."""
    cooldown = {"up_seconds": 60, "down_seconds": 90, "in_place": 1}
    bench = Bench(job(guards={"cooldown": cooldown, "stabilization": {"seconds": 0}}))
    bench.take(*overloaded())
    assert bench.outbox.trail == ["Decision", "state"] * 6 + ["Decision", "ScalingCommand", "state"]
    (command,) = bench.commands()
    assert command.command_id == bench.decisions()[-1].decision_id
    owner, until = bench.reservations.table.cooldowns["rates"]
    assert (owner, until) == (command.command_id, command.issued_at.timestamp() + 60)
    assert bench.reservations.table.pools["default"]["rates"][:2] == (command.to_parallelism - 4, command.command_id)


@pytest.mark.parametrize(("step", "done"), [(1, "Decision"), (2, "ScalingCommand")])
def test_a_crash_repeats_the_same_ids(step: int, done: str) -> None:
    """F2, F3: after a crash behind the decision or the command, the repeat gives the same ids."""
    bench = Bench(job(guards={"cooldown": {"up_seconds": 60, "down_seconds": 60}, "stabilization": {"seconds": 0}}))
    *before, last = overloaded()
    bench.take(*before)
    bench.outbox.trail.clear()
    bench.outbox.crash_after = step
    with pytest.raises(Crash, match=done):
        bench.take(last)
    bench.again()
    bench.clock.at += timedelta(seconds=5)
    bench.take(last)
    first, second = (d for d in bench.decisions() if d.snapshot_id == last.snapshot_id)
    assert first.decision_id == second.decision_id
    assert {c.command_id for c in bench.commands()} == {first.decision_id}
    assert second.command is not None
    assert second.observed.cooldown_until is None  # its own cooldown does not block it


def test_duplicates_and_late_snapshots_are_dropped() -> None:
    """No sequence is decided twice, not even after a restart."""
    bench = Bench()
    shots = overloaded(3)
    bench.take(*shots)
    bench.take(*shots)
    bench.again()
    bench.take(*shots)
    assert len(bench.decisions()) == 3
    assert bench.count("snapshots", outcome="dropped") == 3


def test_a_lost_race_decides_again_with_a_fresh_view() -> None:
    """If the pool refuses, the decision holds and gives the reason, and no command is sent."""
    bench = Bench()
    *before, last = overloaded(free=6)
    bench.take(*before)
    until = bench.clock.at.timestamp() + 300
    view, looks = bench.reservations.view, []

    async def beaten(job_id: str, pool_id: str) -> ReservationView:
        seen = await view(job_id, pool_id)
        looks.append(seen)
        if len(looks) == 2:  # the last look before the reservation; then another job takes the slots
            bench.reservations.table.pools["default"] = {"other": (5, "d-other", until)}
        return seen

    bench.reservations.view = beaten  # type: ignore[method-assign]
    bench.take(last)
    assert bench.commands() == []
    decision = bench.decisions()[-1]
    assert decision.observed.reservation_refused
    assert decision.observed.pool_reserved == 5
    assert decision.final_parallelism == decision.current_parallelism
    assert bench.count("reservations", answer="pool") == 1


def test_only_a_fresh_view_lets_a_command_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that may be seconds old will do for decisions without a command; this one has missed a cooldown."""
    bench = Bench()
    monkeypatch.setattr(bench.reservations, "cached_view", lambda *_: ReservationView(RedisView.OK))
    until = bench.clock.at + timedelta(hours=1)
    view, looks = bench.reservations.view, []

    async def cooling(job_id: str, pool_id: str) -> ReservationView:
        looks.append(job_id)
        return replace(await view(job_id, pool_id), cooldown_until=until, cooldown_owner="d-other")

    monkeypatch.setattr(bench.reservations, "view", cooling)
    bench.take(*overloaded())
    assert [d.observed.cooldown_until for d in bench.decisions()] == [None] * 6 + [until]
    assert (bench.commands(), len(looks)) == ([], 1)


@pytest.mark.parametrize("condition", [RedisView.UNREACHABLE, RedisView.REBUILDING])
def test_without_redis_it_holds_and_continues(condition: RedisView) -> None:
    """F19: without Redis there is no command, but every snapshot gets a decision that says why it holds."""
    bench = Bench()
    bench.reservations.condition = condition
    bench.take(*overloaded(9))
    assert len(bench.decisions()) == 9
    assert bench.commands() == []
    assert bench.decisions()[-1].observed.redis is condition
    assert f"REDIS_{condition.name}" in codes(bench.decisions()[-1])
    bench.reservations.condition = RedisView.OK
    bench.take(*overloaded(1, first=9, lag=36_000))
    assert len(bench.commands()) <= 1


def test_redis_lost_between_look_and_reservation_holds() -> None:
    """A failed reservation is not a yes: the decision says that Redis is unreachable."""
    bench = Bench()
    *before, last = overloaded()
    bench.take(*before)
    reserve = bench.reservations.reserve

    async def gone(hold: Hold, free: int | None) -> Answer:
        bench.reservations.condition = RedisView.UNREACHABLE
        return await reserve(hold, free)

    bench.reservations.reserve = gone  # type: ignore[method-assign]
    bench.take(last)
    assert bench.commands() == []
    assert "REDIS_UNREACHABLE" in codes(bench.decisions()[-1])


def test_results_appear_once_in_the_next_decision() -> None:
    """The next decision lists each result since the last snapshot once, despite repeats and restarts."""
    bench = Bench()
    bench.take(*overloaded())
    (command,) = bench.commands()
    accepted = result(command.command_id, Phase.ACCEPTED, 7)
    verified = result(command.command_id, Phase.VERIFIED, 8, parallelism=command.to_parallelism)
    bench.take(accepted, accepted)
    bench.again()
    bench.take(accepted, verified)
    bench.take(*overloaded(1, first=8), *overloaded(1, first=9))
    told = [d.observed.results for d in bench.decisions()[-2:]]
    assert told == [(accepted, verified), ()]
    assert bench.count("results", outcome="dropped") == 1
    bench.take(verified)
    bench.take(*overloaded(1, first=10))
    assert bench.decisions()[-1].observed.results == ()


def test_results_that_are_read_again_bring_no_old_size_back() -> None:
    """A group set back to the beginning reads a month of results again: more than the ids that are remembered."""

    def change(number: int) -> list[Wire]:
        more: dict[str, Any] = {"epoch": 10 * number, "parallelism": 2 + number % 7, "way": Way.IN_PLACE}
        phases = (Phase.ACCEPTED, Phase.RESIZING, Phase.VERIFIED)
        return [result(f"c{number}", phase, number, incarnation="app-1", **more) for phase in phases]

    bench = Bench()
    bench.take(*steady(1, rate=100, capacity=100))
    changes = [change(number) for number in range(1, 31)]
    bench.take(*chain(*changes), *steady(1, rate=100, capacity=100, first=31))
    before = bench.decisions()[-1]
    assert before.current_parallelism == 2 + 30 % 7
    bench.again()
    bench.take(*chain(*changes[:12]), *steady(1, rate=100, capacity=100, first=32))
    bench.take(*chain(*changes[12:]), *steady(1, rate=100, capacity=100, first=33))
    for after in bench.decisions()[-2:]:
        assert (after.current_parallelism, after.observed.results) == (before.current_parallelism, ())


def test_a_result_of_the_command_in_flight_is_taken_though_a_later_one_had_results() -> None:
    """So it is if the state of another decider came back, and the command was ordered on that."""
    bench = Bench()
    bench.take(*overloaded())
    (command,) = bench.commands()
    bench.take(result("later", Phase.ACCEPTED, 7, epoch=command.epoch + 10))
    rejected = result(command.command_id, Phase.REJECTED, 7, epoch=command.epoch, code="STALE_EPOCH")
    bench.take(rejected, *overloaded(1, first=8))
    assert rejected in bench.decisions()[-1].observed.results


def test_results_adjust_and_release_the_slots_of_a_command() -> None:
    """While the job is down, all its slots are held; the terminal result releases them."""
    bench = Bench()
    bench.take(*overloaded())
    (command,) = bench.commands()

    def slots() -> int | None:
        held = bench.reservations.table.pools["default"].get("rates")
        return held[0] if held else None

    assert slots() == command.to_parallelism - 4
    bench.take(result(command.command_id, Phase.ACCEPTED, 7, parallelism=command.to_parallelism))
    assert slots() == command.to_parallelism - 4
    bench.take(result(command.command_id, Phase.STOPPED, 7, parallelism=command.to_parallelism))
    assert slots() == command.to_parallelism
    bench.take(result(command.command_id, Phase.VERIFIED, 8, parallelism=command.to_parallelism))
    assert slots() is None


def test_what_is_rebuilt_after_a_loss_of_redis_is_what_it_held() -> None:
    """Also when a new driver runs that has no executors yet: other jobs must not count on its slots."""
    bench = Bench()
    bench.take(*overloaded())
    (command,) = bench.commands()
    to, results = command.to_parallelism, list[ActionResult]()
    restart = [(phase, to) for phase in (Phase.ACCEPTED, Phase.STOPPING, Phase.STOPPED, Phase.STARTING, Phase.RUNNING)]
    back = [(phase, 4) for phase in (Phase.STOPPING, Phase.STOPPED, Phase.STARTING, Phase.RUNNING, Phase.ROLLED_BACK)]
    for place, (phase, size) in enumerate([*restart, *back]):
        results.append(result(command.command_id, phase, 7, parallelism=size, attempt=1 + place // len(restart)))
        bench.take(results[-1])
        rebuilt = holds_in_force([command], results, bench.specs.get, command.issued_at)
        held = bench.reservations.table.pools["default"].get("rates")
        assert [each.slots for each in rebuilt if each.slots] == ([] if held is None else [held[0]]), phase


def test_a_result_of_another_pipeline_is_dropped() -> None:
    """Only the worker of its new pipeline takes the results of a job that has moved: two would adjust its slots."""
    bench = Bench()
    bench.take(*overloaded())
    (command,) = bench.commands()
    held = dict(bench.reservations.table.pools["default"])
    bench.take(result(command.command_id, Phase.VERIFIED, 8).model_copy(update={"pipeline_id": "shop"}))
    assert bench.reservations.table.pools["default"] == held
    assert bench.count("results", outcome="dropped") == 1


def test_an_unreadable_record_goes_to_the_dead_letters_with_its_bytes() -> None:
    """I1: an unreadable record goes to the dead letters with its bytes and the reason; its neighbours are decided."""
    bench = Bench()
    one, two = overloaded(2)
    bench.take(one)
    bench.raw(b'{"half": ', key=b"\xff\x00")
    bench.take(two)
    assert len(bench.decisions()) == 2
    (letter,) = bench.letters()
    assert (letter.code, letter.value, letter.key, letter.offset) == ("NOT_JSON", b'{"half": ', b"\xff\x00", 7)


def test_an_unreadable_result_goes_to_the_dead_letters_too() -> None:
    """I1: it is kept with its bytes, counted, and the next result is taken."""
    bench = Bench()
    bench.take(*overloaded(1))
    asyncio.run(bench.handler.result(ConsumedRecord("tidegate.results", 0, 8, b"rates", b"junk")))
    bench.take(result("c", Phase.ACCEPTED))
    (letter,) = bench.letters()
    assert (letter.code, letter.value, letter.topic, letter.offset) == ("NOT_JSON", b"junk", "tidegate.results", 8)
    assert bench.count("results", outcome="dead_lettered") == 1
    assert bench.count("results", outcome="taken") == 1


def test_a_flood_of_unreadable_records_stops_the_service() -> None:
    """F39: past the limit the handler raises, so that the process exits without acknowledging the record."""
    bench = Bench(limit=3)
    for _ in range(3):
        bench.raw(b"junk")
    with pytest.raises(TooManyDeadLetters):
        bench.raw(b"junk")
    assert len(bench.letters()) == 3


@pytest.mark.parametrize("between", [snapshot(1), result("c", Phase.ACCEPTED)])
def test_a_readable_record_restarts_the_count(between: Wire) -> None:
    """F39: some unreadable records among readable ones are no sign of a wrong topic, and never stop the service."""
    bench = Bench(limit=1)
    bench.raw(b"junk")
    bench.take(between)
    bench.raw(b"junk")
    assert len(bench.letters()) == 2


def test_a_memory_without_a_form_in_json_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of another package that remembers what cannot be stored costs its jobs their decisions, nobody else."""

    class Forgetful(Threshold):
        """Remembers an object."""

        def propose(self, case: Case, memory: ThresholdMemory) -> Proposal[ThresholdMemory]:
            return super().propose(case, memory)._replace(memory=ThresholdMemory(object()))  # type: ignore[arg-type]

    mine = Engine({"threshold": checked(Forgetful, "threshold", "acme 1.5"), "hpa": Hpa})
    monkeypatch.setattr("services.decider.handler.engine", lambda: mine)
    specs = [job(name, policy=policy, policy_options={}) for name, policy in (("rates", "threshold"), ("other", "hpa"))]
    bench = Bench(*specs, limit=1)
    bench.take(*chain(*zip(overloaded(5), overloaded(5, job_id="other"), strict=True)))
    assert {letter.code for letter in bench.letters()} == {"ENGINE_FAILED"}
    assert "policy 'threshold' of acme 1.5 failed in propose: the memory has no form" in bench.letters()[0].error
    assert len([d for d in bench.decisions() if d.job_id == "other"]) == 5


@pytest.mark.parametrize("asked", [0, 1])
def test_a_snapshot_on_which_the_engine_fails_is_a_dead_letter(
    asked: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine is pure and would fail again: the snapshot goes to the dead letters, the next one is decided.

    However many there are, they are no sign of a wrong topic, so the limit of dead letters does not count them.
    """
    bench = Bench(limit=1)
    first, *bad, last = steady(5, rate=800, capacity=400)

    class Failing:
        """The engine, which fails on the snapshots in the middle once it has asked so many questions."""

        def round(self, state: JobState, shot: MetricSnapshot, spec: JobSpec, known: Observed) -> Round:
            questions = engine().round(state, shot, spec, known)
            if shot not in bad:
                return (yield from questions)
            for _ in range(asked):
                yield next(questions)
            raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("services.decider.handler.engine", Failing)
    bench.take(first, *bad, last)
    assert [d.sequence for d in bench.decisions()] == [first.sequence, last.sequence]
    letters = bench.letters()
    assert {(x.code, x.error) for x in letters} == {("ENGINE_FAILED", "ZeroDivisionError: float division by zero")}
    assert [x.value for x in letters] == [encode(shot).value for shot in bad]
    assert bench.count("snapshots", outcome="dead_lettered") == 3
    (warning,) = caplog.records
    assert warning.exc_info is not None
    assert "rates" in warning.getMessage()


@pytest.mark.parametrize("only_with_command", [False, True])
def test_a_decision_that_is_too_large_for_its_topic_costs_no_other_job(
    only_with_command: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a huge spec in it, it would be refused again after each restart: its snapshot goes to the dead letters."""
    bench = Bench(job(), job("huge"), limit=1)
    publish = bench.outbox.publish

    async def small_only(event: Wire, **more: Any) -> None:
        if isinstance(event, Decision) and event.job_id == "huge" and (event.command or not only_with_command):
            raise TooLarge("tidegate.decisions key b'huge': Broker: Message size too large")
        await publish(event, **more)

    monkeypatch.setattr(bench.outbox, "publish", small_only)
    shots = overloaded()
    bench.take(*chain(*zip(shots, overloaded(job_id="huge"), strict=True)))
    assert [d.sequence for d in bench.decisions() if d.job_id == "rates"] == [shot.sequence for shot in shots]
    letters = bench.letters()
    assert {letter.code for letter in letters} == {"TOO_LARGE"}
    assert len(letters) == (1 if only_with_command else len(shots))
    assert "Message size too large" in letters[0].error
    assert any("snapshots of job huge go to the dead letters" in record.getMessage() for record in caplog.records)
    assert [list(jobs) for jobs in bench.reservations.table.pools.values()] == [["rates"]]  # what it reserved is free


def test_a_result_with_which_a_state_is_too_large_costs_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result may name thousands of queries. It goes to the dead letters; what its command held is free."""
    bench = Bench()
    bench.take(*overloaded())
    ordered = bench.commands()[0]
    keep = bench.outbox.keep

    async def small_only(partition: int, key: bytes, value: bytes) -> None:
        if len(value) > 100_000:
            raise TooLarge("tidegate.decider-state-changelog: Broker: Message size too large")
        await keep(partition, key, value)

    monkeypatch.setattr(bench.outbox, "keep", small_only)
    large = result(ordered.command_id, Phase.FAILED).model_copy(update={"sentence": "x" * 100_000})
    bench.take(large, snapshot(20))
    assert [letter.code for letter in bench.letters()] == ["TOO_LARGE"]
    assert bench.reservations.table.pools == {"default": {}}
    assert bench.decisions()[-1].sequence == snapshot(20).sequence
    assert bench.count("results", outcome="dead_lettered") == 1


def test_snapshots_of_an_undeclared_job_go_to_the_dead_letters() -> None:
    """I1: they become dead letters, and do not count towards the limit because they are readable."""
    bench = Bench(limit=1)
    bench.take(*[snapshot(n, job_id="ghost") for n in range(5)])
    assert [letter.code for letter in bench.letters()] == ["NO_JOB"] * 5
    assert bench.decisions() == []


def test_the_dead_letter_tells_a_job_without_a_spec_from_one_whose_spec_cannot_be_used() -> None:
    """After an upgrade that refuses an option, nobody looks for a spec that is there."""
    bench = Bench()
    bench.handler.specs = SpecBook([], unusable=["rates"])
    bench.take(snapshot(1), snapshot(1, job_id="ghost"))
    assert [letter.error for letter in bench.letters()] == [
        "job_id: 'rates' has a spec that cannot be used",
        "job_id: 'ghost' is not on the jobs topic",
    ]


class Declared(SpecBook):
    """A book that knows no job until somebody waits for it; each wait takes some turns of the event loop."""

    def __init__(self, *specs: JobSpec) -> None:
        super().__init__(())
        self.later = SpecBook(specs)
        self.waits = 0

    async def caught_up(self) -> None:
        """Let other tasks run, then know all jobs."""
        self.waits += 1
        for _ in range(5):
            await asyncio.sleep(0)
        self._specs = self.later._specs


def test_each_partition_waits_for_its_new_job() -> None:
    """Two jobs are measured right after their declaration: each partition waits, and neither job counts as unknown."""
    bench = Bench()
    bench.specs = Declared(job("a"), job("b"))
    bench.again()

    async def both() -> None:
        records = [encode(snapshot(1, job_id=job_id)) for job_id in "ab"]
        taken = [ConsumedRecord(r.topic.name, p, 7, r.key, r.value, tuple(r.headers)) for p, r in enumerate(records)]
        await asyncio.gather(*map(bench.handler.snapshot, taken))

    asyncio.run(both())
    assert {decision.job_id for decision in bench.decisions()} == {"a", "b"}
    assert (bench.letters(), bench.specs.waits) == ([], 2)


def test_snapshots_of_an_unknown_job_do_not_wait_each() -> None:
    """Each wait takes up to two seconds, in which nothing else of the partition is decided."""
    bench = Bench()
    bench.specs = Declared()
    bench.again()
    bench.take(*[snapshot(number, job_id="ghost") for number in (1, 1, 1, 2)])
    assert (len(bench.letters()), bench.specs.waits) == (4, 2)


def test_a_job_that_has_just_moved_waits_for_its_new_spec() -> None:
    """The collector may know that it belongs to another pipeline before this decider does."""
    bench = Bench()
    bench.specs = Declared(job("rates", pipeline_id="shop"))
    bench.specs._specs = {"rates": job()}
    bench.again()
    bench.take(snapshot(1, pipeline_id="shop"))
    assert (len(bench.decisions()), bench.letters()) == (1, [])


def test_a_snapshot_from_far_in_the_future_goes_to_the_dead_letters() -> None:
    """A sequence hours ahead is not decided, so current ones still are; it does not count towards the limit (F35)."""
    bench = Bench(limit=1)
    bench.take(snapshot(1))
    for _ in range(3):
        bench.raw(encode(snapshot(1000)).value)
    bench.take(snapshot(2))
    assert [decision.sequence for decision in bench.decisions()] == [snapshot(1).sequence, snapshot(2).sequence]
    letters = bench.letters()
    assert {letter.code for letter in letters} == {"INVALID"}
    assert str(snapshot(1000).sequence) in letters[0].error


def test_a_job_that_was_decided_on_by_a_clock_that_was_ahead_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """All its snapshots are dropped for as long as the clock was ahead; without a word, nobody would know why."""
    bench = Bench()
    bench.take(snapshot(100_000))
    bench.clock.at = snapshot(1).observed_at
    bench.take(snapshot(1), snapshot(2), snapshot(3))
    assert len(bench.decisions()) == 1
    assert bench.count("snapshots", outcome="dropped") == 3
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    until = datetime.fromtimestamp(snapshot(100_000).sequence, UTC)
    assert said.startswith("snapshots of job rates are dropped: ")
    assert str(until) in said
    caplog.clear()
    bench.take(*[snapshot(n) for n in range(4, 12)])
    assert len(caplog.records) == 1  # once a minute


def test_a_snapshot_that_comes_twice_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A second collector measures every job as well, and its clock may be a little ahead."""
    bench = Bench()
    bench.take(snapshot(10))
    bench.clock.at -= timedelta(seconds=60)
    bench.take(snapshot(10), snapshot(9))
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_snapshot_of_another_pipeline_goes_to_the_dead_letters() -> None:
    """Only the worker of its new pipeline decides for a job that has moved."""
    bench = Bench(job("rates", pipeline_id="shop"))
    bench.take(snapshot(1, pipeline_id="rates"))
    (letter,) = bench.letters()
    assert letter.code == "WRONG_KEY"
    assert "'rates'" in letter.error
    assert "'shop'" in letter.error


def linked() -> Sequence[JobSpec]:
    """Return two jobs linked by a topic, and one without a link."""
    up = job("up", pipeline_id="shop").model_copy(update={"sources": ("raw",), "sinks": ("middle",)})
    down = job("down", pipeline_id="shop").model_copy(update={"sources": ("middle",), "sinks": ("clean",)})
    return up, down, job("alone", pipeline_id="shop").model_copy(update={"sources": ("x",), "sinks": ("y",)})


def test_a_decision_sees_its_neighbours() -> None:
    """A decision sees the size and evidence of linked jobs from their newest decision; unknown stays unknown."""
    bench = Bench(*linked())
    bench.take(*steady(1, rate=300, capacity=400, job_id="down", pipeline_id="shop"))
    bench.take(*steady(1, rate=300, capacity=400, job_id="up", pipeline_id="shop"))
    down, up = bench.decisions()
    (seen,) = down.observed.neighbours
    assert (seen.job_id, seen.upstream, seen.topics, seen.parallelism) == ("up", True, ("middle",), None)
    (seen,) = up.observed.neighbours
    assert (seen.job_id, seen.upstream, seen.parallelism, seen.evidence) == ("down", False, 4, down.evidence)


def test_what_another_decider_has_decided_since_is_unknown() -> None:
    """A rebalance took the pipeline away and brought it back: what was known of its jobs before is hours old."""
    bench = Bench(*linked())
    bench.take(*steady(1, rate=300, capacity=400, job_id="down", pipeline_id="shop"))
    key = key_of("shop", "down")
    bench.outbox.table[key] = bytes(bytearray(bench.outbox.table[key]))
    bench.take(*steady(1, rate=300, capacity=400, job_id="up", pipeline_id="shop"))
    (seen,) = bench.decisions()[-1].observed.neighbours
    assert (seen.job_id, seen.parallelism, seen.evidence) == ("down", None, None)


def test_a_decision_sees_the_plan_of_the_job_upstream() -> None:
    """The job upstream of 400/s is decided first and grows for 800/s; the other sees in the same interval what comes.

    It sees the plan again when the job upstream has none, because its change is under way.
    """
    bench = Bench(*linked())
    batches = {"output_records": 4000}
    for shot in steady(8, rate=800, capacity=400, partitions=64, job_id="up", pipeline_id="shop"):
        written = tuple(each.model_copy(update=batches) for each in shot.batches)
        sources = tuple(each.model_copy(update={"topic": "raw"}) for each in shot.sources)
        bench.take(shot.model_copy(update={"batches": written, "sources": sources}))
        number = (shot.sequence - int(START.timestamp())) // 10
        bench.take(*steady(1, first=number, rate=300, capacity=400, job_id="down", pipeline_id="shop"))
    *_, grown, during, up, down = bench.decisions()
    assert grown.job_id == up.job_id == "up"
    assert grown.emits is not None
    assert next(step.rate for step in grown.emits.steps) == 400.0
    assert max(step.rate for step in grown.emits.steps) > 800.0
    (seen,) = during.observed.neighbours
    assert seen.emits == grown.emits
    (seen,) = down.observed.neighbours
    assert seen.emits is not None
    assert seen.emits.steps == grown.emits.steps
    assert during.emits is None  # nobody reads it


def test_a_removed_job_is_forgotten_and_starts_from_scratch_if_added_again() -> None:
    """Its state goes, late snapshots and results leave none, and the next command is newer than the last (I5)."""
    bench = Bench(job(guards={"stabilization": {"seconds": 0}}), job("other"))
    bench.take(*overloaded())
    bench.take(*steady(1, rate=300, capacity=400, job_id="other"))
    (first,) = bench.commands()
    both = bench.specs
    bench.handler.specs = SpecBook([job("other")])
    asyncio.run(bench.handler.forget_removed())
    assert set(bench.outbox.table) == set(bench.handler._live) == {key_of("other", "other")}
    assert bench.reservations.forgotten == ["rates"]
    late = overloaded(8)[-1]
    bench.take(late, result(first.command_id, Phase.VERIFIED, 90))
    assert [letter.code for letter in bench.letters()] == ["NO_JOB"]
    assert set(bench.outbox.table) == {key_of("other", "other")}

    bench.handler.specs = both
    bench.take(*overloaded(first=100))
    state = bench.decisions()[-7].keyframe
    assert state is not None, "a keyframe tells the audit that the state starts from scratch"
    assert state.state == to_wire(JobState.new())
    assert bench.commands()[-1].epoch > first.epoch


def test_a_job_removed_and_added_again_unseen_starts_from_scratch(caplog: pytest.LogCaptureFixture) -> None:
    """While no decider ran, or faster than one looks. It starts over once, and not if the removal is older."""
    bench = Bench()
    bench.take(snapshot(1))
    removed = SpecBook([job()], removals={"rates": 7})
    bench.specs = bench.handler.specs = removed
    bench.take(result("c-1", Phase.VERIFIED, 15))
    assert JobMemory.from_bytes(bench.outbox.table[key_of("rates", "rates")]).state == JobState.new()
    with caplog.at_level(logging.INFO):
        bench.take(snapshot(2))
    bench.again()
    bench.take(snapshot(3))
    bench.specs = SpecBook([job()], removals={"rates": 3})  # of a decider that is behind
    bench.again()
    bench.take(snapshot(4))
    keyframes = [decision.keyframe for decision in bench.decisions()]
    assert [keyframe is not None and keyframe.state == to_wire(JobState.new()) for keyframe in keyframes] == [
        True,
        True,
        False,
        False,
    ]
    assert JobMemory.from_bytes(bench.outbox.table[key_of("rates", "rates")]).state.decisions == 3


def test_a_state_of_an_older_decider_survives_a_removal_before_it() -> None:
    """It does not tell which removals it knows, so the job keeps what it has learned; later ones count."""
    bench = Bench()
    bench.take(snapshot(1))
    (key,) = bench.outbox.table
    bench.outbox.table[key] = re.sub(rb',"removal":-?[0-9]+', b"", bench.outbox.table[key])
    bench.specs = SpecBook([job()], removals={"rates": 7})
    bench.again()
    bench.take(snapshot(2))
    assert JobMemory.from_bytes(bench.outbox.table[key]).state.decisions == 2
    bench.handler.specs = SpecBook([job()], removals={"rates": 8})
    bench.take(snapshot(3))
    assert JobMemory.from_bytes(bench.outbox.table[key]).state.decisions == 1


def test_a_job_that_changes_its_pipeline_leaves_no_state_behind() -> None:
    """Its state in the new pipeline is another one."""
    bench = Bench()
    bench.take(snapshot(1))
    bench.handler.specs = SpecBook([job("rates", pipeline_id="shop")])
    bench.take(snapshot(2, pipeline_id="shop"))
    asyncio.run(bench.handler.forget_removed())
    assert set(bench.outbox.table) == {key_of("shop", "rates")}


def test_a_job_is_not_forgotten_because_its_spec_is_new_or_cannot_be_used() -> None:
    """A decider that lacks a policy, or has not read the newest spec yet, does not forget what was learned."""
    bench = Bench()
    bench.take(snapshot(1))
    for book in (SpecBook([], unusable=["rates"]), Declared(job())):
        bench.handler.specs = book
        asyncio.run(bench.handler.forget_removed())
        assert set(bench.outbox.table) == {key_of("rates", "rates")}


def test_former_versions_of_a_spec_leave_no_trace_in_memory() -> None:
    """Who scales by `kubectl`, or by an autoscaler, makes thousands in a week, and each is kept with its plan."""
    bench = Bench()
    for n in range(20):
        bench.handler.specs = SpecBook([job().model_copy(update={"version": n + 1}), job("other")])
        bench.take(snapshot(n))
        asyncio.run(bench.handler.forget_removed())
    assert len(engine()._plans) <= 2


def test_unknown_jobs_leave_no_trace_in_memory() -> None:
    """Somebody may send snapshots under ever new names."""
    bench = Bench(limit=1)
    for n in range(20):
        bench.clock.at += timedelta(minutes=2)
        bench.take(snapshot(n, job_id=f"ghost-{n}"))
    assert len(bench.handler._warned) == 1


def test_an_unreadable_state_starts_from_scratch() -> None:
    """A damaged state loses the job's memory but does not stop the service, and it is counted."""
    bench = Bench()
    bench.outbox.table[key_of("rates", "rates")] = b'{"state": 3}'
    bench.take(*overloaded(1))
    assert len(bench.decisions()) == 1
    assert bench.count("lost_states") == 1


def test_a_state_of_another_shape_starts_from_scratch() -> None:
    """A newer version may have written it: whatever is wrong with it, the service goes on."""
    bench = Bench()
    bench.outbox.table[key_of("rates", "rates")] = b'{"state": {"history": {"shrink": [1.0]}}}'
    bench.take(*overloaded(1))
    assert (len(bench.decisions()), bench.count("lost_states")) == (1, 1)


def test_what_another_engine_remembered_is_dropped_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """After an upgrade the log says once per job, and names both engines, that its policy starts without its memory."""
    bench = Bench()
    shots = overloaded(4)
    bench.take(*shots[:2])
    key = key_of("rates", "rates")
    here = bench.decisions()[-1].engine_version
    wire = json.loads(bench.outbox.table[key])
    bench.outbox.table[key] = json.dumps(wire | {"state": wire["state"] | {"engine_version": "1"}}).encode()
    bench.again()
    with caplog.at_level(logging.INFO, "services.decider.handler"):
        bench.take(*shots[2:])
    said = [message for message in caplog.messages if "engine" in message]
    assert len(said) == 1
    assert said[0].startswith(f"engine {here} decides in place of engine 1, without what policy flip271 remembered")


def test_a_job_goes_on_from_the_state_of_a_newer_decider() -> None:
    """It decides no snapshot twice and serves no request again, although rows of the state have one more value."""
    by_hand = ManualScale(request_id="once", parallelism=2, reason="launch day", requested_at=START)
    bench, shots = Bench(job(manual=by_hand)), steady(4, rate=300, capacity=400)
    bench.take(*shots[:2])
    key = key_of("rates", "rates")
    wire = json.loads(bench.outbox.table[key])
    for row in (*wire["state"]["window"], wire["state"]["in_flight"]):
        row.append("new")
    bench.outbox.table[key] = json.dumps(wire).encode()
    bench.again()
    bench.take(*shots)
    assert [d.sequence for d in bench.decisions()] == [s.sequence for s in shots]
    assert len(bench.commands()) == 1


def test_a_state_changed_by_a_rebalance_is_read_again() -> None:
    """The handler uses what another worker decided in the meantime, not its own older memory."""
    bench = Bench()
    shots = overloaded(4)
    bench.take(*shots[:2])
    before = bench.outbox.table[key_of("rates", "rates")]
    bench.take(*shots[2:])
    bench.outbox.table[key_of("rates", "rates")] = before
    bench.take(*shots)
    assert [d.sequence for d in bench.decisions()] == [s.sequence for s in (*shots, *shots[2:])]


def test_a_memory_survives_its_bytes() -> None:
    """State, pending results and seen ids read back exactly as they were stored."""
    bench = Bench()
    bench.take(*overloaded())
    (command,) = bench.commands()
    bench.take(result(command.command_id, Phase.ACCEPTED, 7, details={"stop_seconds": 0.1, "clean": True}))
    raw = bench.outbox.table[key_of("rates", "rates")]
    record = JobMemory.from_bytes(raw)
    assert record.to_bytes() == raw
    assert len(record.pending) == len(record.seen) == 1
    assert record.state.last_sequence == bench.decisions()[-1].sequence
