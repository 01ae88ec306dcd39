"""Writes docs/reference/ from the code: commands, settings, fields of every event, checks of the audit, versions.

python -m tools.reference_pages             writes the pages
python -m tools.reference_pages --check     says which pages are stale, and exits with 1
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import typer
from pydantic.fields import FieldInfo

from services.actuator.settings import ActuatorSettings
from services.collector.settings import CollectorSettings
from services.decider.settings import DeciderSettings
from services.keda.settings import KedaSettings
from services.operator.settings import OperatorSettings
from tidegate.cli import app
from tidegate.client import ClientSettings
from tidegate.console.settings import ConsoleSettings
from tidegate.events.topics import JOBS, TOPICS, Topic
from tidegate.replay.audit.checks import Hop, all_checks
from tidegate.runtime.settings import PREFIX, ServiceSettings
from tidegate.stack.versions import SPARK_VERSIONS
from tools.generated import write_or_check
from tools.schemas import json_schema

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
SERVICES: dict[str, type[ServiceSettings]] = {
    "collector": CollectorSettings,
    "decider": DeciderSettings,
    "actuator": ActuatorSettings,
    "console": ConsoleSettings,
    "operator": OperatorSettings,
    "keda": KedaSettings,
}


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {
        "checks.md": checks_page(),
        "commands.md": commands_page(),
        "events.md": events_page(),
        "settings.md": settings_page(),
        "spark-versions.md": spark_versions_page(),
    }


def checks_page() -> str:
    """Return the page of the audit's checks, as their files say it."""
    lines = [
        "# Checks of the audit",
        "",
        "Made from `tidegate/replay/audit/checks`: each check is one Spark SQL query. `tidegate audit` runs them all",
        "([how to](../how-to/audit.md)). The invariants are those of the [guarantees](../guarantees.md).",
    ]
    checks = all_checks()
    for hop in Hop:
        lines += ["", f"## {hop.value[0].upper()}{hop.value[1:]}", ""]
        lines += ["| check | finds | severity | invariant | needs |", "| --- | --- | --- | --- | --- |"]
        for check in checks:
            if check.hop is hop:
                facts = (check.severity.value, check.invariant or "", check.needs.value if check.needs else "")
                lines.append(f"| {_cell(check.title)} | {_cell(check.meaning)} | {' | '.join(facts)} |")
    return "\n".join(lines) + "\n"


def spark_versions_page() -> str:
    """Return the page of Spark's versions."""
    lines = [
        "# Versions of Spark",
        "",
        "Made from `tidegate/stack/versions.py`. A job may run on any of these versions; `tidegate doctor` says which",
        "one its cluster has. [Jobs on Spark 3.5](../how-to/spark-3.5.md) says how to try another version here.",
        "",
        "| Spark | tested with | Scala | Java | Python of the job | what the tests run on it |",
        "| --- | --- | --- | --- | --- | --- |",
        *(f"| {v.minor} | {v.tried} | {v.scala} | {v.java} | {v.python} | {_cell(v.tests)} |" for v in SPARK_VERSIONS),
        "",
        "## What a version lacks",
        "",
    ]
    for version in SPARK_VERSIONS:
        lines += [f"- **Spark {version.minor}**: {_cell('; '.join(version.lacks) or 'nothing')}."]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the page of the `tidegate` command, as its own help says it."""
    group: Any = typer.main.get_command(app)
    lines = ["# Commands", "", "Made from the command's own help. `tidegate COMMAND --help` shows the same.", ""]
    for words, command in _commands(group, ("tidegate",)):
        lines += [f"## {' '.join(words)}", "", *_help(command.help or ""), ""]
        options = [each for each in command.params if each.name != "help"]
        if options:
            lines += ["| argument or option | meaning |", "| --- | --- |"]
            lines += [f"| {_names(each)} | {_meaning(each)} |" for each in options]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found += _commands(command, (*words, name))
        else:
            found.append(((*words, name), command))
    return found


def _help(text: str) -> list[str]:
    """Return a command's help with its examples as a block of code."""
    before, example, after = text.replace("\b\n", "").partition("Example:")
    lines = before.rstrip().splitlines()
    if example:
        examples = [line.strip() for line in after.strip().splitlines()]
        lines += ["", "```", *examples, "```"]
    return lines


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return f"`{name if parameter.required else f'[{name}]'}{'' if parameter.nargs == 1 else '...'}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _meaning(parameter: Any) -> str:
    said = [getattr(parameter, "help", None) or ""]
    shown = isinstance(parameter.show_default, str) and " " not in parameter.show_default
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    plain = shown or isinstance(parameter.default, int | float | Path)
    if (
        isinstance(default, str | int | float | Path)
        and not isinstance(default, bool)
        and parameter.param_type_name == "option"
    ):
        said.append(f"Default: `{default}`." if plain else f"Default: {default}.")
    if variable := getattr(parameter, "envvar", None):
        said.append(f"Also: `{variable}`.")
    if parameter.required and parameter.param_type_name == "option":
        said.append("Required.")
    return _cell(" ".join(filter(None, said)))


def settings_page() -> str:
    """Return the page of the services' settings."""
    common = ServiceSettings.model_fields
    lines = [
        "# Settings",
        "",
        "Each setting is a variable, or a file of that name in lower case in `/run/secrets`. A service refuses to",
        "start with a `TIDEGATE_…` variable it does not know.",
        "",
        "## Every service",
        "",
        *_settings_table(common),
    ]
    for name, settings in SERVICES.items():
        known = ClientSettings.model_fields if issubclass(settings, ClientSettings) else common
        own = {field: info for field, info in settings.model_fields.items() if field not in known}
        lines += ["", f"## {name}", "", *_settings_table(own)]
    return "\n".join(lines) + "\n"


def _settings_table(fields: dict[str, FieldInfo]) -> list[str]:
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_default(info)} | {_cell(info.description or '')} |"
        for name, info in fields.items()
    ]
    return ["| variable | default | meaning |", "| --- | --- | --- |", *rows]


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True, validated_data={})
    return "" if value is None or value in ({}, ()) else f"`{value}`"


def events_page() -> str:
    """Return the page of the topics and of the fields of their events."""
    lines = [
        "# Events",
        "",
        "Made from the JSON Schemas in `schemas/json`. Rates are records/s, times seconds, instants RFC 3339 in UTC. A",
        "field that is not known is absent; it is never written as zero. Readers must ignore fields they do not know.",
        "A field whose default is *required* is always there.",
        "",
        "| topic | key | kept | content |",
        "| --- | --- | --- | --- |",
    ]
    for topic in TOPICS:
        kept = f"{topic.retention_days} days" if topic.retention_days else "for ever, compacted"
        lines.append(f"| [`{topic.name}`](#{topic.suffix}) | {topic.key} | {kept} | {topic.what} |")
    for topic in TOPICS:
        schema = json_schema(topic)
        parts = schema.get("$defs", {})
        lines += ["", f"## {topic.suffix}", "", *_introduction(topic), *_fields_table(schema, parts)]
        for name, part in sorted(parts.items()):
            if "properties" in part:
                lines += ["", f"### {name} in {topic.suffix}", "", *_fields_table(part, parts)]
    return "\n".join(lines) + "\n"


def _introduction(topic: Topic) -> list[str]:
    if topic is not JOBS:
        return []
    return [
        "These are also the fields of a job file, which `tidegate apply` checks and publishes. Only the fields marked",
        "*required* must be given. The pages of the [policies](../policies/README.md) and of the",
        "[guards](../policies/guards.md) list their options.",
        "",
    ]


def _fields_table(schema: dict[str, Any], parts: dict[str, Any]) -> list[str]:
    required = schema.get("required", ())
    rows = [
        f"| `{name}` | {_cell(_type(part, parts))} | {'*required*' if name in required else _preset(part)} |"
        f" {_cell(part.get('description', ''))} |"
        for name, part in schema["properties"].items()
    ]
    return ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows]


def _preset(part: dict[str, Any]) -> str:
    """Return the default of a field as JSON; nothing for an absent or an empty one."""
    value = part.get("default")
    return "" if value in (None, [], {}) else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _type(part: dict[str, Any], parts: dict[str, Any]) -> str:
    if "$ref" in part:
        name = str(part["$ref"]).rpartition("/")[2]
        return _type(parts[name], parts) if "enum" in parts[name] else name
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(each, parts) for each in part["anyOf"] if each.get("type") != "null"))
    if part.get("type") == "array":
        return f"list of {_type(part['items'], parts)}" if isinstance(part.get("items"), dict) else "list"
    return str(part.get("format") or part.get("type") or "any")


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return the exit code."""
    return write_or_check({FOLDER / name: text for name, text in pages().items()}, arguments, FOLDER)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
