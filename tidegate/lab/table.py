"""The lab's table: policy x workload, cheapest first, each cost next to the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.events.way import Way
from tidegate.lab.suite import ORACLE, CellResult

HELP = (
    "late: time over the lag objective · worst: highest age of the oldest uncommitted record · "
    "slot-s: slots times seconds · "
    "aU aO tU tO: SPEC under- and over-provisioning (slots, share of time) · jitter: slots moved per minute "
    "beyond demand's moves · per change: rescales per change of demand · cost and × oracle: everything in slot-seconds"
)


def ordered(rows: Sequence[CellResult]) -> dict[str, list[CellResult]]:
    """Return each workload's rows: the oracle first, then by cost."""
    found: dict[str, list[CellResult]] = {}
    for row in rows:
        found.setdefault(row.cell.workload, []).append(row)
    for group in found.values():
        group.sort(key=lambda row: (row.cell.policy != ORACLE, row.score.cost, row.cell.label))
    return found


def against_oracle(rows: Sequence[CellResult]) -> dict[tuple[str, str], float]:
    """Return cost over the oracle's cost by (workload, label)."""
    base = {row.cell.workload: row.score.cost for row in rows if row.cell.policy == ORACLE}
    return {
        (row.cell.workload, row.cell.label): row.score.cost / base[row.cell.workload]
        for row in rows
        if row.cell.workload in base
    }


def detail(rows: Sequence[CellResult]) -> Table:
    """Return every score of every row."""
    table = Table(title="Policies on the twin", caption=HELP, expand=False)
    table.add_column("workload")
    table.add_column("policy", no_wrap=True)
    columns = (
        "late s",
        "worst s",
        "slot-s",
        "in place",
        "handovers",
        "restarts",
        "aU",
        "aO",
        "tU",
        "tO",
        "jitter",
        "per change",
        "cost",
    )
    for name in (*columns, "× oracle"):
        table.add_column(name, justify="right")
    ratios = against_oracle(rows)
    for workload, group in ordered(rows).items():
        for place, row in enumerate(group):
            s = row.score
            ratio = ratios.get((workload, row.cell.label))
            table.add_row(
                workload if place == 0 else "",
                row.cell.label + (" (lost)" if s.lost else ""),
                f"{s.violated_seconds:.0f}",
                f"{s.worst_age_seconds:.0f}",
                f"{s.core_seconds:.0f}",
                str(s.in_place),
                str(s.handovers),
                str(s.restarts),
                f"{s.under_accuracy:.2f}",
                f"{s.over_accuracy:.2f}",
                f"{s.under_share:.0%}",
                f"{s.over_share:.0%}",
                f"{s.jitter:+.2f}",
                "-" if s.decisions_per_change is None else f"{s.decisions_per_change:.2f}",
                f"{s.cost:.0f}",
                "-" if ratio is None else f"{ratio:.2f}",
                style="bold" if row.cell.policy == ORACLE else None,
                end_section=place == len(group) - 1,
            )
    return table


def as_json(rows: Sequence[CellResult], seed: int, ways: Sequence[Way]) -> dict[str, object]:
    """Return every score as JSON values, with the engine version, the job's ways and the seed that gave it."""
    ratios = against_oracle(rows)
    cells = [
        {
            "workload": workload,
            "policy": row.cell.label,
            "cost_over_oracle": ratios.get((workload, row.cell.label)),
            "cost": row.score.cost,
            **asdict(row.score),
        }
        for workload, group in ordered(rows).items()
        for row in group
    ]
    return {"engine_version": ENGINE_VERSION, "seed": seed, "ways": list(ways), "cells": cells}


def means(rows: Sequence[CellResult]) -> dict[str, float]:
    """Return the mean cost over the oracle's by label, for those that ran on every workload, without the oracle."""
    ratios, workloads = against_oracle(rows), list(ordered(rows))
    labels = {label for _, label in ratios if label != ORACLE}
    return {
        label: sum(ratios[workload, label] for workload in workloads) / len(workloads)
        for label in labels
        if all((workload, label) in ratios for workload in workloads)
    }


def summary(rows: Sequence[CellResult]) -> Table:
    """Return the cost over the oracle's, policy x workload, with the mean over workloads; best policy first."""
    ratios, average, workloads = against_oracle(rows), means(rows), list(ordered(rows))
    table = Table(title="Cost over the oracle's", expand=False)
    table.add_column("policy", no_wrap=True)
    for name in (*workloads, "mean"):
        table.add_column(name, justify="right")
    for label in sorted(average, key=lambda label: (average[label], label)):
        shown = [f"{ratios[workload, label]:.2f}" for workload in workloads]
        table.add_row(label, *shown, f"{average[label]:.2f}")
    return table
