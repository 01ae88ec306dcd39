"""One row per bar: what was measured, against which floor or peer of the same run, and whether the bar is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row of the table. `ratio` must be at least `bar`, or at most `bar` if `at_most`."""

    what: str
    measured: str
    """The measured figure with its unit."""
    floor: str
    """What it is compared with, and its unit; empty if the bar is a plain number."""
    ratio: float
    bar: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the bar is met."""
        return self.ratio <= self.bar if self.at_most else self.ratio >= self.bar


HEAD = ("what", "measured", "floor or peer", "ratio", "bar", "met")


def render(rows: Sequence[BenchRow]) -> str:
    """Return the rows as a table for a terminal."""
    cells = [
        HEAD,
        *(
            (
                row.what,
                row.measured,
                row.floor or "-",
                f"{row.ratio:,.2f}",
                f"{'≤' if row.at_most else '≥'} {row.bar:,g}",
                "yes" if row.met else "NO",
            )
            for row in rows
        ),
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
