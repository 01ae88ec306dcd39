"""What each page shows, as values for its template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from tidegate.console.charts import Chart, charts_of, table_of
from tidegate.console.numbers import whole_number
from tidegate.console.whatif import asked_change, hours_of, try_out
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.result import ActionResult
from tidegate.fleet.changes import result_in_words
from tidegate.fleet.explain import (
    expected_of,
    measured,
    ordered,
    other_inputs,
    remedies,
    slots_now,
    values_of,
    waiting,
)
from tidegate.fleet.fleet import Fleet, FleetJob
from tidegate.fleet.rows import BADGES, badge_of, counted, ranked, row_of
from tidegate.whatif.nearest import NearestChange, in_words
from tidegate.whatif.recorded import CannotTry, RecordedJob
from tidegate.whatif.vary import known_options
from tidegate.words import figure

PAGE_LENGTH = 100
"""Jobs on a page of the fleet."""

SHOWN_ENTRIES = 60
"""Newest entries of a job's log on its page."""

Values = Mapping[str, Any]


def fleet_page(query: Mapping[str, str], now: datetime, fleet: Fleet) -> Values:
    """Return the jobs that a query selects, those that need an operator first."""
    text, state = query.get("q", "").strip().lower(), query.get("state", "")
    jobs = ranked((job for job in fleet if text in job.spec.job_id), now)
    if state:
        jobs = [job for job in jobs if badge_of(job, now).word == state]
    number = whole_number(query.get("page", "")) or 1
    pages = max(1, -(-len(jobs) // PAGE_LENGTH))
    number = min(max(number, 1), pages)
    shown = jobs[(number - 1) * PAGE_LENGTH : number * PAGE_LENGTH]
    return {
        "rows": [row_of(job, now) for job in shown],
        "counts": counted(fleet, now),
        "slots": sum(job.decision.current_parallelism for job in fleet if job.decision is not None),
        "newest": max((job.decision.decided_at for job in fleet if job.decision is not None), default=None),
        "total": len(fleet),
        "found": len(jobs),
        "q": text,
        "chosen": state,
        "number": number,
        "pages": pages,
    }


def pools_page(now: datetime, fleet: Fleet) -> Values:
    """Return each pool with the jobs in it, the largest first."""
    pools = []
    for name in sorted({job.spec.pool_id for job in fleet}):
        jobs = [job for job in fleet if job.spec.pool_id == name]
        jobs.sort(key=lambda job: (-(job.decision.current_parallelism if job.decision else 0), job.spec.job_id))
        rows = [(row_of(job, now), job.spec.scaling) for job in jobs[:PAGE_LENGTH]]
        pools.append({"name": name, "seen": fleet.pools.get(name), "rows": rows, "jobs": len(jobs)})
    return {"pools": pools}


def job_page(job: FleetJob, now: datetime) -> Values:
    """Return one job: state, figures, charts, and what happened."""
    decision, charts = job.decision, charts_of(job)
    facts: list[tuple[str, str]] = []
    if decision is not None:
        seen = decision.evidence
        facts = [
            ("waiting", waiting(seen)),
            ("lag", figure(seen.lag_records, "records")),
            ("arrival rate", figure(seen.arrival_rate, "records/s")),
            ("capacity", figure(seen.true_processing_rate, "records/s")),
            ("utilization", "unknown" if seen.utilization is None else f"{seen.utilization:.0%}"),
        ]
    return {
        "job": job,
        "row": row_of(job, now),
        "facts": facts,
        "remedies": [*(remedies(decision) if decision is not None else []), *job.warnings],
        "charts": charts,
        "data": as_json(charts),
        "size_now": decision.current_parallelism if decision is not None and decision.size_is_known else "",
        "table": table_of(job, now),
        "log": job.log[:SHOWN_ENTRIES],
        "silent": badge_of(job, now).word == "silent",
        "badges": {status.value: badge for status, badge in BADGES.items()},
    }


def decision_page(
    job: FleetJob, decision: Decision, results: Sequence[ActionResult], changes: Sequence[NearestChange] | str | None
) -> Values:
    """Return one decision: its reasons and everything that it depended on.

    `changes` is what it would take to change it, why that cannot be told, or None if nobody asked.
    """
    interval = job.spec.interval_seconds
    command = decision.command
    phases = [
        (f"+{(r.at - command.issued_at).total_seconds():.1f} s", r.phase.value, result_in_words(r, ""), r.parallelism)
        for r in results
        if command is not None
    ]
    return {
        "job": job,
        "decision": decision,
        "found_badge": BADGES[decision.status],
        "size_now": slots_now(decision),
        "previous": decision.sequence - interval,
        "next": decision.sequence + interval if job.decision and decision.sequence < job.decision.sequence else None,
        "reasons": [(entry, values_of(entry.numbers)) for entry in decision.trail],
        "measured": measured(decision.evidence),
        "expected": expected_of(decision),
        "inputs": other_inputs(decision),
        "remedies": remedies(decision),
        "ordered": ordered(command) if command is not None else "",
        "phases": phases,
        "changes": changes if changes is None or isinstance(changes, str) else [in_words(each) for each in changes],
        "raw": json.dumps(json.loads(value_of(decision)), indent=2),
    }


@dataclass(frozen=True, slots=True)
class WhatIfForm:
    """What a what-if form holds."""

    policy: str
    options: str
    hours: str
    limits: dict[str, str]


LIMITS = ("min_parallelism", "max_parallelism", "lag_objective_seconds")


def what_if_page(
    job: FleetJob,
    query: Mapping[str, str],
    policies: Sequence[str],
    recorded: Callable[[timedelta], RecordedJob],
) -> Values:
    """Return the form, and with a policy chosen what it would have done."""
    asked = WhatIfForm(
        policy=query.get("policy", ""),
        options=query.get("options", ""),
        hours=query.get("hours", "1"),
        limits={name: query.get(name, "") for name in LIMITS},
    )
    named = asked.policy or job.spec.scaling.policy
    shown: dict[str, Any] = {"job": job, "asked": asked, "policies": policies, "problem": "", "found": None}
    shown |= {"named": named, "options": known_options(named)}
    if not asked.policy:
        return shown
    try:
        hours = hours_of(asked.hours)
        vary = asked_change(asked.policy, asked.options, asked.limits)
        vary(job.spec)
        found = try_out(recorded(timedelta(hours=hours)), vary)
    except CannotTry as error:
        return {**shown, "problem": str(error)}
    return {**shown, "found": found, "data": as_json(found.charts)}


def as_json(charts: Sequence[Chart]) -> str:
    """Return charts for a JSON element of a page: no text in them can end the element."""
    return json.dumps([asdict(chart) for chart in charts], separators=(",", ":")).replace("<", "\\u003c")
