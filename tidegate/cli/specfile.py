"""Reading JobSpecs from YAML or JSON. Every problem is reported with file, line, field and value.

The text is YAML 1.1 without two traps: times stay text, and a duplicate key is an error. JSON is read as such where
YAML 1.1 does not include it: in its tabs, and in numbers such as 1e-05.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from tidegate.cli.problems import Problem
from tidegate.events.job import JobSpec
from tidegate.specfields import read_spec

EXAMPLE = "docs/how-to/try-out.md has a small job file, docs/reference/events.md lists all fields"
"""What to do about a bad spec. Whoever has only installed Tidegate has these pages, but no `deploy/`."""

MOST_VALUES = 100_000
"""A spec with more is too large for Kafka. In some lines of YAML, aliases of aliases make billions."""


class _Loader(yaml.SafeLoader):
    """YAML without implicit timestamps; a duplicate key is an error, and so is a value that is none of its kind."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError):  # such as 0x_, or a number of thousands of digits
            kind = node.tag.rpartition(":")[2]
            text = f"{node.value!r:.80} is not a value of the kind {kind}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a field name must be text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value}: appears twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _JsonLoader(_Loader):
    """The same, with the numbers of JSON."""


_JsonLoader.yaml_implicit_resolvers = {
    **_Loader.yaml_implicit_resolvers,
    **{
        first: [
            ("tag:yaml.org,2002:float", re.compile(r"^-?\d+(\.\d+)?[eE][-+]?\d+$")),
            *_Loader.yaml_implicit_resolvers.get(first, ()),
        ]
        for first in "-0123456789"
    },
}


def load_specs(path: Path) -> list[JobSpec]:
    """Return the JobSpecs of a file, one per YAML document; raises `Problem` with everything that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Problem(f"{path}: byte {error.start} is not UTF-8", "the file must be YAML or JSON in UTF-8") from None
    return parse_specs(text, str(path))


def parse_specs(text: str, name: str) -> list[JobSpec]:
    """Return the JobSpecs in a text; problems are reported under `name`."""
    try:
        loader = _JsonLoader(text.replace("\t", " ")) if _is_json(text) else _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character U+{error.character:04X} cannot be in a file"
        raise Problem(f"{name}:{line}: {what}", "the file must be YAML or JSON in UTF-8") from None
    specs: list[JobSpec] = []
    problems: list[str] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # noqa: S101  (check_node has just said so)
            if _values(node, {}) > MOST_VALUES:
                raise Problem(f"{name}: more than {MOST_VALUES:,} values, with those that aliases repeat", EXAMPLE)
            data = loader.construct_document(node)
            if data is None:  # a document that is empty, such as that after a last ---
                continue
            spec, found = _spec(data, node)
            problems += [f"{name}:{line}: {problem}" for line, problem in sorted(found, key=itemgetter(0))]
            if spec is not None:
                specs.append(spec)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        indent = re.match(r"\s*", "".join(text.splitlines()[line - 1 : line]))
        tabs = indent is not None and "\t" in indent[0]
        hint = "YAML is indented with spaces, not with tabs" if tabs else "the file must be YAML or JSON"
        raise Problem(f"{name}:{line}: {error.problem}", hint) from None
    except yaml.YAMLError as error:
        raise Problem(f"{name}: {error}", "the file must be YAML or JSON in UTF-8") from None
    except RecursionError:
        raise Problem(f"{name}: nested too deeply", EXAMPLE) from None
    finally:
        loader.dispose()
    if problems:
        raise Problem("\n       ".join(problems), EXAMPLE)
    if not specs:
        raise Problem(f"{name}: the file holds no spec", EXAMPLE)
    refuse_twice(specs, name)
    return specs


def refuse_twice(specs: Iterable[JobSpec], name: str) -> None:
    """Raise `Problem` if two specs are of the same job."""
    twice = sorted(job_id for job_id, times in Counter(spec.job_id for spec in specs).items() if times > 1)
    if twice:
        raise Problem(f"{name}: job_id {twice[0]!r} appears more than once")


def _is_json(text: str) -> bool:
    """Whether a text is one JSON value. In such a text, a tab is never part of a value."""
    try:
        json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return False
    return True


def _values(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Return how many values a node comes to, each counted as often as an alias repeats it."""
    if node not in known:
        known[node] = 1  # one inside itself is found later
        inner = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        known[node] += 0 if isinstance(node, yaml.ScalarNode) else sum(_values(each, known) for each in inner)
    return known[node]


def _spec(data: object, node: yaml.Node) -> tuple[JobSpec | None, list[tuple[int, str]]]:
    if not isinstance(data, dict):
        return None, [(node.start_mark.line + 1, f"a spec must be a mapping of fields, found {type(data).__name__}")]
    spec, problems = read_spec(data)
    return spec, [(_line(node, problem.loc), problem.text) for problem in problems]


def _line(node: yaml.Node, loc: Sequence[int | str]) -> int:
    """Return the line of the deepest field of `loc` that is in the text."""
    line = node.start_mark.line + 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and str(part).isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line
