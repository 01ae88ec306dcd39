"""What a what-if form asks for, and the trial of it as the page shows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.console.charts import Chart, ChartMark, Series
from tidegate.events.job import JobSpec, Mode
from tidegate.events.wire import Scalar
from tidegate.whatif.course import Point
from tidegate.whatif.differences import DecisionDifference, differences_of
from tidegate.whatif.engines import ThisEngine
from tidegate.whatif.figures import Row, length, rows_of
from tidegate.whatif.recorded import CannotTry, RecordedJob, moments_of
from tidegate.whatif.report import how_sure, seconds_of
from tidegate.whatif.trial import Trial, attempt
from tidegate.whatif.vary import Vary, checked, scalar_of, values_of, varied
from tidegate.words import figure

DRAWN_POINTS = 400
MOST_HOURS = 24.0
"""Longest recording to try a spec on."""
SEEDS = 3
"""Runs of the twin: fewer than the command's, because somebody waits for the page."""
SHOWN_DIFFERENCES = 40


@dataclass(frozen=True, slots=True)
class ShownTrial:
    """A trial as the page shows it."""

    length: str
    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]
    sure: tuple[str, ...]
    differences: tuple[DecisionDifference, ...]
    more: int
    """Differences that are not shown."""


def asked_change(policy: str, options: str, limits: dict[str, str]) -> Vary:
    """Return what a form asks for: another policy, its options as lines of `name = value`, other limits where given.

    A job that is only observed is tried as if it were active. Raises `CannotTry` for what is no number; what the policy
    does not know is found when it is tried.
    """
    values: dict[str, Scalar] = {
        f"scaling.policy_options.{name}": value for name, value in values_of(options.splitlines()).items()
    }
    for name, text in limits.items():
        if text.strip():
            values[f"scaling.{name}"] = number_of(name, text)

    def vary(spec: JobSpec) -> JobSpec:
        active = {"scaling.mode": Mode.ACTIVE.value} if spec.scaling.mode is Mode.ADVISE else {}
        return checked(varied(spec, policy=policy, values={**values, **active}))

    return vary


def number_of(name: str, text: str) -> int | float:
    """Return the number that a field of a form holds; raises `CannotTry`."""
    value = scalar_of(text.strip())
    if isinstance(value, bool | str):
        raise CannotTry(f"{name}: {text!r} is not a number")
    try:
        return value if name.endswith("_parallelism") else float(value)
    except OverflowError:
        raise CannotTry(f"{name}: {text[:20]}… is too large") from None


def hours_of(text: str) -> float:
    """Return the hours that a field of a form holds; raises `CannotTry`."""
    hours = number_of("hours", text)
    if not 0 < hours <= MOST_HOURS:
        raise CannotTry(f"hours: give a number above 0, at most {MOST_HOURS:g}")
    return hours


def try_out(recorded: RecordedJob, vary: Vary) -> ShownTrial:
    """Return what a change of the spec would have done with the recorded events. Raises `CannotTry`."""
    trial = attempt(recorded, moments_of(recorded), ThisEngine(), vary, seeds=SEEDS)
    was, tried = trial.specs[-1]
    found = differences_of(trial)
    modes = was.scaling.mode.value, tried.scaling.mode.value
    mode = () if modes[0] == modes[1] else (Row("mode", *modes, ""),)
    return ShownTrial(
        length(seconds_of(trial)),
        (Row("policy", was.scaling.policy, tried.scaling.policy, ""), *mode, *rows_of(trial)),
        charts_of_trial(trial),
        tuple(how_sure(trial)),
        tuple(found[:SHOWN_DIFFERENCES]),
        max(0, len(found) - SHOWN_DIFFERENCES),
    )


def charts_of_trial(trial: Trial) -> tuple[Chart, ...]:
    """Return size and delay over time, of what ran and of what would have run."""
    count = len(trial.made)
    every = max(1, count // DRAWN_POINTS)
    was, tried = (course[:count:every] for course in (trial.recorded, trial.courses[0]))
    at = tuple(float(point.at) for point in was)
    marks: tuple[ChartMark, ...] = ()
    if trial.leaves_at is not None:
        marks = (ChartMark(float(trial.recorded[trial.leaves_at].at), "first different change", operator=False),)
    objective = trial.specs[-1][0].scaling.lag_objective_seconds
    slots = [tuple(float(point.slots) for point in points) for points in (was, tried)]
    delays = [tuple(_rounded(point) for point in points) for points in (was, tried)]
    most, worst = (
        [max((v for v in line if v is not None), default=0.0) for line in lines] for lines in (slots, delays)
    )
    return (
        Chart(
            "slots",
            "Size",
            "slots",
            at,
            (Series("recorded", slots[0], stepped=True), Series("what if", slots[1], (8, 4), stepped=True)),
            marks,
            f"At most {_both(most, 'slots')}.",
        ),
        Chart(
            "delay",
            "Delay",
            "s",
            at,
            (
                Series("recorded", delays[0]),
                Series("what if", delays[1], (8, 4)),
                Series("objective", (objective,) * len(at), (2, 4)),
            ),
            marks,
            f"At most {_both(worst, 's')}; objective {objective:g} s.",
        ),
    )


def _rounded(point: Point) -> float | None:
    return None if point.delay_seconds is None else round(point.delay_seconds, 1)


def _both(values: Sequence[float], unit: str) -> str:
    return f"{figure(values[0], unit)} recorded and {figure(values[1], unit)} what if"
