"""`decide`: decides on recorded snapshots, without a broker or a cluster."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

import typer

from tidegate.cli.bars import bars
from tidegate.cli.outputs import echo_json
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
from tidegate.fleet.explain import sizes_of, spans_of
from tidegate.installed import engine
from tidegate.replay.files import numbered, part_of
from tidegate.terminal import stderr, stdout, styled, table
from tidegate.words import clock, figure, some

W = TypeVar("W", bound=Wire)


def decide(
    spec: Annotated[Path, typer.Option("--spec", help="The job's spec, YAML or JSON.")],
    snapshots: Annotated[str, typer.Option("--snapshots", help="Snapshots as NDJSON; - for standard input.")],
    results: Annotated[
        Path | None, typer.Option("--results", help="Results of commands as NDJSON; each is used at its time.")
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Print a table of the changes instead of JSON lines.")
    ] = False,
) -> None:
    """Decide on recorded snapshots, offline.

    Prints decisions as JSON lines; the same input gives the same bytes. Snapshots come as lines of `tidegate tail
    snapshots --json` or of a recording made by `tidegate replay record`. The command assumes that Redis answers, and
    that no command is carried out unless --results says so.

    Example:  tidegate tail snapshots --job rates --since 1h --json > seen.ndjson
              tidegate decide --spec job.yaml --snapshots seen.ndjson --summary
    """
    if snapshots == str(results) == "-":
        raise Problem("--snapshots, --results: only one of them can be standard input")
    specs = {one.job_id: one for one in load_specs(spec)}
    outcomes = sorted(read_events(results, ActionResult), key=lambda r: r.at) if results else []
    with _opened(snapshots) as lines:
        name = "standard input" if snapshots == "-" else snapshots
        decisions = decided(specs, _some(_events(lines, name, MetricSnapshot), name), outcomes)
        if not summary:
            for decision in decisions:
                echo_json(value_of(decision))
            return
        with bars() as shown:
            made = list(shown.track(decisions, description="decisions"))
    _summarize(made)


def decided(
    specs: dict[str, JobSpec], snapshots: Iterator[MetricSnapshot], results: list[ActionResult]
) -> Iterator[Decision]:
    """Yield the decision on each snapshot of a job in `specs`; like the decider, skip duplicate and late ones.

    The clock is that of the snapshots. A result (oldest first) is used with the job's first snapshot that is not older.
    """
    states: dict[str, JobState] = {}
    waiting: dict[str, list[ActionResult]] = {}
    for result in results:
        waiting.setdefault(result.job_id, []).append(result)
    unknown: set[str] = set()
    for snapshot in snapshots:
        if snapshot.job_id not in specs:
            unknown.add(snapshot.job_id)
            continue
        state = states.get(snapshot.job_id, JobState.new())
        of_job = waiting.get(snapshot.job_id, [])
        due = of_job[: bisect_right(of_job, snapshot.observed_at, key=attrgetter("at"))]
        spec, at = specs[snapshot.job_id], snapshot.observed_at
        observed = Observed(at=at, results=tuple(due), utc_offset_seconds=spec.scaling.utc_offset_seconds(at))
        try:
            states[snapshot.job_id], decision = engine().step(state, snapshot, spec, observed)
        except AlreadyDecided as error:
            stderr().print(f"skipped: {error}", style="yellow")
            continue
        del of_job[: len(due)]
        yield decision
    if unknown:
        stderr().print(f"skipped: snapshots of jobs without a spec in the file: {some(unknown)}")


def _some(snapshots: Iterator[MetricSnapshot], name: str) -> Iterator[MetricSnapshot]:
    """Yield snapshots; say if there are none."""
    none = True
    for snapshot in snapshots:
        none = False
        yield snapshot
    if none:
        stderr().print(f"no snapshots in {name}", style="yellow")


def _opened(name: str) -> TextIO:
    """Open a file of lines, also a compressed one. Bytes that are not UTF-8 are kept: the error names their line."""
    if name.endswith(".gz"):
        return gzip.open(name, "rt", encoding="utf-8", errors="surrogateescape")
    if name != "-":
        return Path(name).open(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    return sys.stdin or io.StringIO()  # None if it is closed from the start


def read_events(path: Path, model: type[W]) -> Iterator[W]:
    """Yield the events of an NDJSON file; a bad line raises `Problem`."""
    with _opened(str(path)) as lines:
        yield from _events(lines, str(path), model)


def _events(lines: TextIO, name: str, model: type[W]) -> Iterator[W]:
    """Yield the events of NDJSON lines; a bad line raises `Problem` with file, line, field and value."""
    number = 0
    try:
        for number, line in numbered(lines, name):  # noqa: B007 - an error after the last line tells it
            if line.strip():
                yield decode(model, _value(line))
    except Unreadable as error:
        hint = f"each line must be JSON of the kind {model.__name__}, or a line of a recording"
        raise Problem(f"{name}:{number}: {error.detail}", hint) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Problem(f"{name}, after line {number}: {error}") from None


def _value(line: str) -> bytes | None:
    """Return the bytes of the event in a line: the line itself, or the value in a line of a recording."""
    raw = line.encode(errors="surrogateescape")
    try:
        whole = json.loads(line)
        if isinstance(whole, dict) and "offset" in whole and ("value" in whole or "value_base64" in whole):
            return part_of(whole, "value")
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass  # what is wrong with it, decoding says
    return raw


def _summarize(decisions: list[Decision]) -> None:
    by_job: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_job.setdefault(decision.job_id, []).append(decision)
    rows: list[list[object]] = []
    for job, theirs in by_job.items():
        for span in spans_of(theirs):
            d = span.first
            lag, status = figure(d.evidence.lag_records), styled(d.status.value)
            rows.append([job, clock(d.decided_at), sizes_of(d), status, lag, f"x{span.count}", d.sentence])
    columns = ["job", "from", "slots", "status", "lag records", "times", "why"]
    stdout().print(table("", columns, rows, right=["lag records", "times"]))
    ordered = sum(d.command is not None for d in decisions)
    stdout().print(f"{len(decisions)} decisions, {ordered} of them with a command")
