"""Records on the wire: what cannot be read is refused with code, field, value and place; what can is never changed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from uuid import uuid5

import pytest
from pydantic import ValidationError

from tests.support.sample_events import sample_events
from tidegate.events.decision import Decision, Keyframe, TrailEntry
from tidegate.events.envelope import MAX_VALUE_BYTES, Unreadable, decode, encode, trace_from, trace_of, value_of
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot, SourceOffsets
from tidegate.events.wire import NAMESPACE, identity

EVENTS = sample_events()
SNAPSHOT = encode(EVENTS["snapshot.full"])


def altered(name: str, literal: str) -> bytes:
    """Return the full snapshot with one top-level field set to a JSON literal, which may be one no JSON has."""
    fields = json.loads(SNAPSHOT.value)
    fields[name] = "<here>"
    return json.dumps(fields).replace('"<here>"', literal).encode()


def without(name: str) -> bytes:
    """Return the full snapshot without one field."""
    fields = json.loads(SNAPSHOT.value)
    del fields[name]
    return json.dumps(fields).encode()


BAD_VALUES: dict[str, tuple[bytes | None, str, str]] = {
    "a tombstone": (None, "NO_VALUE", "no value"),
    "empty": (b"", "NOT_JSON", "line 1 column 0"),
    "not JSON": (b"lag is high", "NOT_JSON", "line 1 column 1"),
    "half a record": (SNAPSHOT.value[:100], "NOT_JSON", "line 1 column 100"),
    "two values": (SNAPSHOT.value + b"{}", "NOT_JSON", "trailing characters at line 1"),
    "not UTF-8": (b'{"job_id":"\xff"}', "NOT_JSON", "line 1 column 12"),
    "UTF-16": (SNAPSHOT.value.decode().encode("utf-16"), "NOT_JSON", "line 1 column 1"),
    "half a surrogate pair": (altered("incarnation", r'"\ud800"'), "NOT_JSON", "line 1 column"),
    "deep nesting": (b"[" * 100_000, "NOT_JSON", "recursion limit exceeded at line 1"),
    "deep nesting in an unknown field": (altered("new", "[" * 5000 + "]" * 5000), "NOT_JSON", "recursion limit"),
    "5 MB": (altered("incarnation", '"' + "x" * 5_000_000 + '"'), "TOO_LARGE", f"at most {MAX_VALUE_BYTES}"),
    "a list": (b"[]", "INVALID", "(whole value): Input should be an object, found []"),
    "null": (b"null", "INVALID", "(whole value): Input should be an object, found None"),
    "NaN": (altered("gc_ratio", "NaN"), "INVALID", "gc_ratio: Input should be a finite number, found nan"),
    "infinity": (altered("gc_ratio", "-Infinity"), "INVALID", "gc_ratio: Input should be a finite number, found -inf"),
    "a float out of range": (altered("gc_ratio", "1e999"), "INVALID", "gc_ratio: Input should be a finite number"),
    "a huge integer": (altered("slots_granted", "9" * 30), "INVALID", "slots_granted: Input should be less than"),
    "slots of no cluster": (
        altered("slots_granted", "1000001"),
        "INVALID",
        "slots_granted: must be at most",
    ),
    "a batch of ages": (
        altered(
            "batches", '[{"batch_id":1,"started_at":"2026-01-01T00:00:00Z","duration_seconds":1e10,"input_records":1}]'
        ),
        "INVALID",
        "batches.0.duration_seconds: must be at most 1,000,000,000, found 10000000000.0",
    ),
    "an integer of 5,000 digits": (altered("slots_granted", "9" * 5000), "NOT_JSON", "out of range at line 1 column"),
    "a number as a string": (altered("slots_granted", '"3"'), "INVALID", "slots_granted: Input should be a valid"),
    "a float for a count": (altered("slots_granted", "3.0"), "INVALID", "integer, found 3.0"),
    "true for a count": (altered("slots_granted", "true"), "INVALID", "integer, found True"),
    "a negative count": (altered("slots_granted", "-1"), "INVALID", "greater than or equal to 0, found -1"),
    "a time without an offset": (altered("observed_at", '"2026-01-01T00:00:00"'), "INVALID", "observed_at: Input"),
    "a time that is in no year of UTC": (
        altered("observed_at", '"0001-01-01T00:00:00+05:00"'),
        "INVALID",
        "observed_at: is out of range in UTC, found '0001-01-01T00:00:00+05:00'",
    ),
    "a time as a number": (altered("observed_at", "1700000000"), "INVALID", "observed_at: Input"),
    "a missing field": (without("sequence"), "INVALID", "sequence: Field required"),
    "an unknown word": (altered("state", '"asleep"'), "INVALID", "found 'asleep'"),
    "a job id for a path": (altered("job_id", '"../etc"'), "INVALID", "job_id: String should match pattern"),
    "an id of another snapshot": (altered("snapshot_id", '"abc"'), "INVALID", "snapshot_id 'abc' is not the id of"),
    "a nested wrong type": (
        altered("sources", '[{"topic":"a","end_offsets":[1,"2"],"committed_offsets":[1,2]}]'),
        "INVALID",
        "sources.0.end_offsets.1: Input should be a valid integer, found '2'",
    ),
    "uneven partitions": (
        altered("sources", '[{"topic":"a","end_offsets":[1,2],"committed_offsets":[1]}]'),
        "INVALID",
        "sources.0: topic a: 2 end offsets, 1 committed",
    ),
}


@pytest.mark.parametrize("bad", BAD_VALUES)
def test_a_bad_value_is_refused_with_field_value_and_place(bad: str) -> None:
    """Each bad input of the fault list gives `Unreadable` with its code and a short line that says where and what."""
    value, code, detail = BAD_VALUES[bad]
    with pytest.raises(Unreadable) as refused:
        decode(MetricSnapshot, value, SNAPSHOT.headers, SNAPSHOT.key)
    assert refused.value.code == code
    assert detail in refused.value.detail
    assert len(refused.value.detail) < 600
    assert "\n" not in refused.value.detail


@pytest.mark.parametrize("key", [None, b"", b"orders", b"\xff\xfe", b"shop\n"])
def test_a_wrong_key_is_refused(key: bytes | None) -> None:
    """An event under a key that is not its own, or under none, lies on another worker's partition: WRONG_KEY."""
    with pytest.raises(Unreadable, match="pipeline_id is 'shop'") as refused:
        decode(MetricSnapshot, SNAPSHOT.value, SNAPSHOT.headers, key)
    assert refused.value.code == "WRONG_KEY"


def test_headers_of_another_event_are_refused() -> None:
    """A record whose type header names another event, or garbage, is UNKNOWN_TYPE and the header is shown."""
    for kind in (b"tidegate.decision.v1", b"\xff\xfe", b"", b"x" * 10_000):
        with pytest.raises(Unreadable, match=r"tidegate\.snapshot\.v1") as refused:
            decode(MetricSnapshot, SNAPSHOT.value, [("ce_type", kind)], SNAPSHOT.key)
        assert refused.value.code == "UNKNOWN_TYPE"
        assert len(refused.value.detail) < 600


def test_foreign_headers_and_fields_do_not_disturb() -> None:
    """Headers nobody knows, a null header, no headers at all and Faust's type hints change nothing."""
    hinted = altered("__faust", '{"ns": "app.models.Snapshot"}')
    for headers in (None, [], [("x", b"\xff"), ("ce_type", None)], [*SNAPSHOT.headers, ("traceparent", b"zz")]):
        assert decode(MetricSnapshot, hinted, headers, SNAPSHOT.key) == EVENTS["snapshot.full"]


def test_the_last_of_two_equal_names_holds() -> None:
    """JSON leaves doubled names open; here the last one holds, for every reader alike."""
    doubled = SNAPSHOT.value[:-1] + b',"slots_granted":5}'
    assert decode(MetricSnapshot, doubled).slots_granted == 5


def test_every_code_is_explained() -> None:
    """Each code the reader can give stands in the table that dead letters refer to."""
    found = {code for _, code, _ in BAD_VALUES.values()}
    assert found | {"UNKNOWN_TYPE", "UNKNOWN_MAJOR", "WRONG_KEY", "NO_JOB", "ENGINE_FAILED"} == set(Unreadable.CODES)


def test_a_null_inside_a_tuple_or_dict_is_kept() -> None:
    """Only absent fields are left out: an unknown offset, figure or remembered value stays null on the wire."""
    offsets = SourceOffsets(topic="t", end_offsets=(3, None), committed_offsets=(None, 3))
    assert value_of(offsets) == b'{"topic":"t","end_offsets":[3,null],"committed_offsets":[null,3]}'
    full = EVENTS["decision.full"]
    assert isinstance(full, Decision)
    entry = TrailEntry("p", "C", 1, 2, "s", {"x": None})
    frame = Keyframe(state={"a": None, "b": [None, {"c": None}]}, spec=full.keyframe.spec)  # type: ignore[union-attr]
    decision = full.model_copy(update={"trail": (entry,), "keyframe": frame})
    wire = json.loads(encode(decision).value)
    assert wire["trail"][0]["numbers"] == {"x": None}
    assert wire["keyframe"]["state"] == {"a": None, "b": [None, {"c": None}]}
    assert decode(Decision, encode(decision).value) == decision


@pytest.mark.parametrize("name", EVENTS)
def test_a_writer_cannot_add_an_unknown_field(name: str) -> None:
    """Writing is strict: a model, and each value in it, refuses a field the contract does not have."""
    event = EVENTS[name]
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(event).model_validate({**event.model_dump(), "unexpected": 1})
    with pytest.raises(TypeError, match="unexpected"):
        TrailEntry("p", "C", 1, 2, "s", unexpected=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [{"interval_seconds": "10"}, {"gc_ratio": float("nan")}, {"sequence": 1.0}])
def test_a_writer_cannot_write_what_no_reader_would_read(wrong: dict[str, Any]) -> None:
    """A model built in Python neither coerces strings and floats nor takes NaN."""
    fields = {name: getattr(EVENTS["snapshot.full"], name) for name in MetricSnapshot.model_fields}
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        MetricSnapshot(**{**fields, **wrong})


@pytest.mark.parametrize("state", [{"a": float("nan")}, {"a": {"b": [1, float("inf")]}}])
def test_a_keyframe_refuses_numbers_that_json_cannot_hold(state: dict[str, Any]) -> None:
    """NaN or infinity anywhere in the engine's state is refused with its place, written or read, not made null."""
    with pytest.raises(ValidationError, match="finite number"):
        Keyframe(state=state, spec=EVENTS["job.full"])  # type: ignore[arg-type]
    wire = json.loads(encode(EVENTS["decision.full"]).value)
    wire["keyframe"]["state"] = state
    with pytest.raises(Unreadable, match=r"a(\.b\.1)? must be a finite number, found (nan|inf)"):
        decode(Decision, json.dumps(wire).encode())


def test_encoding_is_a_function_of_the_event() -> None:
    """The same event gives the same record, whichever object holds it."""
    for event in EVENTS.values():
        copy = type(event).model_validate_json(event.model_dump_json(exclude_none=True))
        assert dataclasses.astuple(encode(event)) == dataclasses.astuple(encode(copy))


def test_one_chain_is_one_trace() -> None:
    """Snapshot, decision and command of one chain carry the same trace id; a given trace is continued."""
    traces = {name: trace_from(encode(EVENTS[f"{name}.full"]).headers) for name in ("snapshot", "decision", "command")}
    assert set(traces.values()) == {trace_of(EVENTS["snapshot.full"].snapshot_id)}  # type: ignore[attr-defined]
    given = "0af7651916cd43dd8448eb211c80319c"
    assert trace_from(encode(EVENTS["result.full"], trace_id=given).headers) == given
    for broken in (b"", b"00-xyz-1-01", b"00-" + b"g" * 32 + b"-" + b"0" * 16 + b"-01", b"\xff"):
        assert trace_from([("traceparent", broken)]) is None


def test_a_lone_job_is_its_own_pipeline() -> None:
    """A job that names no pipeline gets the one of its own name, read from JSON as well as built in Python."""
    wire = json.loads(encode(EVENTS["job.minimal"]).value)
    del wire["pipeline_id"]
    assert decode(JobSpec, json.dumps(wire).encode(), key=b"orders").pipeline_id == "orders"


BAD_JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "min above max": ({"scaling": {"min_parallelism": 8, "max_parallelism": 4}}, "min_parallelism 8 is above"),
    "a least size below 0": ({"scaling": {"min_parallelism": -1}}, "scaling.min_parallelism: Input should be greater"),
    "a negative size": ({"scaling": {"max_parallelism": -3}}, "scaling.max_parallelism"),
    "an initial size outside": ({"scaling": {"initial_parallelism": 99}}, "initial_parallelism 99 is outside 1..16"),
    "a NaN objective": ({"scaling": {"lag_objective_seconds": float("nan")}}, "lag_objective_seconds"),
    "a size executors cannot make": (
        {"application": {"executor_cores": 3}},
        "min_parallelism and max_parallelism must be multiples of executor_cores (3)",
    ),
    "no source": ({"sources": []}, "sources: Tuple should have at least 1 item"),
    "a newline in a path": ({"application": {"script": "a\nb"}}, "application.script: String should match"),
    **{
        f"{part}.{name} beyond the calendar": ({part: {name: 1e12}}, f"{part}.{name}: must be at most")
        for part, name in (
            ("scaling", "command_ttl_seconds"),
            ("scaling", "lag_objective_seconds"),
            ("application", "stop_deadline_seconds"),
            ("application", "start_deadline_seconds"),
        )
    },
    "a path for a topic": ({"sources": ["../x"]}, "sources.0"),
    **{
        f"job id {name!r:.20}": ({"job_id": name, "pipeline_id": "orders"}, "job_id")
        for name in ("a/b", "..", "a..b", "a\nb", "a\n", "x" * 10_000, "оrders", "Orders", "", "-a", "a b", "a;rm")
    },
}


@pytest.mark.parametrize("bad", BAD_JOBS)
def test_a_bad_job_is_refused_at_the_edge(bad: str) -> None:
    """A job with an impossible size, path, topic or name is INVALID, and the line names the field."""
    change, detail = BAD_JOBS[bad]
    wire: dict[str, Any] = json.loads(encode(EVENTS["job.minimal"]).value)
    for name, value in change.items():
        wire[name] = {**wire[name], **value} if isinstance(value, dict) else value
    with pytest.raises(Unreadable) as refused:
        decode(JobSpec, json.dumps(wire).encode())
    assert refused.value.code == "INVALID"
    assert detail in refused.value.detail
    assert len(refused.value.detail) < 600


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("job.full", "version"),
        ("decision.full", "spec_version"),
        ("command.full", "spec_version"),
        ("result.full", "attempt"),
    ],
)
def test_a_number_beyond_64_bits_is_refused(name: str, field: str) -> None:
    """A version or attempt fits a 64-bit integer: with a larger one, Spark would end the audit of all records."""
    wire = json.loads(encode(EVENTS[name]).value)
    assert decode(type(EVENTS[name]), json.dumps(wire | {field: 2**63 - 1}).encode())
    with pytest.raises(Unreadable, match=f"{field}: must be at most"):
        decode(type(EVENTS[name]), json.dumps(wire | {field: 2**63}).encode())


@pytest.mark.parametrize("parts", [("a", 1), ("decision", "rates", "é\n", 2), ()])
def test_an_id_is_the_name_based_uuid_of_its_parts(parts: tuple[object, ...]) -> None:
    """Ids are RFC 9562 name-based UUIDs, version 5, of the parts joined by the unit separator."""
    assert identity(*parts) == str(uuid5(NAMESPACE, "\x1f".join(map(str, parts))))
