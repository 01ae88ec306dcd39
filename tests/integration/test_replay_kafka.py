"""Recording, publishing and recomputing against a real broker and real Spark."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.streams import decided, spec_of, write_recording
from tests.support.decider import Flow, ServiceProcess, number_now
from tests.support.events import job, snapshot
from tests.support.history import ENDS, LIVELY, write_history
from tidegate.cli import app
from tidegate.cli.problems import ERROR
from tidegate.events.decision import Decision
from tidegate.events.envelope import decode, value_of
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import DECISIONS, JOBS, SNAPSHOTS, TOPICS
from tidegate.replay.files import BadRecording, read, sha256
from tidegate.replay.publish import publish
from tidegate.replay.recompute import HEAD, CannotRecompute, recompute, verify
from tidegate.replay.record import CannotRecord, record
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import ensure_topics, kept_ms

pytestmark = pytest.mark.spark

COUNT = 130
DAY_MS = 86_400_000


@pytest.fixture
def filled(settings: ServiceSettings) -> ServiceSettings:
    """The topics hold two jobs with their decisions, an unreadable record and a tombstone."""
    publisher = Publisher(settings)
    for name in ("orders", "prices"):
        publisher.send(spec_of(name, 1, LIVELY))
        for measured, decision in decided(name, COUNT, partitions=16, scaling=LIVELY, seed=len(name)):
            publisher.send(measured)
            publisher.send(decision)
    publisher.send_raw(SNAPSHOTS.named(settings.topic_prefix), b"\xff", b"\xfe not text", [("h", b"\xfd"), ("n", None)])
    publisher.send_raw(SNAPSHOTS.named(settings.topic_prefix), None, None, [])
    publisher.flush()
    return settings


@pytest.mark.timeout(300)
def test_decisions_in_the_topics_are_recomputed_bit_for_bit(filled: ServiceSettings, session: Any) -> None:
    """Read through Spark's Kafka source, every decision of every job is identical (I9)."""
    result = recompute(bootstrap_servers=filled.bootstrap_servers, topic_prefix=filled.topic_prefix, spark=session)
    assert (result.decisions, result.identical, result.ok) == (2 * COUNT, 2 * COUNT, True)
    assert [job.job_id for job in result.jobs] == ["orders", "prices"]
    one = recompute(
        bootstrap_servers=filled.bootstrap_servers, topic_prefix=filled.topic_prefix, spark=session, job="prices"
    )
    assert [job.job_id for job in one.jobs] == ["prices"]


@pytest.mark.timeout(300)
def test_a_forged_decision_in_the_topic_is_found(filled: ServiceSettings, session: Any) -> None:
    """A decision published with another final size is the only difference, reported with field, values and place."""
    _, decision = list(decided("orders", COUNT, partitions=16, scaling=LIVELY, seed=6))[77]
    forged = decision.model_copy(update={"final_parallelism": 31})
    Publisher(filled).publish(forged)
    result = recompute(bootstrap_servers=filled.bootstrap_servers, topic_prefix=filled.topic_prefix, spark=session)
    assert (result.identical, result.differing, result.ok) == (2 * COUNT, 1, False)
    assert result.first is not None
    assert (result.first.job_id, result.first.sequence, result.first.path) == (
        "orders",
        decision.sequence,
        "final_parallelism",
    )
    assert result.first.recorded == "31"
    assert result.first.place.startswith("partition ")


@pytest.mark.timeout(300)
def test_a_recording_holds_the_bytes_of_the_topics_and_recomputes(
    filled: ServiceSettings, session: Any, tmp_path: Path
) -> None:
    """A compressed recording, published again, gives the same bytes; it recomputes identically."""
    seen: list[tuple[str, int, int]] = []
    manifest = record(filled, tmp_path / "rec", compress=True, on_progress=lambda *told: seen.append(told))
    counts = {entry.topic: entry.records for entry in manifest.files}
    assert (counts["jobs"], counts["decisions"], counts["snapshots"]) == (2, 2 * COUNT, 2 * COUNT + 2)
    assert seen[-1][1:] == (0, 0)  # the last topic, dead-letters, is empty
    assert recompute(directory=tmp_path / "rec", spark=session).identical == 2 * COUNT

    again = filled.model_copy(update={"topic_prefix": f"again-{filled.topic_prefix}"})
    ensure_topics(again, partitions=3, for_ever=True)
    done = publish(again, tmp_path / "rec", speed=None, whole=True)
    assert (done.specs, done.snapshots, done.skipped, done.shift_seconds) == (2, 2 * COUNT + 2, 0, 0)
    record(again, tmp_path / "again", topics=(JOBS, SNAPSHOTS))
    for topic in (JOBS, SNAPSHOTS):
        was, now = (
            sorted(
                (r.key or b"", r.value or b"", r.timestamp_ms, str(r.headers))
                for r in read(tmp_path / folder, topic.suffix)
            )
            for folder in ("rec", "again")
        )
        assert now == was


def test_a_recording_ends_for_all_topics_at_one_instant(
    filled: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are read one after the other; a decision that comes meanwhile has no snapshot among those already read."""
    later = list(decided("prices", COUNT + 1, partitions=16, scaling=LIVELY, seed=6))[-1]

    def grown(settings: ServiceSettings, names: Sequence[str], *, since: datetime | None) -> TopicReader:
        if names[0].endswith(".decisions"):
            for event in later:
                Publisher(settings).publish(event)
        return TopicReader(settings, names, since=since)

    monkeypatch.setattr("tidegate.replay.record.TopicReader", grown)
    counts = {entry.topic: entry.records for entry in record(filled, tmp_path / "rec").files}
    assert (counts["snapshots"], counts["decisions"]) == (2 * COUNT + 2, 2 * COUNT)


def test_the_progress_of_a_recording_counts_what_is_read(filled: ServiceSettings, tmp_path: Path) -> None:
    """With `since`, that is a part of the topic: a bar of all of it would end at a tenth."""
    time.sleep(0.01)
    since, publisher = datetime.now(UTC), Publisher(filled)
    time.sleep(0.01)
    for _, decision in decided("prices", 7, partitions=16, scaling=LIVELY, seed=6):
        publisher.publish(decision)
    told: list[tuple[str, int, int]] = []
    for folder, start in (("part", since), ("nothing", datetime.now(UTC))):
        record(filled, tmp_path / folder, topics=(DECISIONS,), since=start, on_progress=lambda *one: told.append(one))
    assert told == [("decisions", 0, 7), ("decisions", 7, 7), ("decisions", 0, 0), ("decisions", 0, 0)]


def test_a_stream_moved_to_now_is_fresh_and_keeps_its_spans(filled: ServiceSettings, tmp_path: Path) -> None:
    """With `rebase`, the newest snapshot is of now, ids match the new sequences, and intervals stay 10 s."""
    record(filled, tmp_path / "rec")
    moved = filled.model_copy(update={"topic_prefix": f"moved-{filled.topic_prefix}"})
    ensure_topics(moved, partitions=3)
    done = publish(moved, tmp_path / "rec", speed=None, rebase=True, job="orders")
    assert (done.snapshots, done.skipped) == (COUNT, 0)
    record(moved, tmp_path / "moved", topics=(SNAPSHOTS,))
    snapshots = [decode(MetricSnapshot, r.value, r.headers, r.key) for r in read(tmp_path / "moved", "snapshots")]
    age = (datetime.now(UTC) - snapshots[-1].observed_at).total_seconds()
    assert 0 <= age < 60
    assert {b.sequence - a.sequence for a, b in pairwise(snapshots)} == {10}


def test_a_stream_published_again_gives_the_decisions_it_gave(kafka: str, redis_url: str, tmp_path: Path) -> None:
    """A real decider repeats each recorded decision: spec 1 holds the size, 2 allows a scale-up, 3 stops the job."""
    steps = write_history(tmp_path / "rec")
    with (
        closing(Flow(f"again-{uuid.uuid4().hex[:8]}", kafka, redis_url)) as flow,
        ServiceProcess(flow.settings, tmp_path / "decider.log"),
    ):
        flow.send(job("warm-up"), snapshot(number_now(), job_id="warm-up"))
        flow.wait_read(Decision, 1)  # it reads now, so that nothing below waits for its start
        done = publish(flow.settings, tmp_path / "rec", speed=20, rebase=True, whole=True)
        assert (done.snapshots, done.specs, done.results, done.skipped) == (ENDS, 3, 4, 0)
        decisions = flow.wait_read(Decision, 1 + ENDS)
    again = [one for one in decisions if one.job_id != "warm-up"]  # read by partition: warm-up may come last
    assert [gist(one) for one in again] == [gist(step.decision) for step in steps]


def test_what_kafka_would_delete_is_not_published(settings: ServiceSettings, tmp_path: Path) -> None:
    """Neither command publishes records older than the topic keeps them: Kafka would delete them within minutes."""
    write_history(tmp_path / "rec")
    where = ["--from", str(tmp_path / "rec"), "--topic-prefix", settings.topic_prefix]
    for command in (["publish", "-b", settings.bootstrap_servers], ["step", "--to", settings.bootstrap_servers]):
        ran = CliRunner().invoke(app, ["replay", *command, *where], input="nnn\n")
        assert ran.exit_code == ERROR
        assert f"{settings.topic_prefix}snapshots keeps records for 14 days, and some" in " ".join(ran.output.split())
        assert "--rebase" in ran.output
    assert sum(entry.records for entry in record(settings, tmp_path / "sent").files) == 0
    name = f"{settings.topic_prefix}snapshots"
    assert kept_ms(settings, [name]) == {name: 14 * DAY_MS}


def test_stepping_publishes_what_it_goes_through(kafka: str, tmp_path: Path) -> None:
    """Each event that was gone through is on the topics, with the recorded bytes, and no other. None is deleted."""
    settings = ServiceSettings(bootstrap_servers=kafka, topic_prefix=f"step-{uuid.uuid4().hex[:8]}.")
    write_history(tmp_path / "rec")
    to = ["--to", settings.bootstrap_servers, "--topic-prefix", settings.topic_prefix]
    ran = CliRunner().invoke(app, ["replay", "step", "--from", str(tmp_path / "rec"), *to], input="nnn\n")
    assert ran.exit_code == 0, ran.output
    record(settings, tmp_path / "sent", topics=(JOBS, SNAPSHOTS))
    for topic, count in ((JOBS, 1), (SNAPSHOTS, 3)):
        was, sent = ([r.value for r in read(tmp_path / at, topic.suffix)] for at in ("rec", "sent"))
        assert sent == was[:count]
    assert kept_ms(settings, [topic.named(settings.topic_prefix) for topic in TOPICS]) == {}


def gist(decision: Decision) -> tuple[object, ...]:
    """Return what a decision says, without instants, ids and figures."""
    sizes = (decision.current_parallelism, decision.proposed_parallelism, decision.final_parallelism)
    command = decision.command and (decision.command.kind, decision.command.to_parallelism)
    codes = [entry.code for entry in decision.trail]
    results = [result.phase for result in decision.observed.results]
    return decision.spec_version, decision.status, sizes, codes, command, results


def test_a_recording_can_be_cut_by_time_and_job(filled: ServiceSettings, tmp_path: Path) -> None:
    """`job` selects one job's records; a time after the end leaves only the jobs topic, which is a table."""
    counts = {e.topic: e.records for e in record(filled, tmp_path / "one", job="orders").files}
    assert (counts["jobs"], counts["decisions"], counts["snapshots"]) == (1, COUNT, COUNT)
    later = record(filled, tmp_path / "later", since=datetime(2100, 1, 1, tzinfo=UTC))
    assert {e.topic: e.records for e in later.files} == dict.fromkeys(counts, 0) | {"jobs": 2}
    early = record(filled, tmp_path / "early", until=datetime(2000, 1, 1, tzinfo=UTC))
    assert sum(e.records for e in early.files) == 0


def test_a_recording_is_complete_or_absent(
    settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed recording leaves no folder behind, and no recording is ever overwritten."""
    absent = settings.model_copy(update={"topic_prefix": "there-is-none."})
    with pytest.raises(CannotRecord, match=r"there-is-none\.dead-letters"):
        record(absent, tmp_path / "rec")
    assert list(tmp_path.iterdir()) == []
    record(settings, tmp_path / "rec", topics=(JOBS,))
    with pytest.raises(CannotRecord, match="never overwritten"):
        record(settings, tmp_path / "rec")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(CannotRecord, match="current directory"):
        record(settings, Path())


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("commands_share")
def test_the_exit_code_of_recompute_says_what_it_found(
    tmp_path: Path,
) -> None:
    """0 with a table if all is identical, 1 with the field if a bit differs, 2 with a line if there is no recording."""
    write_recording(tmp_path / "rec", jobs=3, per_job=20, partitions=4)
    assert "identical 60/60" in recomputed_by_command(tmp_path / "rec", 0)

    file = tmp_path / "rec" / "decisions.ndjson"
    line = file.read_bytes().splitlines()[7]
    at = line.index(b"FINE")
    flipped = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]
    file.write_bytes(file.read_bytes().replace(line, flipped))
    out = recomputed_by_command(tmp_path / "rec", 1)
    assert "1 DIFFERING" in out
    assert 'recorded   "GINE"' in out
    assert "DAMAGED" in out  # the manifest's checksum says so as well

    manifest = json.loads((tmp_path / "rec" / "manifest.json").read_text("utf-8"))
    for entry in manifest["files"]:
        entry["sha256"] = sha256(tmp_path / "rec" / entry["file"])
    (tmp_path / "rec" / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    assert "DAMAGED" not in recomputed_by_command(tmp_path / "rec", 1)
    assert "is not a recording" in recomputed_by_command(tmp_path / "nothing", 2)


def recomputed_by_command(directory: Path, code: int) -> str:
    """Return what `tidegate replay recompute` prints about a recording; fail if it ends with another exit code."""
    ran = CliRunner().invoke(app, ["replay", "recompute", "--from", str(directory)])
    assert ran.exit_code == code, ran.output
    return ran.output


@pytest.mark.timeout(300)
def test_a_recording_in_many_ranges_is_recomputed(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of a job are found wherever they are, and a difference has its job, sequence and place."""
    write_recording(tmp_path / "rec", jobs=3, per_job=20, partitions=4)
    monkeypatch.setattr("tidegate.replay.index.RANGE_BYTES", 15_000)
    assert [(job.job_id, job.identical) for job in recompute(directory=tmp_path / "rec", spark=session).jobs] == [
        (f"job-000{number}", 20) for number in range(3)
    ]
    file = tmp_path / "rec" / "decisions.ndjson"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[30] = lines[30].replace(b"FINE", b"GINE")
    file.write_bytes(b"".join(reversed(lines)))
    result = recompute(directory=tmp_path / "rec", job="job-0001", spark=session)
    assert (result.identical, result.differing, len(result.jobs)) == (19, 1, 1)
    assert result.first is not None
    assert (result.first.job_id, result.first.path, result.first.place) == (
        "job-0001",
        "status",
        "partition 1, offset 30",
    )


@pytest.mark.timeout(300)
def test_a_bad_line_of_a_recording_stops_recomputing(session: Any, tmp_path: Path) -> None:
    """Spark's workers find it; the error has file and line, as when the recording is published, and no stack."""
    write_recording(tmp_path / "rec", jobs=1, per_job=5, partitions=4)
    file = tmp_path / "rec" / "decisions.ndjson"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(BadRecording, match=r"^/.*decisions\.ndjson, line 5: no record: .whole line.: Invalid JSON: "):
        recompute(directory=tmp_path / "rec", spark=session)
    logs = session.sparkContext._jvm.org.apache.logging.log4j.LogManager
    for name in ("executor.Executor", "scheduler.TaskSetManager"):
        assert not logs.getLogger(f"org.apache.spark.{name}").isErrorEnabled()


@pytest.mark.timeout(300)
def test_a_decision_whose_sequence_is_no_number_costs_no_other(session: Any) -> None:
    """It differs, like any that cannot be read; of a name that stands twice the last value holds, as for services."""
    [(_, made)] = decided("rates", 1, partitions=4, scaling=LIVELY, seed=1)
    far = b"x" * HEAD
    values = [
        b'{"job_id":"a","sequence":"soon"}',
        b'{"job_id":"b","sequence":99999999999999999999}',
        b'{"note":"' + far + b'","job_id":"a","sequence":1,"job_id":"c","sequence":2}',
        value_of(made),
    ]
    rows = [(1, 0, offset, bytearray(value)) for offset, value in enumerate(values)]
    tallies = verify(session, session.createDataFrame(rows, "kind INT, partition INT, offset BIGINT, value BINARY"))
    assert {(tally.job_id, tally.differing, tally.decisions) for tally in tallies} == {
        *(("a", 1, 1), ("b", 1, 1), ("c", 1, 1), ("rates", 0, 1))
    }


def test_a_job_without_decisions_is_not_recomputed(session: Any, tmp_path: Path) -> None:
    """A job whose name is wrong is an error, not `identical 0/0`."""
    write_history(tmp_path / "rec")
    with pytest.raises(CannotRecompute, match="no decisions of job 'other'"):
        recompute(directory=tmp_path / "rec", job="other", spark=session)


def test_recompute_needs_exactly_one_source() -> None:
    """Neither or both of broker and recording are rejected before Spark starts."""
    with pytest.raises(CannotRecompute, match="either"):
        recompute()
