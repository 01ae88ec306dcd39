"""The index of a recording: every line once, under its job and sequence, whoever wrote it."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.streams import write_recording
from tidegate.replay import files as reading
from tidegate.replay import index as indexing
from tidegate.replay.files import BadRecording, read, read_manifest
from tidegate.replay.index import NO_JOB, NO_SEQUENCE, Key, files_of, index, ranges, with_values

JOBS, PER_JOB = 2, 5


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A small recording of real decisions."""
    write_recording(tmp_path / "r", jobs=JOBS, per_job=PER_JOB, partitions=2)
    return tmp_path / "r"


def records(recording: Path, job: bytes | None = None) -> list[tuple[Key, bytes]]:
    """Return the records of a recording as they are verified."""
    files = files_of(recording, read_manifest(recording))
    rows = [row for part in ranges(files) for row in index(job, part)]
    return list(with_values(files, sorted(rows)))


def rewrite(recording: Path, change: Callable[[dict[str, Any]], str | bytes]) -> None:
    """Change every line of the decisions."""
    file = recording / "decisions.ndjson"
    lines = [change(json.loads(line)) for line in file.read_bytes().splitlines()]
    file.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))


def compress(recording: Path) -> None:
    """Compress both files."""
    for file in list(recording.glob("*.ndjson")):
        file.with_suffix(".ndjson.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    manifest = recording / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace(".ndjson", ".ndjson.gz"), "utf-8")


def test_records_come_by_job_and_sequence_with_their_values(recording: Path) -> None:
    """Each job's snapshots and decisions take turns, with the bytes that were recorded."""
    made = records(recording)
    jobs = [job for job, *_ in (key for key, _ in made)]
    assert jobs == sorted(jobs)
    assert [is_decision for _, _, is_decision, _, _ in (key for key, _ in made)] == JOBS * PER_JOB * [False, True]
    for (job, sequence, is_decision, partition, offset), value in made:
        [record] = [r for r in read(recording, "decisions" if is_decision else "snapshots") if r.offset == offset]
        assert (value, partition) == (record.value, record.partition)
        fields = json.loads(value)
        assert (job.decode(), sequence) == (fields["job_id"], fields["sequence"])


@pytest.mark.parametrize("step", [1, 7, 100, 1893, 2000, 5000])
def test_a_line_at_the_border_of_two_ranges_is_read_once(
    recording: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Wherever ranges end, in a line, at a line break or right after it, each line is in one of them."""
    whole = records(recording)
    monkeypatch.setattr(indexing, "RANGE_BYTES", step)
    assert records(recording) == whole


def test_a_line_that_begins_with_a_range_is_read_once(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second range begins with the first byte of the second line, one byte before it, or one after it."""
    whole = records(recording)
    first = len((recording / "decisions.ndjson").read_bytes().splitlines(keepends=True)[0])
    for step in (first - 1, first, first + 1):
        monkeypatch.setattr(indexing, "RANGE_BYTES", step)
        assert records(recording) == whole


OTHER_WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "fields in another order": lambda fields: json.dumps(dict(reversed(fields.items()))),
    "spaces": json.dumps,
    "base64": lambda f: json.dumps({**f, "value_base64": b64encode(f.pop("value").encode()).decode()}),
    "escapes": lambda fields: json.dumps(fields, separators=(",", ":")).replace("job_id", "job\\u005fid"),
    "a value before the value": lambda f: json.dumps({"headers": [], "x": {"value": f["value"][:200]}, **f}),
}


@pytest.mark.parametrize("writer", OTHER_WRITERS)
@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_other_writers_are_found_too(recording: Path, writer: str, packed: bool) -> None:
    """Job, sequence and value are the same however a line is written, compressed or not."""
    whole = records(recording)
    rewrite(recording, OTHER_WRITERS[writer])
    if packed:
        compress(recording)
    assert records(recording) == whole


def test_fields_of_a_value_may_come_in_another_order(recording: Path) -> None:
    """A value whose ids do not come first is under its job and sequence all the same."""
    keys = [key for key, _ in records(recording)]

    def change(fields: dict[str, Any]) -> str:
        value = json.dumps(dict(reversed(json.loads(fields["value"]).items())))
        return json.dumps({**fields, "value": value}, separators=(",", ":"))

    rewrite(recording, change)
    assert [key for key, _ in records(recording)] == keys


@pytest.mark.parametrize("value", [None, "", "no JSON", "[]", "{}", '{"job_id":5,"sequence":"5"}', '{"sequence":true}'])
def test_a_value_without_a_job_is_kept(recording: Path, value: str | None) -> None:
    """An unreadable decision is no bad line: it is verified, and counts as different."""
    rewrite(recording, lambda fields: json.dumps({**fields, "value": value}))
    unknown = [(key[1], got) for key, got in records(recording) if key[0] == NO_JOB]
    assert unknown == JOBS * PER_JOB * [(NO_SEQUENCE, (value or "").encode())]


def test_one_job_is_selected(recording: Path) -> None:
    """Only the records of the job are in the index, compressed or not."""
    one = [record for record in records(recording) if record[0][0] == b"job-0001"]
    assert len(one) == 2 * PER_JOB
    assert records(recording, b"job-0001") == one
    compress(recording)
    assert records(recording, b"job-0001") == one


BAD_LINES = {
    "no JSON": b"{",
    "no record": b'{"partition":0}',
    "empty": b"",
    "Latin-1": b'{"partition":0,"offset":1,"key":"k","value":"caf\xe9"}',
    "a value that is no text": b'{"partition":0,"offset":1,"key":"k","value":{"a":1}}',
    "brackets": 100_000 * b"[",
}


@pytest.mark.parametrize("name", [*BAD_LINES, "cut off"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_line_is_named_by_file_and_number(recording: Path, name: str, packed: bool) -> None:
    """A line that is no record is an error, also when it starts like one of ours and is cut off."""
    file = recording / "decisions.ndjson"
    lines = file.read_bytes().splitlines()
    lines[6] = BAD_LINES.get(name, lines[6][:-30])
    file.write_bytes(b"\n".join(lines))
    if packed:
        compress(recording)
    with pytest.raises(BadRecording, match=r"decisions\.ndjson(\.gz)?, line 7: "):
        records(recording)


@pytest.mark.parametrize("packed", [False, True])
def test_an_endless_line_does_not_take_all_memory(
    recording: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of the range in which it begins; the ranges after it do not read it to its end."""
    monkeypatch.setattr(reading, "LONGEST_LINE", 10_000)
    monkeypatch.setattr(indexing, "RANGE_BYTES", 1000)
    file = recording / "decisions.ndjson"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:6], 100_000 * b" ", *lines[6:]]))
    if packed:
        compress(recording)
    files, failed = files_of(recording, read_manifest(recording)), list[str]()
    for part in ranges(files):
        try:
            list(index(None, part))
        except BadRecording as error:
            failed.append(str(error))
    [told] = failed
    assert re.search(r"decisions\.ndjson(\.gz)?, line 7: it is longer than 10,000 bytes", told)


@pytest.mark.parametrize("cut", [0.5, 0.0])
def test_a_compressed_file_that_is_cut_off_is_named(recording: Path, cut: float) -> None:
    """The half of a compressed file, and one that is not compressed at all, are errors with the file's name."""
    unpacked = (recording / "decisions.ndjson").read_bytes()
    compress(recording)
    file = recording / "decisions.ndjson.gz"
    file.write_bytes(file.read_bytes()[: int(cut * file.stat().st_size)] or unpacked)
    with pytest.raises(BadRecording, match=r"decisions\.ndjson\.gz, line "):
        records(recording)


def test_a_file_that_workers_cannot_read_is_named(recording: Path) -> None:
    """On a cluster, the recording may not be where the workers are."""
    parts = ranges(files_of(recording, read_manifest(recording)))
    (recording / "snapshots.ndjson").unlink()
    with pytest.raises(BadRecording, match=r"workers cannot read.*snapshots\.ndjson"):
        list(index(None, parts[0]))
    with pytest.raises(BadRecording, match="holds no snapshots"):
        files_of(recording, read_manifest(recording))


def test_a_file_that_has_become_shorter_is_named(recording: Path) -> None:
    """Somebody has cut the file since it was indexed: that ends with an error, and ends."""
    files = files_of(recording, read_manifest(recording))
    rows = [row for part in ranges(files) for row in index(None, part)]
    files[True].write_bytes(files[True].read_bytes()[:100])
    with pytest.raises(BadRecording, match=r"decisions\.ndjson, line "):
        list(with_values(files, rows[::-1]))
