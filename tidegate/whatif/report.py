"""A trial in words, as tables, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.events.envelope import value_of
from tidegate.events.job import Mode
from tidegate.operate import leaves
from tidegate.whatif.course import Course
from tidegate.whatif.differences import DecisionDifference
from tidegate.whatif.figures import figures_of, length
from tidegate.whatif.trial import Trial
from tidegate.words import clock, figure

COLUMNS = ("at", "times", "was", "would be", "first difference", "why")
FIGURE_COLUMNS = ("figure", "recorded", "what if", "the twin on what ran")


def heading(trial: Trial, found: Sequence[DecisionDifference]) -> str:
    """Return in a line what was compared."""
    tried, whole = len(trial.made), len(trial.decisions)
    part = "" if tried == whole else f" of {whole}"
    differ = sum(one.count for one in found)
    decided = f"{tried}{part} decisions by {trial.engine}, {differ} of them differ"
    return f"{trial.job_id}: {length(seconds_of(trial))}, {decided}"


def seconds_of(trial: Trial) -> float:
    """Return how long the time is that was tried."""
    tried = trial.courses[0]
    return tried[-1].at - tried[0].at + trial.specs[-1][0].interval_seconds


def difference_rows(found: Iterable[DecisionDifference]) -> list[tuple[str, ...]]:
    """Return the rows of the table of differences."""
    return [
        (
            clock(one.at),
            f"x{one.count}",
            one.was,
            one.would_be,
            one.because,
            one.sentence + (" (twin)" * one.on_the_twin),
        )
        for one in found
    ]


def how_sure(trial: Trial) -> list[str]:
    """Return how much of the answer was measured, and how far the rest can be trusted, a sentence each."""
    lines = [f"Left out: {each}." for each in trial.left_out]
    if trial.leaves_at is None:
        lines.append("Every change of size would have been the same, so all of this was measured.")
        if (mode := trial.specs[-1][1].scaling.mode) is not Mode.ACTIVE:
            lines.append(f"In mode {mode.value} no size changes: try it with scaling.mode=active.")
        return lines
    at = trial.decisions[trial.leaves_at].decided_at
    lines.append(f"Until {clock(at)} UTC every change is the recorded one, so all of it was measured.")
    if trial.unknown_because:
        lines.append(f"What follows is not known, because no twin can be fitted: {trial.unknown_because}.")
    sure = trial.sureness
    if sure is None:
        return lines
    runs, spec = len(trial.courses), trial.specs[-1][0]
    was, control = figures_of(trial.recorded, spec), figures_of(sure.control, spec)
    often = "once" if runs == 1 else f"{runs} times with other noise: a range is what they differ by"
    lines.append(f"From then on it is simulated, {often}.")
    lines.append(
        f"The twin predicts the recorded batches with a median error of {sure.batch_error:.1%}. With the recorded "
        f"changes it is late for {figure(control.late_seconds, 's')}, where {figure(was.late_seconds, 's')} were "
        f"measured, and holds {figure(control.slot_seconds / 3600, digits=2)} slot-hours, where "
        f"{figure(was.slot_seconds / 3600, digits=2)} were."
    )
    tried = {point.slots for course in trial.courses for point in course if point.slots}
    if unseen := sorted(tried - sure.sizes_seen):
        sizes = ", ".join(map(str, unseen))
        lines.append(f"The job never ran with {sizes} slots in this recording: what they can do is extrapolated.")
    return lines


def changes_of_spec(trial: Trial) -> list[str]:
    """Return the fields in which the tried spec differs from a recorded version, and how from the newest such one."""
    found: dict[str, str] = {}
    for versions in reversed(trial.specs):
        was, tried = (dict(leaves(json.loads(value_of(spec)))) for spec in versions)
        for name in {**was, **tried}:
            if was.get(name) != tried.get(name):
                found.setdefault(name, f"{name}: {was.get(name, 'not set')} → {tried.get(name, 'not set')}")
    return list(found.values())


def as_json(trial: Trial, found: Sequence[DecisionDifference]) -> str:
    """Return the trial as JSON: figures as numbers, one for each of the twin's runs, and every difference."""
    spec = trial.specs[-1][0]

    def numbers(course: Course) -> dict[str, Any]:
        made = figures_of(course, spec)
        return {
            "seconds": made.seconds,
            "late_seconds": made.late_seconds,
            "worst_delay_seconds": made.worst_seconds,
            "unknown_seconds": made.unknown_seconds,
            "slot_seconds": made.slot_seconds,
            "changes": made.changes,
            "cost_slot_seconds": made.cost,
        }

    sure = trial.sureness
    left = trial.leaves_at
    return json.dumps(
        {
            "job_id": trial.job_id,
            "engine": trial.engine,
            "changed": changes_of_spec(trial),
            "decisions": len(trial.decisions),
            "differing": sum(one.count for one in found),
            "leaves_at": None if left is None else trial.decisions[left].sequence,
            "unknown_because": trial.unknown_because or None,
            "recorded": numbers(trial.recorded),
            "tried": [] if trial.unknown_because else [numbers(course) for course in trial.courses],
            "control": None if sure is None else numbers(sure.control),
            "batch_error": None if sure is None else sure.batch_error,
            "how_sure": how_sure(trial),
            "differences": [
                {
                    "at": one.at.isoformat(),
                    "sequence": one.sequence,
                    "count": one.count,
                    "was": one.was,
                    "would_be": one.would_be,
                    "because": one.because,
                    "was_sentence": one.was_sentence,
                    "sentence": one.sentence,
                    "on_the_twin": one.on_the_twin,
                }
                for one in found
            ],
        },
        ensure_ascii=False,
        indent=2,
    )
