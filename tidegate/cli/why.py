"""`why` and `jobs`: what was decided of a job, and how all of them stand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from tidegate.cli.connect import AsJson, Bootstrap, JobId, Prefix, Since, connect, instant_of, spec_of
from tidegate.cli.explain import changes, explain
from tidegate.cli.problems import Problem
from tidegate.client import BadRecord, ClientSettings, current_specs, received
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.result import ActionResult
from tidegate.terminal import age, clock, figure, stdout, styled, table

LOOK_BACK = (timedelta(minutes=10), timedelta(hours=6), None)
"""How far back to look for a newest decision, one after the other: most jobs decide every few seconds."""
LAST_COMMAND = timedelta(hours=1)
"""How far before a decision without a command the end of the last one is still told."""


def quiet(_bad: BadRecord) -> None:
    """Skip an unreadable record; `tidegate tail` is where they are shown."""


def why(
    job: JobId,
    since: Since = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", help="The decision on the snapshot of this sequence number.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Tell why a job has the size it has.

    That is the newest decision, with its numbers and every guard that bent it, and what became of its command, or of
    the last one before if that came to nothing. With --since, what changed over that
    time, a line per stretch of decisions that said the same; the number in the column `at` is what --at takes.

    Example:  tidegate why rates --since 10m
    """
    settings = connect(bootstrap_servers, topic_prefix)
    start = instant_of(since)
    if start is not None:
        _over_time(settings, job, start, as_json)
        return
    decision = _at(settings, job, at) if at is not None else _newest(settings, job)
    if decision is None:
        spec_of(settings, job)  # an unknown job is the likelier reason, and says so
        what = f"at sequence {at}" if at is not None else "yet"
        raise Problem(f"there is no decision on {job} {what}", "the collector and the decider must be running")
    if as_json:
        typer.echo(value_of(decision).decode())
        return
    back = decision.decided_at - (timedelta(minutes=1) if decision.command is not None else LAST_COMMAND)
    results = [r.event for r in received(ActionResult, settings, job=job, since=back, on_error=quiet)]
    for line in explain(decision, results):
        stdout().print(Text(line, style="bold" if line == decision.sentence else ""))


def jobs(as_json: AsJson = False, bootstrap_servers: Bootstrap = None, topic_prefix: Prefix = None) -> None:
    """Show every job and its last decision.

    Mode, policy, slots, status, lag in records and in seconds of work, and why. docs/policies/reasons.md
    explains the statuses.

    Example:  tidegate jobs
    """
    settings = connect(bootstrap_servers, topic_prefix)
    specs = current_specs(settings)
    if as_json:
        for spec in specs.values():
            typer.echo(value_of(spec).decode())
        return
    if not specs:
        stdout().print("no jobs; `tidegate apply job.yaml` adds one")
        return
    newest = _newest_of_all(settings, set(specs))
    rows: list[list[object]] = []
    for spec in specs.values():
        decision = newest.get(spec.job_id)
        mode = spec.scaling.mode.value if spec.running else "stopped"
        if decision is None:
            rows.append([spec.job_id, mode, spec.scaling.policy, "", "", "", "", "never", "no decision yet"])
            continue
        lag = decision.evidence
        rows.append(
            [
                spec.job_id,
                mode,
                spec.scaling.policy,
                decision.current_parallelism,
                styled(decision.status.value),
                figure(lag.lag_records),
                figure(lag.lag_seconds, "s", 1),
                age(decision.decided_at),
                decision.sentence,
            ]
        )
    columns = ["job", "mode", "policy", "slots", "status", "lag records", "lag", "decided", "why"]
    stdout().print(table("", columns, rows, right=["slots", "lag records", "lag"]))


def _over_time(settings: ClientSettings, job: str, since: datetime, as_json: bool) -> None:
    found = [one.event for one in received(Decision, settings, job=job, since=since, on_error=quiet)]
    if not found:
        spec_of(settings, job)
        raise Problem(f"there is no decision on {job} since {clock(since)} UTC", "try a longer --since")
    if as_json:
        for decision in found:
            typer.echo(value_of(decision).decode())
        return
    rows = [
        [
            clock(c.first.decided_at),
            c.first.sequence,
            f"{c.first.current_parallelism} -> {c.first.final_parallelism}",
            styled(c.first.status.value),
            f"x{c.count}",
            c.first.sentence,
        ]
        for c in changes(found)
    ]
    stdout().print(table("", ["from", "at", "slots", "status", "times", "why"], rows, right=["times"]))


def _newest(settings: ClientSettings, job: str) -> Decision | None:
    return _newest_of_all(settings, {job}).get(job)


def _newest_of_all(settings: ClientSettings, wanted: set[str]) -> dict[str, Decision]:
    """Return the newest decision of each wanted job, reading no further back than it has to."""
    newest: dict[str, Decision] = {}
    for back in LOOK_BACK:
        for one in received(Decision, settings, since=back, on_error=quiet):
            if one.event.job_id in wanted:
                newest[one.event.job_id] = one.event
        if newest.keys() == wanted:
            break
    return newest


def _at(settings: ClientSettings, job: str, sequence: int) -> Decision | None:
    """Return the newest decision on one snapshot. A sequence is the second it was measured in, unless republished."""
    near = datetime.fromtimestamp(sequence, UTC) - timedelta(minutes=5) if 300 < sequence < 2**33 else None
    for since in [near, None] if near else [None]:
        found = [d.event for d in received(Decision, settings, job=job, since=since, on_error=quiet)]
        on_it = [d for d in found if d.sequence == sequence]
        if on_it:
            return on_it[-1]
    return None
