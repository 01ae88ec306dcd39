"""What if: a job's recorded hours again on the twin, as its spec says now and with another policy or other limits.

The twin is fitted to the recorded snapshots and gets the arrivals that were recorded; the engine's `step` decides on it
as it does for the real job. Both runs are simulated, so that they differ in nothing but the spec. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from tidegate.console.charts import Chart, Series
from tidegate.engine.options import option_model
from tidegate.events.job import JobSpec, Scaling
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.wire import Scalar
from tidegate.installed import engine
from tidegate.lab.bill import bill_in_words, monthly_bill
from tidegate.lab.jobs import batch_bound, sizes_of
from tidegate.lab.score import Curve, Score, changes_in_words, curve, score
from tidegate.lab.simulate import JobRecording, Scenario, TopicPlan, simulate
from tidegate.terminal import figure
from tidegate.twin.calibrate import calibrate
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.recorded import load_of
from tidegate.twin.schedule import demand

DRAWN_POINTS = 400
MOST_HOURS = 24.0
"""Longest recording to try a spec on."""


class CannotTry(ValueError):
    """The request cannot be simulated; the text says what to change."""


@dataclass(frozen=True, slots=True)
class TriedSpec:
    """What one spec would have done."""

    name: str
    rows: tuple[tuple[str, str], ...]
    """Figures in words."""
    changes: tuple[tuple[float, str, str], ...]
    """Each change of size: epoch seconds, sizes, why."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Two trials over the same hours."""

    trials: tuple[TriedSpec, TriedSpec]
    charts: tuple[Chart, ...]
    hours: float


def with_options(spec: JobSpec, policy: str, options: str, limits: dict[str, str]) -> JobSpec:
    """Return a spec with another policy, its options as lines of `name = value`, and other limits where given.

    Raises `CannotTry` with the first thing that is wrong.
    """
    update: dict[str, object] = {"policy": policy, "policy_options": options_of(options)}
    for name, text in limits.items():
        if text.strip():
            update[name] = number_of(name, text)
    try:
        scaling = Scaling.model_validate({**spec.scaling.model_dump(), **update})
        changed = JobSpec.model_validate({**dict(spec), "scaling": scaling, "manual": None, "change": None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise CannotTry(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if problems := engine().check(changed):
        raise CannotTry("; ".join(problems))
    return changed


def known_options(policy: str) -> list[tuple[str, str, str]]:
    """Return the options of a policy: name, default, meaning; none of a policy that is not installed."""
    found = engine().policies.get(policy)
    fields = option_model(found.Options).model_fields if found is not None else {}
    return [
        (name, "none" if field.default is None else str(field.default), field.description or "")
        for name, field in fields.items()
    ]


def options_of(text: str) -> dict[str, Scalar]:
    """Return options written as lines of `name = value`; raises `CannotTry` with the bad line."""
    found: dict[str, Scalar] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not (name and equals and value):
            raise CannotTry(f"{line!r} is not an option: write one `name = value` per line")
        found[name] = scalar_of(value)
    return found


def scalar_of(text: str) -> Scalar:
    """Return `true`, `false`, a number, or the text itself."""
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def number_of(name: str, text: str) -> int | float:
    """Return the number that a field of a form holds; raises `CannotTry`."""
    value = scalar_of(text.strip())
    if isinstance(value, bool | str):
        raise CannotTry(f"{name}: {text!r} is not a number")
    return value if name.endswith("_parallelism") else float(value)


def hours_of(text: str) -> float:
    """Return the hours that a field of a form holds; raises `CannotTry`."""
    hours = number_of("hours", text)
    if not 0 < hours <= MOST_HOURS:
        raise CannotTry(f"hours: give a number above 0, at most {MOST_HOURS:g}")
    return hours


def try_out(present: JobSpec, other: JobSpec, snapshots: Sequence[MetricSnapshot], seed: int = 0) -> WhatIf:
    """Return what both specs would have done under the recorded load.

    Raises `CannotCalibrate` if the snapshots tell too little about the job, and `BadLoad` if about its load.
    """
    model = JobModel(
        job_id=present.job_id,
        pipeline_id=present.pipeline_id,
        pool_id=present.pool_id,
        sources=("source",),
        stages=(StageModel("batch", 0.001),),
        ways=present.application.ways,
        stop_deadline_seconds=present.application.stop_deadline_seconds,
        start_deadline_seconds=present.application.start_deadline_seconds,
    )
    fitted = calibrate(snapshots)
    model, shares, load = fitted.model(present.job_id, model), fitted.shares, load_of(snapshots)
    first, seconds = snapshots[0].sequence, float(snapshots[-1].sequence - snapshots[0].sequence)
    runs = []
    for spec in (replaced(present), replaced(other)):
        start = demand(model, shares, load.rate(0.0), batch_bound(spec), sizes_of(spec))
        scenario = Scenario(
            models=(model,),
            specs=(spec,),
            topics={"source": TopicPlan(shares, load)},
            pools={spec.pool_id: 2 * spec.scaling.max_parallelism},
            sizes={spec.job_id: start},
            seconds=seconds,
            seed=seed,
            epoch=first,
        )
        recording = simulate(scenario)[spec.job_id]
        runs.append(
            (spec, recording, score(model, spec, shares, recording), curve(model, spec, shares, recording.ticks))
        )
    names = ("as it is", "what if")
    trials = [trial(name, run[0], run[1], run[2]) for name, run in zip(names, runs, strict=True)]
    return WhatIf((trials[0], trials[1]), charts_of_runs(names, [run[3] for run in runs], first), seconds / 3600)


def replaced(spec: JobSpec) -> JobSpec:
    """Return a spec that the twin's job can be scaled by: active, meant to run, without an open request."""
    scaling = spec.scaling.model_copy(update={"mode": Scaling().mode})
    changes = {"scaling": scaling, "running": True, "manual": None, "sources": ("source",), "sinks": ()}
    return spec.model_copy(update=changes)


def trial(name: str, spec: JobSpec, recording: JobRecording, found: Score) -> TriedSpec:
    """Return a run in words."""
    rows = [
        ("policy", spec.scaling.policy),
        ("above the lag objective", f"{figure(found.violated_seconds, 's')} ({found.violated_share:.1%})"),
        ("oldest record", figure(found.worst_age_seconds, "s")),
        ("slot-hours", figure(found.core_seconds / 3600, digits=2)),
        ("changes of size", changes_in_words(found)),
        ("cost", figure(found.cost, "slot-seconds")),
    ]
    if spec.scaling.prices is not None:
        rows.append(("a month like this", bill_in_words(monthly_bill(spec.scaling.prices, found))))
    changes = [
        (d.decided_at.timestamp(), f"{d.current_parallelism} → {d.final_parallelism}", d.sentence)
        for d in recording.decisions
        if d.command is not None
    ]
    return TriedSpec(name, tuple(rows), tuple(changes))


def charts_of_runs(names: Sequence[str], lines: Sequence[Curve], epoch: int) -> tuple[Chart, ...]:
    """Return size and delay of both runs over time."""
    every = max(1, len(lines[0].at) // DRAWN_POINTS)
    at = tuple(epoch + second for second in lines[0].at[::every])
    dashes = ((), (8, 4))
    sizes = [
        Series(name, tuple(map(float, line.held[::every])), dash, stepped=True)
        for name, line, dash in zip(names, lines, dashes, strict=True)
    ]
    delays = [
        Series(name, tuple(round(age, 1) for age in line.age_seconds[::every]), dash)
        for name, line, dash in zip(names, lines, dashes, strict=True)
    ]
    needed = Series("needed", tuple(map(float, lines[0].demand[::every])), (2, 4), stepped=True)
    worst = " and ".join(f"{max(line.age_seconds):,.0f} s {name}" for name, line in zip(names, lines, strict=True))
    most = " and ".join(f"{max(line.held)} slots {name}" for name, line in zip(names, lines, strict=True))
    return (
        Chart("slots", "Size", "slots", at, (*sizes, needed), (), f"At most {most}."),
        Chart("delay", "Delay", "s", at, tuple(delays), (), f"The oldest record: {worst}."),
    )
