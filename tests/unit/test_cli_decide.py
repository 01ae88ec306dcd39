"""`tidegate decide`: the same bytes for the same input, and clear errors for bad input."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.support.engine import step
from tests.support.events import START, job, result, steady
from tidegate.cli import app, bars
from tidegate.cli.offline import decided
from tidegate.engine.state import JobState
from tidegate.events.decision import Decision, Observed
from tidegate.events.envelope import decode, value_of
from tidegate.events.job import ManualScale
from tidegate.events.result import ActionResult, Phase
from tidegate.replay import files

SPEC = job()
SNAPSHOTS = steady(12, rate=3000, capacity=1000)


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """A file with the spec."""
    path = tmp_path / "job.json"
    path.write_bytes(value_of(SPEC))
    return path


def lines_of(output: str) -> list[Decision]:
    """Return the decisions printed."""
    return [decode(Decision, line.encode()) for line in output.splitlines()]


def run(spec_file: Path, text: str, *more: str) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of `decide` with snapshots on standard input."""
    ran = CliRunner().invoke(app, ["decide", "--spec", str(spec_file), "--snapshots", "-", *more], input=text)
    return ran.exit_code, ran.stdout, ran.stderr


def ndjson(events: list[bytes]) -> str:
    """Return events as lines."""
    return "".join(event.decode() + "\n" for event in events)


def test_a_line_that_is_not_utf8_is_named(spec_file: Path, tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are reported with file and line, after the decisions on the lines before."""
    seen = tmp_path / "seen.ndjson"
    seen.write_bytes(value_of(SNAPSHOTS[0]) + b'\n{"job_id": "\xe9"}\n')
    for name, given in ((str(seen), None), ("-", seen.read_bytes())):
        ran = CliRunner().invoke(app, ["decide", "--spec", str(spec_file), "--snapshots", name], input=given)
        assert ran.exit_code == 2
        assert f"{name if given is None else 'standard input'}:2: " in ran.stderr.replace("\n", "")
        assert len(lines_of(ran.stdout)) == 1


def test_an_endless_line_does_not_take_all_memory(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is longer than any event is named by its number and the limit."""
    monkeypatch.setattr(files, "LONGEST_LINE", 10_000)
    code, out, err = run(spec_file, ndjson([value_of(SNAPSHOTS[0]), 20_000 * b" "]))
    assert (code, len(lines_of(out))) == (2, 1)
    assert "standard input, line 2: it is longer than 10,000 bytes" in " ".join(err.split())


def test_it_prints_the_decision_of_the_engine_on_every_snapshot(spec_file: Path) -> None:
    """Each line is, byte for byte, the engine's decision on that snapshot."""
    state, expected = JobState.new(), []
    for one in SNAPSHOTS:
        state, decision = step(state, one, SPEC, Observed(at=one.observed_at))
        expected.append(value_of(decision).decode())
    code, out, _ = run(spec_file, ndjson([value_of(s) for s in SNAPSHOTS]))
    assert code == 0
    assert out.splitlines() == expected
    assert any(d.command for d in lines_of(out))


def test_json_cannot_steer_the_terminal_that_shows_it(tmp_path: Path) -> None:
    """JSON itself escapes the first 32 characters only; the others that a terminal obeys are escaped at no loss."""
    forged = "\x1b]0;a\x07\x9b31m\x7f\u202ered"
    asked = ManualScale(request_id="a", parallelism=6, reason=forged, requested_at=START)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(json.loads(value_of(job(manual=asked)))), encoding="utf-8")
    code, out, _ = run(path, ndjson([value_of(s) for s in SNAPSHOTS]))
    assert code == 0
    assert out.replace("\n", "").isprintable()
    assert any(forged in decision.sentence for decision in lines_of(out))


def test_lines_of_a_recording_are_read_too(spec_file: Path) -> None:
    """A line of a recording, which holds the event, gives the same decision as the event itself."""
    plain = ndjson([value_of(s) for s in SNAPSHOTS])
    recorded = "".join(
        json.dumps({"partition": 0, "offset": n, "value": value_of(s).decode()}) + "\n" for n, s in enumerate(SNAPSHOTS)
    )
    assert run(spec_file, recorded)[:2] == run(spec_file, plain)[:2]


def test_a_compressed_file_is_read_too(spec_file: Path, tmp_path: Path) -> None:
    """The files of `tidegate replay record --gzip` are read as they are; one that is cut off is named."""
    plain, path = ndjson([value_of(s) for s in SNAPSHOTS]), tmp_path / "snapshots.ndjson.gz"
    path.write_bytes(gzip.compress(plain.encode()))
    words = ["decide", "--spec", str(spec_file), "--snapshots", str(path)]
    assert CliRunner().invoke(app, words).stdout == run(spec_file, plain)[1]
    path.write_bytes(path.read_bytes()[:-20])
    cut = CliRunner().invoke(app, words)
    assert cut.exit_code == 2
    assert cut.stderr.startswith(f"error: {path}, after line")


def test_duplicates_and_late_snapshots_give_no_decision(spec_file: Path) -> None:
    """A snapshot that repeats or is older than the last one is skipped, and reported on standard error."""
    order = [*SNAPSHOTS[:3], SNAPSHOTS[1], SNAPSHOTS[2], *SNAPSHOTS[3:]]
    code, out, err = run(spec_file, ndjson([value_of(s) for s in order]))
    assert code == 0
    assert len(lines_of(out)) == len(SNAPSHOTS)
    assert err.count("skipped") == 2


def test_snapshots_of_other_jobs_are_skipped_and_reported(spec_file: Path) -> None:
    """A snapshot of a job without a spec gives no decision, and standard error names the job."""
    code, out, err = run(spec_file, ndjson([value_of(s) for s in steady(2, rate=1, capacity=10, job_id="other")]))
    assert (code, out) == (0, "")
    assert "other" in err


def test_an_input_without_a_snapshot_is_said_to_be_empty(spec_file: Path) -> None:
    """Whoever has recorded nothing learns it, and does not take the silence for a job without decisions."""
    for more in ([], ["--summary"]):
        ran = CliRunner().invoke(app, ["decide", "--spec", str(spec_file), "--snapshots", "-", *more], input="\n")
        assert ran.exit_code == 0
        assert "no snapshots in standard input" in ran.stderr


def test_results_are_used_at_their_time(spec_file: Path, tmp_path: Path) -> None:
    """A command that was rejected according to --results is no longer in flight at the next snapshot."""
    text = ndjson([value_of(s) for s in SNAPSHOTS])
    first = next(d for d in lines_of(run(spec_file, text)[1]) if d.command is not None)
    number = [s.sequence for s in SNAPSHOTS].index(first.sequence)
    outcomes = tmp_path / "results.ndjson"
    outcomes.write_bytes(value_of(result(first.decision_id, Phase.REJECTED, number + 1)) + b"\n")
    with_results = lines_of(run(spec_file, text, "--results", str(outcomes))[1])
    after = with_results[number + 1]
    assert [r.phase for r in after.observed.results] == [Phase.REJECTED]
    assert "COMMAND_IN_FLIGHT" not in [step.code for step in after.trail]
    assert "COMMAND_IN_FLIGHT" in [s.code for s in lines_of(run(spec_file, text)[1])[number + 1].trail]


def test_results_of_many_jobs_are_looked_at_once_each() -> None:
    """With an hour of 1,000 jobs, to go through the results of all for each snapshot would take days."""
    looks = 0

    class Looked(ActionResult):
        def __getattribute__(self, name: str) -> object:
            nonlocal looks
            looks += name == "job_id"
            return super().__getattribute__(name)

    specs = {one.job_id: one for one in (job(job_id=f"job-{number}") for number in range(50))}
    shots = [each for number in range(50) for each in steady(4, rate=100, capacity=400, job_id=f"job-{number}")]
    results: list[ActionResult] = [
        Looked(**dict(result(f"command of {job_id}", Phase.VERIFIED, job_id=job_id))) for job_id in specs
    ]
    looks = 0
    assert len(list(decided(specs, iter(shots), results))) == len(shots)
    assert looks <= 2 * len(results)


def test_standard_input_is_read_once(spec_file: Path) -> None:
    """Snapshots and results cannot both come from there."""
    code, _, stderr = run(spec_file, "", "--results", "-")
    assert (code, stderr) == (2, "error: --snapshots, --results: only one of them can be standard input\n")


def test_the_summary_is_a_table_of_what_changed(spec_file: Path) -> None:
    """--summary shows spans of equal decisions with their counts, instead of JSON."""
    code, out, _ = run(spec_file, ndjson([value_of(s) for s in SNAPSHOTS]), "--summary")
    assert code == 0
    assert "PENDING_SCALE_UP" in out
    assert f"{len(SNAPSHOTS)} decisions" in out


def test_the_summary_shows_how_far_it_is(spec_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar counts the decisions; standard output is the same."""
    text = ndjson([value_of(s) for s in SNAPSHOTS])
    plain, terminal = run(spec_file, text, "--summary"), Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(bars, "stderr", lambda: terminal)
    assert run(spec_file, text, "--summary") == plain
    assert f"{len(SNAPSHOTS)}/" in terminal.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "standard input:2"),
        ('{"job_id": 3}', "standard input:2"),
        (value_of(SNAPSHOTS[1]).decode().replace('"state":"running"', '"state":"flying"'), "state"),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_field(spec_file: Path, line: str, words: str) -> None:
    """Bad input gives exit code 2 and names line and field, without a traceback."""
    code, _, err = run(spec_file, ndjson([value_of(SNAPSHOTS[0])]) + line + "\n")
    assert code == 2
    assert words in err
    assert "Traceback" not in err


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    """A missing spec file gives exit code 2 and its name."""
    ran = CliRunner().invoke(app, ["decide", "--spec", str(tmp_path / "no.yaml"), "--snapshots", "-"], input="")
    assert ran.exit_code == 2
    assert "no.yaml" in ran.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (100_000 * "[", "Invalid JSON"),
        ('{"partition":0,"offset":1,"timestamp":2,"key":"k","headers":[],"value":null}', "no value"),
        ('{"partition":0,"offset":1,"timestamp":2,"key":"k","headers":[],"value_base64":"/w=="}', "Invalid JSON"),
    ],
)
def test_any_line_of_a_recording_is_at_most_a_bad_line(spec_file: Path, line: str, words: str) -> None:
    """Endless brackets, a tombstone and bytes that are no text are named with their line and the fault."""
    code, _, said = run(spec_file, line + "\n")
    assert code == 2
    assert said.startswith("error: standard input:1: ")
    assert words in said.partition("\n")[0]
