"""The outcome of an audit as one self-contained HTML page that can be filed: no script, no other file, printable."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.pages import page_of
from tidegate.replay.audit.checks import Hop
from tidegate.replay.audit.report import verdict, where
from tidegate.replay.audit.run import AuditResult, CheckStatus
from tidegate.replay.audit.timeline import timeline

TEMPLATE = Path(__file__).with_name("templates") / "report.html"
STYLE = {
    CheckStatus.FAILED: "failed",
    CheckStatus.WARNED: "warned",
    CheckStatus.NOT_PROVABLE: "open",
    CheckStatus.NOT_CHECKED: "open",
    CheckStatus.NOTHING: "none",
    CheckStatus.PASSED: "passed",
}


def render_page(result: AuditResult, *, strict: bool = False) -> str:
    """Return the page."""
    found = [each for outcome in result.outcomes for each in outcome.named if each.provable]
    drawn = {
        history.job: Markup(timeline(history, [each for each in found if each.job == history.job]))  # noqa: S704
        for history in result.jobs  # every text in a timeline has been escaped
    }
    return page_of(
        TEMPLATE,
        result=result,
        verdict=verdict(result, strict=strict),
        passed=result.ok(strict=strict),
        strict=strict,
        engine=ENGINE_VERSION,
        hops=[(hop, [each for each in result.outcomes if each.check.hop is hop]) for hop in Hop],
        style=STYLE,
        where=where,
        timelines=drawn,
        failed=result.with_status(CheckStatus.FAILED, CheckStatus.WARNED),
        open=result.with_status(CheckStatus.NOT_PROVABLE, CheckStatus.NOT_CHECKED),
        unproved=[each for each in result.outcomes if each.unproved],
        not_checked=result.with_status(CheckStatus.NOT_CHECKED),
    )
