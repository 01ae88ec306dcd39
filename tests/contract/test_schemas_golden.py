"""The contract against what was recorded before: golden payloads, generated files, and changes that break readers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.support.sample_events import sample_events
from tidegate.events.envelope import Headers, Unreadable, decode, encode, unknown_fields
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import TOPICS, Topic
from tidegate.events.wire import Wire
from tidegate.fleet.warnings import warnings_of
from tools import schemas as generate
from tools.compatibility import breaks, refused_by_older

GOLDEN = sorted(path for path in (generate.HERE / "golden").glob("*.json") if ".schema." not in path.name)
BY_TYPE = {topic.event_type: topic for topic in TOPICS}


def golden(path: Path) -> tuple[Topic, bytes, bytes, Headers]:
    """Return (topic, key, value, headers) of a golden file."""
    kept = json.loads(path.read_text("utf-8"))
    headers = [(name, text.encode()) for name, text in kept["headers"].items()]
    return BY_TYPE[kept["headers"]["ce_type"]], kept["key"].encode(), kept["value"].encode(), headers


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_bytes_are_read_and_written_again_identically(path: Path) -> None:
    """What an older Tidegate wrote is read by this one, and written again byte for byte, headers included."""
    topic, key, value, headers = golden(path)
    event = decode(topic.model, value, headers, key)
    again = encode(event, key=key)
    assert again.value == value
    assert again.headers == headers
    assert again.key == key


@pytest.mark.parametrize("name", sample_events())
def test_the_writer_still_writes_the_golden_bytes(name: str) -> None:
    """The same event gives the same bytes as on the day they were frozen: ids, order of fields, numbers, instants."""
    kind, _, size = name.partition(".")
    _, key, value, headers = golden(generate.HERE / "golden" / f"tidegate.{kind}.v1.{size}.json")
    made = encode(sample_events()[name], key=key)
    assert (made.value, made.headers) == (value, headers)


def test_every_event_has_a_full_and_a_minimal_payload() -> None:
    """No event is without frozen payloads, and together they set every field the event has."""
    for topic in TOPICS:
        paths = [path for path in GOLDEN if path.name.startswith(f"{topic.event_type}.")]
        assert {f"{topic.event_type}.full.json", f"{topic.event_type}.minimal.json"} <= {path.name for path in paths}
        fields = {name for path in paths for name in json.loads(golden(path)[2])}
        assert fields == topic.model.model_fields.keys()


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_newer_writers_fields_do_not_disturb_this_reader(path: Path) -> None:
    """Unknown fields at any depth are read past: the event is the same as without them."""
    topic, key, value, headers = golden(path)

    def grown(part: Any) -> Any:
        if isinstance(part, dict):
            free = {
                "conf",
                "env",
                "driver_template",
                "spark_application",
                "policy_options",
                "guards",
                "details",
                "numbers",
                "state",
                "queries",
            }  # any name
            return {n: v if n in free else grown(v) for n, v in part.items()} | {"added_in_v1_9": [{"x": None}]}
        return [grown(item) for item in part] if isinstance(part, list) else part

    newer = json.dumps(grown(json.loads(value))).encode()
    assert newer.count(b"added_in_v1_9") >= 1
    assert decode(topic.model, newer, headers, key) == decode(topic.model, value, headers, key)
    if topic.model is JobSpec:
        assert unknown_fields(JobSpec, value) == []
        named = unknown_fields(JobSpec, newer)
        assert {place.rpartition(".")[2] for place in named} == {"added_in_v1_9"}
        assert {"added_in_v1_9", "application.added_in_v1_9", "scaling.added_in_v1_9"} <= set(named)


def test_a_warning_of_a_newer_collector_does_not_disturb_this_reader() -> None:
    """Collectors may be upgraded before deciders: what was measured counts, and the warning is kept as it came."""
    _, key, value, headers = golden(generate.HERE / "golden" / "tidegate.snapshot.v1.warned.json")
    newer = value.replace(b"topic_not_read", b"added_in_v1_9")
    event = decode(MetricSnapshot, newer, headers, key)
    assert encode(event).value == newer
    (said,) = [each for each in warnings_of(event) if "added_in_v1_9" in each]
    assert said.endswith("does not know: upgrade it")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_an_unknown_major_version_is_refused_by_name(path: Path) -> None:
    """An event of a major version this reader does not know is UNKNOWN_MAJOR, however familiar its value looks."""
    topic, key, value, headers = golden(path)
    newer = [(n, v.replace(b".v1", b".v2") if n == "ce_type" else v) for n, v in headers]
    with pytest.raises(Unreadable) as refused:
        decode(topic.model, value, newer, key)
    assert refused.value.code == "UNKNOWN_MAJOR"
    assert f"{topic.event_type[:-1]}2" in refused.value.detail
    assert topic.event_type in refused.value.detail


DIGESTS = {
    "minimal": "716e7438-7b36-5ea3-9f63-fc8bb28cdef8",
    "full": "3c7649f6-bef0-533f-93a2-03786a00f3a5",
    "on_kubernetes": "17a06179-5a8f-56ab-b991-dc3135372fd4",
}


@pytest.mark.parametrize("size", DIGESTS)
def test_an_upgrade_does_not_make_running_applications_look_outdated(size: str) -> None:
    """What a run was started with has the same digest in every version; a field with a default must not change it.

    Otherwise every job would get a new driver after an upgrade.
    """
    _, key, value, headers = golden(generate.HERE / "golden" / f"tidegate.job.v1.{size}.json")
    assert decode(JobSpec, value, headers, key).application.digest == DIGESTS[size]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_payloads_fit_the_published_json_schema(path: Path) -> None:
    """The JSON Schema that other languages read by accepts what Tidegate writes."""
    topic, _, value, _ = golden(path)
    Draft202012Validator(generate.json_schema(topic)).validate(json.loads(value))


def test_generated_files_are_current() -> None:
    """The committed JSON Schemas and AsyncAPI document say what the models say."""
    assert generate.stale() == []
    assert generate.main(["--check"]) == 0


def test_a_stale_file_is_shown_as_a_diff(tmp_path: Path) -> None:
    """`--check` finds a changed and a missing file, and names them."""
    generate.write(tmp_path)
    assert generate.stale(tmp_path) == []
    changed = tmp_path / "json" / "results.schema.json"
    changed.write_text(changed.read_text("utf-8").replace('"verified"', '"proved"', 1), "utf-8")
    (tmp_path / "asyncapi.yaml").unlink()
    lines = "\n".join(generate.stale(tmp_path))
    assert '-        "proved"' in lines
    assert '+        "verified"' in lines
    assert "+++ asyncapi.yaml (generated)" in lines


def test_no_model_breaks_readers_of_what_was_recorded() -> None:
    """Against the frozen schemas of each major version nothing was removed, newly required or narrowed."""
    assert generate.broken() == []


def _at(schema: Any, *steps: str) -> Any:
    for step in steps:
        schema = schema[step]
    return schema


def _drop(name: str, *steps: str) -> Any:
    return lambda s: _at(s, *steps).pop(name)


def _set(name: str, value: Any, *steps: str) -> Any:
    return lambda s: _at(s, *steps).__setitem__(name, value)


MICRO_BATCH = ("$defs", "MicroBatch")
BREAKING = {
    "a field removed": (_drop("gc_ratio", "properties"), "$.gc_ratio: the field was removed"),
    "a nested field removed": (
        _drop("add_batch_seconds", *MICRO_BATCH, "properties"),
        "$.batches[].add_batch_seconds: the field was removed",
    ),
    "a field newly required": (
        lambda s: s["required"].append("incarnation"),
        "$.incarnation: the field became required",
    ),
    "a type narrowed": (
        _set("type", "integer", *MICRO_BATCH, "properties", "duration_seconds"),
        "$.batches[].duration_seconds: the type number became integer",
    ),
    "null no longer allowed": (
        _set("items", {"type": "integer", "minimum": 0}, "$defs", "SourceOffsets", "properties", "end_offsets"),
        "$.sources[].end_offsets[]: null is no longer allowed",
    ),
    "an enumeration narrowed": (
        lambda s: _at(s, "$defs", "ClusterState", "enum").remove("unknown"),
        "$.state: 'unknown' is no longer allowed",
    ),
    "an upper bound lowered": (
        _set("maximum", 60, "properties", "interval_seconds"),
        "$.interval_seconds: maximum fell from 3600 to 60",
    ),
    "a lower bound raised": (
        _set("minimum", 5, "properties", "interval_seconds"),
        "$.interval_seconds: minimum rose from 1 to 5",
    ),
    "fewer items allowed": (_set("maxItems", 100, "properties", "batches"), "$.batches: maxItems fell from 200 to 100"),
    "a pattern changed": (_set("pattern", "^x$", "properties", "job_id"), "became '^x$'"),
    "unknown fields refused": (_set("additionalProperties", False), "$: unknown fields are no longer allowed"),
}


@pytest.mark.parametrize("change", BREAKING)
def test_a_change_that_breaks_readers_is_refused(change: str) -> None:
    """Each kind of narrowing is found at its place and said in one line."""
    alter, expected = BREAKING[change]
    snapshot = next(topic for topic in TOPICS if topic.suffix == "snapshots")
    old = generate.json_schema(snapshot)
    new = copy.deepcopy(old)
    alter(new)
    found = breaks(old, new)
    assert len(found) == 1
    assert found[0].endswith(expected)


def test_growth_that_breaks_nobody_is_allowed() -> None:
    """A new optional field, a wider type, a wider enumeration and a lifted bound need no new major version."""
    snapshot = next(topic for topic in TOPICS if topic.suffix == "snapshots")
    old = generate.json_schema(snapshot)
    new = copy.deepcopy(old)
    new["properties"]["new_figure"] = {"type": "number"}
    new["$defs"]["ClusterState"]["enum"].append("suspended")
    new["properties"]["interval_seconds"] = {"type": "number", "minimum": 0, "maximum": 7200}
    new["properties"]["sequence"] = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}
    assert breaks(old, new) == []
    assert refused_by_older(old, old) == []
    refused = refused_by_older(old, new)
    assert "$.state: 'suspended' is no longer allowed" in refused
    assert not [line for line in refused if "new_figure" in line]  # older readers read past a new field


def test_recursive_definitions_are_compared_and_end() -> None:
    """A definition that refers to itself is compared once, and a change inside it is still found."""
    old: dict[str, Any] = {
        "$ref": "#/$defs/T",
        "$defs": {"T": {"properties": {"of": {"$ref": "#/$defs/T"}, "x": {"type": "number"}}}},
    }
    new = copy.deepcopy(old)
    assert breaks(old, new) == []
    new["$defs"]["T"]["properties"]["x"] = {"type": "string"}
    assert breaks(old, new) == ["$.x: the type number became string"]


def test_asyncapi_document_is_whole() -> None:
    """Each topic has its channel, message, operation and Kafka settings, and every reference leads somewhere."""
    document = yaml.safe_load((generate.HERE / "asyncapi.yaml").read_text("utf-8"))
    assert document["asyncapi"] == "3.0.0"
    for topic in TOPICS:
        channel = document["channels"][topic.suffix]
        assert channel["address"] == topic.name
        assert channel["bindings"]["kafka"]["topicConfiguration"]["cleanup.policy"] == [topic.cleanup]
        message = document["components"]["messages"][topic.model.__name__]
        assert message["headers"]["properties"]["ce_type"]["const"] == topic.event_type
        assert sum(o["channel"]["$ref"] == f"#/channels/{topic.suffix}" for o in document["operations"].values()) == 1

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            return [v for n, v in part.items() if n == "$ref"] + [r for v in part.values() for r in references(v)]
        return [r for item in part for r in references(item)] if isinstance(part, list) else []

    for reference in references(document):
        if reference.startswith("#/"):
            assert _at(document, *reference[2:].split("/")), reference
        else:
            assert (generate.HERE / reference).is_file(), reference


@pytest.mark.parametrize("event", sample_events().values(), ids=sample_events())
def test_headers_are_what_asyncapi_says(event: Wire) -> None:
    """The headers of a written event fit the AsyncAPI document's schema of them."""
    made = encode(event)
    message = generate.asyncapi()["components"]["messages"][type(event).__name__]
    headers = {name: value.decode() for name, value in made.headers}
    Draft202012Validator(message["headers"]).validate(headers)
    assert headers.keys() <= message["headers"]["properties"].keys()
