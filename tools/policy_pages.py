"""The pages of docs/policies: an index, a page per policy, the guards and the reason codes, made from the code.

    python -m tools.policy_pages           write the pages and remove those that nothing makes any more
    python -m tools.policy_pages --check   list the pages that are stale, missing or extra; exit code 1 if there are any

A policy documents itself: its page is its module's docstring, the options of its class and its reason codes. In the
docstring, a paragraph that starts with one of these words has its own place:

    When to choose it:   in the index, too
    Set first:           the options to look at first; in the index, too
    Details:             names of modules of the same package, whose docstrings are appended
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from tidegate.engine.guard import ForcingGuard
from tidegate.engine.guards import GUARDS
from tidegate.engine.options import NoOptions
from tidegate.engine.plan import own_defaults
from tidegate.engine.reasons import Reason
from tidegate.installed import engine
from tidegate.policies import behaviour
from tools import policy_texts as texts
from tools.generated import write_or_check

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "policies"

LABELS = ("When to choose it", "Set first")


class Described(NamedTuple):
    """What the docstring of a policy's module says."""

    title: str
    theory: str
    labelled: Mapping[str, str]
    """Text of the paragraphs with a label, by label."""


def ours() -> tuple[Any, ...]:
    """Return the policies that come with Tidegate; other installed ones have documentation of their own."""
    return tuple(p for p in engine().policies.values() if p.__module__.startswith("tidegate."))


def described(policy: Any) -> Described:
    """Return what a policy says of itself."""
    title, rest = _doc(sys.modules[policy.__module__])
    theory, labelled = [], {}
    for paragraph in rest.split("\n\n"):
        label, _, text = paragraph.partition(": ")
        if label in (*LABELS, "Details"):
            labelled[label] = " ".join(text.split())
        else:
            theory.append(paragraph)
    return Described(_sentence(title.partition(": ")[2]), "\n\n".join(theory), labelled)


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    made = {
        "README.md": _page(_index()),
        "guards.md": _page(_guards()),
        "reasons.md": _page(_reason_codes(engine().reasons)),
        "behaviour.md": _page(_behaviour()),
    }
    return made | {f"{policy.name}.md": _page(_policy(policy)) for policy in ours()}


def _page(lines: Iterable[str]) -> str:
    return "\n".join([*lines, "", texts.GENERATED]) + "\n"


def _index() -> Iterator[str]:
    yield texts.INDEX
    yield from _table(("term", "unit", "meaning"), texts.TERMS)
    yield from ("", texts.CHOICE)
    rows = (
        (f"[`{p.name}`]({p.name}.md)", _doc(p)[0], *(described(p).labelled.get(label, "") for label in LABELS))
        for p in ours()
    )
    yield from _table(("policy", "decides by", "when to choose it", "set first"), rows)
    yield texts.OWN_POLICY.rstrip("\n")


def _policy(policy: Any) -> Iterator[str]:
    """Yield the page of one policy."""
    told = described(policy)
    yield from (f"# {policy.name}", "", texts.LINKS, "", told.title, "")
    for label in LABELS:
        if label in told.labelled:
            yield from (f"**{label}:** {told.labelled[label]}", "")
    yield from ("## How it works", "", told.theory, "", "## Options", "")
    shared = issubclass(policy.Options, behaviour.BehaviourOptions)
    if shared:
        yield from ("The options of the [behaviour](behaviour.md), and:", "")
    yield from _options(policy.Options, without=behaviour.BehaviourOptions if shared else NoOptions)
    yield from ("", "## Reason codes", "", *_reason_table(policy.reasons))
    for name in re.findall(r"`(\w+)`", told.labelled.get("Details", "")):
        module = import_module(f"{policy.__module__.rpartition('.')[0]}.{name}")
        first, rest = _doc(module)
        yield from ("", f"## Details: {name}", "", _sentence(first), "", rest, *_constants(module, rest))


def _constants(module: Any, text: str) -> Iterator[str]:
    """Yield the values of the module's constants that a text names."""
    named = dict.fromkeys(re.findall(r"\b[A-Z][A-Z_]{3,}\b", text))
    values = {name: getattr(module, name, None) for name in named}
    if told := [f"`{name}` = {value:g}" for name, value in values.items() if isinstance(value, int | float)]:
        yield from ("", f"Values: {', '.join(told)}.")


def _behaviour() -> Iterator[str]:
    yield from ("# Behaviour", "", texts.LINKS, "", "\n\n".join(_doc(behaviour)), "", "## Options", "")
    yield from _options(behaviour.BehaviourOptions)


def _guards() -> Iterator[str]:
    yield texts.GUARDS
    heading = ("guard", "what it does", "checks", "waits", "manual", "forces")
    yield from _table(heading, (_guard_row(guard) for guard in GUARDS))
    for guard in GUARDS:
        if fields(guard):
            first, theory = _doc(guard)
            yield from ("", f"## {guard.name}", "", first, "")
            if theory:
                yield from (theory, "")
            yield from _options(guard)
            yield from _own_defaults(guard)


def _own_defaults(guard: Any) -> Iterator[str]:
    """Yield what policies that do a guard's work themselves take for its options, unless a job says otherwise."""
    for policy in ours():
        page = f"[`{policy.name}`]({policy.name}.md)"
        for option, value in own_defaults(policy, guard).items():
            yield from ("", f"With the policy {page}, the default of `{option}` is {_default(value)}.")


def _guard_row(guard: Any) -> tuple[str, ...]:
    name = f"[`{guard.name}`](#{guard.name})" if fields(guard) else f"`{guard.name}`"
    flags = (guard.waits, guard.binds_manual, issubclass(guard, ForcingGuard))
    return (name, _doc(guard)[0], ", ".join(sorted(guard.covers)), *("yes" if flag else "" for flag in flags))


def _reason_codes(reasons: Mapping[str, Reason]) -> Iterator[str]:
    yield texts.REASONS.rstrip("\n")
    yield from (f"| `{status.value}` | {lag} | {remedy} |" for status, lag, remedy in texts.STATUSES)
    yield texts.CODES.rstrip("\n")
    yield ""
    yield from _reason_table({code: reasons[code] for code in sorted(reasons)})


def _reason_table(reasons: Mapping[str, Reason]) -> Iterator[str]:
    rows = [
        (f"`{code}`", re.sub(r"\{(\w+):[^}]*\}", r"{\1}", reason.explanation), reason.remedy)
        for code, reason in reasons.items()
    ]
    yield from _table(("code", "explanation", "what can be done"), rows)


def _options(options: Any, without: Any = NoOptions) -> Iterator[str]:
    """Yield the table of an options class, less the options it has from `without`."""
    hints, left_out = get_type_hints(options), {declared.name for declared in fields(without)}
    rows = [_option(declared, hints[declared.name]) for declared in fields(options) if declared.name not in left_out]
    yield from _table(("option", "type", "default", "unit", "permitted", "meaning"), rows)


def _option(declared: Field[Any], hint: Any) -> tuple[str, ...]:
    kinds = [kind.__name__ for kind in get_args(hint) if kind is not NoneType]
    kind = " or ".join(kinds) or hint.__name__
    meta = declared.metadata
    return (
        f"`{declared.name}`",
        kind,
        _default(declared.default),
        meta["unit"],
        _permitted(declared),
        meta["doc"].replace("|", "\\|")
        + (f" (formerly `{meta['formerly']}`)" if meta["formerly"] else "")
        + ("; unless it is set, it follows `scaling.prices`" if meta["price"] else ""),
    )


def _default(value: object) -> str:
    """Return a default as a spec would give it."""
    if value is None:
        return "*none*"
    if value == "":
        return "empty"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _permitted(declared: Field[Any]) -> str:
    meta = declared.metadata
    if meta["choices"]:
        return ", ".join(f"`{choice}`" for choice in meta["choices"])
    limits = (("from", meta["ge"]), ("above", meta["gt"]), ("to", meta["le"]))
    return " ".join(f"{word} {_number(limit)}" for word, limit in limits if limit is not None)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(heading)
    yield f"| {' | '.join(cells)} |"
    yield f"| {' | '.join('---' for _ in cells)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _doc(of: Any) -> tuple[str, str]:
    """Return the first line of a docstring, and the rest."""
    text = inspect.getdoc(of)
    if not text:
        raise ValueError(f"{of} has no docstring, and the pages are made of docstrings")
    first, _, rest = text.partition("\n")
    return first, rest.strip("\n")


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return the exit code."""
    return write_or_check({FOLDER / name: text for name, text in pages().items()}, arguments, FOLDER)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
