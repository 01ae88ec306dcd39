"""The report of a run: tables for the terminal, and one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from demo.verdict import Check, PhaseResult, SizeChange, changes, seconds
from demo.watch import Timeline
from tidegate.events.decision import Decision
from tidegate.fleet.explain import spans_of

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0;width:100%}td,th{padding:.3em .7em;border-bottom:1px solid #ddd;
text-align:left;vertical-align:top}th{background:#f5f5f5}.passed{color:#1a7f37}.failed{color:#b3261e;font-weight:bold}
svg{width:100%;height:auto}.n{text-align:right;white-space:nowrap}h2{margin-top:2em}
"""


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
            f"{d.current_parallelism} -> {d.final_parallelism}",
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
    passed = all(c.passed for c in checks)
    figure = draw(timeline, phases, objective_seconds, "Tidegate demo: a Spark job under a changing load")
    png, page = folder / "report.png", folder / "report.html"
    save_png(figure, png)
    found = changes(timeline, objective_seconds)
    parts = [
        f"<h1>Tidegate demo: {'all checks passed' if passed else 'a check FAILED'}</h1>",
        f"<p>{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Times are seconds since the load started.</p>",
        _table(CHECK_COLUMNS, verdict_rows(checks), verdict=True),
        svg_of(figure),
        "<h2>Changes of size</h2>",
        _table(CHANGE_COLUMNS, change_rows(found, zero)),
        "<h2>Decisions (repetitions left out)</h2>",
        _table(DECISION_COLUMNS, decision_rows(timeline.decisions, zero)),
    ]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Tidegate demo</title><style>{STYLE}</style>'
    page.write_text(head + "<body>" + "\n".join(parts) + "</body></html>\n", encoding="utf-8")
    return png, page


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, verdict: bool = False) -> str:
    heading = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = []
    for row in rows:
        kind = f' class="{row[0].lower()}"' if verdict else ""
        cells = "".join(f"<td{kind if i == 0 else ''}>{escape(cell)}</td>" for i, cell in enumerate(row))
        body.append(f"<tr>{cells}</tr>")
    return f"<table><tr>{heading}</tr>{''.join(body)}</table>"
