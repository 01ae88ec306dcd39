"""The scenarios with a known answer, run for any policy: figures against the bars, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from tidegate.lab.scenarios import Case, Outcome, grid, noisy_sine, outcome, restarts, word_count, worst_sawtooth
from tidegate.lab.simulate import simulate
from tidegate.lab.tunings import DEFAULTS, Tuning

SAWTOOTH_PERIODS = (600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on all scenarios."""

    label: str
    word_count: dict[str, Outcome]
    grid: tuple[Outcome, ...]
    sine_restarts: int
    sawtooth_restarts: dict[float, int]

    @property
    def settled(self) -> int:
        """Cases of the grid that ended at the right size."""
        return sum((found.sizes[-1] if found.sizes else found.start) == found.right for found in self.grid)


def figures(policy: str, tuning: Tuning = DEFAULTS) -> Figures:
    """Return a policy's figures on every scenario; takes a minute."""
    words = word_count()
    recordings = simulate(words.scenario.with_policy(policy, tuning.options, tuning.guards))
    return Figures(
        label=policy if tuning == DEFAULTS else f"{policy} (tuned)",
        word_count={job_id: outcome(words, job_id, recordings[job_id]) for job_id in words.right},
        grid=tuple(_grid(policy, tuning)),
        sine_restarts=_restarts(noisy_sine(), policy, tuning),
        sawtooth_restarts={p: _restarts(worst_sawtooth(p), policy, tuning) for p in SAWTOOTH_PERIODS},
    )


def _grid(policy: str, tuning: Tuning) -> Iterator[Outcome]:
    for case in grid():
        (job_id,) = case.right
        recordings = simulate(case.scenario.with_policy(policy, tuning.options, tuning.guards))
        yield outcome(case, job_id, recordings[job_id])


def _restarts(case: Case, policy: str, tuning: Tuning) -> int:
    scenario = case.scenario.with_policy(policy, tuning.options, tuning.guards)
    return restarts(simulate(scenario)[scenario.specs[0].job_id])


def trials_table(rows: list[Figures]) -> Table:
    """Return the figures of policies beside the bars."""
    table = Table(title="Scenarios with a known answer", expand=False)
    table.add_column("policy", no_wrap=True)
    for name in ("flatmap, right 10", "count, right 20", "grid: at the right size", "mean", "most", "over"):
        table.add_column(name, justify="right")
    table.add_column("sine: restarts", justify="right")
    table.add_column("sawtooth: restarts at the worst period", justify="right")
    table.add_row("bar", "1 decision", "1 decision", "36 of 36", "<= 1.56", "<= 3", "0", "<= 22", "", style="dim")
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


def _path(found: Outcome) -> str:
    shown = [str(size) for size in (found.start, *found.sizes)]
    return " > ".join(shown if len(shown) <= 6 else [*shown[:5], f"... {shown[-1]} ({found.decisions})"])
