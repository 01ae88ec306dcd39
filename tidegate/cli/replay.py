"""`replay`: records topics to files, publishes them again, goes through them, recomputes decisions on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.bars import bars
from tidegate.cli.connect import Bootstrap, Prefix, Since, connect, connect_apart, instant_of
from tidegate.cli.help import group
from tidegate.cli.problems import NO
from tidegate.cli.spark import LOCAL, Master, connector_jars, kafka_options, prepare_java
from tidegate.cli.step import speed_of, step
from tidegate.client import ClientSettings, check_reachable
from tidegate.replay import publish as publishing
from tidegate.replay import recompute as recomputing
from tidegate.replay import record as recording
from tidegate.replay.report import render
from tidegate.terminal import stdout, table
from tidegate.words import figure

Job = Annotated[str | None, typer.Option("--job", help="Only this job.")]
Recorded = Annotated[Path | None, typer.Option("--from", metavar="DIR", help="A recording.")]


def record(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder for the recording; must not exist yet.")],
    since: Since = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="AGE|INSTANT", help="Until when, in the same form as --since.")
    ] = None,
    job: Job = None,
    compress: Annotated[bool, typer.Option("--gzip", help="Compress the files.")] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Record all of Tidegate's topics to files.

    The files hold every byte of the records, and a manifest with counts and checksums.

    Example:  tidegate replay record --to noon --since 2h
    """
    settings = connect(bootstrap_servers, topic_prefix)
    start, end = instant_of(since), instant_of(until, "--until")
    check_reachable(settings)
    with bars() as shown:
        tasks = {}

        def progress(topic: str, done: int, total: int) -> None:
            if topic not in tasks:
                tasks[topic] = shown.add_task(topic)
            shown.update(tasks[topic], completed=done, total=total)

        manifest = recording.record(
            settings, to, since=start, until=end, job=job, compress=compress, on_progress=progress
        )
    rows = [[entry.topic, figure(entry.records), figure(entry.bytes), entry.file] for entry in manifest.files]
    stdout().print(table("", ["topic", "records", "bytes", "file"], rows, right=["records", "bytes"]))


def publish(
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="The recording.")],
    speed: Annotated[
        str, typer.Option("--speed", metavar="FACTOR|max", help="1 is the recorded pace; max does not wait.")
    ] = "1",
    rebase: Annotated[
        bool, typer.Option("--rebase", help="Move everything to now, so that a decider finds it fresh.")
    ] = False,
    jobs: Annotated[
        bool, typer.Option("--jobs", help="Publish the recorded specs and results as well, each at its place.")
    ] = False,
    job: Job = None,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Annotated[
        str | None, typer.Option("--topic-prefix", help="Prefix of the topics to write to; required.")
    ] = None,
) -> None:
    """Publish a recording again, under a topic prefix of its own.

    Use it to try a policy or another version of Tidegate on recorded snapshots. Run only a decider on that prefix: an
    actuator there would carry out the resulting commands on real jobs. This is why the prefix must be given on the
    command line; TIDEGATE_TOPIC_PREFIX does not count. Missing topics are created; they keep
    records of any age, since without --rebase these are as old as the recording. Before the first record goes out,
    every line to publish is checked, and without --rebase also whether the topics keep records of that age.

    With --jobs, each recorded spec and result goes out just before the first snapshot that was decided with it, so a
    decider makes the recorded decisions again. Kafka keeps no order between topics. The publisher therefore waits one
    second between two records of a pipeline that are on different topics. This is enough for a decider that keeps up
    (with --speed max it may not) and polls specs at least once a second, as it does by default.

    Above speed 1, what the decider measures by the clock (cooldowns, the age of a snapshot) takes longer in recorded
    time, so some decisions may differ.

    Example:  tidegate replay publish --from noon --topic-prefix try. --rebase --jobs
    """
    factor = speed_of(speed)
    settings = connect_apart(bootstrap_servers, topic_prefix)
    with bars() as shown:
        task = shown.add_task("records", total=None)
        done = publishing.publish(
            settings,
            source,
            speed=factor,
            rebase=rebase,
            whole=jobs,
            job=job,
            on_progress=lambda sent, total: shown.update(task, completed=sent, total=total),
        )
    moved = f", moved by {done.shift_seconds} s" if done.shift_seconds else ""
    left = f"; {done.skipped} records cannot be moved and were left out" if done.skipped else ""
    counts = f"{done.snapshots} snapshots, {done.specs} specs and {done.results} results"
    stdout().print(f"published {counts} to {settings.topic_prefix}*{moved}{left}")


def recompute(
    source: Recorded = None,
    job: Job = None,
    master: Master = LOCAL,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Recompute every recorded decision on Spark.

    Each decision is compared bit for bit with the recorded one; the exit code is 1 if one differs. Reads the broker's
    topics, or a recording with --from.

    Example:  tidegate replay recompute --job rates
              tidegate replay recompute --from noon
    """
    settings: ClientSettings | None = None
    if source is None:
        settings = connect(bootstrap_servers, topic_prefix)
        check_reachable(settings)
    prepare_java()
    with bars() as shown:
        task = shown.add_task("tasks", total=None)

        def progress(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        if settings is None:
            result = recomputing.recompute(directory=source, job=job, master=master, on_progress=progress)
        else:
            result = recomputing.recompute(
                bootstrap_servers=settings.bootstrap_servers,
                topic_prefix=settings.topic_prefix,
                kafka_options=kafka_options(settings),
                jars=connector_jars(),
                job=job,
                master=master,
                on_progress=progress,
            )
    stdout().print(render(result), end="")
    if not result.ok:
        raise typer.Exit(NO)


app = group("Record topics, go through recordings, publish them.", record, publish, recompute, step)
