"""A JobSpec from its fields, as a file or another system gives them. Each problem names field and value. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tidegate.events.invalid import text_of
from tidegate.events.job import JobSpec
from tidegate.installed import engine

DEEPEST = 50
"""Levels of a spec, with all that a part of a pod needs. A reader takes 200, and a decision that carries a spec has
more than the spec."""
LEAST_POD_MB = 466
"""Spark refuses a heap of less than 450 MiB. In a container of less than two CPUs or 1792 MiB, Java takes its serial
collector, and does not count the 1/30 of the heap that this one keeps free."""


_FORMS = frozenset({"constrained-str", "str", "bool", "int", "float"})
"""What pydantic calls the forms of a field that has several."""


_NAME = "must be 1 to 63 of a-z 0-9 . _ -, with a letter or digit at both ends and no two dots in a row"
_URL = "must be like http://HOST:PORT"
_IN_WORDS = {
    "job_id": _NAME,
    "pipeline_id": _NAME,
    "pool_id": _NAME,
    "kafka_cluster": _NAME,
    "master": "must be like spark://HOST:7077, k8s://https://HOST:443 or local[2], or be yarn",
    "rest_url": _URL,
    "master_ui_url": _URL,
    "currency": "must be three capital letters, such as EUR",
}
"""What a text must be that does not match the pattern of a field."""


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """What is wrong with a spec, and where."""

    loc: tuple[int | str, ...]
    """The way to the field, from outside in; empty for the whole spec."""
    text: str
    """Field, what is wrong, and the value."""


def read_spec(fields: Mapping[str, Any]) -> tuple[JobSpec | None, list[SpecProblem]]:
    """Return the spec, or None if it is none, and everything that is wrong with it, policies and guards included."""
    too_deep = None, [SpecProblem((), f"(the whole spec): nested deeper than {DEEPEST} levels")]
    try:
        text = json.dumps(fields)
        if _is_deeper(fields, DEEPEST):
            return too_deep
        spec = JobSpec.model_validate_json(text)
    except RecursionError:
        return too_deep
    except ValidationError as error:
        return None, [
            SpecProblem(loc, in_field(kind, loc, text, value)) for kind, loc, text, value in field_errors(error, fields)
        ]
    except (TypeError, ValueError) as error:  # YAML allows more than JSON, such as .nan or binary values
        return None, [SpecProblem((), f"not a JSON value: {error}")]
    texts = [*engine().check(spec), *_too_little_memory(spec)]
    return spec, [SpecProblem(tuple(text.partition(":")[0].split(".")), text) for text in texts]


def field_errors(
    error: ValidationError, fields: Mapping[str, Any]
) -> list[tuple[str, tuple[int | str, ...], str, object]]:
    """Return (kind, way to the field, what is wrong, value) of each problem, without what only follows from another.

    Of a field with several forms, pydantic reports each form that the value does not have, under a name that is no
    field. It also reports fields whose default depends on a bad one, and sequences that are short of a bad item.
    """
    found: dict[tuple[int | str, ...], tuple[str, tuple[int | str, ...], str, object]] = {}
    details = error.errors(include_url=False, include_context=False)
    for each in details:
        kind, loc, text = each["type"], each["loc"], text_of(each)
        follows = any(other["loc"][: len(loc)] == loc and len(other["loc"]) > len(loc) for other in details)
        if kind == "default_factory_not_called" or (kind == "too_short" and follows):
            continue
        if loc and loc[-1] in _FORMS and not _has(fields, loc):
            loc = loc[:-1]
            text = f"{found[loc][2]}; or: {text}" if loc in found else text
        found[loc] = kind, loc, text, each["input"]
    return list(found.values())


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether a value, in which nothing contains itself, has more levels."""
    if not isinstance(value, dict | list | tuple):
        return False
    return levels == 0 or any(
        _is_deeper(inner, levels - 1) for inner in (value.values() if isinstance(value, dict) else value)
    )


def _has(fields: object, loc: tuple[int | str, ...]) -> bool:
    for part in loc:
        if not isinstance(fields, Mapping) or part not in fields:
            return False
        fields = fields[part]
    return True


def _too_little_memory(spec: JobSpec) -> Iterator[str]:
    """Yield a problem for each heap that Spark would refuse in a pod (INVALID_DRIVER_MEMORY)."""
    if spec.application.kubernetes is None:
        return
    for name in ("executor_memory_mb", "driver_memory_mb"):
        given = getattr(spec.application, name)
        if given < LEAST_POD_MB:
            yield (
                f"application.{name}: must be at least {LEAST_POD_MB} on Kubernetes, found {given}: Spark needs 450 MB,"
                " and in a small container Java counts less than it is given"
            )


def in_field(kind: str, loc: tuple[int | str, ...], message: str, value: object) -> str:
    """Return one of `field_errors` as a text: field, what is wrong, and the value."""
    field = ".".join(map(str, loc)) or "(the whole spec)"
    if kind == "missing":
        return f"{field}: this field is required"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), _fields_at(loc[:-1]), n=1)
        return f"{field}: unknown field" + (f"; did you mean {near[0]!r}?" if near else "")
    if kind == "too_short":  # of every list that may not be empty
        return f"{field}: needs at least one entry"
    if kind == "string_pattern_mismatch" and loc:
        message = _IN_WORDS.get(str(loc[-1]), message)
    if kind == "tuple_type":
        message = f"must be a list, such as [{value if isinstance(value, str) else 'a, b'}]"
    if kind == "value_error":
        return f"{field}: {message}"
    return f"{field}: {message}, found {value!r:.120}"


def _fields_at(loc: tuple[int | str, ...]) -> Sequence[str]:
    model: type[BaseModel] = JobSpec
    for part in loc:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        choices = [annotation, *getattr(annotation, "__args__", ())]
        inner = [c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)]
        if not inner:
            return ()
        model = inner[0]
    return list(model.model_fields)
