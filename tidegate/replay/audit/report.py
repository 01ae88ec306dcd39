"""The outcome of an audit as text and as JSON; `page.py` has it as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tidegate.replay.audit.checks import Hop
from tidegate.replay.audit.run import AuditFinding, AuditResult, CheckOutcome, CheckStatus

COLUMNS = ("hop", "check", "", "passed", "found", "not provable")
SHOWN = 10
"""Most findings of a check in the text."""


def verdict(result: AuditResult, *, strict: bool = False) -> str:
    """Return the outcome in one sentence."""
    failed = result.with_status(CheckStatus.FAILED)
    if failed:
        return f"FAILED: {_count(sum(o.found for o in failed), 'finding')} of {_count(len(failed), 'check')}."
    said = [
        f"{_count(len(some), 'check')} {words}"
        for words, some in (
            ("warned", result.with_status(CheckStatus.WARNED)),
            ("could not prove everything", result.with_status(CheckStatus.NOT_PROVABLE)),
            ("could not run", result.with_status(CheckStatus.NOT_CHECKED)),
        )
        if some
    ]
    passed = _count(len(result.with_status(CheckStatus.PASSED)), "check") + " passed"
    if not said:
        return f"PASSED: {passed}, and nothing was left open."
    start = "FAILED, because it was strict" if strict else "PASSED, with open points"
    return f"{start}: {passed}; {'; '.join(said)}."


def rows(result: AuditResult) -> list[list[str]]:
    """Return a row per check, in the order of `COLUMNS`."""
    made = []
    for hop in Hop:
        for number, each in enumerate(outcome for outcome in result.outcomes if outcome.check.hop is hop):
            made.append(
                [
                    hop.value if number == 0 else "",
                    each.check.title + (f" ({each.check.invariant})" if each.check.invariant else ""),
                    each.status.value,
                    f"{each.passed:,}" if each.passed else "",
                    f"{each.found:,}" if each.found else "",
                    f"{each.unproved:,}" if each.unproved else "",
                ]
            )
    return made


def details(result: AuditResult) -> Iterator[str]:
    """Yield lines that name what was found, what could not be proved and what was not checked."""
    for outcome in result.outcomes:
        if outcome.status is CheckStatus.NOT_CHECKED:
            yield f"NOT CHECKED   {outcome.check.title}: {outcome.why}"
    for provable, heading in ((False, "NOT PROVABLE "), (True, "FOUND        ")):
        for outcome in result.outcomes:
            named = [each for each in outcome.named if each.provable is provable]
            for each in named[:SHOWN]:
                yield f"{heading} {outcome.check.title}"
                yield f"              {where(each)}: {each.found} ({_should(each)})"
            counted = outcome.found if provable else outcome.unproved
            if left := counted - sum(each.count for each in named[:SHOWN]):
                yield f"              … and {left:,} more"


def where(finding: AuditFinding) -> str:
    """Return job, place and time of a finding."""
    at = "" if finding.at is None else f"{finding.at:%Y-%m-%d %H:%M:%S} UTC"
    return ", ".join(part for part in (finding.job, finding.place, at) if part) or "in all"


def _should(finding: AuditFinding) -> str:
    times = "" if finding.count == 1 else f"{finding.count:,} times; "
    return times + ("should be: " if finding.provable else "needs: ") + finding.expected


def as_json(result: AuditResult, *, strict: bool = False) -> str:
    """Return the outcome as JSON; its fields are described in docs/how-to/audit.md."""
    told: dict[str, Any] = {
        "verdict": verdict(result, strict=strict),
        "ok": result.ok(strict=strict),
        "strict": strict,
        "source": result.source,
        "given": list(result.given),
        "made_at": result.made_at.isoformat(),
        "seconds": round(result.seconds, 3),
        "records": dict(result.records),
        "first_at": result.first_at and result.first_at.isoformat(),
        "last_at": result.last_at and result.last_at.isoformat(),
        "checks": [_check(outcome) for outcome in result.outcomes],
    }
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


def _check(outcome: CheckOutcome) -> dict[str, Any]:
    check = outcome.check
    return {
        "check": check.name,
        "title": check.title,
        "hop": check.hop.value,
        "severity": check.severity.value,
        "invariant": check.invariant,
        "status": outcome.status.value,
        "passed": outcome.passed,
        "found": outcome.found,
        "not_provable": outcome.unproved,
        "why": outcome.why,
        "named": [
            {
                "verdict": "finding" if each.provable else "not provable",
                "job": each.job,
                "place": each.place,
                "at": each.at and each.at.isoformat(),
                "found": each.found,
                "expected": each.expected,
                "count": each.count,
            }
            for each in outcome.named
        ],
    }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
