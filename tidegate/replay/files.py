r"""Recordings on disk: one NDJSON file per topic, a line per record, and a manifest with counts and checksums.

A line holds all that is needed to publish the same bytes again:

    {"partition": 0, "offset": 17, "timestamp": 1772366401000, "key": "shop",
     "headers": [["ce_type", "tidegate.snapshot.v1"]], "value": "{\"snapshot_id\": …}"}

UTF-8 bytes are written as text, so any tool can read a value. Other bytes are base64, under `key_base64` and
`value_base64`, and in a header as `{"base64": …}`. Null stays null. `timestamp` is Kafka's, in milliseconds since the
epoch.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, AnyStr, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from tidegate.events.invalid import first_problem
from tidegate.events.invalid import in_words as problem_in_words
from tidegate.events.wire import Instant

MANIFEST = "manifest.json"
FORMAT = 1

LONGEST_LINE = 64 * 1024 * 1024
"""In bytes, of a text in characters: a record of Kafka's usual largest size, 1 MiB, takes six times as much at most."""

LINE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
"""What a line that is no record makes its readers raise."""


Skipped = Callable[[bytes], bool]
"""Whether a line, or the value of a record, need not be read."""


def none_skipped(_raw: bytes) -> bool:
    """Skip nothing."""
    return False


class BadRecording(ValueError):
    """A recording is unusable; the text names the file, the line and what is wrong."""


class LongLine(ValueError):
    """A line is longer than that of any record."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record of a topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def _beside(name: str) -> str:
    if "/" in name or name in {"", ".", ".."}:
        raise ValueError(f"{name!r:.80} is not a file of the recording")
    return name


class TopicFile(BaseModel):
    """One file, as described in the manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    """The topic without its prefix, such as `decisions`."""
    file: Annotated[str, AfterValidator(_beside)]
    """Next to the manifest: whoever has sent a recording does not choose another file to be read."""
    records: int
    bytes: int
    """Size of the file on disk."""
    sha256: str
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None


class RecordingManifest(BaseModel):
    """The contents of a recording."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    topic_prefix: str
    recorded_at: Instant
    since: Instant | None = None
    until: Instant | None = None
    job: str | None = None
    files: tuple[TopicFile, ...]

    def of(self, topic: str) -> TopicFile | None:
        """Return the file of a topic (without prefix), or None if the topic was not recorded."""
        return next((entry for entry in self.files if entry.topic == topic), None)


def _base64(text: str) -> str:
    b64decode(text, validate=True)
    return text


_Base64 = Annotated[str, AfterValidator(_base64)]


class _Line(BaseModel):
    """The types of the fields in a line; which of them a reader needs is its own affair."""

    model_config = ConfigDict(strict=True)

    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: str | None = None
    key_base64: _Base64 = ""
    value: str | None = None
    value_base64: _Base64 = ""
    headers: list[tuple[str, str | dict[str, str] | None]] = []


def in_words(line: bytes, error: Exception) -> str:
    """Return what is wrong with a line, field and value, by the error of its reader."""
    if isinstance(error, LongLine):
        return str(error)
    if isinstance(error, KeyError):
        return f"no record: it has no {error}"
    if isinstance(error, LINE_ERRORS):
        try:
            _Line.model_validate_json(line)
        except ValidationError as invalid:
            first = invalid.errors(include_url=False)[0]
            return f"no record: {problem_in_words(first, '(whole line)')}, found {repr(first['input'])[:120]}"
    return f"no record: {error!s:.300}"


def to_line(record: KafkaRecord) -> str:
    """Return a record as one line of JSON, without the line break."""
    fields: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_part("key", record.key),
        "headers": [[name, _header(raw)] for name, raw in record.headers],
        **_part("value", record.value),
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def from_line(line: str | bytes) -> KafkaRecord:
    """Return the record in a line; raises one of the `LINE_ERRORS`."""
    fields = from_json(line)
    return KafkaRecord(
        partition=int(fields["partition"]),
        offset=int(fields["offset"]),
        timestamp_ms=int(fields["timestamp"]),
        key=part_of(fields, "key"),
        value=part_of(fields, "value"),
        headers=tuple(
            (name, b64decode(text["base64"]) if isinstance(text, dict) else text if text is None else text.encode())
            for name, text in fields.get("headers", ())
        ),
    )


def write_manifest(directory: Path, manifest: RecordingManifest) -> None:
    """Write the manifest of a recording."""
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2, exclude_none=True) + "\n", "utf-8")


def read_manifest(directory: Path) -> RecordingManifest:
    """Return the manifest of a recording; raises `BadRecording` if it is missing or of an unknown format."""
    path = directory / MANIFEST
    if not path.is_file():
        why = f"it has no {MANIFEST}" if directory.exists() else "there is no such folder"
        raise BadRecording(f"{directory} is not a recording: {why}")
    try:
        manifest = RecordingManifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadRecording(f"{path}: {first_problem(error)}") from None
    if manifest.format != FORMAT:
        raise BadRecording(f"{path}: unknown format {manifest.format}, expected {FORMAT}")
    return manifest


def damaged(directory: Path, manifest: RecordingManifest) -> list[str]:
    """Return a line for each file that is missing or has changed since it was recorded."""
    lines = []
    for entry in manifest.files:
        path = directory / entry.file
        if not path.is_file():
            lines.append(f"{path}: the file is missing")
        elif (found := sha256(path)) != entry.sha256:
            lines.append(f"{path}: SHA-256 is {found}, the manifest says {entry.sha256}")
    return lines


def read(
    directory: Path, topic: str, jobs: Collection[str] | None = None, skipped: Skipped = none_skipped
) -> Iterator[KafkaRecord]:
    """Yield the records of a topic (without prefix) in recorded order; none if the topic was not recorded.

    With `jobs`, only those whose line names one of them somewhere: of 1,000 jobs, the lines of others are not parsed.
    Nor are those which `skipped` says yes to.
    """
    return (record for _, record in placed(directory, topic, jobs, skipped))


def placed(
    directory: Path, topic: str, jobs: Collection[str] | None = None, skipped: Skipped = none_skipped
) -> Iterator[tuple[int, KafkaRecord]]:
    """Yield the same records, each after the place of its line, for `RecordFile`."""
    # As a key, and in a value, which is text in the line.
    names = (b"",) if jobs is None else tuple(f'"{job}{end}'.encode() for job in jobs for end in ('"', '\\"'))
    entry = read_manifest(directory).of(topic)
    if entry is None:
        return
    path = directory / entry.file
    with opened(path) as lines:
        number = place = 0
        try:
            for number, line in numbered(lines, path):
                wanted = any(name in line for name in names) and not skipped(line)
                if wanted or not line.endswith(b"}\n"):  # a line that was cut is an error
                    try:
                        record = from_line(line)
                    except LINE_ERRORS as error:
                        raise BadRecording(f"{path}, line {number}: {in_words(line, error)}") from None
                    yield place, record
                place += len(line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadRecording(f"{path}, after line {number}: {error}") from None


class RecordFile:
    """The records of a topic, read again in any order by their places. A compressed file is unpacked on the disk."""

    def __init__(self, directory: Path, topic: str) -> None:
        """The topic is one that was recorded."""
        entry = read_manifest(directory).of(topic)
        assert entry is not None  # noqa: S101 - its places are known
        self._path = directory / entry.file
        self._lines = opened(self._path)
        if is_compressed(self._path):
            with self._lines as packed:
                self._lines = TemporaryFile()  # noqa: SIM115 - `close` closes it
                shutil.copyfileobj(packed, self._lines)

    def at(self, place: int) -> KafkaRecord:
        """Return the record at a place that `placed` told."""
        self._lines.seek(place)
        line = next_line(self._lines)
        try:
            return from_line(line)
        except LINE_ERRORS as error:
            raise BadRecording(f"{self._path} has changed while it was read: {in_words(line, error)}") from None

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def is_compressed(path: Path) -> bool:
    """Whether a file of lines is compressed, by its name."""
    return path.suffix == ".gz"


def opened(path: Path) -> IO[bytes]:
    """Open a file of lines, as bytes: so that one which is not UTF-8 has its number."""
    return gzip.open(path) if is_compressed(path) else path.open("rb")  # type: ignore[return-value]


def numbered(lines: IO[AnyStr], name: object) -> Iterator[tuple[int, AnyStr]]:
    """Yield the lines of a file, each after its number. Raises `BadRecording` if one is longer than `LONGEST_LINE`."""
    number = 1
    while line := next_line(lines):
        try:
            check_length(line)
        except LongLine as error:
            raise BadRecording(f"{name}, line {number}: {error}") from None
        yield number, line
        number += 1


def next_line(lines: IO[AnyStr]) -> AnyStr:
    """Return the next line, of one that is too long the start: an endless one would take all memory."""
    return lines.readline(LONGEST_LINE + 1)


def check_length(line: str | bytes) -> None:
    """Raise `LongLine` if a line is too long."""
    if len(line) > LONGEST_LINE:
        raise LongLine(f"it is longer than {LONGEST_LINE:,} bytes, the most that a line may have")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(name: str, raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(raw).decode()}


def _header(raw: bytes | None) -> object:
    kept = _part("text", raw)
    return {"base64": kept["text_base64"]} if "text_base64" in kept else kept["text"]


def part_of(fields: dict[str, Any], name: str) -> bytes | None:
    """Return the key or the value of a record by the fields of its line."""
    if f"{name}_base64" in fields:
        return b64decode(fields[f"{name}_base64"], validate=True)
    text = cast("str | None", fields[name])
    return None if text is None else text.encode()
