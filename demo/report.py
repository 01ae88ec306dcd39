"""The report of a run: tables for the terminal, and one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from demo.verdict import Check, PhaseResult, SizeChange, changes, seconds
from demo.watch import Timeline
from tidegate.events.decision import Decision
from tidegate.fleet.explain import sizes_of, spans_of
from tidegate.pages import page_of

TEMPLATE = Path(__file__).with_name("report.html")


def verdict_rows(checks: Sequence[Check]) -> list[list[str]]:
    """Return a row of verdict, promise and figures per check."""
    return [["passed" if c.passed else "FAILED", c.name, c.text] for c in checks]


def change_rows(found: Sequence[SizeChange], zero: float) -> list[list[str]]:
    """Return a row per change of size; times count from `zero`."""
    return [
        [
            f"{c.at - zero:.0f} s",
            f"{c.before} -> {c.after}",
            c.outcome,
            c.way,
            seconds(c.seconds),
            seconds(c.outage_seconds),
            f"{c.peak_lag:,}",
            "never" if c.recovery_seconds is None else seconds(c.recovery_seconds),
        ]
        for c in found
    ]


CHANGE_COLUMNS = ("at", "slots", "outcome", "way", "took", "outage", "peak lag (records)", "delay recovered after")
CHECK_COLUMNS = ("", "promise", "measured")


def decision_rows(decisions: Iterable[Decision], zero: float) -> list[list[str]]:
    """Return a row per decision that ordered a change or differs from the one before it."""
    return [
        [
            f"{d.decided_at.timestamp() - zero:.0f} s",
            sizes_of(d),
            d.status.value,
            d.sentence,
            "command" if d.command is not None else "",
        ]
        for d in (span.first for span in spans_of(decisions))
    ]


DECISION_COLUMNS = ("at", "slots", "status", "why", "")


def write_report(
    folder: Path, timeline: Timeline, phases: Sequence[PhaseResult], checks: Sequence[Check], objective_seconds: float
) -> tuple[Path, Path]:
    """Write `report.png` and `report.html` into `folder` and return their paths."""
    from demo.picture import draw, save_png, svg_of  # noqa: PLC0415  (matplotlib takes seconds to import)

    zero = phases[0].began if phases else (timeline.samples[0].at if timeline.samples else 0.0)
    figure = draw(timeline, phases, objective_seconds, "Tidegate demo: a Spark job under a changing load")
    png, page = folder / "report.png", folder / "report.html"
    save_png(figure, png)
    found = changes(timeline, objective_seconds)
    text = page_of(
        TEMPLATE,
        passed=all(c.passed for c in checks),
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        check_columns=CHECK_COLUMNS,
        checks=verdict_rows(checks),
        picture=svg_of(figure),
        change_columns=CHANGE_COLUMNS,
        changes=change_rows(found, zero),
        decision_columns=DECISION_COLUMNS,
        decisions=decision_rows(timeline.decisions, zero),
    )
    page.write_text(text, encoding="utf-8")
    return png, page
