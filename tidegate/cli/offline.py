"""`decide`: what would be decided on recorded snapshots, with no broker and no cluster."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

import typer

from tidegate.cli.explain import changes
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import load_specs
from tidegate.engine.decide import AlreadyDecided
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed
from tidegate.events.envelope import Unreadable, decode, value_of
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.wire import Wire
from tidegate.installed import engine
from tidegate.terminal import clock, figure, stderr, stdout, styled, table

W = TypeVar("W", bound=Wire)


def decide(
    spec: Annotated[Path, typer.Option("--spec", help="The job's spec, YAML or JSON.")],
    snapshots: Annotated[str, typer.Option("--snapshots", help="Snapshots as NDJSON; - is standard input.")],
    results: Annotated[
        Path | None, typer.Option("--results", help="What became of commands, as NDJSON, given back at its time.")
    ] = None,
    summary: Annotated[bool, typer.Option("--summary", help="A table of what changes, instead of JSON lines.")] = False,
) -> None:
    """Decide on recorded snapshots, offline.

    Prints decisions as JSON lines, the same bytes for the same input. A line is a snapshot as `tidegate tail snapshots
    --json` prints it, or a line of `tidegate replay record`. Redis is taken to answer, and nobody carries commands out
    unless --results says what became of them.

    Example:  tidegate tail snapshots --job rates --since 1h --json > seen.ndjson
              tidegate decide --spec job.yaml --snapshots seen.ndjson --summary
    """
    specs = {one.job_id: one for one in load_specs(spec)}
    outcomes = sorted(read_events(results, ActionResult), key=lambda r: r.at) if results else []
    with _opened(snapshots) as lines:
        name = "standard input" if snapshots == "-" else snapshots
        decisions = decided(specs, _events(lines, name, MetricSnapshot), outcomes)
        if summary:
            _summarize(list(decisions))
            return
        for decision in decisions:
            typer.echo(value_of(decision))


def decided(
    specs: dict[str, JobSpec], snapshots: Iterator[MetricSnapshot], results: list[ActionResult]
) -> Iterator[Decision]:
    """Yield the decision on every snapshot of a job in `specs`; duplicates and late ones give none, as in the decider.

    The decider's clock is taken to be the snapshot's; `results` (oldest first) are handed over with the first
    snapshot of their job that is not older.
    """
    states: dict[str, JobState] = {}
    waiting = list(results)
    unknown: set[str] = set()
    for snapshot in snapshots:
        if snapshot.job_id not in specs:
            unknown.add(snapshot.job_id)
            continue
        state = states.get(snapshot.job_id, JobState.new())
        due = [r for r in waiting if r.job_id == snapshot.job_id and r.at <= snapshot.observed_at]
        observed = replace(Observed(at=snapshot.observed_at), results=tuple(due))
        try:
            states[snapshot.job_id], decision = engine().step(state, snapshot, specs[snapshot.job_id], observed)
        except AlreadyDecided as error:
            stderr().print(f"left out: {error}", style="yellow", markup=False)
            continue
        waiting = [r for r in waiting if r not in due]
        yield decision
    if unknown:
        jobs = ", ".join(sorted(unknown))
        stderr().print(f"left out: snapshots of jobs that the spec file does not have: {jobs}", markup=False)


def _opened(name: str) -> TextIO:
    """Open a file of lines; bytes that are not UTF-8 come through, so that their line can be named."""
    if name != "-":
        return Path(name).open(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return sys.stdin


def read_events(path: Path, model: type[W]) -> list[W]:
    """Return the events of an NDJSON file; a bad line raises `Problem`."""
    with _opened(str(path)) as lines:
        return list(_events(lines, str(path), model))


def _events(lines: TextIO, name: str, model: type[W]) -> Iterator[W]:
    """Yield the events of NDJSON lines; a bad one raises `Problem` with file, line, field and value."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield decode(model, _value(line))
        except Unreadable as error:
            hint = f"every line is one {model.__name__} as JSON, or a line of `tidegate replay record`"
            raise Problem(f"{name}:{number}: {error.detail}", hint) from None


def _value(line: str) -> bytes:
    """Return the event's bytes in a line: the line itself, or the value in a recorded one."""
    try:
        whole = json.loads(line)
    except ValueError:
        return line.encode(errors="surrogateescape")
    if isinstance(whole, dict) and "offset" in whole and isinstance(whole.get("value"), str):
        return str(whole["value"]).encode(errors="surrogateescape")
    return line.encode(errors="surrogateescape")


def _summarize(decisions: list[Decision]) -> None:
    by_job: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_job.setdefault(decision.job_id, []).append(decision)
    rows: list[list[object]] = []
    for job, theirs in by_job.items():
        for c in changes(theirs):
            d = c.first
            sizes = f"{d.current_parallelism} -> {d.final_parallelism}"
            lag = figure(d.evidence.lag_records)
            rows.append([job, clock(d.decided_at), sizes, styled(d.status.value), lag, f"x{c.count}", d.sentence])
    columns = ["job", "from", "slots", "status", "lag records", "times", "why"]
    stdout().print(table("", columns, rows, right=["lag records", "times"]))
    ordered = sum(d.command is not None for d in decisions)
    stdout().print(f"{len(decisions)} decisions, {ordered} of them with a command")
