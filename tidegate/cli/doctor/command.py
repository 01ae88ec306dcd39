"""The command `doctor`: what it checks, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.connect import Bootstrap, Prefix, StackDir, stack_dir, stack_redis
from tidegate.cli.doctor.broker import broker
from tidegate.cli.doctor.clusters import spark_master, spark_of_jobs, yarn_of_jobs
from tidegate.cli.doctor.files import files_of_jobs, other_checkpoints
from tidegate.cli.doctor.finding import Finding, probe
from tidegate.cli.doctor.jobs import refused_specs, warnings_about
from tidegate.cli.doctor.machine import here
from tidegate.cli.doctor.redis import redis_of
from tidegate.cli.problems import NO
from tidegate.client import ClientSettings, NoSuchTopic, Unreachable, loaded_specs, received, skip
from tidegate.events.snapshot import MetricSnapshot
from tidegate.remote.files import Files
from tidegate.stack import StackError, StackInfo, status
from tidegate.terminal import stdout, styled, table

RECENT = timedelta(minutes=1)
"""How old the snapshots may be whose warnings are shown, or two of the longest interval: most jobs have one in 10 s."""


def doctor(
    work_dir: StackDir = None,
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Create missing topics, with one replica each.")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Check what Tidegate needs, here and at the broker.

    The exit code is 1 if a check fails.

    Example:  tidegate doctor
    """
    findings: list[Finding] = []
    try:
        findings += here(embedded=bootstrap_servers is None)
        findings += servers(stack_dir(work_dir), bootstrap_servers, topic_prefix, create_topics)
    finally:  # an error on the way ends the checks, but what was found so far is shown
        rows = [[styled(f.verdict), f.what, f.found, f.remedy] for f in findings]
        stdout().print(table("", ["", "what", "found", "what to do"], rows))
    if any(f.verdict == "fail" for f in findings):
        raise typer.Exit(NO)


def servers(folder: Path, bootstrap: str | None, prefix: str | None, create_topics: bool) -> Iterator[Finding]:
    """Check the stack, the broker, the topics, Redis and the Spark master."""
    info = None
    try:
        info = StackInfo.load(folder)
        components = status(folder)
        states, healthy = ", ".join(f"{c.name} {c.state}" for c in components), all(c.ok for c in components)
        remedy = "" if healthy else f"run `tidegate down` and `tidegate up`; the logs are in {info.log_dir}"
        yield Finding("ok" if healthy else "fail", "embedded stack", states, remedy)
    except StackError as error:
        if bootstrap is None:
            yield Finding("warn", "embedded stack", str(error), "run `tidegate up`, or use --bootstrap-servers")
            return
    given: dict[str, object] = {} if prefix is None else {"topic_prefix": prefix}
    if info is not None and bootstrap in (None, info.bootstrap_servers):
        bootstrap = info.bootstrap_servers
        given |= stack_redis(info)
    settings = ClientSettings(bootstrap_servers=bootstrap, **given)  # type: ignore[arg-type]
    yield from broker(settings, create_topics)
    yield redis_of(settings)
    if info is not None:
        yield probe("Spark master", lambda: spark_master(info), f"see its log in {info.log_dir}")
    with suppress(Unreachable, NoSuchTopic):  # the lines above say so
        view = loaded_specs(settings)
        specs, files, silent = {spec.job_id: spec for spec in view}, Files(settings.files), dict[str, str]()
        yield from refused_specs(specs, view.unusable)
        yield from spark_of_jobs(specs)
        yield from yarn_of_jobs(specs)
        yield from files_of_jobs(specs, files, silent)
        longest = timedelta(seconds=2 * max((spec.interval_seconds for spec in specs.values()), default=0))
        recent = received(MetricSnapshot, settings, since=max(RECENT, longest), on_error=skip)
        newest = {one.event.job_id: one.event for one in recent if one.event.job_id in specs}
        yield from warnings_about(newest)
        yield from other_checkpoints(specs, newest, files, silent)
