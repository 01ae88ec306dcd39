"""The suite: every policy on every workload, with its defaults and with its tuning, beside the oracle.

A cell is one simulation and a pure function of its name, so cells run in as many processes as there are cores and the
table is the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from engine.policies import names
from tidegate.lab.jobs import PARTITIONS, lab_model, lab_peak, one_job, spec_for
from tidegate.lab.oracle import oracle
from tidegate.lab.score import Curve, Prices, Score, curve, score
from tidegate.lab.simulate import JobRecording, Scenario, simulate
from tidegate.lab.tunings import DEFAULTS, tunings
from twin.load import Load
from twin.workloads import SHAPES

ORACLE = "oracle"
SECONDS = 3 * 3600.0
QUICK_SECONDS = 3600.0


class UnknownName(ValueError):
    """A policy or workload that is not there; the text lists those that are."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation of the suite."""

    workload: str
    policy: str
    """A policy's name, or `oracle`."""
    tuned: bool
    seconds: float
    seed: int

    @property
    def label(self) -> str:
        """How the row is called."""
        return f"{self.policy} (tuned)" if self.tuned else self.policy


@dataclass(frozen=True, slots=True)
class Row:
    """What a cell gave."""

    cell: Cell
    score: Score
    curve: Curve
    restarts_at: tuple[float, ...]
    """Seconds since the beginning."""


def scenario_of(workload: str, seconds: float, seed: int) -> Scenario:
    """Return the scenario of a workload: the lab's job under the lab's peak; raises `UnknownName`."""
    if workload not in SHAPES:
        raise UnknownName(f"unknown workload {workload!r}, known are {', '.join(SHAPES)}")
    model = lab_model()
    spec = spec_for(model)
    load = SHAPES[workload](lab_peak(model, spec), seconds)
    # Half an interval later: what changes does so between two snapshots, as it would outside a lab.
    load = Load((load.rates[0], *load.rates[:-1]), load.step_seconds)
    return one_job(model, spec, load, seed=seed)


def cells(
    policies: Iterable[str] = (), workloads: Iterable[str] = (), *, quick: bool = False, seed: int = 0
) -> list[Cell]:
    """Return the cells of the policies and workloads asked for (none: all); raises `UnknownName`.

    The oracle stands first in each workload; a policy with a tuning has two cells.
    """
    chosen, shapes = list(policies) or names(), list(workloads) or list(SHAPES)
    for policy in chosen:
        if policy not in names():
            raise UnknownName(f"unknown policy {policy!r}, known are {', '.join(names())}")
    for shape in shapes:
        if shape not in SHAPES:
            raise UnknownName(f"unknown workload {shape!r}, known are {', '.join(SHAPES)}")
    seconds, tuned = QUICK_SECONDS if quick else SECONDS, tunings()
    found = []
    for shape in shapes:
        found.append(Cell(shape, ORACLE, tuned=False, seconds=seconds, seed=seed))
        for policy in chosen:
            found.append(Cell(shape, policy, tuned=False, seconds=seconds, seed=seed))
            if policy in tuned:
                found.append(Cell(shape, policy, tuned=True, seconds=seconds, seed=seed))
    return found


def run(cell: Cell, prices: Prices | None = None) -> Row:
    """Return what a cell gives."""
    scenario = scenario_of(cell.workload, cell.seconds, cell.seed)
    if cell.policy == ORACLE:
        best = oracle(scenario, prices)
        return _row(cell, scenario, best.recording, best.score)
    tuning = tunings()[cell.policy] if cell.tuned else DEFAULTS
    scenario = scenario.with_policy(cell.policy, tuning.options, tuning.guards)
    recording = simulate(scenario)[scenario.specs[0].job_id]
    return _row(cell, scenario, recording, score(scenario.models[0], scenario.specs[0], PARTITIONS, recording, prices))


def _row(cell: Cell, scenario: Scenario, recording: JobRecording, found: Score) -> Row:
    line = curve(scenario.models[0], scenario.specs[0], PARTITIONS, recording.ticks)
    moments = tuple(command.issued_at.timestamp() - scenario.epoch for command in recording.commands)
    return Row(cell, found, line, moments)


def run_all(todo: list[Cell], *, processes: int | None = None) -> Iterator[Row]:
    """Yield rows as they are done, from `processes` processes (None: one per core, at most 2)."""
    count = min(2, os.cpu_count() or 1) if processes is None else processes
    if count <= 1 or len(todo) < 2:
        yield from map(run, todo)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, cell) for cell in todo]):
            yield future.result()
