"""Events on the wire: JSON values in CloudEvents 1.0 binary mode, with a W3C traceparent.

`encode` turns a model into a Kafka record and is a pure function of the model: encoding the same decision twice, or
on two machines, gives the same bytes. `decode` turns a record back, or raises `Unreadable` with a code and a line
that names field, value and place, so that the caller can keep the bytes in the dead letters.

Headers: CloudEvents Kafka protocol binding 1.0.2, section 3.2 (binary content mode). Trace: W3C Trace Context
level 1; the trace id is a function of the snapshot a chain began with, so the whole chain, from the snapshot to the
restarted job, is one trace without any state being carried along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeVar, cast

from pydantic import ValidationError

from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision
from tidegate.events.invalid import in_words
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL, Topic
from tidegate.events.wire import Wire, identity

Headers = list[tuple[str, bytes]]
ANY_KEY = b"(any key)"
"""Given to `decode` as the key, this very object: the key is not to be checked. A null key is one that is wrong."""
NO_SUBJECT = b"-"
"""The `ce_subject` of an event that belongs to no job."""
MAX_VALUE_BYTES = 1_000_000
"""Kafka's own default limit of a message; a larger value is not one of ours."""

W = TypeVar("W", bound=Wire)


class Unreadable(Exception):
    """A record that is not what its topic holds. `code` is for machines, the text names field, value and place."""

    CODES: ClassVar[dict[str, str]] = {
        "NO_VALUE": "the record has no value (a tombstone where none belongs)",
        "TOO_LARGE": "the value is larger than any event can be",
        "NOT_JSON": "the value is not JSON in UTF-8",
        "UNKNOWN_TYPE": "the ce_type header names an event this topic does not hold",
        "UNKNOWN_MAJOR": "the event has a major version this reader does not know",
        "INVALID": "a field is missing or has a value it may not have",
        "WRONG_KEY": "the record's key is not the one its value asks for",
        "NO_JOB": "the job of a snapshot is not on the jobs topic",
        "ENGINE_FAILED": "the engine ended with an error on the snapshot",
    }

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Record:
    """What goes to Kafka."""

    topic: Topic
    key: bytes
    value: bytes
    headers: Headers


def _describe(event: Wire) -> tuple[str, str, str, datetime | None]:
    """Return (id, producing service, root of the trace, instant) of an event."""
    match event:
        case MetricSnapshot():
            return event.snapshot_id, "collector", event.snapshot_id, event.observed_at
        case Decision():
            return event.decision_id, "decider", event.snapshot_id, event.decided_at
        case ScalingCommand():
            return identity("command", event.command_id), "decider", event.snapshot_id, event.issued_at
        case ActionResult():
            return event.result_id, "actuator", event.command_id, event.at
        case JobSpec():
            return identity("job", event.job_id, event.version), "tidegate", identity("job", event.job_id), None
        case DeadLetter():
            return event.letter_id, event.consumer, event.letter_id, event.seen_at
        case _:
            raise TypeError(f"{type(event).__name__} is not an event")


def encode(event: Wire, *, key: bytes | None = None, trace_id: str | None = None) -> Record:
    """Return the Kafka record of an event.

    `key` is only for dead letters, which keep the key of the unreadable record. `trace_id` (32 hex digits) continues
    a trace; without it the trace is derived from the snapshot the event goes back to.
    """
    topic = BY_MODEL[type(event)]
    event_id, service, root, instant = _describe(event)
    if topic.key != "original":
        key = cast(str, getattr(event, topic.key)).encode()
    trace = trace_id or trace_of(root)
    headers: Headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id.encode()),
        ("ce_source", f"/tidegate/{service}".encode()),
        ("ce_type", topic.event_type.encode()),
        ("ce_subject", cast(str, getattr(event, "job_id", "")).encode() or NO_SUBJECT),
        ("content-type", b"application/json"),
        ("traceparent", f"00-{trace}-{span_of(event_id)}-01".encode()),
    ]
    if instant is not None:
        headers.insert(4, ("ce_time", instant.isoformat().replace("+00:00", "Z").encode()))
    return Record(topic, key or b"", value_of(event), headers)


def value_of(event: Wire) -> bytes:
    """Return the canonical bytes of an event: compact JSON, fields in the order of the model, absent where None."""
    return event.model_dump_json(exclude_none=True).encode()


def trace_of(root: str) -> str:
    """Return the W3C trace id (32 hex digits) of the chain that began with the event `root`."""
    return identity("trace", root).replace("-", "")


def span_of(event_id: str) -> str:
    """Return the W3C span id (16 hex digits) of an event."""
    return event_id.replace("-", "")[:16]


def trace_from(headers: Iterable[tuple[str, bytes | None]] | None) -> str | None:
    """Return the trace id in a record's headers, or None where there is no well-formed one."""
    for name, raw in headers or ():
        if name == "traceparent" and raw:
            parts = raw.decode("ascii", "replace").split("-")
            if len(parts) == 4 and len(parts[1]) == 32 and set(parts[1]) <= set("0123456789abcdef"):
                return parts[1]
    return None


def job_named_by(headers: Iterable[tuple[str, bytes | None]] | None) -> str | None:
    """Return the job that a record's headers name; None if they name none, as those of a dead letter."""
    subject = next((raw for name, raw in headers or () if name == "ce_subject"), None)
    return None if subject in (None, NO_SUBJECT) else subject.decode("utf-8", "replace")


def decode(
    model: type[W],
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None = None,
    key: bytes | None = ANY_KEY,
) -> W:
    """Return the event in a record, or raise `Unreadable`. Unknown fields are dropped, unknown majors refused.

    A record without `ce_type`, such as one typed into a console producer, is taken for what its topic holds. A
    given `key` must be the one the event asks for, and None is not: a misplaced event would be handled by the wrong
    worker. Of a name that stands twice in one JSON object the last value holds, as everywhere in Tidegate.
    """
    topic = BY_MODEL[model]
    _check_type(topic, headers)
    if value is None:
        raise Unreadable("NO_VALUE", Unreadable.CODES["NO_VALUE"])
    if len(value) > MAX_VALUE_BYTES:
        raise Unreadable("TOO_LARGE", f"{len(value)} bytes, at most {MAX_VALUE_BYTES}")
    try:
        event = model.model_validate_json(value, extra="ignore")
    except ValidationError as error:
        raise _unreadable(error) from None
    if key is not ANY_KEY and topic.key != "original" and key != cast(str, getattr(event, topic.key)).encode():
        raise Unreadable("WRONG_KEY", f"key {key and key[:80]!r}, but {topic.key} is {getattr(event, topic.key)!r}")
    return event


def unknown_fields(model: type[Wire], value: bytes) -> list[str]:
    """Return the fields that `decode` drops from a readable value of an event: those of a newer version."""
    try:
        model.model_validate_json(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return [".".join(map(str, each["loc"])) for each in found if each["type"] == "extra_forbidden"]
    return []


def _check_type(topic: Topic, headers: Iterable[tuple[str, bytes | None]] | None) -> None:
    for name, raw in headers or ():
        if name != "ce_type" or raw is None:
            continue
        found = raw.decode("utf-8", "replace")
        if found == topic.event_type:
            return
        if found.rpartition(".v")[0] == topic.event_type.rpartition(".v")[0]:
            raise Unreadable("UNKNOWN_MAJOR", f"ce_type {found[:120]!r}, this reader knows {topic.event_type!r}")
        raise Unreadable("UNKNOWN_TYPE", f"ce_type {found[:120]!r} on a topic of {topic.event_type!r}")


def _unreadable(error: ValidationError) -> Unreadable:
    details = error.errors(include_url=False, include_context=False)
    first = details[0]
    if first["type"] == "json_invalid":
        return Unreadable("NOT_JSON", first["msg"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return Unreadable("INVALID", f"{in_words(first)}, found {repr(first['input'])[:120]}{more}")
