"""`apply`, `pause`, `resume`, `scale`, `remove`: changes of specs. Each is a new version on the jobs topic."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.text import Text

from tidegate import operate
from tidegate.changes import change_of_mine
from tidegate.cli.connect import Bootstrap, JobId, Prefix, connect, spec_of
from tidegate.cli.priors import published_prior
from tidegate.cli.problems import Problem
from tidegate.cli.specfile import load_specs, refuse_twice
from tidegate.cli.wait import follow_manual
from tidegate.client import loaded_specs
from tidegate.events.invalid import in_words, text_of
from tidegate.events.job import JobSpec, Mode, SpecChange
from tidegate.operate import differences, next_on_topic, publish, publish_change, with_mode, with_size
from tidegate.remote.files import Files, FilesError
from tidegate.terminal import is_terminal, stdout
from tidegate.words import size

Reason = Annotated[str | None, typer.Option("--reason", help="Why; it is recorded with the change.")]


def apply(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="YAML or JSON. Several jobs are several YAML documents.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, but publish nothing.")] = False,
    prior_from: Annotated[
        list[str] | None,
        typer.Option("--prior-from", metavar="JOB", help="Start from what this job has shown; may be given again."),
    ] = None,
    reason: Reason = None,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Add jobs to Tidegate, or change their specs.

    A spec says what to run and how to scale it: docs/getting-started.md has an example, docs/reference/events.md all
    fields. All files are checked before anything is published, and each changed field is shown. The version is set
    automatically. Applying an unchanged spec does nothing. A job that is meant to run keeps its cluster: to move it,
    stop it first.

    Example:  tidegate apply job.yaml --dry-run
              tidegate apply job.yaml --reason "twice the load on Sunday"
              tidegate apply jobs/*.yaml
    """
    wanted = [spec for file in files for spec in load_specs(file)]
    refuse_twice(wanted, "the files")
    settings = connect(bootstrap_servers, topic_prefix)
    view = loaded_specs(settings)
    present = {spec.job_id: spec for spec in view}
    if prior_from:
        prior = published_prior(settings, prior_from)
        wanted = [
            spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"prior": prior})}) for spec in wanted
        ]
    changed = []
    all_specs = {**present, **{each.job_id: each for each in wanted}}
    one_of_each = {(each.pool_id, _cluster(each)): each for each in all_specs.values()}.values()
    for spec in wanted:
        new = next_on_topic(spec, view)
        _show_change(present.get(spec.job_id), new)
        if (unreadable := view.unusable.get(spec.job_id)) is not None:
            note = f"  note: it replaces a spec that this version of Tidegate cannot read: {unreadable}"
            stdout().print(Text(note, style="yellow"))
        show_unreadable(spec, Files(settings.files))
        show_shared_pool(spec, one_of_each)
        changed += [new] if new else []
    if changed and dry_run:
        stdout().print("dry run: nothing was published")
    elif changed:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        change = _change(reason or f"tidegate apply {files[0].name}{more}")
        publish(settings, [spec.model_copy(update={"change": change}) for spec in changed])


def pause(job: JobId, reason: Reason = None, bootstrap_servers: Bootstrap = None, topic_prefix: Prefix = None) -> None:
    """Keep a job at its current size.

    Tidegate still decides and explains what it would do, but only `tidegate scale` changes the size. If a paused job
    stops, Tidegate does not restart it.

    Example:  tidegate pause rates
    """
    settings = connect(bootstrap_servers, topic_prefix)
    spec = spec_of(settings, job)
    if spec.scaling.mode is Mode.PAUSED:
        stdout().print(f"{job} is already paused")
        return
    publish_change(settings, with_mode(spec, Mode.PAUSED, _change(reason or "tidegate pause")))
    stdout().print(f"{job} is paused; `tidegate resume {job}` resumes scaling")


def resume(
    job: JobId,
    advise: Annotated[
        bool, typer.Option("--advise", help="Resume in mode advise: decide and explain, but change nothing.")
    ] = False,
    reason: Reason = None,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Resume scaling of a paused job, or retry a failed one.

    A failed one is a job that Tidegate gave up on. Sets the mode to active, or with --advise to advise.

    Example:  tidegate resume rates
    """
    settings = connect(bootstrap_servers, topic_prefix)
    change = _change(reason or "tidegate resume")
    new = with_mode(spec_of(settings, job), Mode.ADVISE if advise else Mode.ACTIVE, change)
    publish_change(settings, new)
    stdout().print(f"{job} is now in mode {new.scaling.mode.value}, version {new.version}")


def scale(
    job: JobId,
    parallelism: Annotated[
        int, typer.Argument(metavar="SLOTS", min=0, max=1_000_000, help="The size to scale to, in task slots.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded with the decision.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the request has succeeded or failed.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=86_400, help="How many seconds --wait waits.")
    ] = 300.0,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Request a size by hand.

    The request passes the same guards as any change, such as the maximum, the cooldown and the free slots of the pool.
    They may limit or delay it, and say why. It counts once: afterwards the policy may choose another size, unless the
    job is paused.

    With 0, a job with `min_parallelism: 0` is stopped until a record waits; paused, until it is scaled or resumed. To
    stop a job for good, apply its spec with `running: false`.

    Example:  tidegate scale rates 6 --reason "load test at noon" --wait
    """
    settings = connect(bootstrap_servers, topic_prefix)
    spec = spec_of(settings, job)
    began = datetime.now(UTC)
    try:
        new = with_size(spec, parallelism, reason, began, _change(reason, began))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise Problem(f"{in_words(first)}, found {first['input']!r:.80}") from None
    publish_change(settings, new)
    lowest, highest = spec.scaling.min_parallelism, spec.scaling.max_parallelism
    stdout().print(f"requested {size(parallelism)}; version {new.version} of {job}")
    if not lowest <= parallelism <= highest:
        stdout().print(f"note: the spec limits {job} to {lowest}..{highest} slots")
    if wait:
        raise typer.Exit(follow_manual(settings, new, began, timeout))
    stdout().print(f"`tidegate why {job}` shows what came of it")


def remove(
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Remove a job from Tidegate without stopping it.

    The job keeps running at its size, and its recorded events stay. What the decider has learned of it is forgotten. To
    stop it as well, first apply its spec with `running: false`.

    Example:  tidegate remove rates --yes
    """
    settings = connect(bootstrap_servers, topic_prefix)
    if job not in loaded_specs(settings).unusable:
        spec_of(settings, job)
    if not yes:
        if not is_terminal(sys.stdin):
            raise Problem("cannot ask for confirmation without a terminal", "add --yes to remove the job")
        typer.confirm(f"Remove {job} from Tidegate?", abort=True)
    operate.remove(settings, job)
    stdout().print(f"{job} is removed from Tidegate")


def _change(reason: str, at: datetime | None = None) -> SpecChange:
    """Return who asks for a version, and why: the user of this process."""
    try:
        return change_of_mine(reason, at)
    except ValidationError as error:
        raise Problem(f"--reason: {text_of(error.errors(include_url=False)[0])}", "give another --reason") from None


def show_unreadable(spec: JobSpec, files: Files) -> None:
    """Say which files of a job the services could not read if they were set up as this machine is."""
    app = spec.application
    for location in dict.fromkeys((app.checkpoint_location, app.event_log_dir)):
        try:
            files.place(location)
        except FilesError as error:
            stdout().print(f"  note: {error}; collector and actuator need the same", style="yellow")


def show_shared_pool(spec: JobSpec, others: Iterable[JobSpec]) -> None:
    """Say if a job has its pool in common with one on another cluster."""
    other = next((each for each in others if each.pool_id == spec.pool_id and _cluster(each) != _cluster(spec)), None)
    if other is not None:
        stdout().print(
            f"  note: {other.job_id} runs on another cluster and has pool_id {spec.pool_id} too; give each cluster its"
            " own, or slots reserved in one count in the other",
            style="yellow",
        )


def _cluster(spec: JobSpec) -> tuple[str, str | None]:
    """Return what tells the cluster. Namespaces of Kubernetes may share one."""
    app = spec.application
    return app.backend, {"standalone": app.master, "yarn": app.rest_url}.get(app.backend)


def _show_change(now: JobSpec | None, new: JobSpec | None) -> None:
    console = stdout()
    if now is None and new is not None:
        console.print(f"{new.job_id}: new, version {new.version}")
    elif now is not None and new is None:
        console.print(f"{now.job_id}: unchanged, version {now.version}")
    elif now is not None and new is not None:
        console.print(f"{new.job_id}: version {now.version} -> {new.version}")
        for line in differences(now, new):
            console.print(Text("  " + line, style={"+": "green", "-": "red"}.get(line[0], "yellow")))
