"""`tidegate calibrate`: fits the simulated job to a recording and compares the two, as tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.bars import timed_bars
from tidegate.cli.outputs import Output, even_if_unread, png, write_files
from tidegate.cli.problems import Problem
from tidegate.cli.recorded import recorded_job
from tidegate.events.snapshot import MetricSnapshot, MicroBatch
from tidegate.terminal import stdout, table
from tidegate.twin.calibrate import Calibration, batch_error, calibrate
from tidegate.twin.calibrate_ways import Sized
from tidegate.twin.recorded import CannotCalibrate, Part, every
from tidegate.twin.rerun import FLOOR_SECONDS, Comparison, carried_out, compare, rerun
from tidegate.whatif.recorded import RecordedJob
from tidegate.whatif.trial import Progress
from tidegate.words import figure


@dataclass(frozen=True, slots=True)
class Split:
    """What the twin was fitted on, what it was compared with, and the errors."""

    fitted: str
    compared: str
    run: Comparison
    """The twin's run compared with the recorded one."""
    duration_error: float
    """Median relative error of a batch's duration, predicted from its records and the job's size."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibrated twin, and its run under the recorded load and commands."""

    found: Calibration
    twin: list[MetricSnapshot]
    splits: list[Split]
    left_out: list[str]
    """Why a split could not be made."""


def calibrate_command(
    recording: Annotated[Path, typer.Argument(metavar="DIR", help="A recording or an archive.")],
    job: Annotated[str | None, typer.Option("--job", help="The job; required if the recording holds several.")] = None,
    out: Annotated[Path, typer.Option("--out", callback=png, help="Where to write the picture (PNG).")] = Path(
        ".tidegate/calibrate.png"
    ),
) -> None:
    """Fit the simulated job (the twin) to a recording.

    Runs the twin under the recorded load and commands, and shows how far it is off. The recording must hold batches of
    different sizes; if it also holds restarts, their times are fitted too. `tidegate simulate --snapshots
    DIR/snapshots.ndjson` fits the twin in the same way and runs it under other policies or loads.

    Example:  tidegate replay record --to noon --since 2h
              tidegate calibrate noon --job rates --out noon.png
    """
    hint = "record a longer run in which the load changes: `tidegate replay record --to DIR --since 2h`"
    recorded = recorded_job(recording, job)
    try:
        with timed_bars() as bars:
            task = bars.add_task("running the twin", total=1.0)
            calibrated = calibrate_and_compare(recorded, lambda share: bars.update(task, completed=share))
    except CannotCalibrate as error:
        raise Problem(f"{recording}: {error}", hint) from None
    with even_if_unread():
        _show(calibrated)
    from tidegate.lab.picture import draw_beside  # noqa: PLC0415  (matplotlib takes seconds to import)

    title = f"{recorded.snapshots[0].job_id}: recorded and simulated"

    def draw(path: Path) -> None:
        draw_beside(recorded.snapshots, calibrated.twin, recorded.commands, path, title=title)

    with even_if_unread():
        stdout().print()
    write_files([Output("--out", "picture", out, draw)])


def _show(calibrated: Calibrated) -> None:
    """Print the fit and its errors."""
    stdout().print(table("Fit", ("figure", "value"), fit_rows(calibrated.found)))
    stdout().print()
    columns = (
        "fitted on",
        "compared with",
        "lag",
        "lag, worst tenth",
        "lag, s of work",
        "batches of the run",
        "batch durations",
    )
    stdout().print(table("Median errors", columns, error_rows(calibrated.splits), right=columns[2:]))
    stdout().print(
        f"Lag counts snapshots with more than {FLOOR_SECONDS:g} s of arrivals waiting. The twin ran without noise."
    )
    for why in calibrated.left_out:
        stdout().print(f"Left out: {why}")


def calibrate_and_compare(recorded: RecordedJob, progress: Progress = lambda _share: None) -> Calibrated:
    """Fit the twin, run it and compare; also fit it on a part and compare with the rest. Raises `CannotCalibrate`.

    The twin runs without noise, so that the expected run is compared. `progress` is told the completed share.
    """
    snapshots = recorded.snapshots
    found = calibrate(snapshots, recorded.results)
    twin, whole = _run(recorded, found, found)
    splits = [Split("everything", "everything", whole, batch_error(found, snapshots, recorded.results))]
    left_out: list[str] = []
    for split in (partial(_alternate, fitted=0), partial(_alternate, fitted=1), _halves):
        progress((len(splits) + len(left_out)) / 4)
        try:
            splits.append(split(recorded, found))
        except CannotCalibrate as error:
            left_out.append(str(error))
    return Calibrated(found, twin, splits, left_out)


def _run(
    recorded: RecordedJob, found: Calibration, whole: Calibration, part: Part = every, since: int = 0
) -> tuple[list[MetricSnapshot], Comparison]:
    """Run a fitted twin under the recording. Trigger and batch limit are settings: they come from the `whole` fit."""
    name = recorded.snapshots[0].job_id
    settings = replace(found, trigger_seconds=whole.trigger_seconds, max_records=whole.max_records)
    model = settings.model(name)
    twin = rerun(recorded.snapshots, carried_out(recorded.commands, recorded.results), model.without_noise())
    return twin, compare(recorded.snapshots[since:], twin, model, part)


def _alternate(recorded: RecordedJob, whole: Calibration, fitted: int) -> Split:
    """Fit on the even (0) or odd (1) batches, compare with the others."""

    def left(batch: MicroBatch) -> bool:
        return batch.batch_id % 2 != fitted

    found = calibrate(recorded.snapshots, recorded.results, lambda batch: not left(batch))
    duration_error = batch_error(found, recorded.snapshots, recorded.results, left)
    names = ("even batches", "odd batches")
    return Split(names[fitted], names[1 - fitted], _run(recorded, found, whole, left)[1], duration_error)


def _halves(recorded: RecordedJob, whole: Calibration) -> Split:
    snapshots = recorded.snapshots
    half, seen, place = sum(len(s.batches) for s in snapshots) // 2, 0, 0
    while seen < half:
        seen += len(snapshots[place].batches)
        place += 1
    known = snapshots[:place]
    found = calibrate(known, [r for r in recorded.results if r.at <= known[-1].observed_at])
    known_ids = {batch.batch_id for s in known for batch in s.batches}
    duration_error = batch_error(found, snapshots, recorded.results, lambda batch: batch.batch_id not in known_ids)
    return Split("the first half", "the second", _run(recorded, found, whole, since=place)[1], duration_error)


def fit_rows(found: Calibration) -> list[tuple[str, str]]:
    """Return the fitted figures as rows of a table."""
    limit = "none seen" if found.max_records is None else f"{found.max_records:,} records"
    trigger = "unknown" if found.trigger_seconds is None else f"{found.trigger_seconds:g} s"
    rows = [
        ("batches fitted", str(found.batches)),
        ("overhead per batch", f"{found.overhead_seconds:.2f} s"),
        ("cost per record", f"{found.record_cost_seconds * 1000:.2f} ms of slot time"),
        ("noise", f"{found.noise_share:.1%}"),
        ("trigger interval", trigger),
        ("largest batch", limit),
        ("stop: last commit to exit", figure(found.exit_seconds, "s", 1)),
        ("restart: last commit to first batch", _sized(found.restart)),
        ("extra time of a run's first batch", _sized(found.first_batch)),
        ("starts and restarts seen", str(len(found.restart_seconds))),
    ]
    if (handover := found.handover) is not None:
        rows += [
            ("handover: order to warm second driver", _sized(handover.warm)),
            ("handover: last commit to first batch", f"{handover.switch_seconds:.1f} s"),
            ("extra time of its first batch", _sized(handover.first_batch)),
            ("handovers seen", str(handover.seen)),
        ]
    if (place := found.in_place) is not None:
        rows += [
            ("in place: order to registered executors", _sized(place.register)),
            ("extra time of the first batch with them", _sized(place.first_batch)),
            ("in place: order to executors gone, fastest", figure(place.shrink_seconds, "s", 1)),
            ("changes in place seen", f"{place.grown} larger, {place.shrunk} smaller"),
        ]
    return rows


def error_rows(splits: Sequence[Split]) -> list[tuple[str, ...]]:
    """Return the errors as rows of a table."""
    return [
        (
            each.fitted,
            each.compared,
            f"{each.run.lag_error:.1%} of {each.run.lag_points}",
            f"{each.run.lag_error_tenth:.0%}",
            f"{each.run.lag_seconds:.2f} of {each.run.snapshots}",
            f"{each.run.batch_error:.1%} of {each.run.batch_points}",
            f"{each.duration_error:.1%}",
        )
        for each in splits
    ]


def _sized(found: Sized | None) -> str:
    if found is None:
        return "unknown"
    each = f" + {found.slot_seconds:.1f} s per slot" if found.slot_seconds else ""
    return f"{found.seconds:.1f} s{each} (± {found.spread_seconds / 2:.1f} s)"
