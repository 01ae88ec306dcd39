"""What is published, made from the models: a JSON Schema per event and of the job file, and an AsyncAPI 3 document.

    python -m tools.schemas            write `json/` and `asyncapi.yaml`
    python -m tools.schemas --check    change nothing; exit 1 with a diff if they are stale or break readers
    python -m tools.schemas --freeze   write, and make the present schemas the frozen ones of their major version

The JSON Schemas of events say what a *reader* must accept, so unknown fields are allowed in them; the models see to
it that writers add none. `golden/*.schema.json` are the frozen schemas that `tools.compatibility` compares with.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tidegate.events.topics import TOPICS, Topic
from tools.compatibility import Schema, breaks, refused_by_older
from tools.job_file import Untitled, job_file_schema

HERE = Path(__file__).resolve().parent.parent / "schemas"
CONTRACT_VERSION = "1.0.0"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PRODUCERS = {
    "jobs": "operators, through the `tidegate` command or the console",
    "snapshots": "the collector",
    "decisions": "the decider",
    "commands": "the decider",
    "results": "the actuator",
    "dead-letters": "whichever service could not read a record",
}
_HEADERS = {
    "ce_specversion": ("CloudEvents version.", {"const": "1.0"}),
    "ce_id": ("Id of the event, a function of its input: the same id is the same event.", {"format": "uuid"}),
    "ce_source": ("The service that wrote it.", {"pattern": "^/tidegate/[a-z]+$"}),
    "ce_time": ("When it happened; absent on a job.", {"format": "date-time"}),
    "ce_subject": ("The job it is about, `-` where there is none.", {}),
    "content-type": ("Always JSON.", {"const": "application/json"}),
    "traceparent": ("W3C Trace Context.", {"pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$"}),
}


def json_schema(topic: Topic) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a topic's event, as a reader must take it."""
    made = topic.model.model_json_schema(schema_generator=Untitled)
    return {"$schema": DRAFT, "$id": f"urn:{topic.event_type.replace('.', ':')}", **_open(made)}


def _open(schema: Any) -> Any:
    """Allow unknown fields everywhere: the writers' models refuse them, readers must not."""
    if isinstance(schema, dict):
        return {
            name: _open(value)
            for name, value in schema.items()
            if not (name == "additionalProperties" and value is False)
        }
    return [_open(item) for item in schema] if isinstance(schema, list) else schema


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document of the topics table."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tidegate events",
            "version": CONTRACT_VERSION,
            "description": "Every hop of Tidegate is a Kafka event: JSON in CloudEvents 1.0 binary mode, with a W3C "
            "traceparent. `tidegate.` is the default prefix of the topics.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {topic.suffix: _channel(topic) for topic in TOPICS},
        "operations": {
            f"{'receive' if topic.suffix == 'jobs' else 'send'}-{topic.suffix}": {
                "action": "receive" if topic.suffix == "jobs" else "send",
                "summary": f"Written by {_PRODUCERS[topic.suffix]}.",
                "channel": {"$ref": f"#/channels/{topic.suffix}"},
            }
            for topic in TOPICS
        },
        "components": {"messages": {topic.model.__name__: _message(topic) for topic in TOPICS}},
    }


def _channel(topic: Topic) -> dict[str, Any]:
    name = topic.model.__name__
    policy: dict[str, Any] = {"cleanup.policy": [topic.cleanup]}
    if topic.retention_days is not None:
        policy["retention.ms"] = topic.retention_days * 86_400_000
    return {
        "address": topic.name,
        "description": topic.what,
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "bindings": {"kafka": {"topic": topic.name, "topicConfiguration": policy, "bindingVersion": "0.5.0"}},
    }


def _message(topic: Topic) -> dict[str, Any]:
    headers = {name: {"type": "string", "description": text, **more} for name, (text, more) in _HEADERS.items()} | {
        "ce_type": {"type": "string", "description": "Event and major version.", "const": topic.event_type}
    }
    key = {"original": "The key of the record that could not be read."}.get(topic.key, f"`{topic.key}` of the value.")
    return {
        "name": topic.event_type,
        "title": topic.model.__name__,
        "summary": (topic.model.__doc__ or "").strip(),
        "contentType": "application/json",
        "headers": {"type": "object", "required": ["ce_id", "ce_type"], "properties": dict(sorted(headers.items()))},
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": {"$ref": f"./json/{topic.suffix}.schema.json"},
        },
        "bindings": {"kafka": {"key": {"type": "string", "description": key}, "bindingVersion": "0.5.0"}},
    }


def artefacts() -> dict[Path, str]:
    """Return every generated file, relative to this folder, with its text."""
    files = {Path("json") / f"{topic.suffix}.schema.json": _json(json_schema(topic)) for topic in TOPICS}
    files[Path("json") / "job-file.schema.json"] = _json(job_file_schema())
    head = "# Generated by `python -m tools.schemas` from the models and the topics table; edit those.\n"
    text = yaml.safe_dump(asyncapi(), sort_keys=False, width=120, allow_unicode=True)
    return {**files, Path("asyncapi.yaml"): head + text}


def frozen(topic: Topic) -> Path:
    """Return where the frozen schema of a topic's event is kept, relative to this folder."""
    return Path("golden") / f"{topic.event_type}.schema.json"


def broken(compare: Callable[[Schema, Schema], list[str]] = breaks) -> list[str]:
    """Return how the present models break readers of what the frozen schemas allowed, or another comparison of them."""
    return [
        f"{topic.event_type} {line}"
        for topic in TOPICS
        for line in compare(json.loads((HERE / frozen(topic)).read_text("utf-8")), json_schema(topic))
    ]


def stale(folder: Path = HERE) -> list[str]:
    """Return, as lines of a diff, how the generated files in `folder` differ from what the models say."""
    lines: list[str] = []
    for path, text in artefacts().items():
        file = folder / path
        found = file.read_text("utf-8") if file.is_file() else ""
        was, now = found.splitlines(), text.splitlines()
        lines += difflib.unified_diff(was, now, f"{path}", f"{path} (generated)", lineterm="")
    return lines


def write(folder: Path = HERE) -> list[Path]:
    """Write every generated file below `folder`; return their paths."""
    files = {folder / path: text for path, text in artefacts().items()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return list(files)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit code: 0, or 1 when `--check` or `--freeze` found something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.schemas", description=(__doc__ or "").split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff if a file is stale")
    what.add_argument("--freeze", action="store_true", help="make the present schemas the frozen ones")
    chosen = parser.parse_args(arguments)
    out = sys.stdout.write
    known = all((HERE / frozen(topic)).is_file() for topic in TOPICS)
    if violations := broken() if known else []:
        out("These changes break readers of what was recorded before; add a new major version instead:\n")
        out("".join(f"  {line}\n" for line in violations))
        return 1
    if chosen.check:
        diff = stale()
        if diff or not known:
            out("".join(f"{line}\n" for line in diff))
            out("The generated contract is stale: run `python -m tools.schemas`.\n")
        return int(bool(diff) or not known)
    if wider := broken(refused_by_older) if known else []:
        out("Readers of the frozen schemas refuse this; say in CHANGELOG.md which services to upgrade first:\n")
        out("".join(f"  {line}\n" for line in wider))
    for path in write():
        out(f"wrote {path.relative_to(HERE.parent)}\n")
    if chosen.freeze:
        for topic in TOPICS:
            (HERE / frozen(topic)).write_text(_json(json_schema(topic)), "utf-8")
        out(f"froze {len(TOPICS)} schemas\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
