"""Publishing again: what goes out, in which order, and moved in time together."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.events import START, job
from tests.support.history import ENDS, GROWS, STOPS, history, write_history
from tests.support.sample_events import sample_events
from tidegate.engine.decide import ENGINE_VERSION
from tidegate.events.decision import Decision, decision_id
from tidegate.events.envelope import encode
from tidegate.events.job import JobSpec, ManualScale
from tidegate.events.result import ActionResult, result_id
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.events.topics import DECISIONS, JOBS, SNAPSHOTS
from tidegate.replay.files import BadRecording, KafkaRecord, RecordingManifest
from tidegate.replay.publish import TooOld, check_kept, mover, publish
from tidegate.replay.rebase import moved_result, moved_snapshot, moved_spec
from tidegate.replay.record import write_recording
from tidegate.replay.schedule import readable, schedule
from tidegate.runtime.settings import ServiceSettings

START_MS = int(START.timestamp() * 1000)


@pytest.mark.parametrize("compacted", [False, True])
def test_each_spec_and_result_goes_out_before_the_first_snapshot_decided_with_it(
    tmp_path: Path, compacted: bool
) -> None:
    """The decisions give the order, whatever the timestamps say; versions lost to compaction come from keyframes."""
    steps = write_history(tmp_path / "rec", compacted=compacted)
    expected: list[str] = []
    for number, step in enumerate(steps):
        if number in (0, GROWS, STOPS):
            expected.append(f"spec {step.spec.version}")
        expected += [f"result {one.result_id}" for one in step.results]
        expected.append(f"snapshot {step.snapshot.sequence}")
    found = []
    for departure in schedule(tmp_path / "rec", whole=True):
        match departure.event:
            case JobSpec() as spec:
                found.append(f"spec {spec.version}")
            case ActionResult() as result:
                found.append(f"result {result.result_id}")
            case MetricSnapshot() as snapshot:
                found.append(f"snapshot {snapshot.sequence}")
    assert found == expected


def test_a_job_that_is_removed_and_added_again_is_there_afterwards(tmp_path: Path) -> None:
    """Its versions begin again, and the clocks of who removes and who adds differ: the topic has the order."""
    first, again, last = (job(max_parallelism=most) for most in (4, 8, 16))
    shots = [step.snapshot for step in history()]
    at = [int(shot.observed_at.timestamp() * 1000) for shot in shots]
    jobs = [
        _on_jobs(0, at[0] - 1000, first, 1),
        _on_jobs(1, at[8], None, 1),  # by a clock that is ahead
        _on_jobs(2, at[4], again, 1),
        _on_jobs(3, at[2], last, 2),  # by a clock that is behind
    ]
    decisions = [_written(step.decision) for step in history()[:GROWS]]
    snapshots = [_written(shot) for shot in shots]
    records = [(JOBS, jobs), (SNAPSHOTS, snapshots), (DECISIONS, decisions)]
    write_recording(
        tmp_path / "rec",
        records,
        lambda files: RecordingManifest(topic_prefix="tidegate.", recorded_at=START, files=files),
    )
    found = [d for d in schedule(tmp_path / "rec", whole=True) if d.topic is JOBS]
    assert [d.record.offset for d in found] == [0, 1, 2, 3]
    assert found[2].due_ms > found[0].due_ms


def _on_jobs(offset: int, at_ms: int, spec: JobSpec | None, version: int) -> KafkaRecord:
    made = encode((spec or job()).model_copy(update={"version": version}))
    return KafkaRecord(0, offset, at_ms, made.key, made.value if spec else None, tuple(made.headers) if spec else ())


def _written(event: MetricSnapshot | Decision) -> KafkaRecord:
    at, made = event.observed_at if isinstance(event, MetricSnapshot) else event.decided_at, encode(event)
    return KafkaRecord(0, event.sequence, int(at.timestamp() * 1000), made.key, made.value, tuple(made.headers))


def test_a_day_old_spec_does_not_delay_the_first_snapshot(tmp_path: Path) -> None:
    """What is older than the first snapshot is due together with it; all else keeps the recorded pace."""
    write_history(tmp_path / "rec")
    due = [departure.due_ms for departure in schedule(tmp_path / "rec", whole=True)]
    assert due == sorted(due)
    assert due[-1] - due[0] == (ENDS - 1) * 10_000


def test_without_the_whole_only_snapshots_go_out(tmp_path: Path) -> None:
    """Snapshots alone let somebody try a spec of their own; another job's records are left out by name."""
    write_history(tmp_path / "rec")
    assert {d.topic.suffix for d in schedule(tmp_path / "rec")} == {"snapshots"}
    assert len(schedule(tmp_path / "rec", whole=True, job="rates")) > ENDS
    assert list(schedule(tmp_path / "rec", whole=True, job="other")) == []


@pytest.mark.parametrize("rebase", [False, True])
def test_what_millions_of_snapshots_say_is_not_read_before_the_first_one_goes_out(
    tmp_path: Path, rebase: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a week of 100 jobs, that took ten minutes; places and timestamps give the order, and the first one the span.

    With `rebase`, the clock of the first one may have been wrong, so it is looked for.
    """
    write_history(tmp_path / "rec")
    read: list[KafkaRecord] = []

    def counted(model: type[MetricSnapshot], record: KafkaRecord) -> MetricSnapshot | None:
        read.append(record)
        return readable(model, record)

    monkeypatch.setattr("tidegate.replay.schedule.readable", counted)
    departures = schedule(tmp_path / "rec")
    if rebase:
        shift, _ = mover(tmp_path / "rec", departures, 1.0)
        assert abs(START.timestamp() + shift - time.time()) < 60
    assert len(departures) == ENDS
    assert len(read) == rebase


@pytest.mark.parametrize("rebase", [False, True])
def test_a_job_without_records_is_refused(tmp_path: Path, rebase: bool) -> None:
    """A job whose name is wrong is an error that names it."""
    write_history(tmp_path / "rec")
    with pytest.raises(BadRecording, match="nothing to publish of job 'other'"):
        publish(ServiceSettings(bootstrap_servers="127.0.0.1:1"), tmp_path / "rec", job="other", rebase=rebase)


@pytest.mark.parametrize("speed", [None, 1.0, 10.0])
@pytest.mark.parametrize("ahead", [START + timedelta(days=400), datetime.max.replace(tzinfo=UTC)])
def test_a_snapshot_from_a_clock_that_is_ahead_moves_no_other(
    tmp_path: Path, ahead: datetime, speed: float | None
) -> None:
    """The others are as fresh as without it; it is as far ahead as it was, or left out if no calendar goes so far."""
    shots = [step.snapshot for step in history()]
    wrong = shots[3].model_copy(update={"observed_at": ahead})

    def moved(folder: Path, some: list[MetricSnapshot]) -> tuple[int, list[datetime]]:
        records = [
            KafkaRecord(0, offset, START_MS + 1000 * offset, event.key, event.value, tuple(event.headers))
            for offset, event in enumerate(map(encode, some))
        ]
        made_at = shots[-1].observed_at + timedelta(minutes=1)
        write_recording(
            folder,
            [(SNAPSHOTS, records)],
            lambda files: RecordingManifest(topic_prefix="tidegate.", recorded_at=made_at, files=files),
        )
        shift, move = mover(folder, departures := schedule(folder), speed)
        events = [each.event for one in departures if (each := move(one))]
        return shift, [event.observed_at for event in events if isinstance(event, MetricSnapshot)]

    right, _ = moved(tmp_path / "right", shots)
    shift, found = moved(tmp_path / "wrong", [*shots, wrong])
    assert right <= shift <= right + 60
    assert found[: len(shots)] == [each.observed_at + timedelta(seconds=shift) for each in shots]
    assert len(found) - len(shots) == (ahead.year < 9999)


def test_records_that_are_too_old_for_their_topic_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one with a timestamp that no calendar has."""
    monkeypatch.setattr("tidegate.replay.publish.kept_ms", lambda _, names: dict.fromkeys(names, 86_400_000))
    for written, day in ((START_MS, "2026-03-01"), (-(2**62), "1970-01-01")):
        event = encode(history()[0].snapshot)
        write_recording(
            tmp_path / str(written),
            [(SNAPSHOTS, [KafkaRecord(0, 0, written, event.key, event.value, tuple(event.headers))])],
            lambda files: RecordingManifest(topic_prefix="tidegate.", recorded_at=START, files=files),
        )
        with pytest.raises(TooOld, match=f"some of these are of {day}"):
            check_kept(ServiceSettings(), schedule(tmp_path / str(written)))


def test_a_moved_result_names_the_command_on_the_moved_snapshot(tmp_path: Path) -> None:
    """Its ids are those a decider gives when it orders the same again; a result without its command is left out."""
    steps = write_history(tmp_path / "rec")
    ordered, (result, *_) = steps[GROWS].decision, steps[GROWS + 1].results
    after = moved_result(result, 60, {ordered.decision_id: 2})
    assert after is not None
    command = decision_id("rates", snapshot_id("rates", ordered.sequence + 60), 2, ENGINE_VERSION)
    assert (after.command_id, after.result_id) == (command, result_id(command, result.phase))
    assert (after.at - result.at, after.epoch - result.epoch) == (timedelta(seconds=60), 60)
    assert moved_result(result, 60, {}) is None


def test_a_moved_spec_moves_its_manual_request() -> None:
    """A request by hand is as old as it was; a spec without one stays the same."""
    asked = ManualScale(request_id="r", parallelism=4, reason="why", requested_at=START)
    moved = moved_spec(job(manual=asked), 60).manual
    assert moved is not None
    assert moved.requested_at == START + timedelta(seconds=60)
    assert moved_spec(job(), 60) == job()


def test_a_moved_snapshot_moves_whole() -> None:
    """Every instant, the sequence and the id move by the same span; all figures and spans stay."""
    before = sample_events()["snapshot.full"]
    assert isinstance(before, MetricSnapshot)
    after = moved_snapshot(before, 3600)
    assert MetricSnapshot.model_validate_json(after.model_dump_json()) == after  # the id is that of the new sequence
    assert after.sequence == before.sequence + 3600
    span = timedelta(hours=1)
    assert after.observed_at - before.observed_at == span
    assert [b.started_at - a.started_at for a, b in zip(before.batches, after.batches, strict=True)] == [span, span]
    assert after.incarnation_started_at == before.incarnation_started_at + span  # type: ignore[operator]
    assert moved_snapshot(after, -3600) == before
    minimal = sample_events()["snapshot.minimal"]
    assert isinstance(minimal, MetricSnapshot)
    assert moved_snapshot(minimal, 5).incarnation_started_at is None


def _instants(value: object) -> list[datetime]:
    """Return every instant in a dumped event, in order."""
    if isinstance(value, datetime):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [found for part in parts for found in _instants(part)]


@pytest.mark.parametrize(
    ("name", "event"),
    [(name, event) for name, event in sample_events().items() if isinstance(event, MetricSnapshot | ActionResult)],
)
def test_every_instant_of_an_event_moves(name: str, event: MetricSnapshot | ActionResult) -> None:
    """However deep an instant is, also of a field added later, it is later by the same span."""
    if isinstance(event, MetricSnapshot):
        moved: MetricSnapshot | ActionResult | None = moved_snapshot(event, 90)
    else:
        moved = moved_result(event, 90, {event.command_id: 1})
    assert moved is not None
    before, after = (_instants(each.model_dump()) for each in (event, moved))
    assert before, name
    assert after == [instant + timedelta(seconds=90) for instant in before]
