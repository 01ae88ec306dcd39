"""The tuner: search a policy's options, and those of the guards that pace it, on training loads.

The search is a (1+1) evolution strategy: it draws new values for one to six options of the best setting so far, and
keeps them if the runs got cheaper. Options take turns in shuffled rounds, so each is tried before any is tried often.
Most steps change few options, because among twenty changes the one that helps is lost. Some change several, because a
window and the delay that depends on it only help together. Each option declares its default and range, so the search
needs no knowledge of the policy. The same seed, loads and number of trials give the same tuning. The training job
changes size by restart.

    python -m tidegate.lab.tune --policy keda --trials 60            # writes tunings.json
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from tidegate.engine import guards as engine_guards
from tidegate.engine.plan import UnknownPolicy
from tidegate.events.way import Way
from tidegate.events.wire import Scalar
from tidegate.installed import engine
from tidegate.lab.jobs import PARTITIONS, lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.options import Processes, Since, Speed, refused
from tidegate.lab.score import score
from tidegate.lab.simulate import simulate
from tidegate.lab.suite import spread
from tidegate.lab.traces import Playback, read_trace
from tidegate.lab.tunings import Tuning
from tidegate.twin.load import BadLoad, Load, from_points
from tidegate.twin.noise import Noise
from tidegate.twin.workloads import sine

SECONDS = 2 * 3600.0
KEPT = Path(__file__).with_name("tunings.json")
LAUNCH_DAY = Path(__file__).with_name("launch_day.csv")
"""Eight hours of a web server's requests, with a shuttle launch; the file names its source."""

SPREAD = 8.0
"""The search range of an option: its default divided by this to its default times this."""

RECORDS_SPREAD = 2000.0
"""The upper factor for options in records, whose defaults ignore the job's rate (KEDA's lag threshold is 10)."""

GUARDS = {"cooldown": ("up_seconds", "down_seconds"), "stabilization": ("seconds",)}
"""Guards that pace every policy. They are tuned too, because they are part of the loop that the policy runs in."""


@dataclass(frozen=True, slots=True)
class TunedPolicy:
    """One setting of a policy and its cost, summed over the training loads."""

    policy: str
    tuning: Tuning
    cost: float


def training_loads(peak: float) -> list[Load]:
    """Return the default training loads: a noisy wave, random steps, and a real day with a flash crowd.

    Steps come at any time, with any height and length. The lab's tables score none of these loads.
    """
    noise = Noise(97, "training")
    points: list[tuple[float, float]] = []
    at = 0.0
    while at < SECONDS:
        rate = noise.between(0.2, 1.0, len(points), 1)
        length = noise.between(600.0, 1800.0, len(points), 0)
        points += [(at, rate), (at + length - 0.001, rate)]
        at += length
    steps = from_points(points, seconds=SECONDS).scaled(peak).noisy(0.05, seed=6)
    launch = Playback(speed=4.0, hours=SECONDS / 3600, peak=peak)
    return [sine(peak, SECONDS, 3000.0).noisy(0.08, seed=5), steps, read_trace(LAUNCH_DAY, launch)]


def tune(policy: str, loads: Sequence[Load], *, trials: int, seed: int = 0) -> TunedPolicy:
    """Return the cheapest setting of `trials` trials, which include the defaults."""
    draw = random.Random(f"{seed} {policy}")
    best = TunedPolicy(policy, Tuning({}, {}), _cost(policy, Tuning({}, {}), loads))
    options: list[TunedOption] = []
    for _ in range(trials - 1):
        tuning = best.tuning
        for _ in range(draw.choice((1, 1, 2, 3, 6))):
            if not options:
                options = options_of(policy)
                draw.shuffle(options)
            option = options.pop()
            value = option.drawn(draw, tuning)
            tuning = tuning if value is None else option.put(tuning, value)
        found = _cost(policy, tuning, loads)
        if found < best.cost:
            best = TunedPolicy(policy, tuning, found)
    return best


def _cost(policy: str, tuning: Tuning, loads: Sequence[Load]) -> float:
    """Return the cost summed over the loads; infinite for options that exclude each other."""
    total = 0.0
    for load in loads:
        scenario = lab_job(load, ways=(Way.RESTART,), seed=23).with_policy(policy, tuning.options, tuning.guards)
        model, spec = scenario.models[0], scenario.specs[0]
        try:
            recording = simulate(scenario)[spec.job_id]
        except ValueError:
            return math.inf
        total += score(model, spec, PARTITIONS, recording).cost
    return total


@dataclass(frozen=True, slots=True)
class TunedOption:
    """One option of the policy (`guard` empty) or of a guard."""

    guard: str
    name: str
    default: Any
    meta: Mapping[str, Any]

    def drawn(self, draw: random.Random, tuning: Tuning) -> Scalar | None:
        """Return a new value, half of the time from the whole range, else a near one; None if nothing changed."""
        held = tuning.guards.get(self.guard, {}) if self.guard else tuning.options
        present = held.get(self.name, self.default)
        if isinstance(self.default, bool):
            return not present
        if self.meta.get("choices"):
            others = [choice for choice in self.meta["choices"] if choice != present]
            return draw.choice(others) if others else None
        if draw.random() < 1 / 2:
            return self.within(present * draw.choice((0.5, 0.7, 1.4, 2.0)))
        if self.meta.get("unit") == "records":
            return self.within((self.default or 1.0) * RECORDS_SPREAD ** draw.random())
        return self.within((self.default or 1.0) * SPREAD ** draw.uniform(-1.0, 1.0))

    def put(self, tuning: Tuning, value: Scalar) -> Tuning:
        """Return the tuning with this option set to a value."""
        if not self.guard:
            return Tuning({**tuning.options, self.name: value}, tuning.guards)
        raw = {**tuning.guards.get(self.guard, {}), self.name: value}
        return Tuning(tuning.options, {**tuning.guards, self.guard: raw})

    def within(self, value: float) -> Scalar | None:
        """Return a value moved into the range of the option; None if that has no such value."""
        low, high, above = self.meta.get("ge"), self.meta.get("le"), self.meta.get("gt")
        value = max(value, low) if low is not None else value
        value = min(value, high) if high is not None else value
        if above is not None and value <= above:
            return None
        return round(value) if isinstance(self.default, int) else float(f"{value:.3g}")


def options_of(policy: str) -> list[TunedOption]:
    """Return the options to search. Names, schedules and options that are off have no range."""
    found = [TunedOption("", f.name, f.default, f.metadata) for f in fields(engine().policies[policy].Options)]
    known_guards = {guard.name: guard for guard in engine_guards.GUARDS}
    for guard, chosen in GUARDS.items():
        known = fields(known_guards[guard])
        found += [TunedOption(guard, f.name, f.default, f.metadata) for f in known if f.name in chosen]
    return [o for o in found if isinstance(o.default, int | float) or o.meta.get("choices")]


def main(
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="Policy to tune; repeatable, all if none.")
    ] = None,
    load: Annotated[list[Path] | None, typer.Option("--load", help="Trace to train on (CSV); repeatable.")] = None,
    speed: Speed = 1.0,
    since: Since = 0.0,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Settings to try for each policy.")] = 60,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    processes: Processes = None,
    out: Annotated[Path, typer.Option("--out", help="File of the tunings.")] = KEPT,
) -> None:
    """Search the options of policies on training loads and write the best."""
    for name in policy or ():
        try:
            engine().policy_type(name)
        except UnknownPolicy as error:
            raise refused("tidegate.lab.tune", error) from None
    peak = lab_peak(lab_model(), spec_for(lab_model()))
    play = Playback(speed=speed, since_hours=since, most_hours=SECONDS / 3600, peak=peak)
    try:
        loads = [read_trace(path, play) for path in load or ()] or training_loads(peak)
    except BadLoad as error:
        raise refused("tidegate.lab.tune", error) from None
    named = ", ".join(path.name for path in load or ())
    label = f"{named} from hour {since:g}, speed {speed:g}" if named else "a noisy wave, random steps, a launch day"
    try:
        _kept(out)
    except (OSError, ValueError) as error:
        raise refused("tidegate.lab.tune", f"--out {out}: holds no tunings: {error}") from None
    chosen, console = policy or sorted(engine().policies), Console()
    done = spread(partial(tune, loads=loads, trials=trials, seed=seed), chosen, processes=processes)
    for found in track(done, total=len(chosen), description="tuning", console=Console(stderr=True)):
        _keep(out, found, f"{label}; {trials} trials, seed {seed}")
        console.print(f"{found.policy}: cost {found.cost:.0f} with {found.tuning.options} {found.tuning.guards}")


def _kept(path: Path) -> dict[str, Any]:
    """Return the tunings in a file, by policy; none if there is no file. Raises `OSError` or `ValueError`."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not isinstance(kept, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004  (a value in a file, not an argument)
    return kept


def _keep(path: Path, found: TunedPolicy, trained_on: str) -> None:
    """Add a tuning to those in a file, which another tuner may have written since, and which stays whole."""
    one = {"options": found.tuning.options, "guards": found.tuning.guards, "trained_on": trained_on}
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.write_text(
        json.dumps({**_kept(path), found.policy: one}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    scratch.replace(path)


if __name__ == "__main__":
    typer.run(main)
