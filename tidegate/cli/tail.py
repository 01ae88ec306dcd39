"""`tail`: the events of a topic, as a table or as JSON lines."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import typer
from rich.text import Text

from tidegate.cli.connect import AsJson, Bootstrap, Prefix, Since, connect, instant_of
from tidegate.cli.outputs import echo_json
from tidegate.client import BadRecord, ClientSettings, Received, check_reachable, received
from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import BY_MODEL
from tidegate.events.wire import Wire
from tidegate.fleet.explain import delay, sizes_of
from tidegate.runtime.consumer import newest_at
from tidegate.terminal import cell_of, stderr, stdout, styled, table
from tidegate.twin.recorded import lag_of
from tidegate.words import clock, figure, size

LOOK_BACK = (timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=2), timedelta(days=1), None)
"""How long before the newest event of all to look for the newest ones, step by step; None: in the whole topic.

To read all of it first would be to read two weeks, of 1,000 jobs 120 million snapshots.
"""


class TailedTopic(StrEnum):
    """The topics that can be shown."""

    JOBS = "jobs"
    SNAPSHOTS = "snapshots"
    DECISIONS = "decisions"
    COMMANDS = "commands"
    RESULTS = "results"
    DEAD_LETTERS = "dead-letters"


class TopicFormat(NamedTuple):
    """How to show one topic: columns as (heading, least width), the last one without a limit."""

    model: type[Wire]
    columns: tuple[tuple[str, int], ...]
    row: Callable[[Any], tuple[object, ...]]


def _spec(s: JobSpec) -> tuple[object, ...]:
    when, by, why = (clock(s.change.at), s.change.by, s.change.reason) if s.change is not None else ("", "", "")
    sizes = f"{s.scaling.min_parallelism} to {s.scaling.max_parallelism}"
    return when, s.job_id, s.version, s.shown_mode, s.scaling.policy, sizes, by, why


def _snapshot(s: MetricSnapshot) -> tuple[object, ...]:
    missing = f"missing: {', '.join(part.value for part in s.missing)}" if s.missing else ""
    records = sum(batch.input_records for batch in s.batches)
    slots = "?" if s.slots_granted is None else s.slots_granted
    batches = len(s.batches) + s.batches_left_out
    when = clock(s.observed_at)
    return when, s.job_id, s.sequence, s.state.value, slots, figure(lag_of(s)), batches, figure(records), missing


def _decision(d: Decision) -> tuple[object, ...]:
    status = styled(d.status.value)
    return clock(d.decided_at), d.job_id, d.sequence, sizes_of(d), status, delay(d.evidence), d.sentence


def _command(c: ScalingCommand) -> tuple[object, ...]:
    sizes = f"{c.from_parallelism} -> {c.to_parallelism}"
    return clock(c.issued_at), c.job_id, c.epoch, c.kind.value, sizes, c.way or "", clock(c.expires_at), c.reason


def _result(r: ActionResult) -> tuple[object, ...]:
    said = r.sentence if r.code == "OK" else f"{r.code}: {r.sentence}"
    times = (_seconds(r.delay_seconds), _seconds(r.outage_seconds), _seconds(r.downtime_seconds))
    kind, phase = r.kind.value, styled(r.phase.value)
    return clock(r.at), r.job_id, r.epoch, kind, size(r.parallelism), r.way or "", phase, *times, said


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _letter(d: DeadLetter) -> tuple[object, ...]:
    return clock(d.seen_at), f"{d.topic}/{d.partition}/{d.offset}", d.consumer, d.code, d.error


_COMMON = (("time", 8), ("job", 12), ("sequence", 10))
FORMATS: dict[TailedTopic, TopicFormat] = {
    TailedTopic.JOBS: TopicFormat(
        JobSpec,
        (
            *(("time", 8), ("job", 12), ("version", 7), ("mode", 7), ("policy", 9), ("slots", 8), ("by", 8)),
            ("why", 0),
        ),
        _spec,
    ),
    TailedTopic.SNAPSHOTS: TopicFormat(
        MetricSnapshot,
        (*_COMMON, ("state", 8), ("slots", 5), ("lag", 9), ("batches", 7), ("records", 8), ("", 0)),
        _snapshot,
    ),
    TailedTopic.DECISIONS: TopicFormat(
        Decision, (*_COMMON, ("slots", 8), ("status", 18), ("delay", 8), ("why", 0)), _decision
    ),
    TailedTopic.COMMANDS: TopicFormat(
        ScalingCommand,
        (("time", 8), ("job", 12), ("epoch", 10), ("kind", 7), ("slots", 8), ("way", 8), ("expires", 8), ("why", 0)),
        _command,
    ),
    TailedTopic.RESULTS: TopicFormat(
        ActionResult,
        (
            *(("time", 8), ("job", 12), ("epoch", 10), ("kind", 7), ("size", 8), ("way", 8), ("phase", 11)),
            *(("delay", 7), ("outage", 7), ("downtime", 8), ("", 0)),
        ),
        _result,
    ),
    TailedTopic.DEAD_LETTERS: TopicFormat(
        DeadLetter, (("time", 8), ("record", 30), ("consumer", 10), ("code", 13), ("error", 0)), _letter
    ),
}


def tail(
    topic: Annotated[TailedTopic, typer.Argument(help="Which topic.")],
    job: Annotated[str | None, typer.Option("--job", help="Only this job; for dead letters, only this key.")] = None,
    since: Since = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new events as they come, until Ctrl-C.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The newest N events; with -f, the next N.")
    ] = None,
    as_json: AsJson = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Show the events of a topic.

    Shows the newest 20 events, with --since all events from then on, with -f new events as they come. Of `jobs`, Kafka
    keeps at least the newest version of each spec; that a job was removed is not shown.

    Example:  tidegate tail decisions --job rates --since 10m
              tidegate tail results -f --json | jq .phase
    """
    settings = connect(bootstrap_servers, topic_prefix)
    shown, start = FORMATS[topic], instant_of(since)
    if follow:
        start = start or instant_of("0s")
        events = received(shown.model, settings, job=job, since=start, follow=True, on_error=_skipped)
        _follow(shown, islice(events, limit), as_json)
        return
    if start is None:
        newest = _last(shown.model, settings, job, limit or 20)
    else:
        newest = _newest(received(shown.model, settings, job=job, since=start, on_error=_skipped), limit)
    if as_json:
        for one in newest:
            echo_json(value_of(one.event))
    elif newest:
        right = {"sequence", "version", "lag", "batches", "records", "epoch", "delay", "outage", "downtime"}
        rows = [shown.row(one.event) for one in newest]
        stdout().print(table("", [name for name, _ in shown.columns], rows, right=right))
    else:
        what = f"no {topic.value} " + (f"of {job} " if job else "") + (f"since {since}" if since else "yet")
        stderr().print(what)


def _last(model: type[Wire], settings: ClientSettings, job: str | None, count: int) -> list[Received[Any]]:
    """Return the newest `count` events, oldest first; all if there are fewer."""
    topic = BY_MODEL[model].named(settings.topic_prefix)
    check_reachable(settings, topic)
    last, found, bad = newest_at(settings, topic), list[Received[Any]](), list[BadRecord]()
    if last is None:
        return found
    last = min(last, datetime.now(UTC))  # one record from a clock that is ahead must not hide all others
    for back in LOOK_BACK:
        bad.clear()
        since = None if back is None else last - back
        found = _newest(received(model, settings, job=job, since=since, on_error=bad.append), count)
        if len(found) == count:
            break
    for each in bad:
        _skipped(each)
    return found


def _newest(events: Iterator[Received[Any]], count: int | None) -> list[Received[Any]]:
    """Return the newest `count` events, or all, oldest first. Partitions are read one after the other."""
    kept: dict[int, deque[Received[Any]]] = {}
    for one in events:
        kept.setdefault(one.partition, deque(maxlen=count)).append(one)
    found = sorted((one for partition in kept.values() for one in partition), key=attrgetter("written_at"))
    return found[-count:] if count else found


def _follow(shown: TopicFormat, events: Iterator[Received[Any]], as_json: bool) -> None:
    if as_json:
        for one in events:
            echo_json(value_of(one.event))
        return
    console = stdout()
    if console.is_terminal:
        console.print("  ".join(f"{name:<{width}}" for name, width in shown.columns), style="bold")
    for one in events:
        line = Text()
        for (_, width), cell in zip(shown.columns, shown.row(one.event), strict=True):
            text = cell_of(cell)
            line.append_text(text).append(" " * (max(0, width - len(text)) + 2))
        line.rstrip()
        console.print(line)
        console.file.flush()


def _skipped(bad: BadRecord) -> None:
    stderr().print(f"skipped {json.dumps(str(bad))[1:-1]}", style="yellow")
