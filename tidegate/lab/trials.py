"""Any policy on the scenarios with a known answer: its figures and the bars, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.table import Table

from tidegate.lab.scenarios import (
    AIMS,
    ScenarioCase,
    ScenarioOutcome,
    grid,
    noisy_sine,
    outcome,
    restarts,
    word_count,
    worst_sawtooth,
)
from tidegate.lab.simulate import Scenario, simulate
from tidegate.lab.tunings import DEFAULTS, Setting, Tuning, tunings, with_constants

SAWTOOTH_PERIODS = (600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0)
AIM = "DS2's aims"

HELP = (
    "right is the smallest size that keeps up with the arrivals; by default most policies aim higher, for a lag "
    f"objective. {AIM}: the same rule with that size as its only aim; such a rule may restart often"
)


@dataclass(frozen=True, slots=True)
class ScenarioFigures:
    """The figures of one row on all scenarios."""

    label: str
    word_count: dict[str, ScenarioOutcome]
    grid: tuple[ScenarioOutcome, ...]
    sine_restarts: int
    sawtooth_restarts: dict[float, int]

    @property
    def settled(self) -> int:
        """Grid cases that ended at the right size."""
        return sum((found.sizes[-1] if found.sizes else found.start) == found.right for found in self.grid)


def settings(policies: Iterable[str]) -> list[Setting]:
    """Return each policy with its defaults and, where they exist, with its tuning and with DS2's aims."""
    tuned, found = tunings(), []
    for policy in policies:
        found.append(Setting(policy, policy, DEFAULTS))
        if policy in tuned:
            found.append(Setting(f"{policy} (tuned)", policy, tuned[policy]))
        if policy in AIMS:
            found.append(Setting(f"{policy} ({AIM})", policy, AIMS[policy]))
        if policy == "flip271":
            # Flink rounds sizes to divide the partitions, so they are not always the smallest that keep up.
            whole = {**AIMS[policy].options, "alignment_mode": "OFF"}
            found.append(Setting(f"{policy} ({AIM}, unaligned)", policy, Tuning(whole, AIMS[policy].guards)))
    return found


def figures(setting: Setting) -> ScenarioFigures:
    """Return the figures on every scenario; takes about 20 s."""
    words = word_count()
    with with_constants(setting.tuning.constants):
        recordings = simulate(_under(words, setting))
        return ScenarioFigures(
            label=setting.label,
            word_count={job_id: outcome(words, job_id, recordings[job_id]) for job_id in words.right},
            grid=tuple(_grid(setting)),
            sine_restarts=_restarts(noisy_sine(), setting),
            sawtooth_restarts={p: _restarts(worst_sawtooth(p), setting) for p in SAWTOOTH_PERIODS},
        )


def _under(case: ScenarioCase, setting: Setting) -> Scenario:
    return case.scenario.with_policy(setting.policy, setting.tuning.options, setting.tuning.guards)


def _grid(setting: Setting) -> Iterator[ScenarioOutcome]:
    for case in grid():
        (job_id,) = case.right
        yield outcome(case, job_id, simulate(_under(case, setting))[job_id])


def _restarts(case: ScenarioCase, setting: Setting) -> int:
    return restarts(simulate(_under(case, setting))[case.scenario.specs[0].job_id])


def trials_table(rows: list[ScenarioFigures]) -> Table:
    """Return the policies' figures next to the bars."""
    table = Table(title="Scenarios with a known answer", caption=HELP, expand=False)
    table.add_column("policy", no_wrap=True)
    for name in ("flatmap, right 10", "count, right 20", "grid: at the right size", "mean", "most", "over"):
        table.add_column(name, justify="right")
    table.add_column("sine: restarts", justify="right")
    table.add_column("sawtooth: restarts at the worst period", justify="right")
    table.add_row("bar", "1 decision", "1 decision", "36 of 36", "<= 1.56", "<= 3", "0", "<= 11", "", style="dim")
    for row in rows:
        worst = max(row.sawtooth_restarts, key=lambda period: row.sawtooth_restarts[period])
        counts = [found.decisions for found in row.grid]
        table.add_row(
            row.label,
            *(_path(row.word_count[job_id]) for job_id in ("flatmap", "count")),
            f"{row.settled} of {len(row.grid)}",
            f"{sum(counts) / len(counts):.2f}",
            str(max(counts)),
            str(sum(found.over for found in row.grid)),
            str(row.sine_restarts),
            f"{row.sawtooth_restarts[worst]} at {worst:.0f} s",
        )
    return table


def _path(found: ScenarioOutcome) -> str:
    shown = [str(size) for size in (found.start, *found.sizes)]
    return " > ".join(shown if len(shown) <= 6 else [*shown[:5], f"... {shown[-1]} ({found.decisions})"])
