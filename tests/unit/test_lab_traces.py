"""Traces as loads: what is read of a file, which part is played, and the lab with a trace as a workload."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.lab.__main__ import app as lab_app
from tidegate.lab.jobs import lab_model, lab_peak, spec_for
from tidegate.lab.suite import ORACLE, UnknownName, cells, run, spread, trace_loads
from tidegate.lab.traces import Playback, read_trace
from tidegate.twin.load import BadLoad, Load


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ":1: the header must be seconds,records_per_second"),
        ("seconds,records_per_second\n0,1\n5\n", ":3: 2 fields are needed, found 1"),
        (
            "seconds,records_per_second\n0,1\n5,NaN\n",
            ":3: records_per_second: must be a number of at least 0, found 'NaN'",
        ),
        ("seconds,records_per_second\n0,1\n5,-2\n", "found '-2'"),
        ("seconds,records_per_second\n5,1\n5,2\n", ":3: seconds: must rise, found 5 after 5"),
        ("# a note\n\nseconds,records_per_second\n0,1\n\n5,x\n", ":6: records_per_second: must be a number"),
        ("seconds,records_per_second\n5,1\n", "at least 2 points"),
        (f"seconds,records_per_second\n0,{200_000 * '9'}\n", ":2: field larger than field limit"),
        ("seconds,records_per_second\n1767225600000,1\n1767312000000,2\n", "are its seconds milliseconds?"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """A trace that cannot be read names file, line, field and value."""
    path = tmp_path / "load.csv"
    path.write_text(text)
    with pytest.raises(BadLoad) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read is named with the reason."""
    with pytest.raises(BadLoad, match=r"nowhere\.csv: cannot be read: .*No such file"):
        read_trace(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("play", "told"),
    [
        (Playback(hours=3.0), "at speed 1, 2 h are left, not 3"),
        (Playback(since_hours=1.5, hours=1.0), "from hour 1.5 on, at speed 1, 0.5 h are left, not 1"),
        (Playback(speed=4.0, hours=1.0), "at speed 4, 0.5 h are left, not 1"),
        (Playback(since_hours=2.0), "from hour 2 on, at speed 1, 0 h are left"),
    ],
)
def test_a_trace_shorter_than_asked_says_how_much_there_is(tmp_path: Path, play: Playback, told: str) -> None:
    """No run is silently shorter than requested."""
    with pytest.raises(BadLoad) as caught:
        read_trace(trace_file(tmp_path), play)
    assert str(caught.value).startswith(f"{tmp_path / 'hill.csv'}: it lasts 2 h: from hour")
    assert str(caught.value).endswith(told)


def test_a_trace_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A compressed file is named as one, in plain words."""
    path = tmp_path / "load.csv"
    path.write_bytes(gzip.compress(b"seconds,records_per_second\n0,1\n"))
    with pytest.raises(BadLoad, match="byte 1 is not UTF-8; the file must be plain text, not compressed"):
        read_trace(path)


def test_a_trace_is_played_as_asked(tmp_path: Path) -> None:
    """Speed shortens a trace at the same rates; the part starts by the trace's own clock; the peak is as requested."""
    path = trace_file(tmp_path)
    assert read_trace(path).seconds == 7200.0
    assert read_trace(path, Playback(most_hours=1.0)).seconds == 3600.0
    fast = read_trace(path, Playback(speed=4.0))
    assert fast.seconds == 1800.0
    assert fast.rate(900.0) == pytest.approx(read_trace(path).rate(3600.0), rel=0.01)
    part = read_trace(path, Playback(speed=2.0, since_hours=1.0, hours=0.25, peak=50.0))
    assert part.seconds == 900.0
    assert part.peak == pytest.approx(50.0)
    assert part.rates[0] == part.peak  # the trace's second hour begins at its top, and falls


def test_a_trace_is_a_workload_scored_the_same_in_any_process(tmp_path: Path) -> None:
    """A trace's cells hold its load, so two processes give the same rows as one, even after the file is deleted."""
    path = trace_file(tmp_path)
    traces = trace_loads([path], Playback(speed=2.0))
    path.unlink()
    todo = [cell for cell in cells(["flip271"], traces=traces) if cell.policy != ORACLE]
    assert {cell.workload for cell in todo} == {"hill"}
    assert {cell.seconds for cell in todo} == {3600.0}
    here = [run(cell) for cell in todo]
    there = sorted(spread(run, todo, processes=2), key=lambda row: todo.index(row.cell))
    assert [row.score for row in here] == [row.score for row in there]
    assert max(here[0].curve.rate) == pytest.approx(lab_peak(lab_model(), spec_for(lab_model())), rel=0.03)
    assert {cell.workload for cell in cells(["flip271"], ["step"], traces=traces)} == {"step", "hill"}


def test_two_workloads_of_one_name_are_refused(tmp_path: Path) -> None:
    """Traces are named by their files' stems; none may have the name of a shape in the same run."""
    (tmp_path / "other").mkdir()
    with pytest.raises(BadLoad, match="a trace called 'hill' already exists"):
        trace_loads([trace_file(tmp_path), trace_file(tmp_path / "other")], Playback())
    with pytest.raises(UnknownName, match="workload 'step' is both a shape and a trace"):
        cells([], ["step"], traces={"step": Load([1.0])})


def test_the_lab_command_takes_traces(tmp_path: Path) -> None:
    """`--trace` runs only the trace, at the given speed and start; a bad trace ends with its error."""
    path, out = trace_file(tmp_path), tmp_path / "lab.png"
    base = ["--trace", str(path), "--policy", "flip271", "--processes", "1", "--out", str(out)]
    result = CliRunner().invoke(lab_app, [*base, "--speed", "2", "--from", "1", "--hours", "0.4"])
    assert result.exit_code == 0, result.output
    assert "hill" in result.output
    assert "spike" not in result.output
    refused = CliRunner().invoke(lab_app, [*base, "--hours", "5"])
    assert refused.exit_code == 2
    assert "not 5" in refused.output


def trace_file(directory: Path) -> Path:
    """Return a trace of two hours: up for one, down for half of one, then level."""
    path = directory / "hill.csv"
    path.write_text("# a hill\nseconds,records_per_second\n0,100\n3600,900\n5400,300\n")
    return path
