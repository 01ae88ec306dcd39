"""What reads a recording reads an archive as well, and finds the same events there."""

from __future__ import annotations

import gzip
import shutil
from collections import defaultdict
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.recordings import RATES
from tidegate.archive import store
from tidegate.cli.recorded import recorded_job
from tidegate.events.topics import BY_MODEL
from tidegate.replay.files import BadRecording, KafkaRecord, read, to_line
from tidegate.whatif.recorded import EVENTS


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of the same records: a file per day, in which they are in no order."""
    for model in EVENTS:
        topic = BY_MODEL[model].suffix
        days: dict[date, list[KafkaRecord]] = defaultdict(list)
        for record in read(RATES, topic):
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
