"""Reading JobSpecs from YAML or JSON. Every problem is reported with file, line, field and value.

The text is YAML 1.1, which includes JSON, without two traps: times stay text, and a duplicate key is an error.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tidegate.cli.problems import Problem
from tidegate.events.job import JobSpec
from tidegate.specfields import read_spec


class _Loader(yaml.SafeLoader):
    """YAML without implicit timestamps; a duplicate key is an error."""

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


def load_specs(path: Path) -> list[JobSpec]:
    """Return the JobSpecs of a file, one per YAML document; raises `Problem` with everything that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Problem(f"{path}: byte {error.start} is not UTF-8", "the file must be YAML or JSON in UTF-8") from None
    return parse_specs(text, str(path))


def parse_specs(text: str, name: str) -> list[JobSpec]:
    """Return the JobSpecs in a text; problems are reported under `name`."""
    loader = _Loader(text)
    specs: list[JobSpec] = []
    problems: list[str] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # noqa: S101  (check_node has just said so)
            data = loader.construct_document(node)
            spec, found = _spec(data, node)
            problems += [f"{name}:{line}: {problem}" for line, problem in found]
            if spec is not None:
                specs.append(spec)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Problem(f"{name}:{line}: {error.problem}", "the file must be YAML or JSON") from None
    except yaml.YAMLError as error:
        raise Problem(f"{name}: {error}", "the file must be YAML or JSON in UTF-8") from None
    except RecursionError:
        raise Problem(f"{name}: nested too deeply", "deploy/examples/job.yaml is a working example") from None
    finally:
        loader.dispose()
    if problems:
        raise Problem("\n       ".join(problems), "deploy/examples/job.yaml is a working example")
    if not specs:
        raise Problem(f"{name}: the file holds no spec", "deploy/examples/job.yaml is a working example")
    twice = sorted({s.job_id for s in specs if sum(o.job_id == s.job_id for o in specs) > 1})
    if twice:
        raise Problem(f"{name}: job_id {twice[0]!r} appears more than once")
    return specs


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
