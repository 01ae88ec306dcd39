"""`why` and `jobs`: the decisions on one job, and the state of all jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.connect import AsJson, Bootstrap, JobId, Prefix, Since, connect, instant_of, spec_of
from tidegate.cli.outputs import echo_json
from tidegate.cli.problems import Problem
from tidegate.client import ClientSettings, check_reachable, current_specs, received, skip, up_to
from tidegate.events.decision import Decision, Status
from tidegate.events.envelope import value_of
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import DECISIONS
from tidegate.fleet.explain import delay, explain, sizes_of, slots_now, spans_of
from tidegate.fleet.feed import decision_on
from tidegate.fleet.warnings import warnings_of
from tidegate.runtime.consumer import newest_at
from tidegate.terminal import cuts_words, stdout, styled, table
from tidegate.whatif.nearest import NearestChange, in_words, what_would_change
from tidegate.whatif.recorded import CannotTry
from tidegate.whatif.topics import received_job, since_keyframe
from tidegate.words import age, clock, figure

LOOK_BACK = (timedelta(minutes=1), timedelta(minutes=10))
"""How long before the newest decision of all a job's newest one may be, step by step: most have one every few seconds.

To look further, for a job that has none, would be to read a month of the decisions on all the others.
"""
LOOK_BACK_INTERVALS = 3
"""The same, in intervals of the job."""
LAST_COMMAND = timedelta(hours=1)
"""How far back to look for the result of the last command."""


def why(
    job: JobId,
    since: Since = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", help="Explain the decision with this sequence number.")
    ] = None,
    change: Annotated[
        bool, typer.Option("--change", help="Also show what it would take to change this decision.")
    ] = False,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Explain why a job has its current size.

    Shows the newest decision: what was measured, what the policy proposed, which guards changed that, and the results
    of its command. If the last command failed, it shows that too. With --since, it lists what changed since then; the
    column `sequence` holds the numbers for --at. With --change, it varies each input of the decision, such as the
    arrival rate, on the recorded state, and shows the nearest values at which the engine decides otherwise.

    Example:  tidegate why rates --since 10m
              tidegate why rates --change
    """
    start = instant_of(since)
    if start is not None and (at is not None or change):
        one = "--change" if at is None else "--at"
        raise Problem(f"{one} is about one decision, and --since lists them", "leave one of the two out")
    settings = connect(bootstrap_servers, topic_prefix)
    if start is not None:
        _over_time(settings, job, start, as_json)
        return
    if at is not None:
        decision, since_when = decision_on(settings, job, at), None
    else:
        spec = current_specs(settings).get(job)  # a job that was removed may still be asked about
        newest, since_when = _newest_of_all(settings, {job: spec.interval_seconds if spec is not None else 1})
        decision = newest.get(job)
    if decision is None:
        spec_of(settings, job)  # raises if the job is unknown
        if at is not None:
            hint = f"`tidegate why {job} --since 1h` lists decisions with their sequences"
            raise Problem(f"no decision on {job} with sequence {at}", hint)
        what = _none_since(since_when)
        raise Problem(f"no decision on {job} {what}", "check that the collector and the decider are running")
    if as_json:
        found = [change_fields(one) for one in _changes(settings, decision)] if change else []
        fields = json.loads(value_of(decision)) | {"changed_by": found}
        echo_json(json.dumps(fields) if change else value_of(decision))
        return
    back = decision.decided_at - (timedelta(minutes=1) if decision.command is not None else LAST_COMMAND)
    results = [r.event for r in received(ActionResult, settings, job=job, since=back, on_error=skip)]
    for line in explain(decision, results):
        stdout().print(Text(line, style="bold" if line == decision.sentence else ""))
    if warnings := warnings_of(_measured(settings, decision)):
        stdout().print("\nWarnings of the measurement:")
        for line in warnings:
            stdout().print(f"  {line}")
    if change:
        said = [in_words(one) for one in _changes(settings, decision)]
        stdout().print("\nWhat it would take to change it, the nearest first:")
        for line in said or ["No other value of a single input changes it."]:
            stdout().print(f"  {line}")


def change_fields(found: NearestChange) -> dict[str, object]:
    """Return a change as JSON values."""
    return {
        "input": found.name,
        "unit": found.unit,
        "recorded": found.was,
        "value": found.shown,
        "final_parallelism": found.decision.final_parallelism,
        "distance": found.distance,
        "sentence": in_words(found),
    }


def _changes(settings: ClientSettings, decision: Decision) -> list[NearestChange]:
    """Return what would change a decision; raises `Problem` if what it was made from is not on the topics any more."""
    since = since_keyframe(decision, spec_of(settings, decision.job_id))
    try:
        recorded = received_job(settings, decision.job_id, since, decision.sequence)
        return what_would_change(recorded, decision.sequence)
    except CannotTry as error:
        raise Problem(str(error), "ask without --change, or about a newer decision") from None


JOB_COLUMNS = ("job", "mode", "policy", "slots", "status", "lag records", "delay", "decided", "why")
LEAST_REASON = 40
"""Narrowest column of reasons, in characters."""


def jobs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Parts of names, or patterns like 'shop-*'.", show_default="all"),
    ] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option("--status", case_sensitive=False, help="Only jobs with this status. May be given several times."),
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Show jobs and their last decisions.

    All jobs, or those that fit a name and a status.
    The column `delay` is the age of the oldest record that is not committed, with `>` if it is at least that old. The
    column `why` explains the last decision.
    docs/policies/reasons.md explains the statuses.

    Example:  tidegate jobs 'shop-*' --status late
    """
    settings = connect(bootstrap_servers, topic_prefix)
    known = current_specs(settings)
    specs = [spec for spec in known.values() if not names or any(_fits(name, spec.job_id) for name in names)]
    newest, since = dict[str, Decision](), None
    if specs and (status or not as_json):
        newest, since = _newest_of_all(settings, {spec.job_id: spec.interval_seconds for spec in specs})
    if status:
        specs = [spec for spec in specs if spec.job_id in newest and newest[spec.job_id].status in status]
    if as_json:
        for spec in specs:
            echo_json(value_of(spec))
        return
    if not specs:
        more = f"none of {len(known)} jobs fits" if known else "no jobs; add one with `tidegate apply job.yaml`"
        stdout().print(more)
        return
    rows: list[list[object]] = []
    for spec in specs:
        decision = newest.get(spec.job_id)
        if decision is None:
            none = f"no decision {_none_since(since)}"
            rows.append([spec.job_id, spec.shown_mode, spec.scaling.policy, "", "", "", "", "", none])
            continue
        seen = decision.evidence
        rows.append(
            [
                spec.job_id,
                spec.shown_mode,
                spec.scaling.policy,
                slots_now(decision),
                styled(decision.status.value),
                figure(seen.lag_records),
                delay(seen),
                age(decision.decided_at),
                decision.sentence,
            ]
        )
    console = stdout()
    console.print(Group(*job_tables(rows, console)))


def job_tables(rows: Sequence[Sequence[object]], console: Console) -> list[RenderableType]:
    """Return the table of jobs, or two, where the console is too narrow for the reasons next to the figures."""

    def part(*places: int) -> Table:
        cells = ([row[place] for place in places] for row in rows)
        return table("", [JOB_COLUMNS[place] for place in places], cells, right=["slots", "lag records", "delay"])

    job, mode, policy, *figures, why = range(len(JOB_COLUMNS))
    if cuts_words(part(job, *figures), console, console.width):
        return [part(*range(why + 1))]  # row by row, so that each job is told once
    narrow = console.width - console.measure(part(*range(why))).maximum < LEAST_REASON
    return [part(job, *figures), "", part(job, mode, policy, why)] if narrow else [part(*range(why + 1))]


def _fits(name: str, job_id: str) -> bool:
    """Return whether a job's id fits a pattern, or has a name without wildcards in it, as `tidegate top` finds it."""
    pattern = name if set(name) & set("*?[") else f"*{name}*"
    return fnmatchcase(job_id, pattern)


def _measured(settings: ClientSettings, decision: Decision) -> MetricSnapshot | None:
    """Return the snapshot that a decision was made on, if it is still there."""
    back = decision.observed.at - timedelta(minutes=5)
    found = received(MetricSnapshot, settings, job=decision.job_id, since=back, on_error=skip)
    with closing(found):
        near = up_to(found, decision.sequence)
        return next((one.event for one in near if one.event.snapshot_id == decision.snapshot_id), None)


def _over_time(settings: ClientSettings, job: str, since: datetime, as_json: bool) -> None:
    found = [one.event for one in received(Decision, settings, job=job, since=since, on_error=skip)]
    if not found:
        spec_of(settings, job)
        raise Problem(f"no decision on {job} since {clock(since)} UTC", "try a longer --since")
    if as_json:
        for decision in found:
            echo_json(value_of(decision))
        return
    rows = [
        [
            clock(span.first.decided_at),
            span.first.sequence,
            sizes_of(span.first),
            styled(span.first.status.value),
            f"x{span.count}",
            span.first.sentence,
        ]
        for span in spans_of(found)
    ]
    stdout().print(table("", ["from", "sequence", "slots", "status", "times", "why"], rows, right=["times"]))


def _newest_of_all(settings: ClientSettings, wanted: Mapping[str, int]) -> tuple[dict[str, Decision], datetime | None]:
    """Return the newest decision on each wanted job, and since when they were looked for; None if there are none.

    `wanted` are the jobs with their intervals, in seconds.
    """
    topic = DECISIONS.named(settings.topic_prefix)
    check_reachable(settings, topic)
    newest: dict[str, Decision] = {}
    last = since = newest_at(settings, topic)
    if last is None:
        return newest, None
    last = min(last, datetime.now(UTC))  # one record from a clock that is ahead must not hide all others
    for back in LOOK_BACK:
        missing = wanted.keys() - newest.keys()
        since = last - max(back, timedelta(seconds=LOOK_BACK_INTERVALS * max(wanted[job_id] for job_id in missing)))
        found = received(Decision, settings, job=missing, since=since, on_error=skip)
        newest |= {one.event.job_id: one.event for one in found}
        if newest.keys() == wanted.keys():
            break
    return newest, since


def _none_since(since: datetime | None) -> str:
    return "yet" if since is None else f"since {clock(since)} UTC"
