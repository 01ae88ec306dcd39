"""Another policy, other options or limits: one change, applied to each recorded version of a job's spec. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from tidegate.engine.options import option_model
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec, Scaling
from tidegate.events.wire import Scalar
from tidegate.installed import engine
from tidegate.specfields import field_errors, in_field
from tidegate.whatif.recorded import CannotTry

Vary = Callable[[JobSpec], JobSpec]
"""Gives a recorded version of a spec its other form."""


def varied(
    spec: JobSpec, *, policy: str | None = None, values: Mapping[str, Scalar] = {}, scaling: Scaling | None = None
) -> JobSpec:
    """Return a spec with another `scaling`, another policy (without the old one's options), and values by their path.

    A path is as in the job file, such as `scaling.policy_options.late_price`. Raises `CannotTry` with the first thing
    that is wrong with the form of the spec; whether the policy knows the options is for `checked`.
    """
    fields: dict[str, Any] = json.loads(value_of(spec))
    if scaling is not None:
        fields["scaling"] = scaling.model_dump(mode="json", exclude_none=True)
    if policy is not None:
        fields["scaling"] = {**fields["scaling"], "policy": policy, "policy_options": {}}
    for path, value in values.items():
        _put(fields, path, value)
    try:
        return JobSpec.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise CannotTry(in_field(*field_errors(error, fields)[0])) from None
    except RecursionError:
        raise CannotTry("a name has too many dots") from None


def _put(fields: dict[str, Any], path: str, value: Scalar) -> None:
    *parents, last = path.split(".")
    place = fields
    for name in parents:
        inner = place.setdefault(name, {})
        if not isinstance(inner, dict):
            raise CannotTry(f"{path}: {name} has no fields")
        place = inner
    place[last] = value


def checked(spec: JobSpec) -> JobSpec:
    """Return a spec that this engine accepts; raises `CannotTry` with all its problems."""
    if problems := engine().check(spec):
        raise CannotTry("; ".join(problems))
    return spec


def values_of(assignments: Iterable[str]) -> dict[str, Scalar]:
    """Return `path=value` assignments as values by path; raises `CannotTry` with the bad one."""
    found: dict[str, Scalar] = {}
    for line in filter(None, map(str.strip, assignments)):
        name, _, value = (part.strip() for part in line.partition("="))
        if not (name and value):
            raise CannotTry(f"{line!r} has no name or no value: write `name=value`")
        found[name] = scalar_of(value)
    return found


def scalar_of(text: str) -> Scalar:
    """Return `true`, `false`, a number, or the text itself."""
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def known_options(policy: str) -> list[tuple[str, str, str]]:
    """Return the options of a policy: name, default, meaning; none of a policy that is not installed."""
    found = engine().policies.get(policy)
    fields = option_model(found.Options).model_fields if found is not None else {}
    return [
        (name, "none" if field.default is None else str(field.default), field.description or "")
        for name, field in fields.items()
    ]
