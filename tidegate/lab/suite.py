"""The suite: every policy on every workload, with its defaults and its tuning, compared with the oracle.

A cell is one simulation and a pure function of its fields, including a trace's load. The table is the same however many
processes run the cells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from tidegate.engine.plan import UnknownPolicy
from tidegate.events.way import ALL_WAYS, Way
from tidegate.installed import engine
from tidegate.lab.jobs import PARTITIONS, lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.score import Curve, Score, curve, score
from tidegate.lab.simulate import JobRecording, Scenario, simulate
from tidegate.lab.traces import Playback, read_trace
from tidegate.lab.tunings import DEFAULTS, tunings
from tidegate.twin.load import BadLoad, Load
from tidegate.twin.workloads import SHAPES

T = TypeVar("T")
R = TypeVar("R")

ORACLE = "oracle"
SECONDS = 3 * 3600.0


class UnknownName(ValueError):
    """An unknown policy, workload or way; the text lists the known ones."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation of the suite."""

    workload: str
    policy: str
    """A policy's name, or `oracle`."""
    tuned: bool
    seconds: float
    seed: int
    load: Load | None = field(default=None, compare=False, repr=False)
    """The load, if the workload is a trace; None: the shape of that name."""
    ways: tuple[Way, ...] = ALL_WAYS
    """The ways in which the job may change its size."""

    @property
    def label(self) -> str:
        """The row's label."""
        return f"{self.policy} (tuned)" if self.tuned else self.policy


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of a cell."""

    cell: Cell
    score: Score
    curve: Curve
    changes_at: tuple[float, ...]
    """When a change of size was ordered, in seconds since the start."""


def cells(
    policies: Iterable[str] = (),
    workloads: Iterable[str] = (),
    *,
    traces: Mapping[str, Load] | None = None,
    ways: tuple[Way, ...] = ALL_WAYS,
    seconds: float = SECONDS,
    seed: int = 0,
) -> list[Cell]:
    """Return the cells of the given policies and workloads (none given: all). Raises `UnknownName`.

    Traces come after the given workloads, or alone, each with its own length and peak. The oracle is first in each
    workload. A policy with a tuning has two cells.
    """
    traces = traces or {}
    chosen = list(policies) or sorted(engine().policies)
    shapes = list(workloads) or ([] if traces else list(SHAPES))
    for policy in chosen:
        try:
            engine().policy_type(policy)
        except UnknownPolicy as error:
            raise UnknownName(str(error)) from None
    for shape in shapes:
        if shape not in SHAPES:
            raise UnknownName(f"unknown workload {shape!r}, known are {', '.join(SHAPES)}")
        if shape in traces:
            raise UnknownName(f"workload {shape!r} is both a shape and a trace: rename the trace's file")
    tuned = tunings()
    rows = [(ORACLE, False)]
    for policy in chosen:
        rows += [(policy, False), (policy, True)] if policy in tuned else [(policy, False)]
    found = [Cell(shape, policy, was, seconds, seed, None, ways) for shape in shapes for policy, was in rows]
    found += [
        Cell(name, policy, was, load.seconds, seed, load, ways) for name, load in traces.items() for policy, was in rows
    ]
    return found


def ways_of(text: str) -> tuple[Way, ...]:
    """Return the ways in a comma-separated list. Raises `UnknownName`."""
    found = []
    for name in dict.fromkeys(text.split(",")):
        if name.strip() not in list(Way):
            raise UnknownName(f"unknown way {name.strip()!r}, known are {', '.join(Way)}")
        found.append(Way(name.strip()))
    return tuple(found)


def trace_loads(paths: Iterable[Path], play: Playback) -> dict[str, Load]:
    """Return traces by the stems of their files, scaled to the lab's peak. Raises `BadLoad`."""
    scaled, found = replace(play, peak=lab_peak(lab_model(), spec_for(lab_model()))), {}
    for path in paths:
        if path.stem in found:
            raise BadLoad(f"{path}: a trace called {path.stem!r} already exists: give each trace its own name")
        found[path.stem] = read_trace(path, scaled)
    return found


def run(cell: Cell) -> CellResult:
    """Run a cell."""
    peak = lab_peak(lab_model(), spec_for(lab_model()))
    scenario = lab_job(cell.load or SHAPES[cell.workload](peak, cell.seconds), ways=cell.ways, seed=cell.seed)
    if cell.policy == ORACLE:
        from tidegate.lab.oracle import oracle  # noqa: PLC0415 - it needs numpy; those who only tune do not

        best = oracle(scenario)
        return _row(cell, scenario, best.recording, best.score)
    tuning = tunings()[cell.policy] if cell.tuned else DEFAULTS
    scenario = scenario.with_policy(cell.policy, tuning.options, tuning.guards)
    recording = simulate(scenario)[scenario.specs[0].job_id]
    return _row(cell, scenario, recording, score(scenario.models[0], scenario.specs[0], PARTITIONS, recording))


def _row(cell: Cell, scenario: Scenario, recording: JobRecording, found: Score) -> CellResult:
    line = curve(scenario.models[0], scenario.specs[0], PARTITIONS, recording.ticks)
    moments = tuple(command.issued_at.timestamp() - scenario.epoch for command in recording.commands)
    return CellResult(cell, found, line, moments)


def spread(work: Callable[[T], R], todo: Sequence[T], *, processes: int | None = None) -> Iterator[R]:
    """Yield `work` of each item as it finishes, from `processes` processes (None: one per core, at most 2)."""
    count = min(2, os.cpu_count() or 1) if processes is None else processes
    if count <= 1 or len(todo) < 2:
        yield from map(work, todo)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(work, each) for each in todo]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, or Ctrl-C, nobody waits for the rest
