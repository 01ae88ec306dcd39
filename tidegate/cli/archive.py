"""`archive`: the topics as Parquet by day, its upkeep, and the way back to a recording."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tidegate.archive import store, stream, upkeep
from tidegate.archive.statements import signed_blocks
from tidegate.archive.summary import TopicSummary, summary
from tidegate.cli.bars import bars
from tidegate.cli.connect import Bootstrap, Prefix, connect
from tidegate.cli.help import group
from tidegate.cli.problems import Problem
from tidegate.cli.spark import LOCAL, Master, kafka_options, session
from tidegate.client import check_reachable
from tidegate.events.topics import JOBS, TOPICS, Topic
from tidegate.replay import export as exporting
from tidegate.terminal import stderr, stdout, table
from tidegate.words import clock, figure

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The archive's folder.")]
FirstDay = Annotated[str | None, typer.Option("--first-day", metavar="YYYY-MM-DD", help="From this UTC day on.")]
LastDay = Annotated[str | None, typer.Option("--last-day", metavar="YYYY-MM-DD", help="Up to and with this UTC day.")]
MOST_GAPS = 20
"""Most gaps that `show` names for one topic."""


def run(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Stop at the present end of the topics.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.0, max=86_400.0, help="Seconds between the starts of two micro-batches.")
    ] = 60.0,
    master: Master = LOCAL,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Archive all of Tidegate's topics, until Ctrl-C.

    Each record is archived once, with its key, value, headers, timestamp and offset, under the UTC day of its
    timestamp. You can kill this at any moment and start it again: it goes on where the archive ends. Offsets that the
    broker dropped before they were archived are reported, and `tidegate archive show` lists them. Once a day it puts
    the small files of past days together, as `tidegate archive compact` does.

    Example:  tidegate archive run /data/tidegate-archive
              tidegate archive run /data/tidegate-archive --once
    """
    settings = connect(bootstrap_servers, topic_prefix)
    check_reachable(settings)
    records = gaps = 0
    total = stream.waiting(settings, folder)
    with session(master, with_kafka=True) as spark, bars() as shown:
        task = shown.add_task("records", total=total) if once else None

        def on_batch(batch: stream.Archived) -> None:
            nonlocal records, gaps
            records, gaps = records + batch.records, gaps + len(batch.gaps)
            for gap in batch.gaps:
                stderr().print(f"gap: {gap}", style="yellow")
            if task is not None:
                shown.update(task, completed=records)
            else:
                stdout().print(f"{clock(datetime.now(UTC))}  {figure(batch.records)} records")

        def on_day(day: date) -> None:
            try:
                files, became = upkeep.compact(spark, folder, before=day)
            except store.InUse:
                return  # that is `tidegate archive compact`
            except upkeep.Incomplete as error:  # new records are archived all the same
                stderr().print(str(error), style="yellow")
                return
            if files:
                stdout().print(f"{figure(files)} files of past days became {figure(became)}")

        try:
            stream.archive(
                spark,
                settings,
                folder,
                once=once,
                every_seconds=every,
                kafka_options=kafka_options(settings),
                on_batch=on_batch,
                on_day=on_day,
            )
        finally:
            found = f", {gaps} gaps" if gaps else ""
            stdout().print(f"archived {figure(records)} records in {folder}{found}")


def compact(folder: Folder, master: Master = LOCAL) -> None:
    """Put the small files of past days into one per topic and day.

    `tidegate archive run` does so once a day. Programs that read the archive meanwhile are not disturbed: the old
    files stay for six hours. The records and their hash chain do not change.

    Example:  tidegate archive compact /data/tidegate-archive
    """
    store.load(folder)
    with session(master) as spark, bars() as shown:
        task = shown.add_task("days", total=None)
        before, after = upkeep.compact(
            spark,
            folder,
            before=datetime.now(UTC).date(),
            on_progress=lambda done, total: shown.update(task, completed=done, total=total),
        )
    stdout().print(f"{figure(before)} files became {figure(after)}" if before else "there was nothing to compact")


def expire(
    folder: Folder,
    keep: Annotated[
        list[str],
        typer.Option("--keep", metavar="[TOPIC=]DAYSd", help="How long to keep all topics, or one of them. Repeat it."),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    master: Master = LOCAL,
) -> None:
    """Remove what is older than you want to keep.

    The specs (`jobs`) stay unless you name them. If heads of the hash chain are signed, only whole signed blocks are
    removed, so that the rest can be verified from its first record on. The files are deleted six hours later, when no
    reader needs them any more, by the next command that changes the archive.

    Example:  tidegate archive expire /data/tidegate-archive --keep 400d --keep snapshots=30d --dry-run
    """
    today = datetime.now(UTC).date()
    first_kept = {topic: today - kept for topic, kept in _policy(keep).items()}
    steps = upkeep.expiries(store.load(folder), first_kept, signed_blocks(folder / store.CHAIN))
    rows = [
        [step.topic, step.before, figure(len(step.dropped) + len(step.trimmed)), figure(step.bytes)] for step in steps
    ]
    if not rows:
        stdout().print("nothing is old enough")
        return
    stdout().print(table("", ["topic", "before", "files", "bytes"], rows, right=["files", "bytes"]))
    if dry_run:
        return
    with session(master) as spark, bars() as shown:
        task = shown.add_task("topics", total=len(steps))
        upkeep.expire(spark, folder, steps, on_progress=lambda done, _: shown.update(task, completed=done))


def show(folder: Folder) -> None:
    """Show what an archive holds and which offsets are missing.

    It also says how many files of past days `tidegate archive compact` would put together.

    Example:  tidegate archive show /data/tidegate-archive
    """
    manifest = store.load(folder)
    topics = summary(manifest)
    right = ["files", "bytes", "records", "gaps"]
    columns = ["topic", "days", "files", "bytes", "records", "offsets by partition", "gaps"]
    stdout().print(table("", columns, [_row(each) for each in topics], right=right))
    for each in topics:
        for partition, first in each.expired:
            stdout().print(f"{each.topic}, partition {partition}: expired before offset {first}")
        for gap in each.gaps[:MOST_GAPS]:
            stdout().print(f"gap: {gap}")
        if len(each.gaps) > MOST_GAPS:
            stdout().print(f"gap: {each.topic}: {len(each.gaps) - MOST_GAPS} more")
    if days := upkeep.scattered(manifest, datetime.now(UTC).date()):
        files = figure(sum(map(len, days)))
        stdout().print(f"{files} files of past days could be {figure(len(days))}: run `tidegate archive compact`")


def export(
    folder: Folder,
    to: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the recording; must not exist yet.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Only this topic, such as decisions. Repeat it for several."),
    ] = None,
    first_day: FirstDay = None,
    last_day: LastDay = None,
    compress: Annotated[bool, typer.Option("--gzip", help="Compress the files.")] = False,
    master: Master = LOCAL,
) -> None:
    """Write an archive, or some of its days, as a recording.

    The recording has the same bytes; `tidegate replay recompute` and `tidegate replay publish` read it. All specs are
    exported, whatever the first day.

    Example:  tidegate archive export /data/tidegate-archive noon --first-day 2026-03-01 --last-day 2026-03-02
              tidegate replay recompute --from noon
    """
    topics = TOPICS if topic is None else tuple(_topic(name) for name in topic)
    first, last = _day(first_day, "--first-day"), _day(last_day, "--last-day")
    if first is not None and last is not None and first > last:
        raise Problem(f"--first-day {first} is after --last-day {last}", "exchange them; the last day is exported too")
    store.load(folder)
    with session(master) as spark, bars() as shown:
        tasks = {each.suffix: shown.add_task(each.suffix, total=None) for each in topics}
        manifest = exporting.export(
            spark,
            folder,
            to,
            topics=topics,
            first_day=first,
            last_day=last,
            compress=compress,
            on_progress=lambda name, done, total: shown.update(tasks[name], completed=done, total=total),
        )
    rows = [[entry.topic, figure(entry.records), figure(entry.bytes), entry.file] for entry in manifest.files]
    stdout().print(table("", ["topic", "records", "bytes", "file"], rows, right=["records", "bytes"]))


def _row(topic: TopicSummary) -> list[str]:
    days = f"{topic.first_day} to {topic.last_day}" if topic.first_day != topic.last_day else str(topic.first_day or "")
    offsets = "  ".join(f"{partition}: {first}-{last}" for partition, first, last in topic.offsets)
    figures = [figure(topic.files), figure(topic.bytes), figure(topic.records)]
    return [topic.topic, days, *figures, offsets, figure(len(topic.gaps))]


_KEEP = re.compile(r"^(?:([a-z-]+)=)?([1-9]\d{0,5})d$")

MOST_DAYS = 365_000
"""The calendar does not go further back."""


def _policy(keep: list[str]) -> dict[str, timedelta]:
    """Return how long to keep each topic that expires, by its name without prefix."""
    given: dict[str | None, timedelta] = {}
    for text in keep:
        matched = _KEEP.match(text)
        if matched is None or int(matched[2]) > MOST_DAYS:
            raise Problem(f"--keep {text!r} is no time to keep", "write 400d for all topics, or snapshots=30d for one")
        name = None if matched[1] is None else _topic(matched[1]).suffix
        if name in given:
            what = name or "all topics"
            raise Problem(f"--keep {text!r}: there is a time to keep {what} already", "give one of the two")
        given[name] = timedelta(days=int(matched[2]))
    every = given.get(None)
    rest = {} if every is None else {topic.suffix: every for topic in TOPICS if topic is not JOBS}
    return rest | {name: kept for name, kept in given.items() if name is not None}


def _topic(name: str) -> Topic:
    found = next((topic for topic in TOPICS if topic.suffix == name), None)
    if found is None:
        raise Problem(f"there is no topic {name!r}", f"topics: {', '.join(topic.suffix for topic in TOPICS)}")
    return found


def _day(text: str | None, name: str) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise Problem(f"{name} {text!r} is no day", "write it as 2026-03-31; days are in UTC") from None


app = group("Archive the topics as Parquet, every record once.", run, compact, expire, show, export)
