"""`audit`: checks every hop from the cluster to a change of size, and reports."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tidegate.archive.store import is_archive, load
from tidegate.cli.bars import bars
from tidegate.cli.connect import Bootstrap, Prefix, connect
from tidegate.cli.outputs import STDOUT, Output, echo_json, even_if_unread, write_files
from tidegate.cli.problems import NO, Problem
from tidegate.cli.spark import LOCAL, Master, kafka_options, session
from tidegate.client import ClientSettings, check_reachable
from tidegate.remote.files import Files, Place
from tidegate.replay.audit.ledger import RedisContents, read_redis
from tidegate.replay.audit.page import render_page
from tidegate.replay.audit.records import AuditRecords, of_broker, of_directory
from tidegate.replay.audit.report import COLUMNS, as_json, details, rows, verdict
from tidegate.replay.audit.run import AuditResult
from tidegate.replay.audit.run import audit as run_audit
from tidegate.replay.files import read_manifest
from tidegate.replay.ranges import ranges_now
from tidegate.runtime.consumer import spark_offsets
from tidegate.runtime.ledger import fence_key, view_key
from tidegate.runtime.redis_server import remedy_of
from tidegate.runtime.settings import ServiceSettings, without_login
from tidegate.terminal import stdout, table


def audit(
    recording: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Audit a recording or an archive, not the topics."),
    ] = None,
    event_logs: Annotated[
        str | None,
        typer.Option("--event-logs", metavar="DIR", help="The folder of the jobs' Spark event logs, also as a URI."),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option("--redis", metavar="URL", help="The decider's Redis; its password is TIDEGATE_REDIS_PASSWORD."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only this job's events.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail also for warnings, and for what is not checked or not provable.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the outcome as JSON; - prints it instead of the table."),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page to file: one file, without scripts.")
    ] = None,
    master: Master = LOCAL,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Check every hop from the cluster to a change of size.

    Each figure came from the cluster, each decision from its snapshot, each command from a decision, each change from a
    command, and nothing else happened: every check is a query over the recorded events that can fail. What cannot be
    checked or proved is named, and never counts as passed. docs/how-to/audit.md explains the report.

    The exit code is 1 if an error was found.

    Example:  tidegate audit --event-logs /data/events --redis redis://127.0.0.1:6379/0 --html audit.html
              tidegate audit --from noon --strict
    """
    settings: ClientSettings | None = None
    if recording is None:
        settings = connect(bootstrap_servers, topic_prefix)
        check_reachable(settings)
    logs = None if event_logs is None else _logs(event_logs)
    contents = None if redis_url is None else _redis(redis_url, settings)
    if recording is not None:  # before Spark, which takes seconds to start
        (load if is_archive(recording) else read_manifest)(recording)
    with bars() as shown, session(master, with_kafka=settings is not None) as spark:
        task = shown.add_task("reading", total=None)
        records = of_directory(spark, recording) if recording is not None else _topics(spark, settings)
        result = run_audit(
            spark,
            records,
            event_logs=logs,
            redis=contents,
            job=job,
            on_progress=lambda what, done, total: shown.update(task, description=what, completed=done, total=total),
        )
    prints = json_file == STDOUT
    with even_if_unread():
        if prints:
            echo_json(as_json(result, strict=strict).rstrip())
        else:
            _show(result, strict=strict)
    figures = None if prints else json_file
    write_files(
        (
            Output("--json", "outcome", figures, lambda path: path.write_text(as_json(result, strict=strict), "utf-8")),
            Output(
                "--html", "page", html_file, lambda path: path.write_text(render_page(result, strict=strict), "utf-8")
            ),
        ),
        tell=not prints,
    )
    if not result.ok(strict=strict):
        raise typer.Exit(NO)


def _show(result: AuditResult, *, strict: bool) -> None:
    out = stdout()
    out.print(table("", COLUMNS, rows(result), right=COLUMNS[3:]))
    for line in details(result):
        out.print(line)
    out.print(verdict(result, strict=strict))


def _logs(location: str) -> Place:
    try:
        place = Files(ClientSettings().files).log_place(location)
        if place.is_dir():
            return place
    except OSError as error:
        raise Problem(f"--event-logs {error}", "docs/how-to/no-shared-directory.md") from None
    raise Problem(f"--event-logs {location}: there is no such folder", "give the jobs' event_log_dir")


def _topics(spark: object, settings: ClientSettings | None) -> AuditRecords:
    assert settings is not None  # noqa: S101  (without a recording, a broker was given)
    options = {**kafka_options(settings), "endingOffsets": ends_now(settings)}
    return of_broker(spark, settings.bootstrap_servers, settings.topic_prefix, options)


def ends_now(settings: ServiceSettings) -> str:
    """Return the ends of all topics as Spark's `endingOffsets`.

    Spark itself would read each partition to its end at another time. While the services run, an event that is read
    late would then have no cause among those that were read early.
    """
    return spark_offsets({place: end for place, (_, end) in ranges_now(settings).items()})


def _redis(url: str, settings: ClientSettings | None) -> RedisContents:
    import redis  # noqa: PLC0415 - few commands need it, and it takes long to import

    from tidegate.remote.redis_client import RedisClient  # noqa: PLC0415 - likewise

    known, shown = settings or ClientSettings(), without_login(url)
    options = known.model_copy(update={"redis_url": url}).redis()
    try:
        client = RedisClient(**options, decode_responses=True)
    except ValueError as error:
        raise Problem(f"--redis {shown}: {error}", "write it as redis://HOST:PORT/0") from None
    prefix = known.redis_prefix
    try:
        every = client.reach(lambda: client.whole(view_key(prefix), fence_key(prefix, "")))
        return read_redis(every, prefix, datetime.now(UTC))
    except (redis.RedisError, OSError) as error:
        remedy = remedy_of(error) or "check the URL and TIDEGATE_REDIS_PASSWORD"
        raise Problem(f"--redis {shown}: {error}", remedy) from None
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"--redis {shown}: a key under {prefix} is damaged: {error!r}") from None
