"""`tidegate calibrate`: a twin fitted to a recording, run again beside it, as table and picture of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tidegate.cli.problems import Problem
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.events.wire import Wire
from tidegate.replay.files import BadRecording, read
from tidegate.terminal import figure, stdout, table
from tidegate.twin.calibrate import Calibration, Sized, batch_error, calibrate
from tidegate.twin.recorded import CannotCalibrate, Part, every
from tidegate.twin.rerun import FLOOR_SECONDS, Comparison, compare, rerun

W = TypeVar("W", bound=Wire)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was recorded of one job, oldest first."""

    snapshots: list[MetricSnapshot]
    commands: list[ScalingCommand]
    results: list[ActionResult]


@dataclass(frozen=True, slots=True)
class Split:
    """What was fitted, what it was judged by, and the errors."""

    fitted: str
    judged: str
    run: Comparison
    """The twin's run against the recorded one."""
    law: float
    """Median relative error of each recorded batch's duration by its own records and size."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A calibrated twin and its run under the recorded load and commands."""

    found: Calibration
    twin: list[MetricSnapshot]
    splits: list[Split]
    lacking: list[str]
    """Why a split could not be made."""


def calibrate_command(
    recording: Annotated[Path, typer.Argument(metavar="DIR", help="A recording of `tidegate replay record`.")],
    job: Annotated[str | None, typer.Option("--job", help="This job; needed where several were recorded.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Where the picture (PNG) goes.")] = Path(".tidegate/calibrate.png"),
) -> None:
    """Fit the simulated job (the twin) to a recorded one.

    Runs it again with the same load and commands, and shows how far it is off. The recording must show batches of
    different sizes; restarts make starts known too. `tidegate simulate --snapshots DIR/snapshots.ndjson` fits the twin
    by the same snapshots, for other policies or loads.

    Example:  tidegate replay record --to noon --since 2h
              tidegate calibrate noon --job rates --out noon.png
    """
    hint = "record a longer run, with a change of load: `tidegate replay record --to DIR --since 2h`"
    try:
        recorded = recorded_job(recording, job)
        judged = judge(recorded)
    except BadRecording as error:
        raise Problem(str(error), "`tidegate replay record --to DIR` makes one") from None
    except CannotCalibrate as error:
        raise Problem(f"{recording}: {error}", hint) from None
    stdout().print(table("Fit", ("figure", "value"), fit_rows(judged.found)))
    stdout().print()
    columns = (
        "fitted on",
        "judged by",
        "lag",
        "worst tenth",
        "lag, s of work",
        "batches as run",
        "by records and size",
    )
    stdout().print(table("Median errors", columns, error_rows(judged.splits), right=columns[2:]))
    stdout().print(f"lag: of snapshots with over {FLOOR_SECONDS:g} s of arrivals waiting; the twin ran without noise")
    for why in judged.lacking:
        stdout().print(f"left out: {why}", markup=False)
    from tidegate.lab.picture import draw_beside  # noqa: PLC0415  (matplotlib: other commands need not wait for it)

    title = f"{recorded.snapshots[0].job_id}: recorded, and run again on the twin"
    draw_beside(recorded.snapshots, judged.twin, recorded.commands, out, title=title)
    stdout().print(f"\npicture: {out}")


def recorded_job(directory: Path, job: str | None = None) -> Recorded:
    """Return what a recording holds of a job, the only one if none is named; raises `BadRecording`."""
    snapshots = _events(directory, "snapshots", MetricSnapshot)
    jobs = sorted({s.job_id for s in snapshots})
    if not jobs:
        raise BadRecording(f"{directory}: no snapshot was recorded")
    if job is None and len(jobs) > 1:
        raise BadRecording(f"{directory}: {len(jobs)} jobs were recorded, name one with --job: {', '.join(jobs)}")
    name = job or jobs[0]
    if name not in jobs:
        raise BadRecording(f"{directory}: job {name!r} was not recorded, but {', '.join(jobs)}")
    unique = {s.sequence: s for s in snapshots if s.job_id == name}
    commands = {c.command_id: c for c in _events(directory, "commands", ScalingCommand) if c.job_id == name}
    results = {r.result_id: r for r in _events(directory, "results", ActionResult) if r.job_id == name}
    return Recorded(
        [unique[sequence] for sequence in sorted(unique)],
        sorted(commands.values(), key=lambda c: c.issued_at),
        sorted(results.values(), key=lambda r: r.at),
    )


def judge(recorded: Recorded) -> Judged:
    """Fit, run again and compare, also what a part was fitted on with the rest; raises `CannotCalibrate`.

    The twin runs without noise: what is compared is the expected run.
    """
    snapshots = recorded.snapshots
    found = calibrate(snapshots, recorded.results)
    twin, whole = _run(recorded, found, found)
    splits = [Split("everything", "everything", whole, batch_error(found, snapshots))]
    lacking = []
    for split in (partial(_alternate, fitted=0), partial(_alternate, fitted=1), _halves):
        try:
            splits.append(split(recorded, found))
        except CannotCalibrate as error:
            lacking.append(str(error))
    return Judged(found, twin, splits, lacking)


def _run(
    recorded: Recorded, found: Calibration, whole: Calibration, part: Part = every, since: int = 0
) -> tuple[list[MetricSnapshot], Comparison]:
    """Run the recording again with a fit; trigger and batch limit are settings, so those of the `whole` are given."""
    name = recorded.snapshots[0].job_id
    settings = replace(found, trigger_seconds=whole.trigger_seconds, max_records=whole.max_records)
    model = settings.model(name)
    twin = rerun(recorded.snapshots, recorded.commands, model.without_noise())
    return twin, compare(recorded.snapshots[since:], twin, model, part)


def _alternate(recorded: Recorded, whole: Calibration, fitted: int) -> Split:
    """Fit the batches of even (0) or odd (1) number, judge by the others."""

    def left(batch: MicroBatch) -> bool:
        return batch.batch_id % 2 != fitted

    found = calibrate(recorded.snapshots, recorded.results, lambda batch: not left(batch))
    law = batch_error(found, recorded.snapshots, left)
    names = ("even batches", "odd batches")
    return Split(names[fitted], names[1 - fitted], _run(recorded, found, whole, left)[1], law)


def _halves(recorded: Recorded, whole: Calibration) -> Split:
    snapshots = recorded.snapshots
    half, seen, place = sum(len(s.batches) for s in snapshots) // 2, 0, 0
    while seen < half:
        seen += len(snapshots[place].batches)
        place += 1
    known = snapshots[:place]
    found = calibrate(known, [r for r in recorded.results if r.at <= known[-1].observed_at])
    known_ids = {batch.batch_id for s in known for batch in s.batches}
    law = batch_error(found, snapshots, lambda batch: batch.batch_id not in known_ids)
    return Split("the first half", "the second", _run(recorded, found, whole, since=place)[1], law)


def fit_rows(found: Calibration) -> list[tuple[str, str]]:
    """Return what was fitted, for people."""
    limit = "none seen" if found.max_records is None else f"{found.max_records:,} records"
    trigger = "unknown" if found.trigger_seconds is None else f"{found.trigger_seconds:g} s"
    return [
        ("batches fitted", str(found.batches)),
        ("overhead of a batch", f"{found.overhead_seconds:.2f} s"),
        ("cost of a record", f"{found.record_cost_seconds * 1000:.2f} ms of a slot"),
        ("noise", f"{found.noise_share:.1%}"),
        ("trigger interval", trigger),
        ("most records of a batch", limit),
        ("exit, from the last commit", figure(found.exit_seconds, "s", 1)),
        ("last commit to first batch", _sized(found.restart)),
        ("first batch of a run longer by", _sized(found.first_batch)),
        ("restarts and starts seen", str(len(found.restart_seconds))),
    ]


def error_rows(splits: Sequence[Split]) -> list[tuple[str, ...]]:
    """Return the errors, for people."""
    return [
        (
            each.fitted,
            each.judged,
            f"{each.run.lag_error:.1%} of {each.run.lag_points}",
            f"{each.run.lag_error_tenth:.0%}",
            f"{each.run.lag_seconds:.2f} of {each.run.snapshots}",
            f"{each.run.batch_error:.1%} of {each.run.batch_points}",
            f"{each.law:.1%}",
        )
        for each in splits
    ]


def _sized(found: Sized | None) -> str:
    if found is None:
        return "unknown"
    each = f" + {found.slot_seconds:.1f} s a slot" if found.slot_seconds else ""
    return f"{found.seconds:.1f} s{each} (± {found.spread_seconds / 2:.1f} s)"


def _events(directory: Path, topic: str, model: type[W]) -> Sequence[W]:
    found = []
    for record in read(directory, topic):
        if record.value is not None:
            try:
                found.append(decode(model, record.value))
            except Unreadable as error:
                raise BadRecording(f"{directory}: {topic}, offset {record.offset}: {error.detail}") from None
    return found
