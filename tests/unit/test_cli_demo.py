"""The demo's pure parts: pace, script, ledger, verdict, picture. A synthetic run stands for the real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from demo.ledger import Ledger
from demo.load import Pace, RateFile
from demo.report import write_report
from demo.script import Seen, grown, settled, shrunk, steady_surge_steady
from demo.show import spark
from demo.verdict import Lived, Recomputed, back_at, changes, judge
from demo.watch import Sample, Timeline, committed_records
from tests.support.engine import step
from tests.support.events import job, observed, snapshot
from tidegate.engine.state import JobState
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.decision import Decision, Status
from tidegate.events.result import ActionResult, Phase, result_id

ZERO = 1_800_000_000.0
OBJECTIVE = 15.0
STAGES = (
    Lived("steady", 400, ZERO, ZERO + 30, True),
    Lived("surge", 1200, ZERO + 30, ZERO + 110, True),
    Lived("steady again", 400, ZERO + 110, ZERO + 180, True),
)
_, PLAIN = step(JobState.new(), snapshot(0), job(), observed(snapshot(0)))
"""Any decision, to make others of."""


def at(second: float) -> datetime:
    """Return the instant `second` of the run."""
    return datetime.fromtimestamp(ZERO + second, UTC)


def rescale(second: float, before: int, after: int) -> Decision:
    """Return a decision that orders a change of size."""
    command = ScalingCommand(
        command_id=f"c{second:g}", job_id="rates", pipeline_id="rates", snapshot_id="s", spec_version=1,
        kind=CommandKind.RESCALE, from_parallelism=before, to_parallelism=after, epoch=1, issued_at=at(second),
        expires_at=at(second + 60), reason="why",
    )  # fmt: skip
    sizes = {"current_parallelism": before, "proposed_parallelism": after, "final_parallelism": after}
    return PLAIN.model_copy(update={"command": command, "decided_at": at(second), "sentence": "It grows.", **sizes})


def outcome(second: float, of: Decision, phase: Phase, **more: object) -> ActionResult:
    """Return a phase of a decision's command."""
    assert of.command is not None
    c = of.command
    return ActionResult(
        result_id=result_id(c.command_id, phase), command_id=c.command_id, job_id="rates", pipeline_id="rates",
        kind=c.kind, phase=phase, epoch=1, at=at(second), parallelism=c.to_parallelism,
    ).model_copy(update=more)  # fmt: skip


UP, DOWN = rescale(40, 2, 8), rescale(120, 8, 2)
RESULTS = (
    outcome(41, UP, Phase.STOPPING),
    outcome(43, UP, Phase.STOPPED),
    outcome(60, UP, Phase.VERIFIED, downtime_seconds=17.0),
    outcome(121, DOWN, Phase.STOPPING),
    outcome(140, DOWN, Phase.VERIFIED, downtime_seconds=15.0),
)


def run(stages: Sequence[Lived] = STAGES, *, catches_up: bool = True) -> Timeline:
    """Return a run of 180 s: it falls behind from 30 s on, is down while it restarts, and catches up (or not)."""
    timeline = Timeline(decisions=[PLAIN, UP, DOWN], results=list(RESULTS))
    arrived = committed = 0.0
    for second in range(181):
        rate = next((s.rate for s in stages if s.began <= ZERO + second < s.ended), 0.0)
        arrived += rate
        slots = 0 if 41 <= second < 60 or 121 <= second < 140 else 8 if 60 <= second < 121 else 2
        capacity = 430.0 * slots
        if catches_up or second < 30:
            committed = min(arrived, committed + capacity)
        known = max(capacity, 860.0)
        timeline.samples.append(Sample(ZERO + second, int(arrived), int(committed), int(committed), known, slots))
    return timeline


def ledger(*, lost: int = 0, twice: int = 0) -> Ledger:
    """Return the account of ten records on two partitions."""
    entered = Ledger({0: 6, 1: 4})
    origins = [(0, o) for o in range(6)] + [(1, o) for o in range(4)]
    for partition, offset in origins[lost:] + origins[lost : lost + twice]:
        entered.output(json.dumps({"source_partition": partition, "source_offset": offset}).encode())
    return entered


GOOD = Recomputed(identical=60, differing=0, other=0)


def test_a_run_in_which_everything_held_passes() -> None:
    """Every promise kept gives only passed checks, with numbers in each."""
    checks = judge(run(), STAGES, ledger(), GOOD, OBJECTIVE)
    assert [c.name for c in checks if not c.passed] == []
    text = "\n".join(c.text for c in checks)
    for words in ("2 -> 8 -> 2", "10 records in, 0 without output, 0 duplicates", "60 of 60 identical"):
        assert words in text


@pytest.mark.parametrize(
    ("failed", "timeline", "account", "recomputed"),
    [
        ("nothing was lost", run(), ledger(lost=2), GOOD),
        ("nothing was lost", run(), None, GOOD),
        ("every decision recomputed", run(), ledger(), Recomputed(59, 1, 0, "trail.0")),
        ("every decision recomputed", run(), ledger(), Recomputed(59, 0, 1)),
        ("every decision recomputed", run(), ledger(), Recomputed(0, 0, 0)),
        ("every decision recomputed", run(), ledger(), None),
        ("the job shrank", replace(run(), decisions=[UP], results=list(RESULTS[:3])), ledger(), GOOD),
        ("the job grew", replace(run(), decisions=[DOWN], results=list(RESULTS[3:])), ledger(), GOOD),
        ("every command", replace(run(), results=list(RESULTS[:-1])), ledger(), GOOD),
        ("every command", replace(run(), decisions=[PLAIN], results=[]), ledger(), GOOD),
        ("load 'surge'", run(catches_up=False), ledger(), GOOD),
        ("lag back under", run(catches_up=False), ledger(), GOOD),
        ("watched without a gap", replace(run(), broken=["KafkaException: away"]), ledger(), GOOD),
    ],
)
def test_a_broken_promise_fails_its_check(
    failed: str, timeline: Timeline, account: Ledger | None, recomputed: Recomputed | None
) -> None:
    """Whatever did not hold, or could not be looked at, fails the check that is named after it."""
    checks = judge(timeline, STAGES, account, recomputed, OBJECTIVE)
    assert any(failed in c.name for c in checks if not c.passed)


def test_a_stage_whose_goal_was_not_met_fails_even_without_lag() -> None:
    """A phase that ran out of time fails the run."""
    late = (STAGES[0], STAGES[1], replace(STAGES[2], reached=False))
    assert [c.name for c in judge(run(), late, ledger(), GOOD, OBJECTIVE) if not c.passed] == [
        "load 'steady again': lag under 15 s"
    ]


def test_duplicates_are_counted_and_do_not_fail() -> None:
    """At-least-once output may repeat: duplicates are told, only loss fails."""
    check = next(c for c in judge(run(), STAGES, ledger(twice=3), GOOD, OBJECTIVE) if c.name == "nothing was lost")
    assert check.passed
    assert "3 duplicates" in check.text


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"x",
        b"{}",
        b"[]",
        b'{"source_partition": 9, "source_offset": 0}',
        b'{"source_partition": 0, "source_offset": 6}',
        b'{"source_partition": 0, "source_offset": -1}',
    ],
)
def test_an_output_that_names_no_input_is_a_stranger(value: bytes | None) -> None:
    """What the source never held is not taken for one of its records."""
    account = ledger()
    account.output(value)
    assert (account.strangers, account.missing, account.duplicates) == (1, 0, 0)


def test_changes_tell_downtime_peak_and_time_to_be_back() -> None:
    """A change of size is told from its order to the moment lag was back."""
    up, down = changes(run(), OBJECTIVE)
    assert (up.before, up.after, up.outcome, up.downtime_seconds) == (2, 8, "verified", 17.0)
    assert up.seconds == 20.0
    assert up.peak_lag > 20_000
    assert up.back_seconds is not None
    assert (down.before, down.after) == (8, 2)


@pytest.mark.parametrize(
    ("lags", "back"),
    [
        ([50] * 5 + [1] * 3 + [50] * 4 + [1] * 20, 12.0),  # a dip is not the end
        ([50] * 5 + [1] * 11 + [50] * 9, 5.0),  # what rises later is another story
        ([50] * 5 + [1] * 4, 5.0),  # under it to the end
        ([50] * 5 + [1] * 4 + [50], None),
    ],
)
def test_lag_is_back_when_it_stays_under_the_objective(lags: list[int], back: float | None) -> None:
    """A dip shorter than ten seconds right after a restart is not taken for the lag being back."""
    samples = [Sample(float(second), lag, 0, 0, 1.0, 2) for second, lag in enumerate(lags)]
    assert back_at(samples, 2.0, 10.0) == back


def test_a_steady_pace_sends_what_the_rate_says() -> None:
    """Over any time without a pause, records sent are rate times time, fractions carried over."""
    pace = Pace()
    assert sum(pace.due(tick * 0.05, 333.3) for tick in range(20 * 60 + 1)) == pytest.approx(333.3 * 60, abs=1)


def test_a_pause_is_not_made_up_for() -> None:
    """After a minute in which the generator was blocked no bunch follows: at most a quarter of a second's worth."""
    pace = Pace()
    pace.due(0.0, 1000)
    assert pace.due(60.0, 1000) == 250
    assert pace.due(60.05, 1000) == pytest.approx(50, abs=1)


def test_a_clock_that_steps_back_sends_nothing() -> None:
    """Time that runs backwards is no time."""
    pace = Pace()
    pace.due(10.0, 1000)
    assert pace.due(9.0, 1000) == 0


def test_a_rate_file_that_cannot_be_read_leaves_the_rate(tmp_path: Path) -> None:
    """A missing, broken or absurd rate file changes nothing; a good one does."""
    file = tmp_path / "rate"
    reading = RateFile(file)
    assert reading.read() == 0
    file.write_text("450\n", encoding="utf-8")
    assert reading.read() == 450
    for text in ("", "fast", "nan", "inf", "-3", "1e12"):
        file.write_text(text, encoding="utf-8")
        assert reading.read() == 450
    file.unlink()
    assert reading.read() == 450


def seen(second: float, *, decisions: Sequence[Decision], results: Sequence[ActionResult], size: int = 2) -> Seen:
    """Return what was seen of a phase up to now, lag being under the objective for `second` seconds."""
    return Seen(size, decisions, results, second)


def test_the_goals_need_a_verified_change_in_their_direction() -> None:
    """Growing needs a verified larger size, nothing under way, and lag held under the objective; shrinking likewise."""
    assert grown(6)(seen(7, decisions=[UP], results=RESULTS[:3]))
    assert not grown(6)(seen(5, decisions=[UP], results=RESULTS[:3]))
    assert not grown(6)(seen(7, decisions=[UP], results=RESULTS[:2]))
    assert not grown(6)(seen(7, decisions=[UP, DOWN], results=RESULTS[:3]))
    assert not grown(6)(seen(7, decisions=[DOWN], results=RESULTS[3:], size=8))
    assert shrunk(6)(seen(7, decisions=[DOWN], results=RESULTS[3:], size=8))
    assert not shrunk(6)(seen(7, decisions=[UP], results=RESULTS[:3]))


def test_a_load_is_settled_only_once_the_size_was_found_to_fit() -> None:
    """Quiet lag alone is no goal: the newest decisions must have judged the load and changed nothing."""
    fits = PLAIN.model_copy(update={"trail": (replace(PLAIN.trail[0], code="TIDE_HOLD"),)})
    wishes = fits.model_copy(update={"status": Status.PENDING_SCALE_DOWN})
    assert not settled(6)(seen(60, decisions=[PLAIN, PLAIN, PLAIN], results=[]))
    assert not settled(6)(seen(60, decisions=[PLAIN, fits, fits], results=[]))
    assert not settled(6)(seen(60, decisions=[fits, wishes, fits], results=[]))
    assert settled(6)(seen(60, decisions=[PLAIN, fits, fits, fits], results=[]))
    assert not settled(6)(seen(5, decisions=[fits, fits, fits], results=[]))
    assert not settled(6)(seen(60, decisions=[UP, fits, fits, fits], results=[]))


def test_the_script_is_steady_three_times_as_much_and_steady() -> None:
    """The load of the demo, and its longest time, which leaves room in eight minutes."""
    script = steady_surge_steady(400, 15)
    assert [s.rate for s in script.stages] == [400, 1200, 400]
    assert sum(s.longest_seconds for s in script.stages) <= 400


def test_lag_in_seconds_is_unknown_without_a_capacity() -> None:
    """Seconds of lag are never made up: no capacity, no seconds; no lag, no seconds of it."""
    sample = Sample(ZERO, arrived=100, written=0, committed=0, capacity=None, slots=2)
    assert sample.lag_seconds is None
    assert replace(sample, capacity=50.0).lag_seconds == 2.0
    assert replace(sample, committed=100).lag_seconds == 0.0


def test_lag_is_under_the_objective_only_without_a_break() -> None:
    """The time under the objective begins anew after each sample above it, or unknown."""
    timeline = Timeline()
    for second, lag in enumerate([0, 0, 5000, 100, 100]):
        timeline.samples.append(Sample(ZERO + second, 10_000, 0, 10_000 - lag, 100.0, 2))
    assert timeline.under_objective_since(15) == ZERO + 3
    timeline.samples.append(Sample(ZERO + 5, 20_000, 0, 0, None, 2))
    assert timeline.under_objective_since(15) is None


def test_a_capacity_measured_at_another_size_is_scaled_by_its_slots() -> None:
    """Right after a change of size lag is not told in seconds of the old size's work."""
    measured = PLAIN.model_copy(
        update={"current_parallelism": 8, "evidence": replace(PLAIN.evidence, true_processing_rate=2000.0)}
    )
    assert Timeline().capacity() is None
    assert Timeline(decisions=[PLAIN]).capacity() is None
    assert Timeline(decisions=[measured, PLAIN]).capacity() == 2000.0
    assert Timeline(decisions=[measured, PLAIN], results=list(RESULTS)).capacity() == 500.0


def test_committed_records_come_from_the_newest_commit(tmp_path: Path) -> None:
    """A batch that was begun and not committed does not count; without any commit nothing is committed."""
    assert committed_records(tmp_path) == 0
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch, each in enumerate((5, 10)):
        lines = ["v1", "{}", json.dumps({"in": {"0": each, "1": each + 1}})]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")
    assert committed_records(tmp_path) == 0
    (tmp_path / "commits" / "0").write_text("v1\n{}", encoding="utf-8")
    assert committed_records(tmp_path) == 11


def test_the_report_is_one_file_with_the_picture_inside(tmp_path: Path) -> None:
    """The HTML needs nothing else: SVG inside, tables of checks and decisions, text escaped; the PNG is a picture."""
    timeline = run()
    timeline.decisions.append(UP.model_copy(update={"sentence": "<script>alert(1)</script> & more"}))
    checks = judge(timeline, STAGES, ledger(), GOOD, OBJECTIVE)
    png, page = write_report(tmp_path, timeline, STAGES, checks, OBJECTIVE)
    assert png.read_bytes().startswith(b"\x89PNG")
    html = page.read_text(encoding="utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "src=" not in html
    svg = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])  # noqa: S314  (our own)
    words = {text.strip() for element in svg.iter() for text in [element.text or ""]}
    assert {"records/s", "slots", "objective 15 s", "restart"} <= words
    assert "2 -&gt; 8" in html


def test_sparks_are_scaled_to_the_top() -> None:
    """A row of bars goes from empty to full, and survives zeros."""
    assert spark([0, 5, 10], 10) == " ▄█"
    assert spark([0.0, 0.0], 0) == "  "
