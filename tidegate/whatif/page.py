"""The page of a trial: one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidegate.pages import page_of
from tidegate.whatif import report as told
from tidegate.whatif.differences import DecisionDifference
from tidegate.whatif.figures import rows_of
from tidegate.whatif.trial import Trial

TEMPLATE = Path(__file__).with_name("page.html")


def page(trial: Trial, found: Sequence[DecisionDifference], picture: bytes) -> str:
    """Return the page, with a picture as PNG."""
    return page_of(
        TEMPLATE,
        job_id=trial.job_id,
        heading=told.heading(trial, found),
        changed=told.changes_of_spec(trial),
        picture=base64.b64encode(picture).decode(),
        figure_columns=told.FIGURE_COLUMNS,
        figures=rows_of(trial),
        how_sure=told.how_sure(trial),
        columns=told.COLUMNS,
        differences=told.difference_rows(found),
        on_the_twin=[one.on_the_twin for one in found],
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
