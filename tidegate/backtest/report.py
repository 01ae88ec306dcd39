"""The figures of a backtest as rows of tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidegate.backtest.backtest import JobReport, Side
from tidegate.backtest.delays import Errors
from tidegate.backtest.fitting import TRUSTED_ERROR
from tidegate.backtest.logs import LeftOut
from tidegate.backtest.trial import Result
from tidegate.fleet.explain import sizes_of
from tidegate.lab.tunings import DEFAULTS

RESULT_COLUMNS = (
    *("", "slot-hours", "slot-hours a month", "delay, median", "delay, p95", "delay, worst", "above the objective"),
    *("changes of size", "cost"),
)
OPTION_COLUMNS = ("option", "default", "best", "saves alone")
CHANGE_COLUMNS = ("after", "slots", "why")
MOST_CHANGES = 60


def trust(report: JobReport) -> str:
    """Return in a sentence how far the forecast can be trusted."""
    fit = report.fit
    if fit is None:
        return "The load is drawn and the job is the twin you described: nothing was recorded to check it against."
    checked = (
        f"On the part kept back, at the recorded sizes, the twin's delay is off by {errors(fit.delay)}, and a batch's "
        f"duration by {errors(fit.batch)}."
    )
    if fit.doubts:
        return f"Do not trust this forecast: {'; '.join(fit.doubts)}. {checked}"
    return f"{checked} Up to {TRUSTED_ERROR:.0%} in the median, a forecast is trusted."


def errors(found: Errors | None) -> str:
    """Return an error in words."""
    if found is None:
        return "an unknown error"
    values = "1 value" if found.points == 1 else f"{found.points} values"
    return f"{found.median:.1%} in the median (p95 {found.p95:.0%}, {values})"


def headline(report: JobReport) -> str:
    """Return in a sentence what Tidegate would have brought on the part kept back."""
    was, would = report.sides[0].kept, report.proposed.kept
    more = round(would.slot_seconds / was.slot_seconds - 1.0, 2) if was.slot_seconds else 0.0
    hours = f"{abs(more):.0%} {'fewer' if more < 0 else 'more'} slot-hours" if more else "as many slot-hours"
    late = f"{minutes(would.late_seconds)} above the lag objective instead of {minutes(was.late_seconds)}"
    changes = f"{would.changes} change{'' if would.changes == 1 else 's'} of size"
    return f"{hours}, {late}, {changes}"


def minutes(seconds: float) -> str:
    """Return a length of time in the unit that suits it."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def result_rows(report: JobReport, *, kept: bool) -> list[tuple[str, ...]]:
    """Return a row for each thing compared, on the part kept back or on all of the past."""
    return [_result(side.label, side.kept if kept else side.whole, report) for side in report.sides]


def _result(label: str, result: Result, report: JobReport) -> tuple[str, ...]:
    prices = report.spec.scaling.prices
    unit = f"{prices.currency} a month" if prices is not None else "slot-seconds"
    return (
        label,
        f"{result.slot_seconds / 3600:,.2f}",
        f"{result.slot_hours_a_month:,.0f}",
        f"{result.delay_median:.1f} s",
        f"{result.delay_p95:.1f} s",
        f"{result.delay_worst:.0f} s",
        f"{minutes(result.late_seconds)} ({result.late_seconds / result.seconds:.1%})",
        str(result.changes),
        f"{result.cost:,.0f} {unit}",
    )


def option_rows(report: JobReport) -> list[tuple[str, ...]]:
    """Return a row for each option that matters."""
    return [(m.name, f"{m.default}", f"{m.best}", f"{m.gain:.1%}") for m in report.found.matters]


def options_in_words(report: JobReport) -> str:
    """Return what the search brought."""
    found = report.found
    tried = f"{found.trials} settings were tried on the first part"
    if not found.trials:
        return "No search was made."
    if found.tuning == DEFAULTS:
        return f"{tried}; none was cheaper than the defaults, which are proposed."
    if report.accepted:
        default, tuned = report.sides[1].kept.cost, report.proposed.kept.cost
        return (
            f"{tried}; the best saves {found.gain:.1%} there and {1 - tuned / default:.1%} on the part kept back, so "
            f"it is proposed. The defaults cost {default:,.0f} there, the options found {tuned:,.0f}."
        )
    default, tuned = report.sides[1].kept.cost, report.rejected_cost or 0.0
    return (
        f"{tried}; the best saves {found.gain:.1%} there, but costs {tuned:,.0f} on the part kept back, where the "
        f"defaults cost {default:,.0f}. So the defaults are proposed."
    )


def fit_rows(report: JobReport) -> list[tuple[str, str]]:
    """Return what was fitted."""
    model, fit = report.replica.model, report.fit
    trigger = f"{model.trigger_interval_seconds:g} s" if model.trigger_interval_seconds else "none"
    limit = f"{model.max_records_per_trigger:,} records" if model.max_records_per_trigger else "none seen"
    rows = [
        ("overhead of a batch", f"{model.overhead_seconds:.2f} s"),
        ("cost of a record", f"{sum(stage.record_cost_seconds for stage in model.stages) * 1000:.3f} ms of a slot"),
        ("noise", f"{model.noise_share:.1%}"),
        ("trigger interval", trigger),
        ("largest batch", limit),
        ("partitions", str(len(report.replica.shares))),
        ("new executors: until registered", f"{model.in_place.register_seconds:.1f} s"),
        ("new executors: extra time of the first batch", f"{model.in_place.first_batch_seconds:.1f} s"),
    ]
    return rows if fit is None else [*rows, ("batches fitted", f"{fit.calibration.batches:,}")]


def change_rows(side: Side, epoch: int) -> list[tuple[str, ...]]:
    """Return a row for each change of size, with its reason; only the first ones if there are many."""
    return [
        (
            minutes(decision.decided_at.timestamp() - epoch),
            sizes_of(decision),
            decision.sentence,
        )
        for decision in side.recording.decisions[:MOST_CHANGES]
    ]


def as_json(reports: Sequence[JobReport], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Return all figures as a JSON value."""
    return {"jobs": [_job(report) for report in reports], "left_out": [asdict(each) for each in left_out]}


def _job(report: JobReport) -> dict[str, Any]:
    fit = report.fit
    return {
        "job": report.name,
        "source": report.source,
        "trusted": None if fit is None else not fit.doubts,
        "doubts": [] if fit is None else list(fit.doubts),
        "remarks": [] if fit is None else list(fit.remarks),
        "delay_error": None if fit is None or fit.delay is None else asdict(fit.delay),
        "batch_error": None if fit is None or fit.batch is None else asdict(fit.batch),
        "kept_back_from_seconds": report.split,
        "sides": [{"what": s.label, "whole": asdict(s.whole), "kept_back": asdict(s.kept)} for s in report.sides],
        "search": {
            "trials": report.found.trials,
            "gain": report.found.gain,
            "accepted": report.accepted,
            "options": dict(report.found.tuning.options),
            "guards": {name: dict(raw) for name, raw in report.found.tuning.guards.items()},
            "matters": [asdict(each) for each in report.found.matters],
        },
        "spec": report.spec.model_dump(mode="json", exclude_defaults=True),
    }
