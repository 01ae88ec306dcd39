"""The tuner: a policy's options, and those of the guards that pace it, searched on training loads.

Random search, then random steps around the best found (as good as anything in few dimensions that matter; Bergstra
and Bengio, JMLR 2012). Each option declares its default and range, so the search needs to know no policy. Seeded: the
same seed, loads and number of trials give the same tuning.

    python -m tidegate.lab.tune --policy keda --trials 60            # writes tunings.json
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from engine.guards import BY_NAME
from engine.policies import find, names
from schemas.wire import Scalar
from tidegate.lab.jobs import PARTITIONS, lab_model, lab_peak, one_job, spec_for
from tidegate.lab.score import score
from tidegate.lab.simulate import simulate
from tidegate.lab.traces import read_trace
from tidegate.lab.tunings import Tuning
from twin.load import Load
from twin.noise import Noise
from twin.workloads import sampled, sine

SECONDS = 2 * 3600.0
KEPT = Path(__file__).with_name("tunings.json")

SPREAD = 8.0
"""An option is searched between its default over and times this."""

RECORDS_SPREAD = 2000.0
"""Likewise for options in records: their defaults know nothing of the job's rate (KEDA's lag threshold is 10)."""

GUARDS = {"cooldown": ("up_seconds", "down_seconds"), "stabilization": ("seconds",)}
"""Guards that pace every policy; tuned along, because a rule tuned without them is tuned for another loop."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what it cost, summed over the training loads."""

    tuning: Tuning
    cost: float


def training_loads(peak: float, seconds: float = SECONDS) -> list[Load]:
    """Return the loads to train on when no trace is given: a noisy wave, and steps of random height and length."""
    noise = Noise(97, "training")

    def steps(t: float) -> float:
        at, place = 0.0, 0
        while True:
            at += noise.between(600.0, 1800.0, place, 0)
            if t < at:
                return noise.between(0.2, 1.0, place, 1)
            place += 1

    return [sine(peak, seconds, 3000.0).noisy(0.08, seed=5), sampled(steps, peak, seconds).noisy(0.05, seed=6)]


def tune(policy: str, loads: Sequence[Load], *, trials: int, seed: int = 0) -> Trial:
    """Return the cheapest setting found in `trials` trials, the defaults among them."""
    draw = random.Random(f"{seed} {policy}")
    best = Trial(Tuning({}, {}), _cost(policy, Tuning({}, {}), loads))
    for trial in range(1, trials):
        around = best.tuning if trial > trials // 2 else None
        tuning = _drawn(policy, draw, around)
        found = _cost(policy, tuning, loads)
        if found < best.cost:
            best = Trial(tuning, found)
    return best


def _cost(policy: str, tuning: Tuning, loads: Sequence[Load]) -> float:
    """Return the summed cost over the loads; infinite for options that do not go together."""
    model = lab_model()
    spec = spec_for(model)
    total = 0.0
    for load in loads:
        scenario = one_job(model, spec, load, seed=23).with_policy(policy, tuning.options, tuning.guards)
        try:
            recording = simulate(scenario)[spec.job_id]
        except ValueError:
            return math.inf
        total += score(model, spec, PARTITIONS, recording).cost
    return total


def _drawn(policy: str, draw: random.Random, around: Tuning | None) -> Tuning:
    """Return a setting: drawn anew, or a step away from one."""
    options = _draw_fields(find(policy).Options, draw, around.options if around else None)
    guards = {}
    for name, chosen in GUARDS.items():
        near = around.guards.get(name, {}) if around else None
        drawn = _draw_fields(BY_NAME[name].Options, draw, near)
        guards[name] = {field: value for field, value in drawn.items() if field in chosen}
    return Tuning(options, guards)


def _draw_fields(cls: type, draw: random.Random, near: Mapping[str, Scalar] | None) -> dict[str, Scalar]:
    """Return drawn values of an options class: half of them anywhere, or about a third of them a little off `near`.

    The rest stay as they are: with twenty options moved at once the one that helps drowns in those that hurt.
    """
    drawn: dict[str, Scalar] = dict(near or {})
    for field in fields(cls):
        if draw.random() > (1 / 2 if near is None else 1 / 3):
            continue
        centre = drawn.get(field.name, field.default) if near is not None else field.default
        wide = RECORDS_SPREAD if field.metadata.get("unit") == "records" else SPREAD
        value = _draw_value(centre, field.metadata, draw, wide if near is None else 1.5)
        if value is not None:
            drawn[field.name] = value
    return drawn


def _draw_value(centre: Any, meta: Mapping[str, Any], draw: random.Random, spread: float) -> Scalar | None:
    if isinstance(centre, bool):
        return draw.random() < 0.5
    if meta.get("choices"):
        chosen: Scalar = draw.choice(meta["choices"])
        return chosen
    if not isinstance(centre, int | float):
        return None  # names, schedules and options that are off have no range to draw from
    value = (centre or 1.0) * spread ** draw.uniform(-1.0, 1.0)
    low, high, above = meta.get("ge"), meta.get("le"), meta.get("gt")
    value = max(value, low) if low is not None else value
    value = min(value, high) if high is not None else value
    if above is not None and value <= above:
        return None
    return max(1, round(value)) if isinstance(centre, int) and centre > 0 else float(f"{value:.3g}")


def main(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Policy to tune; repeatable, all if none.")
    ] = None,
    load: Annotated[list[Path] | None, typer.Option("--load", help="Trace to train on (CSV); repeatable.")] = None,
    speed: Annotated[float, typer.Option("--speed", min=0.001, help="Play a trace this many times faster.")] = 1.0,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Settings to try for each policy.")] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="Where the tunings are kept.")] = KEPT,
) -> None:
    """Search the options of policies on training loads, and keep the best found."""
    peak = lab_peak(lab_model(), spec_for(lab_model()))
    traces = [read_trace(path).faster(speed).cut(0.0, SECONDS).scaled(peak) for path in load or ()]
    loads = traces or training_loads(peak)
    label = ", ".join(path.name for path in load or ()) or "a noisy wave and random steps"
    kept: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    chosen, console = policy or names(), Console()
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(tune, name, loads, trials=trials, seed=seed): name for name in chosen}
        for job in track(as_completed(jobs), total=len(jobs), description="tuning", console=Console(stderr=True)):
            found, name = job.result(), jobs[job]
            kept[name] = {
                "options": found.tuning.options,
                "guards": found.tuning.guards,
                "trained_on": f"{label}; {trials} trials, seed {seed}",
            }
            console.print(f"{name}: cost {found.cost:.0f} with {found.tuning.options} {found.tuning.guards}")
    out.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
