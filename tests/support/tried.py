"""A recorded hour of one job, scaled by the engine on the twin, and the same hour under another policy."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from tests.support.events import job, with_application
from tests.support.history import write_events
from tidegate.events.job import Mode
from tidegate.events.way import Way
from tidegate.events.wire import Wire
from tidegate.lab.simulate import JobRecording, Scenario, TopicPlan, simulate
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, StageModel
from tidegate.twin.topic import even
from tidegate.twin.workloads import SHAPES
from tidegate.whatif.recorded import RecordedJob

EPOCH = int(datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp())
SECONDS = 3600.0
SPEC = job("orders", policy="tide", policy_options={}, guards={}, max_parallelism=12, lag_objective_seconds=30.0)


MODEL = JobModel("orders", ("in",), (StageModel("map", 0.002),), overhead_seconds=0.4, trigger_interval_seconds=2.0)
NIGHT = "a night"
"""A load that stops for 25 minutes, under which a job that may have no slot is stopped and started again."""


@cache
def simulated(
    policy: str = "tide", shape: str = "flash_crowd", way: Way | None = None, mode: Mode = Mode.ACTIVE
) -> JobRecording:
    """Return the hour of a job that starts with 2 slots, by its policy, the shape of its load, and its mode.

    `way` is the only way to change its size; all of them if None.
    """
    model = MODEL if way is None else replace(MODEL, ways=(way,))
    least = 0 if shape == NIGHT else 1
    scaling = SPEC.scaling.model_copy(update={"policy": policy, "min_parallelism": least, "mode": mode})
    spec = with_application(SPEC.model_copy(update={"scaling": scaling}), rescale=way and (way,))
    night = Load([1500.0] * 120 + [0.0] * 300 + [1500.0] * 120 + [0.0] * 180)
    load = night if shape == NIGHT else SHAPES[shape](2600.0, SECONDS)
    topics = {"in": TopicPlan(even(12), load)}
    scenario = Scenario((model,), (spec,), topics, {"default": 40}, {"orders": 2}, SECONDS, epoch=EPOCH)
    return simulate(scenario, keep_snapshots=True)["orders"]


def recorded(
    policy: str = "tide", shape: str = "flash_crowd", way: Way | None = None, mode: Mode = Mode.ACTIVE
) -> RecordedJob:
    """Return that hour as it is read from a recording."""
    found = simulated(policy, shape, way, mode)
    return RecordedJob(found.snapshots, found.commands, found.results, found.decisions)


def write_hour(directory: Path) -> None:
    """Write that hour as a recording."""
    found = simulated()
    written: list[tuple[datetime, Wire]] = [(found.snapshots[0].observed_at, SPEC)]
    written += [(each.observed_at, each) for each in found.snapshots]
    written += [(each.decided_at, each) for each in found.decisions]
    written += [(each.issued_at, each) for each in found.commands]
    written += [(each.at, each) for each in found.results]
    write_events(directory, written)
