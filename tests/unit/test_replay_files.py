"""Recordings: the exact bytes, complete or refused."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.streams import write_recording
from tidegate.events.topics import TOPICS
from tidegate.replay import files, record
from tidegate.replay.files import (
    BadRecording,
    KafkaRecord,
    RecordingManifest,
    TopicFile,
    damaged,
    from_line,
    in_words,
    read,
    read_manifest,
    to_line,
)
from tidegate.replay.record import CannotRecord
from tidegate.runtime.settings import ServiceSettings

NOW = datetime(2026, 3, 1, tzinfo=UTC)

raw = st.none() | st.binary(max_size=30) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))


@given(
    st.builds(
        KafkaRecord,
        partition=st.integers(0, 99),
        offset=st.integers(0, 2**62),
        timestamp_ms=st.integers(-1, 2**50),
        key=raw,
        value=raw,
        headers=st.lists(st.tuples(st.text(max_size=8), raw), max_size=3).map(tuple),
    )
)
def test_a_line_holds_the_exact_bytes(record: KafkaRecord) -> None:
    """Key, value and headers of any bytes, including null, survive a line of JSON unchanged."""
    line = to_line(record)
    assert "\n" not in line
    assert from_line(line) == record


def test_a_readable_value_stays_readable() -> None:
    """A value in UTF-8 is written as text, other bytes as base64."""
    assert json.loads(to_line(KafkaRecord(0, 1, 2, b"k", '{"a":"ü"}'.encode())))["value"] == '{"a":"ü"}'
    assert json.loads(to_line(KafkaRecord(0, 1, 2, b"k", b"\xff")))["value_base64"] == "/w=="


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A small recording of real decisions."""
    write_recording(tmp_path / "r", jobs=2, per_job=5, partitions=2)
    return tmp_path / "r"


def test_a_recording_reads_back_completely(recording: Path) -> None:
    """The records match the counts of the manifest, and no file is damaged."""
    manifest = read_manifest(recording)
    assert damaged(recording, manifest) == []
    assert [len(list(read(recording, entry.topic))) for entry in manifest.files] == [10, 10]
    assert list(read(recording, "results")) == []


def test_damage_is_named_by_file(recording: Path) -> None:
    """A changed and a missing file are each reported."""
    file = recording / "decisions.ndjson"
    file.write_bytes(file.read_bytes().replace(b"FINE", b"FUNE", 1))
    (recording / "snapshots.ndjson").unlink()
    missing, changed = damaged(recording, read_manifest(recording))
    assert missing.endswith("snapshots.ndjson: the file is missing")
    assert "decisions.ndjson: SHA-256 is" in changed


def test_a_broken_line_is_named_by_file_and_line(recording: Path) -> None:
    """Reading stops at a line that is no record, with file and line number."""
    file = recording / "decisions.ndjson"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], b'{"partition":0}\n', *lines[4:]]))
    with pytest.raises(BadRecording, match=r"decisions\.ndjson, line 4"):
        list(read(recording, "decisions"))


def test_an_endless_line_does_not_take_all_memory(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is longer than any record is named by file, line and the limit, and is not read to its end."""
    monkeypatch.setattr(files, "LONGEST_LINE", 10_000)
    file = recording / "decisions.ndjson"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], 10_000 * b" ", *lines[3:]]))
    with pytest.raises(BadRecording, match=r"decisions\.ndjson, line 4: it is longer than 10,000 bytes"):
        list(read(recording, "decisions"))


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "is not a recording"), ("{}", "topic_prefix"), ("[", "JSON"), ('{"format":2}', "topic_prefix")],
)
def test_anything_but_a_recording_is_rejected(tmp_path: Path, text: str | None, said: str) -> None:
    """A folder without a manifest, or with an unknown one, is rejected by name."""
    if text is not None:
        (tmp_path / "manifest.json").write_text(text, "utf-8")
    with pytest.raises(BadRecording, match=said):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["/etc/hostname", "../theirs.ndjson", "..", ""])
def test_a_recording_reads_no_file_outside_of_its_folder(recording: Path, name: str) -> None:
    """A recording may come from somebody else, and messages quote the lines that are no records."""
    manifest = json.loads((recording / "manifest.json").read_text("utf-8"))
    manifest["files"][0]["file"] = name
    (recording / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(BadRecording, match="is not a file of the recording"):
        read_manifest(recording)


@pytest.mark.parametrize(
    "line",
    [
        b'{"key":"caf\xe9"}',
        b'{"partition":0,"offset":1,"timestamp":2,"key":5,"value":"{}"}',
        b'{"partition":0,"offset":1,"timestamp":2,"key":"k","value":{"a":1}}',
        b'{"partition":1e999,"offset":1,"timestamp":2,"key":"k","value":"{}"}',
        100_000 * b"[",
    ],
)
def test_no_line_is_more_than_a_broken_line(recording: Path, line: bytes) -> None:
    """Latin-1, a field of another type and endless brackets are named by file and line like any broken line."""
    file = recording / "decisions.ndjson"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], line + b"\n", *lines[4:]]))
    with pytest.raises(BadRecording, match=r"decisions\.ndjson, line 4: "):
        list(read(recording, "decisions"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"off", "(whole line): Invalid JSON: expected value at line 1 column 1, found b'off\\n'"),
        (b"[]", "(whole line): Input should be an object, found []"),
        (b'{"partition":0}', "it has no 'offset'"),
        (b'{"partition":0,"offset":null}', "offset: Input should be a valid integer, found None"),
        (b'{"partition":"a","offset":5}', "partition: Input should be a valid integer, found 'a'"),
        (
            b'{"partition":0,"offset":1,"timestamp":2,"key":null,"value":7}',
            "value: Input should be a valid string, found 7",
        ),
        (
            b'{"partition":0,"offset":1,"timestamp":2,"key_base64":"!","value":"7"}',
            "key_base64: Only base64 data is allowed, found '!'",
        ),
        (
            b'{"partition":0,"offset":1,"timestamp":2,"key":null,"value":"7","headers":5}',
            "headers: Input should be a valid",
        ),
    ],
)
def test_a_broken_line_tells_its_field_and_value(recording: Path, line: bytes, said: str) -> None:
    """Who looks for the cause need not know what Python says of such a line."""
    file = recording / "decisions.ndjson"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], line + b"\n", *lines[4:]]))
    with pytest.raises(BadRecording, match=re.escape(f"decisions.ndjson, line 4: no record: {said}")):
        list(read(recording, "decisions"))


@pytest.mark.parametrize("cut", [0.5, 0.0])
def test_a_compressed_file_that_is_cut_off_is_named(recording: Path, cut: float) -> None:
    """The half of a compressed file, and one that is not compressed at all, are errors with the file's name."""
    file = recording / "decisions.ndjson"
    packed = gzip.compress(file.read_bytes())
    (recording / "decisions.ndjson.gz").write_bytes(packed[: int(cut * len(packed))] or file.read_bytes())
    manifest = recording / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace("decisions.ndjson", "decisions.ndjson.gz"), "utf-8")
    with pytest.raises(BadRecording, match=r"decisions\.ndjson\.gz, after line "):
        list(read(recording, "decisions"))


@pytest.mark.parametrize("compress", [False, True])
def test_a_recording_has_its_name_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    """A power cut must not leave a recording that looks complete and has lost the end of a file."""
    on_disk: dict[str, int] = {}

    def synchronized(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        on_disk[path.name] = path.stat().st_size
        assert (tmp_path / "noon").exists() == (path == tmp_path)

    monkeypatch.setattr(os, "fsync", synchronized)
    made = record.write_recording(
        tmp_path / "noon",
        [(TOPICS[0], [KafkaRecord(0, 0, 1, b"a", b"{}")])],
        lambda files: RecordingManifest(topic_prefix="t.", recorded_at=NOW, files=files),
        compress=compress,
    )
    manifest = (tmp_path / "noon" / "manifest.json").stat().st_size
    written = {made.files[0].file: made.files[0].bytes, "manifest.json": manifest}
    assert on_disk.items() >= written.items()
    assert {"noon.partial", tmp_path.name} <= on_disk.keys()


@pytest.mark.parametrize("name", ["noon.partial/mine.txt", "noon.partial"])
def test_what_an_interrupted_recording_did_not_leave_is_kept(tmp_path: Path, name: str) -> None:
    """A folder or file of the user's with the name of an unfinished recording stops the recording, and stays."""
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine", "utf-8")
    with pytest.raises(CannotRecord, match=r"noon\.partial is in the way"):
        record.write_recording(
            tmp_path / "noon", [], lambda files: RecordingManifest(topic_prefix="t.", recorded_at=NOW, files=files)
        )
    assert mine.read_text("utf-8") == "mine"


@pytest.mark.parametrize("value", [100_000 * b"[", b"{", b"\xff", b"[]", b"null", b"", None])
def test_a_value_that_names_no_job_costs_no_other_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: bytes
) -> None:
    """A recording of one job leaves it out; on the dead letters, it is under the key of its record."""
    settings = ServiceSettings()
    made = [KafkaRecord(0, 0, 1, b"?", value), KafkaRecord(0, 1, 2, b"?", b'{"job_id":"rates"}')]
    monkeypatch.setattr(record, "ranges_now", lambda *_: {})
    monkeypatch.setattr(record, "_read", lambda *_: iter(made))
    record.record(settings, tmp_path / "noon", topics=TOPICS[:1], job="rates")
    assert list(read(tmp_path / "noon", TOPICS[0].suffix)) == made[1:]


def test_what_an_interrupted_recording_left_is_replaced(tmp_path: Path) -> None:
    """The files of an interrupted recording are in nobody's way."""
    (tmp_path / "noon.partial").mkdir()
    (tmp_path / "noon.partial" / "decisions.ndjson").write_text("{", "utf-8")
    record.write_recording(
        tmp_path / "noon", [], lambda files: RecordingManifest(topic_prefix="t.", recorded_at=NOW, files=files)
    )
    assert [each.name for each in tmp_path.iterdir()] == ["noon"]
    assert [each.name for each in (tmp_path / "noon").iterdir()] == ["manifest.json"]


def test_a_second_recording_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    """It does not delete what the first one has written so far; afterwards the folder is in use."""

    def described(files: tuple[TopicFile, ...]) -> RecordingManifest:
        return RecordingManifest(topic_prefix="t.", recorded_at=NOW, files=files)

    def meanwhile() -> Iterator[KafkaRecord]:
        yield KafkaRecord(0, 0, 1, b"a", b"{}")
        with pytest.raises(CannotRecord, match=r"another process is writing noon\.partial"):
            record.write_recording(tmp_path / "noon", [], described)
        yield KafkaRecord(0, 1, 2, b"a", b"{}")

    made = record.write_recording(tmp_path / "noon", [(TOPICS[0], meanwhile())], described)
    assert made.files[0].records == 2
    assert damaged(tmp_path / "noon", made) == []
    with pytest.raises(CannotRecord, match="already exists"):
        record.write_recording(tmp_path / "noon", [], described)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("key must be a string at line 1 column 2"), "no record: key must be a string at line 1 column 2"),
        (KeyError("offset"), "no record: it has no 'offset'"),
    ],
)
def test_a_bad_line_is_told_in_words(error: Exception, said: str) -> None:
    """What is wrong with a line of a file is said as such, not as an exception of Python."""
    assert in_words(b"{}", error) == said
