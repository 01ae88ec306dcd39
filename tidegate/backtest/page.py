"""The page of a backtest: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidegate.backtest import report as told
from tidegate.backtest.backtest import JobReport
from tidegate.backtest.logs import LeftOut
from tidegate.backtest.picture import checked, compared
from tidegate.pages import page_of

TEMPLATE = Path(__file__).with_name("page.html")


def write_page(path: Path, reports: Sequence[JobReport], left_out: Sequence[LeftOut], source: str) -> None:
    """Write the page. Raises `OSError`."""
    sections = [
        {
            "name": report.name,
            "anchor": f"job-{place}",
            "source": report.source,
            "headline": told.headline(report),
            "trust": told.trust(report),
            "trusted": report.fit is None or not report.fit.doubts,
            "remarks": report.fit.remarks if report.fit is not None else (),
            "compared": compared(report),
            "checked": checked(report.fit.stretches) if report.fit is not None and report.fit.stretches else None,
            "kept": told.result_rows(report, kept=True),
            "whole": told.result_rows(report, kept=False),
            "search": told.options_in_words(report),
            "options": told.option_rows(report),
            "fit": told.fit_rows(report),
            "changes": told.change_rows(report.proposed, report.replica.epoch),
            "job_file": report.job_file,
        }
        for place, report in enumerate(reports)
    ]
    page = page_of(
        TEMPLATE,
        source=source,
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        sections=sections,
        left_out=left_out,
        result_columns=told.RESULT_COLUMNS,
        option_columns=told.OPTION_COLUMNS,
        change_columns=told.CHANGE_COLUMNS,
    )
    path.write_text(page, encoding="utf-8")
