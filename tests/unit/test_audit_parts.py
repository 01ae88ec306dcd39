"""The parts of the audit that need no Spark: checks as files, Redis against the topics, the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from tests.support.events import START, command, job, result, with_application
from tests.support.history import write_history
from tidegate.cli import app
from tidegate.engine.reservations import hold_for
from tidegate.events.envelope import value_of
from tidegate.events.result import Phase
from tidegate.events.way import ALL_WAYS, Way
from tidegate.replay.audit.checks import AuditCheck, BadCheck, Hop, Severity, all_checks, parse_check
from tidegate.replay.audit.facts import tally_rows, times_of
from tidegate.replay.audit.history import CommandTaken, JobHistory, SpecAsked
from tidegate.replay.audit.ledger import RedisContents, compare_fences, compare_holds, specs_of
from tidegate.replay.audit.page import render_page
from tidegate.replay.audit.records import of_recording
from tidegate.replay.audit.report import as_json, details, rows, verdict
from tidegate.replay.audit.run import AuditFinding, AuditResult, CannotAudit, CheckOutcome, CheckStatus, audit
from tidegate.replay.difference import Difference
from tidegate.replay.files import BadRecording, RecordingManifest, TopicFile, write_manifest
from tidegate.replay.verify import JobTally

TEXT = """-- title: Sizes fit
-- hop: operators
-- severity: error
--
-- What it means, in two
-- lines.
SELECT 1;
"""
SPEC = job(guards={"cooldown": {"up_seconds": 60, "down_seconds": 60}})
COMMAND = command(to=5, command_id="c1")
HOLD = hold_for(SPEC, COMMAND, 2)
AT = START.timestamp() + 30


def test_a_check_is_read_from_its_file() -> None:
    """Title, hop, severity and meaning come from the top of the file, the query from the rest."""
    check = parse_check("sizes-fit", TEXT)
    assert check == AuditCheck(
        "sizes-fit", "Sizes fit", Hop.ASKED, Severity.ERROR, "What it means, in two lines.", "SELECT 1"
    )


@pytest.mark.parametrize(
    ("wrong", "right", "named"),
    [
        ("-- hop: operators\n", "", "does not give hop"),
        ("operators", "elsewhere", "elsewhere"),
        ("-- hop:", "-- hopp:", "hopp"),
        ("SELECT 1;", "", "needs its meaning"),
    ],
)
def test_a_file_that_is_no_check_is_refused(wrong: str, right: str, named: str) -> None:
    """A missing field, an unknown value and a missing query are named with the file."""
    with pytest.raises(BadCheck, match=named):
        parse_check("sizes-fit", TEXT.replace(wrong, right))


def test_every_hop_has_checks_and_every_check_its_own_title() -> None:
    """No hop is left out, and a report can be read by titles."""
    checks = all_checks()
    assert {check.hop for check in checks} == set(Hop)
    assert len({check.title for check in checks}) == len(checks) > 40


def contents(**changes: object) -> RedisContents:
    """Return a Redis that holds what the command gives."""
    held: dict[str, object] = {
        "prefix": "t:",
        "at": AT,
        "complete": True,
        "cooldowns": {"rates": ("c1", HOLD.cooldown_until)},
        "slots": {("default", "rates"): ("c1", HOLD.slots_until, 3)},
        "fences": {"rates": 7},
    }
    return RedisContents(**(held | changes))  # type: ignore[arg-type]


def compared(there: RedisContents, *phases: Phase) -> dict[str, str]:
    """Return the verdicts on cooldown and slots, after results of these phases."""
    results = [result("c1", phase, 1, epoch=7, parallelism=5) for phase in phases]
    return {row[0]: row[3] for row in compare_holds(there, [COMMAND], results, lambda _: SPEC)}


def test_redis_that_holds_what_the_topics_give_passes() -> None:
    """The cooldown and the slots of a command under way are those that its decider reserved."""
    assert compared(contents()) == {"cooldown": "ok", "pool": "ok"}
    assert compared(contents(slots={}), Phase.VERIFIED) == {"cooldown": "ok"}


@pytest.mark.parametrize("ways", [ALL_WAYS, (Way.HANDOVER,)])
def test_no_command_holds_slots_for_longer_than_the_audit_looks_back(ways: tuple[Way, ...]) -> None:
    """A job that can only be handed over waits longer for its batch to end, and its slots lapse later."""
    spec = with_application(job(), rescale=ways)
    ordered = command(expires_at=START + timedelta(seconds=spec.scaling.command_ttl_seconds))
    hold = hold_for(spec, ordered, ordered.from_parallelism)
    *_, holds = times_of(spec)
    assert holds is not None
    assert hold.slots_until - ordered.issued_at.timestamp() <= holds


def test_what_differs_in_redis_is_found() -> None:
    """A lost cooldown, one that lasts longer or is another decision's, and slots that were not released are found."""
    assert compared(contents(cooldowns={}))["cooldown"] == "finding"
    assert compared(contents(cooldowns={"rates": ("c1", HOLD.cooldown_until + 1)}))["cooldown"] == "finding"
    assert compared(contents(), Phase.VERIFIED)["pool"] == "finding"
    others = contents(
        cooldowns={"rates": ("c0", HOLD.cooldown_until)}, slots={("default", "rates"): ("c0", HOLD.slots_until, 3)}
    )
    assert compared(others) == {"cooldown": "finding", "pool": "finding"}


def test_what_has_lapsed_is_not_compared() -> None:
    """Redis may still hold a cooldown and slots whose time is over, and a hold of no slots; none of them forbids."""
    lapsed = contents(cooldowns={"rates": ("c0", AT)}, slots={("default", "rates"): ("c1", AT, 3)})
    assert compared(lapsed, Phase.VERIFIED) == {"cooldown": "finding"}
    assert compared(contents(slots={("default", "rates"): ("c1", HOLD.slots_until, 0)}), Phase.VERIFIED) == {
        "cooldown": "ok"
    }
    after = max(HOLD.cooldown_until, HOLD.slots_until)
    assert compared(contents(at=after, cooldowns={}, slots={})) == {}
    smaller = command(to=2, from_parallelism=5, command_id="c1")
    assert [row[0] for row in compare_holds(contents(), [smaller], [], lambda _: SPEC)] == ["cooldown", "pool"]
    assert [row[0] for row in compare_holds(contents(slots={}), [smaller], [], lambda _: SPEC)] == ["cooldown"]


def test_what_is_on_its_way_to_redis_is_not_provable() -> None:
    """Right after an order, and while Redis is being rebuilt, a difference proves nothing."""
    soon = contents(cooldowns={}, slots={}, at=START.timestamp() + 3)
    assert set(compared(soon).values()) == {"not provable"}
    assert set(compared(contents(cooldowns={}, slots={}, complete=False)).values()) == {"not provable"}


@pytest.mark.parametrize(
    ("fence", "epochs", "said"),
    [
        (7, (7, 7), "ok"),
        (7, (6, 7), "ok"),
        (6, (7, 7), "finding"),
        (8, (7, 7), "finding"),
        (8, None, "finding"),
        (None, (7, 7), "not provable"),
        (None, (None, 7), "ok"),
    ],
)
def test_a_fence_is_that_of_an_accepted_command(
    fence: int | None, epochs: tuple[int | None, int | None] | None, said: str
) -> None:
    """A fence is no newer than the newest accepted command, and no older than the newest that surely took it."""
    there = contents(fences={} if fence is None else {"rates": fence})
    (row,) = compare_fences(there, {} if epochs is None else {"rates": epochs})
    assert (row[2], row[3]) == ("t:fence:rates", said)


def outcome(status: CheckStatus, *named: AuditFinding, why: str = "") -> CheckOutcome:
    """Return an outcome of the first check."""
    found = sum(each.provable for each in named)
    return CheckOutcome(all_checks()[0], status, 3, found, len(named) - found, named, why)


def audited(*outcomes: CheckOutcome) -> AuditResult:
    """Return the result of an audit of one job."""
    command = CommandTaken(START, None, "rescale", 2, 5, "in_place", "policy tide", "because", "no result", "x")
    asked = SpecAsked(START, 2, "<b>eve</b>", "why not", "{}", "jobs 0/3")
    history = JobHistory(
        "rates", START, START + timedelta(minutes=5), 30, ((START, 2), (START, 5)), (command,), (asked,), 0
    )
    made = datetime(2026, 3, 1, tzinfo=UTC)
    return AuditResult("a test", made, 1.0, outcomes, {"decisions": 30}, START, START, (), (history,))


FORGED = AuditFinding(True, "rates", "decisions, partition 0, offset 3", START, "<script>alert(1)</script>", "a size")
GONE = AuditFinding(False, "rates", "", None, "the log is gone", "a log")


def test_a_recording_without_any_of_its_files_is_refused(tmp_path: Path) -> None:
    """Of one that lacks some, the others are audited; here there is nothing to audit."""
    entry = TopicFile(topic="jobs", file="jobs.ndjson", records=1, bytes=1, sha256="0" * 64)
    write_manifest(tmp_path, RecordingManifest(topic_prefix="tidegate.", recorded_at=START, files=(entry,)))
    with pytest.raises(BadRecording, match="none of the files"):
        of_recording(None, tmp_path)


def test_an_older_spark_is_named_with_the_remedy() -> None:
    """Spark 3.5 would fail with a syntax error in the middle of a query."""
    spark: Any = SimpleNamespace(version="3.5.7")
    records: Any = None
    with pytest.raises(CannotAudit, match=r"needs Spark 4.0 or later, and pyspark is 3.5.7 .*pip install"):
        audit(spark, records)


def test_the_verdict_names_what_is_open() -> None:
    """Not checked and not provable never read as passed; strictly they fail, and a finding always does."""
    assert verdict(audited(outcome(CheckStatus.PASSED))).startswith("PASSED: 1 check passed, and nothing")
    opened = audited(
        outcome(CheckStatus.PASSED), outcome(CheckStatus.NOT_PROVABLE, GONE), outcome(CheckStatus.NOT_CHECKED, why="no")
    )
    assert opened.ok()
    assert not opened.ok(strict=True)
    assert "1 check could not prove everything; 1 check could not run" in verdict(opened)
    assert verdict(opened, strict=True).startswith("FAILED, because it was strict")
    failed = audited(outcome(CheckStatus.FAILED, FORGED))
    assert not failed.ok()
    assert verdict(failed) == "FAILED: 1 finding of 1 check."
    assert any("decisions, partition 0, offset 3" in line for line in details(failed))
    assert rows(failed)[0][2] == "FAILED"


def test_the_page_escapes_what_it_shows_and_needs_nothing_else() -> None:
    """What was found may be hostile: it is text on the page, which has no script and loads nothing."""
    page = render_page(audited(outcome(CheckStatus.FAILED, FORGED), outcome(CheckStatus.NOT_PROVABLE, GONE)))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<b>eve</b>" not in page
    assert "src=" not in page
    assert "<svg" in page
    assert '"count": 1' in as_json(audited(outcome(CheckStatus.FAILED, FORGED)))


def test_an_audit_prints_its_outcome_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For `jq`; a no is a no."""
    result = audited(outcome(CheckStatus.FAILED, FORGED))
    write_history(tmp_path / "rec")
    monkeypatch.setattr("tidegate.cli.audit.session", MagicMock())
    monkeypatch.setattr("tidegate.cli.audit.of_directory", MagicMock())
    monkeypatch.setattr("tidegate.cli.audit.run_audit", lambda *_, **__: result)
    ran = CliRunner().invoke(app, ["audit", "--from", str(tmp_path / "rec"), "--json", "-"])
    assert (ran.exit_code, ran.stdout) == (1, as_json(result))


@pytest.mark.parametrize("sequence", [None, -1, int(START.timestamp()), 2**62])
def test_a_forged_decision_is_a_finding_whatever_its_sequence(sequence: int | None) -> None:
    """It must not end the audit: one on no possible second is told without a time."""
    first = Difference("rates", sequence, "d", "partition 3, offset 17", "sequence", "1", "2")
    (row,) = tally_rows(JobTally("rates", differing=4, first=first))
    assert row[:4] == ("finding", "rates", 3, 17)
    assert row[4] == (START if sequence == START.timestamp() else None)


def test_redis_is_compared_with_the_spec_of_the_time() -> None:
    """A job that was removed and added again begins with version 1: what an earlier text has held ends by that text."""
    texts = [job(lag_objective_seconds=seconds) for seconds in (10.0, 20.0)]
    again = int((START + timedelta(seconds=60)).timestamp() * 1e6)
    rows = [
        ("rates", 1, value_of(texts[0]).decode(), 0, again),
        ("rates", 1, value_of(texts[1]).decode(), again, 2**60),
    ]
    ordered = [command(issued_at=START + timedelta(seconds=seconds)) for seconds in (0, 60)]
    spark: Any = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: rows))
    spec_of = specs_of(spark, ordered)
    assert [spec_of(each) for each in ordered] == texts
    assert spec_of(command(spec_version=2)) is None
