"""`apply`, `pause`, `resume`, `scale`, `remove`: what is to be run. Each change is a new version on the jobs topic."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from tidegate.cli.connect import Bootstrap, JobId, Prefix, connect, spec_of
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import load_specs
from tidegate.cli.wait import follow_manual
from tidegate.client import ClientSettings, current_specs
from tidegate.events.job import JobSpec, ManualScale, Mode
from tidegate.events.topics import JOBS
from tidegate.installed import engine
from tidegate.runtime.kafka import Publisher
from tidegate.terminal import size, stdout


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON; several jobs as YAML documents.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change; publish nothing.")] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Put jobs under Tidegate, or change how they are scaled.

    A spec says what to run and how it may be scaled: deploy/examples/job.yaml is one with comments. It is checked
    whole before anything is published, its version is counted up from what is on the topic, and what changes is shown
    field by field. Applying what is already there does nothing.

    Example:  tidegate apply job.yaml --dry-run
    """
    wanted = load_specs(file)
    settings = connect(bootstrap_servers, topic_prefix)
    present = current_specs(settings)
    changed = [spec for spec in (_next(spec, present.get(spec.job_id)) for spec in wanted) if spec is not None]
    for spec in wanted:
        now = present.get(spec.job_id)
        new = next((c for c in changed if c.job_id == spec.job_id), None)
        _show_change(now, new or spec, unchanged=new is None)
    if changed and dry_run:
        stdout().print("dry run: nothing was published")
    elif changed:
        publish(settings, *changed)


def pause(job: JobId, bootstrap_servers: Bootstrap = None, topic_prefix: Prefix = None) -> None:
    """Keep a job at its size whatever the load.

    Decisions go on and say what they would do; only `tidegate scale` still changes the size. A paused job that ends is
    not started again.

    Example:  tidegate pause rates
    """
    settings = connect(bootstrap_servers, topic_prefix)
    spec = spec_of(settings, job)
    if spec.scaling.mode is Mode.PAUSED:
        stdout().print(f"{job} is paused already")
        return
    publish(settings, _with_mode(spec, Mode.PAUSED))
    stdout().print(f"{job} is paused; `tidegate resume {job}` lets it be scaled again")


def resume(
    job: JobId,
    advise: Annotated[
        bool, typer.Option("--advise", help="Go on in mode advise: decide and explain, order nothing.")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Let a paused job be scaled again, or start one that gave up.

    The job goes on in mode active, also from mode advise, unless --advise is given.

    Example:  tidegate resume rates
    """
    settings = connect(bootstrap_servers, topic_prefix)
    # A new version even when the mode is the same: it is what a job waiting for a person is waiting for.
    new = _with_mode(spec_of(settings, job), Mode.ADVISE if advise else Mode.ACTIVE)
    publish(settings, new)
    stdout().print(f"{job} goes on in mode {new.scaling.mode.value}, version {new.version}")


def scale(
    job: JobId,
    parallelism: Annotated[int, typer.Argument(metavar="SLOTS", min=1, help="The size to reach, in task slots.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the decision.")],
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until it is done or refused.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait with --wait.")] = 300.0,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Ask for a size by hand.

    It goes the way of any change: guards (maximum, cooldown, free slots of the pool ...) may bend or hold it, and say
    why. It is asked for once; afterwards the policy may choose another size, unless the job is paused.

    Example:  tidegate scale rates 6 --reason "load test at noon" --wait
    """
    settings = connect(bootstrap_servers, topic_prefix)
    spec = spec_of(settings, job)
    began = datetime.now(UTC)
    try:
        manual = ManualScale(request_id=str(uuid.uuid4()), parallelism=parallelism, reason=reason, requested_at=began)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Problem(f"{first['loc'][0]}: {first['msg']}, found {first['input']!r:.80}") from None
    new = spec.model_copy(update={"manual": manual, "version": spec.version + 1})
    publish(settings, new)
    lowest, highest = spec.scaling.min_parallelism, spec.scaling.max_parallelism
    stdout().print(f"asked for {size(parallelism)}; version {new.version} of {job}")
    if not lowest <= parallelism <= highest:
        stdout().print(f"note: the spec keeps {job} within {lowest}..{highest}, so the guards will bend it")
    if wait:
        raise typer.Exit(follow_manual(settings, new, began, timeout))
    stdout().print(f"`tidegate why {job}` tells what became of it")


def remove(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Take a job out of Tidegate; it goes on running.

    It keeps its size, and what was recorded stays. To have the job itself stopped as well, apply its spec with
    `running: false` first.

    Example:  tidegate remove rates --yes
    """
    settings = connect(bootstrap_servers, topic_prefix)
    spec_of(settings, job)
    if not yes:
        if not sys.stdin.isatty():
            raise Problem(f"removing {job} needs a yes, and nobody can be asked here", "add --yes")
        typer.confirm(f"Take {job} out of Tidegate?", abort=True)
    publisher = Publisher(settings)
    publisher.tombstone(JOBS.named(settings.topic_prefix), job.encode())
    publisher.close()
    stdout().print(f"{job} is no longer under Tidegate")


def publish(settings: ClientSettings, *specs: JobSpec) -> None:
    """Publish specs after the check that every spec passes, and wait for the acknowledgement."""
    for spec in specs:
        if problems := engine().check(spec):
            raise Problem(f"{spec.job_id}: " + "; ".join(problems))
    publisher = Publisher(settings)
    for spec in specs:
        publisher.send(spec)
    publisher.close()


def _with_mode(spec: JobSpec, mode: Mode) -> JobSpec:
    scaling = spec.scaling.model_copy(update={"mode": mode})
    return spec.model_copy(update={"scaling": scaling, "version": spec.version + 1})


def _next(wanted: JobSpec, present: JobSpec | None) -> JobSpec | None:
    """Return the version to publish; None when it says what is there. A pending manual request is kept."""
    if present is None:
        return wanted.model_copy(update={"version": 1})
    manual = wanted.manual or present.manual
    new = wanted.model_copy(update={"version": present.version + 1, "manual": manual})
    same = new.model_dump(exclude={"version"}) == present.model_dump(exclude={"version"})
    return None if same else new


def _show_change(now: JobSpec | None, new: JobSpec, *, unchanged: bool) -> None:
    console = stdout()
    if unchanged and now is not None:
        console.print(f"{new.job_id}: unchanged, version {now.version}")
        return
    if now is None:
        console.print(f"{new.job_id}: new, version {new.version}")
        return
    console.print(f"{new.job_id}: version {now.version} -> {new.version}")
    for line in differences(now, new):
        console.print(Text("  " + line, style={"+": "green", "-": "red"}.get(line[0], "yellow")))


def differences(now: JobSpec, new: JobSpec) -> list[str]:
    """Return what differs between two versions, a line a field: `+` added, `-` taken away, `~` changed."""
    before, after = dict(_leaves(now.model_dump(mode="json"))), dict(_leaves(new.model_dump(mode="json")))
    lines = []
    for field in sorted(before.keys() | after.keys()):
        if field == "version" or before.get(field) == after.get(field):
            continue
        if before.get(field) is None:
            lines.append(f"+ {field}: {after[field]}")
        elif after.get(field) is None:
            lines.append(f"- {field}: {before[field]}")
        else:
            lines.append(f"~ {field}: {before[field]} -> {after[field]}")
    return lines


def _leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}" if place else str(name))
    elif value not in ({}, []):
        yield place, value
