"""The catalogue of policies, guards and reason codes: docs/policies.md, written from the code it describes.

    python -m engine.catalogue           write docs/policies.md
    python -m engine.catalogue --check   say whether it is what the code says; exit code 1 when it is not

The theory, the formulas and the source of a policy are its module's docstring, the options their declarations, the
sentences and remedies the table of reason codes: nothing is said twice.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from engine.guards import FORCING, GUARDS
from engine.policies import OURS, find
from engine.reasons import REASONS, Reason
from schemas.decision import Status

TARGET = Path(__file__).resolve().parent.parent / "docs" / "policies.md"

WHEN = {
    "tide": "The default. Choose another only to compare, or to keep to a rule you already know.",
    "flip271": "You know Flink's autoscaler, and want its behaviour on Spark; load that changes over many minutes.",
    "numaflow": "Backlog is what counts, and small, frequent steps are cheap; pipelines that press back on each other.",
    "varga": "You want few knobs: follow the lag when it grows, and idleness when it does not.",
    "hpa": "You run the Horizontal Pod Autoscaler elsewhere and want the same rule, told by utilization or lag.",
    "keda": "You run KEDA's Kafka scaler and want the same sizes; one threshold of lag per slot says it all.",
    "threshold": "You come from DStreams' dynamic allocation, or want the simplest rule there is.",
    "pid": "A load that drifts without jumps, and a cluster in which a change costs little (resizing in place).",
    "queueing": "Short tasks and a target for their waiting time; headroom that follows from the load.",
    "forecast": "Load with a trend or a daily pattern, and restarts long enough that growing late hurts.",
    "cost": "Slots have a price and lag has one; you can say how many slot-seconds a second of lag is worth.",
    "learning": "A long-running job nobody can model, and the patience to let it try; not for tight objectives.",
}
"""When to choose a policy, by name."""


def catalogue() -> str:
    """Return the text of docs/policies.md."""
    for policy in OURS:
        find(policy.name)  # registers its reason codes
    parts = [
        "# Policies, guards and reason codes",
        "",
        "Written by `python -m engine.catalogue` from the code; do not edit.",
        "",
        "A *policy* proposes a size for each snapshot; the *guards* bend or stop it, in the order below; each step",
        "says why with a *reason code*, its numbers and a sentence. A job's spec names the policy and sets options:",
        "",
        "```yaml",
        "scaling:",
        "  policy: tide  # the default",
        "  policy_options: {late_price: 4.0}",
        "  guards:",
        "    cooldown: {up_seconds: 30}",
        "```",
        "",
        "What is unknown is never taken for zero: a policy that lacks a figure keeps the size and says which.",
        "",
        "## Policies",
        "",
        "| policy | what it is | when to choose it |",
        "| --- | --- | --- |",
        *(f"| [`{p.name}`](#{p.name}) | {_first_line(p)} | {WHEN[p.name]} |" for p in OURS),
        "",
    ]
    for policy in OURS:
        parts += _policy(policy)
    parts += [
        "## Guards",
        "",
        "Asked in this order. Each sees the wish as the ones before it left it, and is asked only while the wish",
        "differs from the present size. *Waits*: a wish it stops stays pending. *Manual*: it also holds for an",
        "operator's size. *Forces*: it may ask for a change that no policy asked for.",
        "",
        "| guard | what it does | asked about | waits | manual | forces |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_guard_row(guard) for guard in GUARDS),
        "",
        "### Options of the guards",
        "",
    ]
    for guard in GUARDS:
        if fields(guard.Options):
            parts += [f"`{guard.name}`", "", *_options(guard.Options), ""]
    parts += [
        "## Statuses",
        "",
        "| status | messages behind | what to do |",
        "| --- | --- | --- |",
        *(f"| `{status.value}` | {behind} | {remedy} |" for status, behind, remedy in STATUSES),
        "",
        "## Reason codes",
        "",
        "`{...}` stands for a number that the decision carries.",
        "",
        *_reasons(REASONS),
    ]
    return "\n".join(parts) + "\n"


STATUSES = (
    (Status.FINE, "not increasing", "nothing"),
    (Status.FINE, "increasing", "a limit holds the job: `tidegate why JOB` names it and what can be done"),
    (Status.PENDING_SCALE_UP, "increasing", "wait: slots are being added, and the lag falls afterwards"),
    (
        Status.PENDING_SCALE_DOWN,
        "not increasing",
        "nothing: there are more slots than needed, and they will be returned",
    ),
    (Status.POOL_EXHAUSTED, "any", "add workers to the pool, or stop or shrink other jobs in it"),
    (Status.STOPPED_STATE_LIMIT, "any", "make the state smaller, then `tidegate resume JOB`"),
    (Status.FAILED_STATE_LIMIT, "any", "start the job anew under another name with an empty checkpoint"),
)
"""Scaling status and messages behind, as in Confluent's Autopilot documentation, and what to do."""


def _policy(policy: Any) -> list[str]:
    """Return the section of one policy."""
    title, _, theory = _doc(sys.modules[policy.__module__]).partition("\n")
    return [
        f"### {policy.name}",
        "",
        title.partition(": ")[2][:1].upper() + title.partition(": ")[2][1:],
        "",
        theory.strip("\n"),
        "",
        f"When to choose it: {WHEN[policy.name]}",
        "",
        *_options(policy.Options),
        "",
        f"Reason codes: {', '.join(f'`{code}`' for code in policy.reasons)}.",
        "",
    ]


def _first_line(policy: Any) -> str:
    return _doc(policy).partition("\n")[0]


def _guard_row(guard: Any) -> str:
    forces = "yes" if issubclass(guard, FORCING) else ""
    about = ", ".join(sorted(guard.covers))
    cells = (_first_line(guard), about, _yes(guard.waits), _yes(guard.binds_manual), forces)
    return f"| `{guard.name}` | {' | '.join(cells)} |"


def _yes(value: object) -> str:
    return "yes" if value else ""


def _options(options: Any) -> list[str]:
    """Return the table of an options class."""
    rows = ["| option | type | default | unit | permitted | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    hints = get_type_hints(options)
    for declared in fields(options):
        kinds = [kind.__name__ for kind in get_args(hints[declared.name]) if kind is not NoneType]
        kind = " or ".join(kinds) or hints[declared.name].__name__
        default = "none" if declared.default is None else f"`{declared.default}`" if declared.default != "" else "empty"
        meta = declared.metadata
        cells = (kind, default, meta["unit"], _permitted(declared), meta["doc"].replace("|", "\\|"))
        rows.append(f"| `{declared.name}` | {' | '.join(cells)} |")
    return rows


def _permitted(declared: Field[Any]) -> str:
    meta = declared.metadata
    if meta["choices"]:
        return ", ".join(f"`{choice}`" for choice in meta["choices"])
    limits = [
        f"{sign} {meta[name]:g}" for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<=")) if meta[name] is not None
    ]
    return " and ".join(limits)


def _reasons(reasons: Mapping[str, Reason]) -> Iterable[str]:
    yield "| code | sentence | what can be done |"
    yield "| --- | --- | --- |"
    for code in sorted(reasons):
        reason = reasons[code]
        yield f"| `{code}` | {reason.sentence} | {reason.remedy} |"


def _doc(of: Any) -> str:
    text = inspect.getdoc(of)
    if not text:
        raise ValueError(f"{of} has no docstring, and the catalogue is made of them")
    return text


def main(arguments: list[str]) -> int:
    """Write or check the file; return the exit code."""
    text = catalogue()
    if "--check" in arguments:
        if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print("docs/policies.md is not what the code says: run `python -m engine.catalogue`", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
