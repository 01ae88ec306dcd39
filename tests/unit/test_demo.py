"""The demo's pure parts: load, script, audit, checks, report. A synthetic run takes the place of a real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from demo import environment
from demo.audit import RecordAudit
from demo.display import BARS, LiveDisplay, spark
from demo.load import Pacer, RateFile
from demo.picture import draw
from demo.report import write_report
from demo.script import Observations, grown, settled, shrunk, steady_surge_steady
from demo.verdict import Audited, PhaseResult, changes, judge, recovered_at
from demo.watch import DemoSample, Timeline, committed_records
from tests.support.engine import step
from tests.support.events import command, job, observed, result, snapshot
from tests.support.http_server import AnswersOk, serving, set_dead_proxy
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Status
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way

ZERO = 1_800_000_000.0
OBJECTIVE = 15.0
PHASES = (
    PhaseResult("steady", 400, ZERO, ZERO + 30, True),
    PhaseResult("surge", 1200, ZERO + 30, ZERO + 110, True),
    PhaseResult("steady again", 400, ZERO + 110, ZERO + 180, True),
)
_, PLAIN = step(JobState.new(), snapshot(0), job(), observed(snapshot(0)))
"""Any decision, as a template for others."""


def at(second: float) -> datetime:
    """Return the instant of a second of the run."""
    return datetime.fromtimestamp(ZERO + second, UTC)


def rescale(second: float, before: int, after: int) -> Decision:
    """Return a decision that orders a change of size."""
    ordered = command(
        to=after, epoch=1, command_id=f"c{second:g}", from_parallelism=before, issued_at=at(second),
        expires_at=at(second + 60),
    )  # fmt: skip
    sizes = {"current_parallelism": before, "proposed_parallelism": after, "final_parallelism": after}
    return PLAIN.model_copy(update={"command": ordered, "decided_at": at(second), "sentence": "It grows.", **sizes})


def outcome(second: float, of: Decision, phase: Phase, **more: Any) -> ActionResult:
    """Return a phase of a decision's command."""
    assert of.command is not None
    return result(of.command.command_id, phase, at=at(second), parallelism=of.command.to_parallelism, **more)


UP, DOWN = rescale(40, 2, 8), rescale(120, 8, 2)
RESULTS = (
    outcome(41, UP, Phase.STOPPING, way=Way.RESTART),
    outcome(43, UP, Phase.STOPPED, way=Way.RESTART),
    outcome(60, UP, Phase.VERIFIED, way=Way.RESTART, outage_seconds=17.0),
    outcome(121, DOWN, Phase.RESIZING, way=Way.IN_PLACE),
    outcome(140, DOWN, Phase.VERIFIED, way=Way.IN_PLACE, outage_seconds=0.0),
)


def run(phases: Sequence[PhaseResult] = PHASES, *, catches_up: bool = True) -> Timeline:
    """Return a run of 180 s: it falls behind from 30 s on, is down while it restarts, and catches up (or not)."""
    timeline = Timeline(decisions=[PLAIN, UP, DOWN], results=list(RESULTS))
    arrived = committed = 0.0
    for second in range(181):
        rate = next((s.rate for s in phases if s.began <= ZERO + second < s.ended), 0.0)
        arrived += rate
        slots = 0 if 41 <= second < 60 or 121 <= second < 140 else 8 if 60 <= second < 121 else 2
        capacity = 430.0 * slots
        if catches_up or second < 30:
            committed = min(arrived, committed + capacity)
        delay = timeline.delay(ZERO + second, int(arrived), int(committed))
        timeline.samples.append(DemoSample(ZERO + second, int(arrived), int(committed), int(committed), delay, slots))
    return timeline


def audit(*, lost: int = 0, twice: int = 0) -> RecordAudit:
    """Return the account of ten records on two partitions."""
    entered = RecordAudit({0: 6, 1: 4})
    origins = [(0, o) for o in range(6)] + [(1, o) for o in range(4)]
    for partition, offset in origins[lost:] + origins[lost : lost + twice]:
        entered.add_output(json.dumps({"source_partition": partition, "source_offset": offset}).encode())
    return entered


GOOD = Audited(passed=40, wrong=(), unsure=(), identical=60, other=0, page=Path("audit.html"))


def test_a_run_that_keeps_every_promise_passes() -> None:
    """All checks pass, each with its figures."""
    checks = judge(run(), PHASES, audit(), GOOD, OBJECTIVE)
    assert [c.name for c in checks if not c.passed] == []
    text = "\n".join(c.text for c in checks)
    for words in (
        "2 -> 8 -> 2",
        "10 records read, 0 without output, 0 duplicates",
        "60 decisions recomputed identically",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("failed", "timeline", "account", "audited"),
    [
        ("no record was lost", run(), audit(lost=2), GOOD),
        ("no record was lost", run(), None, GOOD),
        ("the audit proves every hop", run(), audit(), replace(GOOD, wrong=("an offset is missing",))),
        ("the audit proves every hop", run(), audit(), replace(GOOD, other=1)),
        ("the audit proves every hop", run(), audit(), replace(GOOD, identical=0)),
        ("the audit proves every hop", run(), audit(), None),
        ("the job shrank", replace(run(), decisions=[UP], results=list(RESULTS[:3])), audit(), GOOD),
        ("the job grew", replace(run(), decisions=[DOWN], results=list(RESULTS[3:])), audit(), GOOD),
        ("every command", replace(run(), results=list(RESULTS[:-1])), audit(), GOOD),
        ("every command", replace(run(), decisions=[PLAIN], results=[]), audit(), GOOD),
        ("load 'surge'", run(catches_up=False), audit(), GOOD),
        ("the delay is back under", run(catches_up=False), audit(), GOOD),
        ("observed without a gap", replace(run(), broken=["KafkaException: away"]), audit(), GOOD),
    ],
)
def test_a_broken_promise_fails_its_check(
    failed: str, timeline: Timeline, account: RecordAudit | None, audited: Audited | None
) -> None:
    """A promise that was not kept, or could not be checked, fails its check."""
    checks = judge(timeline, PHASES, account, audited, OBJECTIVE)
    assert any(failed in c.name for c in checks if not c.passed)


def test_a_phase_that_misses_its_goal_fails_even_without_lag() -> None:
    """A phase that runs out of time fails the run."""
    late = (PHASES[0], PHASES[1], replace(PHASES[2], reached=False))
    (failed,) = (c for c in judge(run(), late, audit(), GOOD, OBJECTIVE) if not c.passed)
    assert failed.name == "load 'steady again' meets its goal in time, with a delay under 15 s"
    assert "GOAL NOT MET in this time" in failed.text


def test_duplicates_are_counted_and_do_not_fail() -> None:
    """At-least-once output may repeat: duplicates are reported, but only lost records fail the check."""
    check = next(c for c in judge(run(), PHASES, audit(twice=3), GOOD, OBJECTIVE) if c.name == "no record was lost")
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
def test_an_output_without_an_input_is_unexpected(value: bytes | None) -> None:
    """An output that names no record of the source is counted as unexpected."""
    account = audit()
    account.add_output(value)
    assert (account.unexpected, account.missing, account.duplicates) == (1, 0, 0)


def test_a_size_change_has_its_way_outage_peak_lag_and_recovery() -> None:
    """A change of size is measured from its command until lag has recovered."""
    up, down = changes(run(), OBJECTIVE)
    assert (up.before, up.after, up.outcome, up.way, up.outage_seconds) == (2, 8, "verified", "restart", 17.0)
    assert up.seconds == 20.0
    assert up.peak_lag > 20_000
    assert up.recovery_seconds is not None
    assert (down.before, down.after) == (8, 2)


def test_slots_stay_while_nothing_stops() -> None:
    """Only a restart leaves the job without slots; in place and in a handover it keeps its size until the end."""
    timeline = Timeline(results=[outcome(0, UP, Phase.VERIFIED), outcome(1, DOWN, Phase.RESIZING, way=Way.IN_PLACE)])
    assert timeline.slots() == 8
    timeline.results.append(outcome(2, DOWN, Phase.RUNNING, way=Way.HANDOVER))
    assert timeline.slots() == 8
    timeline.results.append(outcome(3, DOWN, Phase.STOPPED, way=Way.RESTART))
    assert timeline.slots() == 0


def test_each_change_has_its_way_and_its_time() -> None:
    """A change lasts from its first phase with a way to its end; one that has not ended has no end."""
    timeline = Timeline(results=[*RESULTS[:4]])
    assert [(span.way, span.begin - ZERO, span.end and span.end - ZERO) for span in timeline.changes_under_way()] == [
        (Way.RESTART, 41, 60),
        (Way.IN_PLACE, 121, None),
    ]


@pytest.mark.parametrize(
    ("delays", "recovered"),
    [
        ([50] * 5 + [1] * 3 + [50] * 4 + [1] * 20, 12.0),  # a dip is no recovery
        ([50] * 5 + [1] * 11 + [50] * 9, 5.0),  # what rises later does not count
        ([50] * 5 + [1] * 4, 5.0),  # under it until the end
        ([50] * 5 + [1] * 4 + [50], None),
    ],
)
def test_the_delay_has_recovered_when_it_stays_under_the_objective(
    delays: list[float], recovered: float | None
) -> None:
    """A dip of less than ten seconds right after a restart is no recovery."""
    samples = [DemoSample(float(second), 100, 0, 0, delay, 2) for second, delay in enumerate(delays)]
    assert recovered_at(samples, 2.0, 10.0) == recovered


def test_the_load_generator_sends_at_the_given_rate() -> None:
    """Without a pause, the number of records is the rate times the time; fractions carry over."""
    pacer = Pacer()
    assert sum(pacer.due(tick * 0.05, 333.3) for tick in range(20 * 60 + 1)) == pytest.approx(333.3 * 60, abs=1)


def test_a_pause_is_not_made_up_for() -> None:
    """After a blocked minute, no burst follows: the generator sends at most half a second's worth."""
    pacer = Pacer()
    pacer.due(0.0, 1000)
    assert pacer.due(60.0, 1000) == 500
    assert pacer.due(60.05, 1000) == pytest.approx(50, abs=1)


def test_a_clock_that_steps_back_sends_nothing() -> None:
    """A clock that goes backwards counts as no time."""
    pacer = Pacer()
    pacer.due(10.0, 1000)
    assert pacer.due(9.0, 1000) == 0


def test_an_unreadable_rate_file_leaves_the_rate_as_it_was(tmp_path: Path) -> None:
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


def seen(
    second: float, *, decisions: Sequence[Decision], results: Sequence[ActionResult], size: int = 2
) -> Observations:
    """Return observations of a phase in which the delay has been under the objective for `second` seconds."""
    return Observations(size, decisions, results, second)


def test_the_goals_need_a_verified_change_in_their_direction() -> None:
    """Growing needs a verified larger size, no pending command, and a delay under the objective; so does shrinking."""
    assert grown(6)(seen(7, decisions=[UP], results=RESULTS[:3]))
    assert not grown(6)(seen(5, decisions=[UP], results=RESULTS[:3]))
    assert not grown(6)(seen(7, decisions=[UP], results=RESULTS[:2]))
    assert not grown(6)(seen(7, decisions=[UP, DOWN], results=RESULTS[:3]))
    assert not grown(6)(seen(7, decisions=[DOWN], results=RESULTS[3:], size=8))
    assert shrunk(6)(seen(7, decisions=[DOWN], results=RESULTS[3:], size=8))
    assert not shrunk(6)(seen(7, decisions=[UP], results=RESULTS[:3]))


def test_a_load_has_settled_only_when_the_policy_keeps_the_size() -> None:
    """A short delay is not enough: the newest decisions must have judged the load and kept the size."""
    fits = PLAIN.model_copy(update={"trail": (replace(PLAIN.trail[0], code="TIDE_HOLD"),)})
    shrinking = fits.model_copy(update={"status": Status.PENDING_SCALE_DOWN})
    assert not settled(6)(seen(60, decisions=[PLAIN, PLAIN, PLAIN], results=[]))
    assert not settled(6)(seen(60, decisions=[PLAIN, fits, fits], results=[]))
    assert not settled(6)(seen(60, decisions=[fits, shrinking, fits], results=[]))
    assert settled(6)(seen(60, decisions=[PLAIN, fits, fits, fits], results=[]))
    assert not settled(6)(seen(5, decisions=[fits, fits, fits], results=[]))
    assert not settled(6)(seen(60, decisions=[UP, fits, fits, fits], results=[]))


def test_the_script_triples_the_load_and_takes_it_back() -> None:
    """The longest time of all phases leaves room in eight minutes."""
    script = steady_surge_steady(400, 15)
    assert [s.rate for s in script.phases] == [400, 1200, 400]
    assert sum(s.longest_seconds for s in script.phases) <= 400


def test_the_delay_is_how_long_ago_the_end_offsets_passed_the_commits() -> None:
    """The oldest record of 250 not committed arrived after the sample at which 200 had; without lag it is 0."""
    timeline = Timeline()
    for second in range(5):
        timeline.samples.append(DemoSample(ZERO + second, 100 * second, 0, 0, 0.0, 2))
    assert timeline.delay(ZERO + 5, 500, 250) == 3.0
    assert timeline.delay(ZERO + 5, 500, 500) == 0.0
    assert Timeline().delay(ZERO, 10, 0) == 0.0


def test_time_under_the_objective_restarts_after_each_sample_above_it() -> None:
    """A sample above the objective ends the time under it."""
    timeline = Timeline()
    for second, delay in enumerate([0.0, 0.0, 50.0, 1.0, 1.0]):
        timeline.samples.append(DemoSample(ZERO + second, 10_000, 0, 9_900, delay, 2))
    assert timeline.under_objective_since(15) == ZERO + 3
    timeline.samples.append(DemoSample(ZERO + 5, 20_000, 0, 0, 16.0, 2))
    assert timeline.under_objective_since(15) is None


def test_committed_records_come_from_the_newest_commit(tmp_path: Path) -> None:
    """A started batch does not count until it is committed."""
    assert committed_records(tmp_path) == 0
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch, each in enumerate((5, 10)):
        lines = ["v1", "{}", json.dumps({"in": {"0": each, "1": each + 1}})]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines), encoding="utf-8")
    assert committed_records(tmp_path) == 0
    (tmp_path / "commits" / "0").write_text("v1\n{}", encoding="utf-8")
    assert committed_records(tmp_path) == 11


def test_the_report_is_one_self_contained_file(tmp_path: Path) -> None:
    """The HTML holds the SVG and the tables of checks and decisions, with text escaped; the PNG is a picture."""
    timeline = run()
    timeline.decisions.append(UP.model_copy(update={"sentence": "<script>alert(1)</script> & more"}))
    checks = judge(timeline, PHASES, audit(), GOOD, OBJECTIVE)
    png, page = write_report(tmp_path, timeline, PHASES, checks, OBJECTIVE)
    assert png.read_bytes().startswith(b"\x89PNG")
    html = page.read_text(encoding="utf-8")
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "src=" not in html
    svg = ET.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])  # noqa: S314  (our own)
    words = {text.strip() for element in svg.iter() for text in [element.text or ""]}
    assert {"records/s", "slots", "objective 15 s", "restart", "ordered"} <= words
    assert "2 -&gt; 8" in html


def test_no_legend_hides_a_load_of_the_picture() -> None:
    """The name of a load that begins late in a run can be read: the legend is not on top of it."""
    phases = (*PHASES[:2], PhaseResult("steady again", 400, ZERO + 165, ZERO + 180, True))
    figure = draw(run(), phases, OBJECTIVE, "a run")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None
    frame = legend.get_window_extent()
    assert [one.get_text() for one in axes.texts if one.get_window_extent().overlaps(frame)] == []


def test_sparks_are_scaled_to_the_top() -> None:
    """A row of bars goes from empty to full, also when all values are zero."""
    assert spark([0, 5, 10], 10) == " ▄█"
    assert spark([0.0, 0.0], 0) == "  "


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_row_of_bars_is_one_line_of_the_panel(width: int) -> None:
    """Bars fit the terminal: the newest ones are there, and a bar of zero breaks no row."""
    console, timeline = Console(width=width, file=StringIO(), force_terminal=True, color_system=None), run()
    console.print(LiveDisplay(console, OBJECTIVE)._panel(timeline))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    (size,) = (line for line in lines if line.startswith("│ size"))
    assert size.rstrip("│ ")[-1] in BARS
    named = ("records/s in", "records/s out", "lag", "", "size")
    assert [line[2:15].strip() for line in lines[1:6]] == list(named)


def test_the_demo_asks_its_services_without_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy reaches the loopback of this machine, and few users list it in `no_proxy`."""
    set_dead_proxy(monkeypatch)
    with serving(AnswersOk) as server:
        assert environment._healthy(server.server_port)
