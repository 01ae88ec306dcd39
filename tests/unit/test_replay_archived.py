"""What reads a recording reads an archive as well, and finds the same events there."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.recordings import RATES
from tidegate.archive import store
from tidegate.cli.problems import Problem
from tidegate.cli.recorded import recorded_job
from tidegate.events.envelope import Headers, decode
from tidegate.events.snapshot import snapshot_id
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.replay.archived import archived
from tidegate.replay.files import BadRecording, KafkaRecord, from_line, read, read_manifest, to_line, write_manifest
from tidegate.replay.schedule import schedule
from tidegate.whatif.recorded import EVENTS


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of the same records: a file per day, in which they are in no order."""
    return archive_of(RATES, tmp_path)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A recording of 30 jobs that do the same, the one called `rates` among them."""
    folder = tmp_path / "many"
    folder.mkdir()
    manifest = read_manifest(RATES)
    files = [f"{entry.topic}.ndjson" for entry in manifest.files]
    for entry, name in zip(manifest.files, files, strict=True):
        with (folder / name).open("w") as file:
            for record in read(RATES, entry.topic):
                for job in ("rates", *(f"rates-{number}" for number in range(29))):
                    file.write(to_line(replace(record, key=job.encode(), value=_of(job, record.value or b""))) + "\n")
    named = [entry.model_copy(update={"file": name}) for entry, name in zip(manifest.files, files, strict=True)]
    write_manifest(folder, manifest.model_copy(update={"files": tuple(named)}))
    return folder


def _of(job: str, value: bytes) -> bytes:
    """Return the value of the same event of another job, with the id that a snapshot of it has."""
    fields = json.loads(value)
    if "interval_seconds" in fields:
        fields["snapshot_id"] = snapshot_id(job, fields["sequence"])
    return json.dumps(fields, separators=(",", ":")).replace('"rates"', f'"{job}"').encode()


def archive_of(recording: Path, tmp_path: Path) -> Path:
    """Write an archive of a recording: a file per day, in which the records are in no order."""
    for model in EVENTS:
        topic = BY_MODEL[model].suffix
        days: dict[date, list[KafkaRecord]] = defaultdict(list)
        for record in read(recording, topic):
            days[datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).date()].append(record)
        for day, records in days.items():
            path = tmp_path / "staging" / f"topic={topic}" / f"day={day}" / "part-0.parquet"
            path.parent.mkdir(parents=True)
            columns = ("partition", "offset", "timestamp_ms", "key", "value")
            rows = [{name: getattr(record, name) for name in columns} for record in reversed(records)]
            pq.write_table(pa.Table.from_pylist(rows), path)
    folder = tmp_path / "archive"
    store.load_or_create(folder, "t.")
    files = store.staged_files(tmp_path / "staging")
    store.change(
        folder,
        lambda known: known.model_copy(update={"files": tuple(store.adopt(folder, known.version, files))}),
        datetime(2026, 3, 1, tzinfo=UTC),
    )
    return folder


def test_an_archive_holds_the_same_job_as_the_recording(archive: Path) -> None:
    """Snapshots, commands, results and decisions."""
    found = recorded_job(archive)
    assert found == recorded_job(RATES)
    assert found.snapshots


def test_a_damaged_file_is_named(archive: Path) -> None:
    """No event is left out in silence."""
    damaged = next(archive / file.path for file in store.load(archive).of(["snapshots"]))
    damaged.write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(BadRecording, match=r"snapshots cannot be read: .*tidegate chain verify"):
        recorded_job(archive)


def test_an_event_that_cannot_be_read_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A record that was a dead letter for the services is one line here, as it is where the topics are read."""
    folder = shutil.copytree(RATES, tmp_path / "noon")
    bad = KafkaRecord(partition=4, offset=7, timestamp_ms=0, key=b"rates", value=b"not json")
    with gzip.open(folder / "snapshots.ndjson.gz", "ab") as file:
        file.write(to_line(bad).encode() + b"\n")
    assert recorded_job(folder) == recorded_job(RATES)
    assert "skipped snapshots, partition 4, offset 7: NOT_JSON" in caplog.text


@pytest.mark.parametrize("archives", [False, True])
def test_of_many_jobs_only_the_one_asked_for_is_read(
    many: Path, tmp_path: Path, archives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of 1,000 jobs has millions of events: those of other jobs are neither decoded nor kept."""
    wanted = recorded_job(RATES)
    folder = archive_of(many, tmp_path) if archives else many
    decoded: Counter[str] = Counter()

    def counted(model: type[Wire], value: bytes) -> Wire:
        decoded[model.__name__] += 1
        return decode(model, value)

    monkeypatch.setattr("tidegate.cli.recorded.decode", counted)
    assert recorded_job(folder, "rates") == wanted
    assert decoded["MetricSnapshot"] == len(wanted.snapshots)
    assert decoded["ActionResult"] == len(wanted.results)
    held = archived(folder, "snapshots", [b'"rates"']) if archives else read(folder, "snapshots", ["other"])
    assert len(list(held)) == (len(wanted.snapshots) if archives else 0)


def test_the_lines_of_other_jobs_are_not_parsed(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the hour of 1,000 jobs, those are 1.6 GB of JSON, which `tidegate calibrate --job` went through."""
    wanted = sum(len(list(read(RATES, BY_MODEL[model].suffix))) for model in EVENTS)
    parsed = Counter[str]()

    def counted(line: str | bytes) -> KafkaRecord:
        record = from_line(line)
        parsed[(record.key or b"").decode()] += 1
        return record

    monkeypatch.setattr("tidegate.replay.files.from_line", counted)
    recorded_job(many, "rates")
    assert parsed == {"rates": wanted}


def test_of_many_jobs_an_error_names_a_few(many: Path) -> None:
    """With 1,000 jobs, all their names would fill the screen."""
    with pytest.raises(Problem, match=r"holds 30 jobs; choose one of rates, rates-0, .* and 10 more$"):
        recorded_job(many)
    with pytest.raises(Problem, match=r"does not hold job 'other', but rates, .* and 10 more$"):
        recorded_job(many, "other")


@pytest.mark.parametrize("archives", [False, True])
def test_to_find_the_jobs_one_snapshot_of_each_is_decoded(
    many: Path, tmp_path: Path, archives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of 1,000 jobs is 13 GB of snapshots, and all that is asked of them is whose they are."""
    folder = archive_of(many, tmp_path) if archives else many
    parsed: Counter[str] = Counter()

    def counted(model: type[Wire], value: bytes) -> Wire:
        parsed["values"] += 1
        return decode(model, value)

    def line(raw: str | bytes) -> KafkaRecord:
        parsed["lines"] += 1
        return from_line(raw)

    monkeypatch.setattr("tidegate.cli.recorded.decode", counted)
    monkeypatch.setattr("tidegate.replay.files.from_line", line)
    with pytest.raises(Problem, match="holds 30 jobs"):
        recorded_job(folder)
    assert parsed["values"] == 30
    assert parsed["lines"] <= 30


def test_a_job_whose_first_snapshot_cannot_be_read_is_found(tmp_path: Path) -> None:
    """The next one is read for it."""
    folder = shutil.copytree(RATES, tmp_path / "noon")
    with gzip.open(folder / "snapshots.ndjson.gz", "rb") as file:
        lines = file.read()
    bad = KafkaRecord(partition=4, offset=7, timestamp_ms=0, key=b"rates", value=b'{"job_id":"rates"}')
    with gzip.open(folder / "snapshots.ndjson.gz", "wb") as file:
        file.write(to_line(bad).encode() + b"\n" + lines)
    assert recorded_job(folder) == recorded_job(RATES)


def test_to_step_through_one_of_many_jobs_reads_only_that(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidegate replay step --job` starts as fast as with a recording of that job alone."""
    decoded: Counter[str] = Counter()

    def counted(model: type[Wire], value: bytes, headers: Headers) -> Wire:
        decoded[model.__name__] += 1
        return decode(model, value, headers)

    monkeypatch.setattr("tidegate.replay.schedule.decode", counted)
    alone = len(schedule(RATES, whole=True))
    before = decoded.copy()
    decoded.clear()
    assert len(schedule(many, job="rates", whole=True)) == alone
    assert decoded == {name: count for name, count in before.items() if count}
