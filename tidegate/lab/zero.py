"""`python -m tidegate.lab.zero`: what scaling to zero saves, and how old the first records get, on the twin.

The lab's job gets bursts of records with silences in between, under a spec that keeps a slot and under one that may
scale to zero. A silence of its own length follows each burst; the lengths are drawn by a seed from an exponential
distribution, so short ones occur, for which a stop does not pay. The table has one row per mean silence:

    slots saved    share of the slot-hours that the job with a slot has held
    age            seconds from a burst's first record until it is committed: mean and longest over the bursts
    stops          how often the job was scaled to zero
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from tidegate.events.command import CommandKind
from tidegate.lab.jobs import PARTITIONS, lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.simulate import JobRecording, Scenario, simulate
from tidegate.twin.load import STEP_SECONDS, Load
from tidegate.twin.world import Truth

BURST_SECONDS = 300.0
SHARE_OF_PEAK = 0.3
MEAN_SILENCES = (300.0, 900.0, 3600.0, 14_400.0)
HOURS = 24.0


@dataclass(frozen=True, slots=True)
class ZeroScore:
    """What a run with silences has cost."""

    slot_hours: float
    stops: int
    mean_age: float
    """Seconds from a burst's first record until it is committed."""
    longest_age: float


def bursts(mean_silence: float) -> Load:
    """Return five-minute bursts at 30 % of the lab's peak with silences of a mean length between them."""
    model = lab_model()
    rate = SHARE_OF_PEAK * lab_peak(model, spec_for(model))
    draw = random.Random(0)
    rates: list[float] = []
    while len(rates) * STEP_SECONDS < HOURS * 3600:
        rates += [rate] * round(BURST_SECONDS / STEP_SECONDS)
        rates += [0.0] * max(1, round(draw.expovariate(1.0 / mean_silence) / STEP_SECONDS))
    return Load(rates[: round(HOURS * 3600 / STEP_SECONDS)], STEP_SECONDS)


def scenario(load: Load, *, least: int, policy: str = "tide") -> Scenario:
    """Return the lab's job under a load with a smallest size."""
    made = lab_job(load).with_policy(policy)
    spec = made.specs[0]
    scaling = spec.scaling.model_copy(update={"min_parallelism": least})
    return replace(made, specs=(spec.model_copy(update={"scaling": scaling}),))


def zero_score(recording: JobRecording) -> ZeroScore:
    """Return the score of a recording."""
    ticks = recording.ticks
    ages = first_ages(ticks)
    return ZeroScore(
        slot_hours=(ticks[-1].core_seconds - ticks[0].core_seconds) / 3600.0,
        stops=sum(command.kind is CommandKind.STOP for command in recording.commands),
        mean_age=sum(ages) / len(ages) if ages else 0.0,
        longest_age=max(ages, default=0.0),
    )


def first_ages(ticks: Sequence[Truth]) -> list[float]:
    """Return for each burst the seconds until its first records are committed, to the tick.

    A burst begins with the first records after a tick without lag. In the twin's offsets, each partition holds back a
    part of a record.
    """
    ages: list[float] = []
    since: float | None = None
    before = 0.0
    for last, tick in pairwise(ticks):
        if since is None and last.lag_records == 0 and tick.arrived > last.arrived:
            since, before = last.at, last.arrived
        if since is not None and tick.arrived - tick.lag_records > before + len(PARTITIONS):
            ages.append(tick.at - since)
            since = None
    return ages


def main() -> None:
    """Print the table."""
    table = Table("mean silence", "slots saved", "age kept", "age zero", "longest kept", "longest zero", "stops")
    for mean in MEAN_SILENCES:
        load = bursts(mean)
        kept, zero = (zero_score(next(iter(simulate(scenario(load, least=least)).values()))) for least in (1, 0))
        saved = 1.0 - zero.slot_hours / kept.slot_hours
        ages = (kept.mean_age, zero.mean_age, kept.longest_age, zero.longest_age)
        table.add_row(f"{mean / 60:.0f} min", f"{saved:.0%}", *(f"{age:.0f} s" for age in ages), str(zero.stops))
    Console().print(table)


if __name__ == "__main__":
    main()
