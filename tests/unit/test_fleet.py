"""The fleet folded from events: present state, timelines, logs, and their bounds."""

from __future__ import annotations

import json
import math
import pickle
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from typer.testing import CliRunner

from tests.support.events import START, job, result, snapshot, with_application
from tests.support.fake_consumer import FakeMessage
from tests.support.fleets import decision, hour_of, spec
from tests.support.history import decided_twice, history
from tidegate.cli import app
from tidegate.cli.doctor.jobs import refused_specs
from tidegate.client import ClientSettings, Received, loaded_specs
from tidegate.console.pages import pools_page
from tidegate.events.decision import Decision, Keyframe, Status
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec, Mode, SpecChange
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, SnapshotWarning, WarningCode
from tidegate.fleet import feed
from tidegate.fleet.feed import Feed
from tidegate.fleet.fleet import LOG_LENGTH, EntryKind, Fleet, FleetJob, Trouble
from tidegate.fleet.timeline import CAPACITY, HORIZON_SECONDS, JobTimeline, TimelinePoint
from tidegate.operate import SpecRefused, publish, publish_change, refused_move, with_mode, with_size
from tidegate.runtime.poll import wait_until
from tidegate.runtime.settings import ServiceSettings

NOW = datetime(2026, 3, 1, 13, tzinfo=UTC)


def point(at: float, delay: float = 1.0, rate: float = 10.0) -> TimelinePoint:
    """Return a point of a timeline."""
    return TimelinePoint(at, rate, 20.0, delay, 5.0, 4.0)


def test_warnings_of_the_newest_snapshot_are_told_in_words() -> None:
    """A job that is not measured whole says so, with what to do, until a snapshot warns of nothing."""
    fleet, topics = Fleet(), tuple(f"t{number}" for number in range(7))
    fleet.take_spec(job())
    for code in (WarningCode.TOPIC_UNKNOWN, WarningCode.TOPIC_NOT_READ, WarningCode.TOPIC_NOT_LISTED):
        warned = (SnapshotWarning(code=code, topics=topics),)
        fleet.take(snapshot(1).model_copy(update={"warnings": warned}))
        (text,) = fleet.get("rates").warnings  # type: ignore[union-attr]
        assert "t0, t1, t2, t3, t4 and 2 more" in text
    for code, words in (
        (WarningCode.QUERY_FAILED, "what it reads of its sources waits"),
        (WarningCode.REAL_TIME, "real-time trigger"),
        (WarningCode.KAFKA_UNKNOWN, "`kafka_cluster`"),
        (WarningCode.SOURCE_WAITS, "`minOffsetsPerTrigger`"),
        (WarningCode.SOURCE_LIMITED, "`maxOffsetsPerTrigger`"),
    ):
        fleet.take(snapshot(1).model_copy(update={"warnings": (SnapshotWarning(code=code),)}))
        (text,) = fleet.get("rates").warnings  # type: ignore[union-attr]
        assert words in text
    for seconds, words in ((90.0, "90 s ahead of"), (-4000.0, "4,000 s behind")):
        warned = (SnapshotWarning(code=WarningCode.CLOCK_APART, seconds=seconds),)
        fleet.take(snapshot(1).model_copy(update={"warnings": warned}))
        (text,) = fleet.get("rates").warnings  # type: ignore[union-attr]
        assert words in text
    fleet.take(snapshot(2))
    assert fleet.get("rates").warnings == []  # type: ignore[union-attr]


def test_a_timeline_is_bounded_and_keeps_its_peaks() -> None:
    """Hours of decisions fit the capacity, in order of time, and the one peak of delay is still there."""
    timeline = JobTimeline()
    for number in range(2000):
        timeline.add(point(10.0 * number, delay=99.0 if number == 777 else 1.0))
    points = list(timeline)
    assert CAPACITY / 3 < len(points) <= CAPACITY
    assert [p.at for p in points] == sorted(p.at for p in points)
    assert max(p.delay_seconds for p in points) == 99.0
    assert points[-1].at == 19_990.0
    assert timeline.seconds > 19_000


def test_a_timeline_forgets_what_is_older_than_its_horizon() -> None:
    """After a day of decisions, the oldest point is about one horizon old."""
    timeline = JobTimeline()
    for number in range(8640):
        timeline.add(point(10.0 * number))
    assert HORIZON_SECONDS * 0.9 < timeline.seconds < HORIZON_SECONDS * 1.7
    assert len(timeline) <= CAPACITY


def test_joined_points_have_the_mean_rate_and_unknown_is_not_zero() -> None:
    """The mean of the rates survives joining; a point of which nothing was known stays unknown."""
    timeline = JobTimeline()
    for number in range(5 * CAPACITY):
        timeline.add(point(10.0 * number, rate=10.0 * (number % 2), delay=math.nan))
    points = list(timeline)
    assert sum(p.arrival_rate for p in points) / len(points) == pytest.approx(5.0, abs=0.2)
    assert all(math.isnan(p.delay_seconds) for p in points)


@pytest.mark.parametrize("wrong", [timedelta(days=2), timedelta(days=-2)])
def test_a_decider_with_a_wrong_clock_spoils_no_timeline(wrong: timedelta) -> None:
    """Charts need times in order: a decision from such a clock stands between its neighbours, and moves none."""
    instants = [NOW + timedelta(seconds=10 * step) for step in range(4)]
    made = [decision(job(), at) for at in instants]
    made[1] = made[1].model_copy(update={"decided_at": instants[1] + wrong})
    one = FleetJob(job())
    for each in made:
        one.take_decision(each)
    assert [each.at for each in one.timeline] == [at.timestamp() for at in instants]


def test_a_decision_on_no_possible_second_does_not_end_the_history_of_a_job() -> None:
    """A sequence is a second: a forged record with one of the far future made all later decisions look old."""
    fleet, rates = Fleet(), job()
    fleet.take_spec(rates)
    for one in (decision(rates, NOW).model_copy(update={"sequence": 2**62}), decision(rates, NOW)):
        fleet.take(one)
    found = fleet.get("rates")
    assert found is not None
    assert found.decision == decision(rates, NOW)


def test_a_fleet_follows_the_events_of_its_jobs() -> None:
    """A history of decisions and results gives the newest decision, the cluster's state, and a log in order."""
    fleet, steps = Fleet(), history()
    fleet.take_spec(steps[0].spec)
    for step in steps:
        for one in step.results:
            fleet.take(one)
        fleet.take(step.snapshot)
        fleet.take(step.decision)
    found = fleet.get("rates")
    assert found is not None
    assert found.decision is not None
    assert found.decision.decision_id == steps[-1].decision.decision_id
    assert found.decision.keyframe is None
    assert len(found.timeline) == len(steps)
    assert [entry.at for entry in found.log] == sorted((entry.at for entry in found.log), reverse=True)
    assert sum(entry.times for entry in found.spans) == len(steps)
    assert sum(entry.orders for entry in found.spans) == sum(s.decision.command is not None for s in steps)
    assert {entry.word for entry in found.changes} == {"accepted", "verified"}
    assert fleet.pools["default"].slots.workers_alive == 1


def test_a_repeated_or_late_decision_changes_nothing() -> None:
    """A decision that comes twice, or after a newer one, is not counted again."""
    fleet, rates = Fleet(), job()
    fleet.take_spec(rates)
    first, second = decision(rates, NOW), decision(rates, NOW + timedelta(seconds=10))
    for each in (first, second, second, first):
        fleet.take(each)
    found = fleet.get("rates")
    assert found is not None
    assert found.decision == second
    assert len(found.timeline) == 2


def test_of_two_decisions_on_a_snapshot_the_later_one_is_shown() -> None:
    """As `tidegate why` shows it: the decider went on from it, after it had died before it saved its state."""
    steps, at, other = decided_twice()
    one = FleetJob(steps[0].spec)
    for each in (*(step.decision for step in steps[: at + 1]), other, steps[at].decision):
        one.take_decision(each)
    assert one.decision is not None
    assert one.decision.decided_at == other.decided_at
    assert len(one.timeline) == at + 1, "they are of one measurement"
    assert [span.orders for span in one.spans[-2:]] == [True, True], "either order may be carried out"


def test_a_repeated_result_is_noted_once() -> None:
    """An actuator that did not get the acknowledgement writes a phase again, also after the one that followed."""
    fleet = Fleet()
    fleet.take_spec(job())
    made = [result("one", Phase.ACCEPTED, 1), result("one", Phase.VERIFIED, 2)]
    for one in (*made, *made):
        fleet.take(one)
    found = fleet.get("rates")
    assert found is not None
    assert [entry.word for entry in found.changes] == ["accepted", "verified"]
    assert found.last_result == made[1]


def test_a_pool_is_gone_with_its_last_job() -> None:
    """Nothing tells of its slots any more: what the last snapshot said would stay on the page for ever."""
    fleet = Fleet()
    fleet.take_spec(job())
    fleet.take(snapshot(1))
    (pool,) = pools_page(NOW, fleet)["pools"]
    assert pool["seen"].slots.workers_alive == 1
    fleet.take_spec(job(version=2).model_copy(update={"pool_id": "other"}))
    (pool,) = pools_page(NOW, fleet)["pools"]
    assert (pool["name"], pool["seen"]) == ("other", None)
    fleet.remove("rates")
    assert pools_page(NOW, fleet)["pools"] == []


def test_a_snapshot_from_a_wrong_clock_pins_no_pool() -> None:
    """The next snapshot of its job is newer, whatever the clock said; those of other jobs may be read later."""
    fleet = Fleet()
    for name in ("a", "b"):
        fleet.take_spec(job(name))

    def seen(name: str, number: int, workers: int, wrong: timedelta = timedelta()) -> int:
        taken = snapshot(number, job_id=name)
        assert taken.pool is not None
        pool = taken.pool.model_copy(update={"workers_alive": workers})
        fleet.take(taken.model_copy(update={"pool": pool, "observed_at": taken.observed_at + wrong}))
        return fleet.pools["default"].slots.workers_alive

    assert seen("a", 1, 5, timedelta(days=2)) == 5
    assert seen("b", 2, 4) == 5
    assert seen("a", 2, 3) == 3
    assert seen("b", 1, 6) == 3
    assert seen("b", 3, 2) == 2


def test_a_decision_on_a_wrong_second_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for one ends at the first later one, but not at one that is later than when it was written."""
    made = [decision(job(), NOW + timedelta(seconds=10 * step)) for step in range(4)]
    made[0] = made[0].model_copy(update={"sequence": made[0].sequence + 36_500 * 86_400})
    written = [NOW + timedelta(seconds=10 * step + 1) for step in range(4)]
    wanted = ((made[2].sequence, made[2]), (made[2].sequence - 1, None), (made[0].sequence, made[0]))
    for first in (written[0], NOW + timedelta(days=36_500)):  # the record's time may be of the same clock
        for sequence, there in wanted:
            records = enumerate(zip(made, (first, *written[1:]), strict=True))
            events = (Received(one, 0, place, at, b"") for place, (one, at) in records)
            monkeypatch.setattr(feed, "received", lambda *_, found=events, **__: found)
            assert feed.decision_on(ClientSettings(), "rates", sequence) == there


def test_a_decision_is_found_whose_snapshot_is_of_a_clock_that_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decider takes a snapshot from up to five minutes ahead, so its decision was written before its sequence."""
    made = decision(job(), NOW + timedelta(minutes=4))

    def received(*_: object, since: datetime, **__: object) -> Iterator[Received[Decision]]:
        yield from [Received(made, 0, 0, NOW, b"")] if since <= NOW else []

    monkeypatch.setattr(feed, "received", received)
    assert feed.decision_on(ClientSettings(), "rates", made.sequence) == made


def test_events_of_a_job_that_is_not_managed_are_skipped() -> None:
    """Without a spec there is no job, and a removed job is gone with all its events."""
    fleet, rates = Fleet(), job()
    fleet.take(decision(rates, NOW))
    assert len(fleet) == 0
    fleet.take_spec(rates)
    fleet.take(decision(rates, NOW))
    before = fleet.revision
    fleet.remove("rates")
    assert (len(fleet), fleet.revision) == (0, before + 1)


def test_a_silent_or_failed_job_is_never_fine() -> None:
    """A job comes first in the list if no decision came for three intervals, or its driver has failed."""
    fleet, rates = Fleet(), job()
    fleet.take_spec(rates)
    found = fleet.get("rates")
    assert found is not None
    assert found.trouble(NOW) is Trouble.SILENT
    fleet.take(decision(rates, NOW))
    assert found.trouble(NOW + timedelta(seconds=30)) is None
    assert found.urgency(NOW) == 4
    assert found.trouble(NOW + timedelta(seconds=31)) is Trouble.SILENT
    assert found.urgency(NOW + timedelta(seconds=31)) == 0
    assert found.trouble(NOW - timedelta(minutes=10)) is None  # a decider's clock may be somewhat ahead
    assert found.trouble(NOW - timedelta(days=2)) is Trouble.SILENT
    fleet.take(snapshot(0, state=ClusterState.FAILED))
    assert found.trouble(NOW) is Trouble.FAILED


def test_a_late_job_comes_before_one_that_grows() -> None:
    """Jobs are ranked by how much they need an operator."""
    rates = job()
    ranks = []
    for status in (Status.STOPPED_STATE_LIMIT, Status.LATE, Status.PENDING_SCALE_UP, Status.FINE):
        fleet = Fleet()
        fleet.take_spec(rates)
        fleet.take(decision(rates, NOW).model_copy(update={"status": status}))
        found = fleet.get("rates")
        assert found is not None
        ranks.append(found.urgency(NOW))
    assert ranks == sorted(set(ranks))


def test_what_an_operator_did_is_noted_once() -> None:
    """A version with a name on it is one entry, though it is seen on the jobs topic and in a keyframe."""
    fleet, rates = Fleet(), job()
    fleet.take_spec(rates)
    change = SpecChange(by="ada", reason="repairs", at=NOW)
    paused = with_mode(rates, Mode.PAUSED, change)
    fleet.take_spec(paused)
    keyframe = Keyframe(state={}, spec=paused)
    fleet.take(decision(paused, NOW).model_copy(update={"keyframe": keyframe}))
    found = fleet.get("rates")
    assert found is not None
    noted = [(entry.kind, entry.word, entry.text) for entry in found.changes]
    assert noted == [(EntryKind.OPERATOR, "ada", "version 2, paused: repairs")]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"interval_seconds": 20}, "version 2, active: tidegate apply rates.yaml"),
        ({"running": False}, "version 2, stopped: tidegate apply rates.yaml"),
    ],
)
def test_what_is_applied_is_not_called_a_resume(fields: dict[str, object], text: str) -> None:
    """A version tells the mode in which it leaves the job, and not which one it was in before."""
    fleet, rates = Fleet(), job()
    fleet.take_spec(rates)
    change = SpecChange(by="ada", reason="tidegate apply rates.yaml", at=NOW)
    fleet.take_spec(rates.model_copy(update={**fields, "version": 2, "change": change}))
    found = fleet.get("rates")
    assert found is not None
    assert [entry.text for entry in found.changes] == [text]


def test_a_log_is_bounded() -> None:
    """The log keeps the newest changes."""
    fleet, rates = Fleet(), job()
    fleet.take_spec(rates)
    for number in range(LOG_LENGTH + 20):
        fleet.take(result(f"command-{number}", Phase.VERIFIED, number))
    found = fleet.get("rates")
    assert found is not None
    assert len(found.log) == LOG_LENGTH
    assert found.log[0].at == START + timedelta(seconds=10 * (LOG_LENGTH + 19))


def test_a_job_that_is_changed_for_weeks_stays_small() -> None:
    """An autoscaler that writes the size of a StreamingJob makes a version a minute; old ones are not kept."""
    fleet = Fleet()

    def change(number: int) -> JobSpec:
        at = NOW + timedelta(minutes=number)
        changed = with_size(job(), 1 + number % 4, "busy", at, SpecChange(by="an autoscaler", reason="busy", at=at))
        fleet.take_spec(changed)
        return changed

    first = change(0)
    sizes = []
    for until in (2 * LOG_LENGTH, 20 * LOG_LENGTH):
        for number in range(1, until):
            change(number)
        sizes.append(len(pickle.dumps(fleet.get("rates"))))
    assert sizes[1] < 1.1 * sizes[0]
    before = fleet.get("rates").changes[:]  # type: ignore[union-attr]
    fleet.take_spec(first)
    assert fleet.get("rates").changes == before, "it was noted, and is too old"  # type: ignore[union-attr]


def test_a_large_fleet_stays_small() -> None:
    """A hundred jobs with an hour of decisions take less than 5 MB, so a thousand less than 50 MB."""
    specs = [spec(number) for number in range(100)]
    tracemalloc.start()
    fleet = Fleet()
    for each in specs:
        fleet.take_spec(each)
    for one in hour_of(specs, NOW):
        fleet.take(one)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(fleet) == 100
    assert held < 5e6


def test_the_next_version_says_who_asked_for_it_and_only_that_one() -> None:
    """A pause carries its name and reason; the next version without a name has none."""
    change = SpecChange(by="ada", reason="repairs", at=NOW)
    paused = with_mode(job(), Mode.PAUSED, change)
    assert (paused.version, paused.scaling.mode, paused.change) == (2, Mode.PAUSED, change)
    again = with_size(paused, 6, "launch day", NOW)
    assert (again.version, again.change) == (3, None)
    assert again.manual is not None
    assert (again.manual.parallelism, again.manual.reason) == (6, "launch day")


def test_a_job_keeps_its_cluster_while_it_is_meant_to_run() -> None:
    """The refusal names the fields with both values, and what to do; a job that is to stop, or is new, may move."""
    here, elsewhere = job(), {"backend": "yarn", "master": "yarn", "rest_url": "http://elsewhere:8088"}
    there = with_application(here, **elsewhere)
    said = refused_move(there, here.model_copy(update={"version": 7}))
    assert said is not None
    assert "application.master: spark://127.0.0.1:7077 -> yarn" in said
    assert "application.rest_url: none -> http://elsewhere:8088" in said
    assert "version 7 with running: false" in said
    assert refused_move(there, None) is None
    assert refused_move(there, job(running=False)) is None
    assert refused_move(job(executor_cores=2, min_parallelism=2), here) is None


def test_a_standalone_master_may_get_other_addresses() -> None:
    """Where a standby has taken over, or an address was wrong, it is still the cluster of the same master."""
    here = job()
    moved = here.application.model_copy(
        update={"rest_url": "http://standby:6066", "master_ui_url": "http://standby:8080"}
    )
    there = here.model_copy(update={"application": moved})
    assert refused_move(there, here) is None
    other = moved.model_copy(update={"master": "spark://standby:7077"})
    said = refused_move(here.model_copy(update={"application": other}), here)
    assert said is not None
    assert said.startswith("application.master: spark://127.0.0.1:7077 -> spark://standby:7077: ")


def test_a_spec_that_the_engine_refuses_is_not_published() -> None:
    """An unknown policy is named before anything is sent."""
    with pytest.raises(SpecRefused, match="unheard-of"):
        publish(ServiceSettings(), [job(policy="unheard-of", policy_options={})])


class Jobs:
    """A jobs topic with these records."""

    records: ClassVar[list[FakeMessage]] = []

    def __init__(self, *_: object) -> None:
        """Any arguments."""

    def read_to_end(self, _silence_seconds: float, **__: object) -> list[FakeMessage]:
        """Return all of it."""
        return self.records

    def close(self) -> None:
        """Nothing is open."""


def test_a_change_of_a_spec_that_a_newer_version_wrote_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new fields would be lost, so they are named instead."""
    written = json.loads(value_of(job("k")))
    written["scaling"]["added_in_v1_9"] = 1
    monkeypatch.setattr(Jobs, "records", [FakeMessage(0, 0, json.dumps(written).encode())])
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", Jobs)
    with pytest.raises(SpecRefused, match=r"k: .* would drop: scaling\.added_in_v1_9\."):
        publish_change(ServiceSettings(), with_mode(job("k"), Mode.PAUSED))


@pytest.mark.parametrize("known", [True, False])
def test_a_change_does_not_replace_a_version_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """A newer Tidegate may have written it. It was replaced by one that was made from the version before."""
    newer = json.loads(value_of(with_mode(job("k"), Mode.ADVISE))) | {"sources": "everything"}
    records = [FakeMessage(0, 0, value_of(job("k")), key=b"k")] if known else []
    monkeypatch.setattr(Jobs, "records", [*records, FakeMessage(0, 1, json.dumps(newer).encode(), key=b"k")])
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", Jobs)
    with pytest.raises(SpecRefused, match=r"k: this version of Tidegate cannot read its newest spec: sources: .* file"):
        publish_change(ServiceSettings(), with_mode(job("k"), Mode.PAUSED))


def test_a_change_does_not_undo_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operators start from the same version: the second one is told, and nothing of the first one is lost."""
    theirs = with_mode(job("k"), Mode.ADVISE)
    monkeypatch.setattr(Jobs, "records", [FakeMessage(0, 0, value_of(job("k"))), FakeMessage(0, 1, value_of(theirs))])
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", Jobs)
    with pytest.raises(SpecRefused, match=r"k: somebody else has changed the job just now: .* try again"):
        publish_change(ServiceSettings(), with_mode(job("k"), Mode.PAUSED))
    monkeypatch.setattr(Jobs, "records", [])
    with pytest.raises(SpecRefused, match="has removed the job"):
        publish_change(ServiceSettings(), with_mode(job("k"), Mode.PAUSED))


@pytest.mark.parametrize("known", [True, False])
def test_a_file_replaces_a_spec_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    """With a version above it: whoever can read that one would ignore a version 1, and `apply` would do nothing."""
    newer = json.loads(value_of(job("k"))) | {"sources": "everything", "version": 7}
    published: list[JobSpec] = []
    records = [FakeMessage(0, 0, value_of(job("k")), key=b"k")] if known else []
    monkeypatch.setattr(Jobs, "records", [*records, FakeMessage(0, 1, json.dumps(newer).encode(), key=b"k")])
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", Jobs)
    monkeypatch.setattr("tidegate.client.check_reachable", lambda *_: None)
    monkeypatch.setattr("tidegate.cli.specs.publish", lambda _, specs: published.extend(specs))
    (tmp_path / "k.json").write_bytes(value_of(job("k")))
    ran = CliRunner().invoke(app, ["apply", str(tmp_path / "k.json"), "-b", "kafka:9092"], env={"COLUMNS": "300"})
    assert ran.exit_code == 0, ran.output
    assert [(spec.job_id, spec.version) for spec in published] == [("k", 8)]
    assert "note: it replaces a spec that this version of Tidegate cannot read: sources: " in ran.output


def test_doctor_names_what_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that an older version took, and a job without a version that can be read: the check fails, by name."""
    old = json.loads(value_of(job("old")))
    old["scaling"]["command_ttl_seconds"] = 2e9
    good = FakeMessage(0, 0, value_of(job("rates")), key=b"rates")
    records = [good, FakeMessage(0, 1, json.dumps(old).encode(), key=b"old")]
    monkeypatch.setattr(Jobs, "records", records)
    monkeypatch.setattr("tidegate.runtime.jobs.TopicReader", Jobs)
    monkeypatch.setattr("tidegate.client.check_reachable", lambda *_: None)
    view = loaded_specs(ServiceSettings())
    (found,) = refused_specs({spec.job_id: spec for spec in view}, view.unusable)
    assert (found.verdict, found.what) == ("fail", "spec of old")
    assert "command_ttl_seconds: must be at most" in found.found


class Decided:
    """A topic of decisions that were written when they were made; other topics are empty."""

    records: ClassVar[list[FakeMessage]] = []
    reads: ClassVar[list[int]] = []
    """How many records each reader of decisions has read."""

    def __init__(self, _: object, topics: Sequence[str], *, since: datetime, number: int | None = None) -> None:
        self._left = deque[FakeMessage]()
        if topics == ["tidegate.decisions"]:
            self.reads.append(0)
            self._left.extend(
                each
                for each in self.records
                if each.written_millis / 1000 >= since.timestamp() and number in (None, each.partition())
            )

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return not self._left

    def poll(self, _seconds: float = 0.0) -> FakeMessage | None:
        """Return the next record."""
        if not self._left:
            time.sleep(0.001)
            return None
        self.reads[-1] += 1
        return self._left.popleft()

    def read_to_end(self, _silence_seconds: float = 60.0, **__: object) -> Iterator[FakeMessage]:
        """Yield what is left."""
        while (message := self.poll()) is not None:
            yield message

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[JobSpec]:
    """Put an hour of decisions on the topic: on two jobs until now, and on one that has been silent for half of it."""
    specs, end = [job("a"), job("b"), job("silent")], datetime.now(UTC)
    Decided.records, Decided.reads = [], []
    for one in hour_of(specs, end):
        if one.job_id == "silent" and end - one.decided_at < timedelta(minutes=30):
            continue
        record = FakeMessage([each.job_id for each in specs].index(one.job_id), 0, one)
        record.written_millis = int(one.decided_at.timestamp() * 1000)
        Decided.records.append(record)

    class Specs:
        def __init__(self, _: object) -> None:
            self.load = self.close = lambda: None
            self.unusable = {"broken": "not JSON"}
            self.unknown = {"a": ["naps"]}

        def poll(self) -> list[str]:
            return []

        def __iter__(self) -> Iterator[JobSpec]:
            return iter(specs)

    class Then(datetime):
        """Stands still: what is read begins ten minutes before the end, however slow the machine is."""

        @classmethod
        def now(cls, _tz: object = None) -> datetime:  # type: ignore[override]
            return end

    monkeypatch.setattr(feed, "datetime", Then)
    monkeypatch.setattr(feed, "TopicReader", Decided)
    monkeypatch.setattr(feed, "JobsView", Specs)
    monkeypatch.setattr(feed, "check_reachable", lambda *_: None)
    monkeypatch.setattr(FakeMessage, "topic", lambda _: "tidegate.decisions")
    return specs


def test_a_job_with_a_long_interval_is_not_fine_while_its_next_snapshot_is_awaited(
    decided: list[JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feed that starts between two snapshots reads the last one of each job: it says that the job has failed."""
    slow = job("slow").model_copy(update={"interval_seconds": 600})
    asked: dict[str, timedelta] = {}

    class Topics(Decided):
        def __init__(self, _: object, topics: Sequence[str], *, since: datetime, number: int | None = None) -> None:
            super().__init__(_, topics, since=since, number=number)
            asked[topics[0]] = datetime.now(UTC) - since

    monkeypatch.setattr(feed, "TopicReader", Topics)
    decided.append(slow)
    with closing(Feed(ClientSettings(), timedelta(hours=2), on_demand=True)) as one:
        one.start()
        assert wait_until(lambda: one.state == "live", 30, 0.01)
    assert asked["tidegate.snapshots"] >= timedelta(seconds=600)


def test_a_job_with_a_long_interval_keeps_its_decision_over_a_restart(
    decided: list[JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its newest decision still holds, although it is older than the history that operator and scaler read."""
    slow = job("silent").model_copy(update={"interval_seconds": 1200})
    decided[2] = slow
    with closing(Feed(ClientSettings(), timedelta(minutes=15))) as one:
        one.start()

        def found() -> bool:
            with one.reading() as fleet:
                known = fleet.get("silent")
                return known is not None and known.decision is not None and not known.is_silent(datetime.now(UTC))

        assert wait_until(lambda: one.state == "live" and found(), 30, 0.01)


def test_a_feed_says_which_specs_cannot_be_read_as_they_are(decided: list[JobSpec]) -> None:
    """Their jobs are not missing: who took them for new ones would publish over them, and drop fields of the others."""
    with closing(Feed(ClientSettings(), timedelta(minutes=15))) as one:
        one.start()
        assert wait_until(lambda: one.state == "live", 30, 0.01)
        with one.reading() as fleet:
            assert len(fleet) == len(decided)
            assert fleet.unusable == {"broken": "not JSON"}
            assert fleet.unknown == {"a": ["naps"]}


def test_a_broker_that_is_away_while_old_decisions_are_read_does_not_end_the_feed(
    decided: list[JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that have a decision are still followed; a page that stands still would have to be restarted."""

    def away(_reader: Decided, silence_seconds: float = 60.0) -> Iterator[FakeMessage]:
        raise TimeoutError(f"nothing came for {silence_seconds:g} s before the end")

    monkeypatch.setattr(Decided, "read_to_end", away)
    with closing(Feed(ClientSettings(), timedelta(hours=2), on_demand=True)) as one:
        one.start()
        assert decided
        assert wait_until(lambda: one.state != "loading", 30, 0.01)
        assert not wait_until(lambda: one.state != "live", 0.5, 0.01), one.state


@pytest.mark.expects_errors("an error that nobody expects")
@pytest.mark.parametrize(
    ("error", "state", "logged"),
    [
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no right to read")), "no right to read", 0),
        (KeyError("epoch"), "KeyError: 'epoch'", 1),
    ],
)
def test_a_feed_that_has_ended_says_why(
    decided: list[JobSpec],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    state: str,
    logged: int,
) -> None:
    """In words, not as a dump of fields; the place of an error that nobody expects is in the log."""

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(Decided, "poll", fails)
    with closing(Feed(ClientSettings(), timedelta(minutes=15))) as one:
        one.start()
        assert decided
        assert wait_until(lambda: one.state not in {"loading", "live"}, 30, 0.01)
        assert one.state == state
    assert [record.exc_info is not None for record in caplog.records] == [True] * logged


def test_a_job_whose_hours_are_known_does_not_wait_for_those_of_another(
    decided: list[JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a broker does not answer, each page that asks it takes half a minute; the others are there at once."""
    asked, answers = threading.Event(), threading.Event()

    def hangs(_reader: Decided, _silence_seconds: float = 60.0) -> Iterator[FakeMessage]:
        asked.set()
        assert answers.wait(60)
        return iter(())

    with closing(Feed(ClientSettings(), timedelta(hours=2), on_demand=True)) as one, ThreadPoolExecutor() as pool:
        one.start()
        assert wait_until(lambda: one.state == "live", 30, 0.01)
        one.recall("a")
        monkeypatch.setattr(Decided, "read_to_end", hangs)
        monkeypatch.setattr(feed, "FIND_SECONDS", 0.1)
        slow = pool.submit(one.recall, "b")
        try:
            assert asked.wait(30)
            pool.submit(one.recall, "a").result(20)
            with pytest.raises(TimeoutError, match="decisions on silent wait for those on another job"):
                pool.submit(one.recall, "silent").result(20)
        finally:
            answers.set()
        slow.result(20)
    assert decided


def test_earlier_decisions_are_not_taken_twice() -> None:
    """The log of a job that changes with each decision is full sooner than its timeline, which stays in order."""
    made = [
        decision(job(), NOW + timedelta(seconds=10 * step)).model_copy(update={"final_parallelism": 1 + step % 2})
        for step in range(LOG_LENGTH + 50)
    ]
    one = FleetJob(job())
    for each in made[20:]:
        one.take_decision(each)
    one.recall(made[:30])  # what is read ends a minute late: clocks differ
    times = [point.at for point in one.timeline]
    assert times == [each.decided_at.timestamp() for each in made]


def test_a_record_from_a_clock_that_is_ahead_does_not_end_the_history(decided: list[JobSpec]) -> None:
    """Kafka stores any timestamp: the decisions after it in its partition are found too."""
    with closing(Feed(ClientSettings(), timedelta(hours=2), on_demand=True)) as one:
        one.start()
        assert wait_until(lambda: one.state == "live", 30, 0.01)
        Decided.records[0].written_millis = 2**62
        one.recall(decided[0].job_id)
        with one.reading() as fleet:
            known = fleet.get(decided[0].job_id)
            assert known is not None
            assert round(known.timeline.seconds) == 3590


def test_a_feed_reads_the_last_hours_of_a_job_when_it_is_asked_for_them(decided: list[JobSpec]) -> None:
    """A thousand jobs make a million decisions in three hours: at the start, the last minutes show how each one is."""

    def of(job_id: str) -> tuple[int, int, int]:
        with one.reading() as fleet:
            found = fleet.get(job_id) or FleetJob(job(job_id))
            return round(found.timeline.seconds), sum(span.times for span in found.spans), len(found.timeline)

    with closing(Feed(ClientSettings(), timedelta(hours=2), on_demand=True)) as one:
        one.start()
        assert wait_until(lambda: one.state == "live" and of("silent")[0] == 1800, 30, 0.01)
        assert 590 <= of("a")[0] <= 600
        assert of("a") == of("b")
        one.recall("a")
        assert of("a")[:2] == (3590, 361)  # two decisions in a point
        assert of("b")[0] <= 600
        read = sum(Decided.reads)
        one.recall("a")
        one.recall("nobody")
        assert sum(Decided.reads) == read
    with closing(Feed(ClientSettings(), timedelta(hours=2))) as whole:
        whole.start()
        assert wait_until(lambda: whole.state == "live", 30, 0.01)
        with whole.reading() as fleet, one.reading() as other:
            known, same = fleet.get("a"), other.get("a")
            assert known is not None
            assert same is not None
            assert same.decision == known.decision
            assert (same.spans[0].at, same.timeline.seconds) == (known.spans[0].at, known.timeline.seconds)
