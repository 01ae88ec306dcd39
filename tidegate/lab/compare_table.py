"""The tables of a set: each pair, each policy with its spread, by kind of job and by load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.table import Table

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.events.way import Way
from tidegate.lab.ablation import worths
from tidegate.lab.compare import SLOT_HOUR, PairCost, Summary, summaries

HELP = (
    "cost: multiple of the attainable plan's, which knows the load · slots + lateness + changes = cost · ± standard "
    "error over pairs · late: seconds with the oldest record over the objective · month: of one job, at "
    f"{SLOT_HOUR:g} a slot-hour, lateness and changes priced in proportion"
)


WORTH = "the mean difference per pair to the whole policy, in multiples of the attainable plan's cost; ± its error"


def tables(outcomes: Sequence[PairCost]) -> Iterator[Table]:
    """Yield the tables of a set's outcomes."""
    yield _pairs(outcomes)
    yield _summary(summaries(outcomes))
    for title, name in (("kind of job", "kind"), ("load", "load")):
        yield _parts(outcomes, title, name)


def outcomes_as_json(outcomes: Sequence[PairCost], ways: Sequence[Way]) -> dict[str, object]:
    """Return all outcomes as JSON values, with the engine version and the ways that gave them."""
    rows = [{**asdict(each), "ratio": each.ratio} for each in outcomes]
    return {"engine_version": ENGINE_VERSION, "ways": list(ways), "slot_hour": SLOT_HOUR, "outcomes": rows}


def _pairs(outcomes: Sequence[PairCost]) -> Table:
    table = Table(title="Pairs", caption=HELP, expand=False)
    columns = ("pair", "policy", "cost", "slots", "lateness", "changes", "late s", "number")
    for column in columns:
        table.add_column(column, justify="left" if column in ("pair", "policy") else "right", no_wrap=True)
    done: set[str] = set()
    for each in sorted(outcomes, key=lambda each: (each.pair.seed, each.ratio)):
        if each.pair.name not in done:
            done.add(each.pair.name)
            late, changes = each.best_late_seconds, each.best_changes
            table.add_section()
            table.add_row(
                each.pair.name,
                "attainable",
                "1.00",
                *_values(each.best.values),
                f"{late:.0f}",
                str(changes),
                style="dim",
            )
        table.add_row(
            "",
            each.label,
            f"{each.ratio:.2f}",
            *_values(each.parts.values),
            f"{each.late_seconds:.0f}",
            str(each.changes),
        )
    return table


def _summary(found: Sequence[Summary]) -> Table:
    table = Table(title="Policies", caption=HELP, expand=False)
    table.add_column("policy", no_wrap=True)
    for column in (
        "cost",
        "±",
        "rounds",
        "over restarting",
        "worst",
        "slots",
        "lateness",
        "changes",
        "late s",
        "number",
        "month",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            each.label,
            f"{each.ratio:.3f}",
            f"{each.error:.3f}",
            " ".join(f"{ratio:.2f}" for ratio in each.rounds),
            f"{each.over_restarting:.3f}",
            f"{each.worst:.2f}",
            *_values(each.parts.values),
            f"{each.late_seconds:.0f}",
            str(each.changes),
            f"{each.month:.0f}",
        )
    return table


def ablation_table(policy: str, outcomes: Sequence[PairCost]) -> Table:
    """Return what each mechanism of a policy is worth, the most valuable first."""
    table = Table(title=f"{policy} without each of its mechanisms", caption=WORTH, expand=False)
    table.add_column("without", no_wrap=True)
    for column in ("costs more by", "±", "pairs dearer", "cheaper", "late s", "changes"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in worths(policy, outcomes):
        figures = (f"{each.more:+.3f}", f"{each.error:.3f}", str(each.dearer), str(each.cheaper))
        table.add_row(each.name, *figures, f"{each.late_seconds:.0f}", str(each.changes))
    return table


def _parts(outcomes: Sequence[PairCost], title: str, name: str) -> Table:
    """Return each policy's mean cost by kind or by load."""
    groups = list(dict.fromkeys(sorted(getattr(each.pair, name) for each in outcomes)))
    table = Table(title=f"Cost by {title}", expand=False)
    table.add_column("policy", no_wrap=True)
    for group in groups:
        table.add_column(group, justify="right")
    means = {
        (group, each.label): each.ratio
        for group in groups
        for each in summaries(outcome for outcome in outcomes if getattr(outcome.pair, name) == group)
    }
    for each in summaries(outcomes):
        table.add_row(each.label, *(f"{means[group, each.label]:.2f}" for group in groups))
    return table


def _values(values: Sequence[float]) -> list[str]:
    return [f"{value:.2f}" for value in values]
