"""What a change of the contract may not do to readers of what was recorded before.

Recorded events are read for ever, so a newer schema must accept all that an older one of the same major version
accepted, and must still show each of its fields. `breaks` lists what is violated: a field removed or newly required,
a type, an enumeration or a bound narrowed. Adding an optional field, widening a type or an enumeration is allowed
(readers are upgraded before writers). Anything else is a new major version, `….v2`, next to the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "format")


def breaks(old: Schema, new: Schema) -> list[str]:
    """Return every way in which `new` breaks readers of what `old` allowed; each line names path and change.

    Args:
        old: JSON Schema (draft 2020-12) of an event as it was frozen; local `$ref`s only.
        new: JSON Schema of the same event as the models say it now.
    """
    return list(_Comparison(old, new).compare(old, new, "$", frozenset()))


def refused_by_older(old: Schema, new: Schema) -> list[str]:
    """Return what `new` allows and readers of `old` refuse, as they see it; new fields they read past."""
    return [line for line in breaks(new, old) if not line.endswith(": the field was removed")]


class _Comparison:
    """One comparison; keeps the two roots, against which `$ref` is resolved."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new

    def compare(self, old: Schema, new: Schema, at: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        """Yield what `new` refuses, or no longer shows, of what `old` allowed at one place."""
        names = (old.get("$ref", ""), new.get("$ref", ""))
        if any(names):
            if names in seen:  # a recursive definition: this pair is being compared already
                return
            seen |= {names}
        old, new = _resolved(old, self._old), _resolved(new, self._new)
        branches = _branches(old), _branches(new)
        if len(branches[0]) > 1 or len(branches[1]) > 1:
            for branch in branches[0]:
                if not any(not list(self.compare(branch, other, at, seen)) for other in branches[1]):
                    yield f"{at}: {_named(branch)} is no longer allowed"
            return
        yield from _values(old, new, at)
        yield from self._object(old, new, at, seen)
        yield from self._array(old, new, at, seen)

    def _object(self, old: Schema, new: Schema, at: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        was, now = old.get("properties", {}), new.get("properties", {})
        for name in sorted(was.keys() - now.keys()):
            yield f"{at}.{name}: the field was removed"
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{at}.{name}: the field became required"
        for name in sorted(was.keys() & now.keys()):
            yield from self.compare(was[name], now[name], f"{at}.{name}", seen)
        if isinstance(new.get("additionalProperties"), dict):
            values = old.get("additionalProperties", {})
            if values is not False:
                yield from self.compare(
                    values if values is not True else {}, new["additionalProperties"], f"{at}.*", seen
                )
        elif new.get("additionalProperties") is False and old.get("additionalProperties") is not False:
            yield f"{at}: unknown fields are no longer allowed"

    def _array(self, old: Schema, new: Schema, at: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        if "items" in new:
            yield from self.compare(old.get("items", {}), new["items"], f"{at}[]", seen)
        for place, item in enumerate(new.get("prefixItems", ())):
            before = old.get("prefixItems", ())
            yield from self.compare(before[place] if place < len(before) else {}, item, f"{at}[{place}]", seen)


def _resolved(schema: Schema, root: Schema) -> Schema:
    """Follow a local `$ref`; what stands next to it (a description, a default) neither allows nor refuses anything."""
    while "$ref" in schema:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        schema = target
    return schema


def _branches(schema: Schema) -> list[Schema]:
    return schema.get("anyOf") or schema.get("oneOf") or [schema]


def _values(old: Schema, new: Schema, at: str) -> Iterator[str]:
    """Yield how the plain values of one place were narrowed."""
    was, now = old.get("type"), new.get("type")
    if now is not None and was != now and (was, now) != ("integer", "number"):
        yield f"{at}: the type {was or 'anything'} became {now}"
    allowed, before = _enumeration(new), _enumeration(old)
    if allowed is not None:
        lost = [value for value in before or ["(anything)"] if value not in allowed]
        if lost:
            yield f"{at}: {', '.join(map(repr, lost))} is no longer allowed"
    for word in _LOWER:
        if word in new and (word not in old or old[word] < new[word]):
            yield f"{at}: {word} rose from {old.get(word, 'none')} to {new[word]}"
    for word in _UPPER:
        if word in new and (word not in old or old[word] > new[word]):
            yield f"{at}: {word} fell from {old.get(word, 'none')} to {new[word]}"
    for word in _EXACT:
        if word in new and old.get(word) != new[word]:
            yield f"{at}: {word} {old.get(word, 'none')!r} became {new[word]!r}"


def _enumeration(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _named(schema: Schema) -> str:
    return str(schema.get("$ref", "").rpartition("/")[2] or schema.get("type") or schema)
