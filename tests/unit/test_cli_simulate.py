"""`tidegate simulate`: a spec on the twin under a load, in tables and a picture."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.unit.test_lab_traces import trace_file
from tidegate.cli.expected import problem_of
from tidegate.cli.simulate import simulate_command
from tidegate.lab.jobs import lab_model, one_job, spec_for
from tidegate.lab.simulate import simulate
from tidegate.twin.workloads import SHAPES

simulate_app = typer.Typer()
simulate_app.command()(simulate_command)

PNG = b"\x89PNG\r\n\x1a\n"

SPEC = """\
job_id: rates
sources: [rates]
application:
  script: job.py
  checkpoint_location: checkpoint
  event_log_dir: events
  control_dir: control
scaling:
  max_parallelism: 8
"""


def test_simulate_shows_changes_score_and_picture(tmp_path: Path) -> None:
    """`tidegate simulate` on a shape prints each change with its reason, the score, and writes the picture."""
    spec, picture = tmp_path / "job.yaml", tmp_path / "run.png"
    spec.write_text(SPEC)
    options = ["--spec", str(spec), "--load", "step", "--hours", "1.5", "--out", str(picture)]
    result = CliRunner().invoke(simulate_app, options)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""  # a progress bar is for a terminal
    assert "Scale up from" in result.output
    assert "slot-seconds" in result.output
    assert picture.read_bytes().startswith(PNG)


def test_simulate_compares_policies_and_says_what_a_month_costs(tmp_path: Path) -> None:
    """Several policies give a table, the cheapest first, with a month's cost if the spec has prices; not a picture."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC + "  prices: {currency: EUR, slot_hour: 0.06, late_minute: 0.5}\n")
    options = ["--spec", str(spec), "--load", "step", "--hours", "0.1", "--policy", "hpa", "--policy", "keda"]
    result = CliRunner().invoke(simulate_app, options)
    assert result.exit_code == 0, result.output
    assert {"hpa", "keda", "EUR"} <= set(result.output.split())
    refused = CliRunner().invoke(simulate_app, [*options, "--out", str(tmp_path / "run.png")])
    assert refused.exception is not None
    assert "shows one policy" in str(problem_of(refused.exception))


def test_with_prices_the_cheapest_policy_is_the_one_that_costs_the_least_money(tmp_path: Path) -> None:
    """Where lateness costs next to nothing, the policy with the fewest slots comes first, however late it is."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC + "  prices: {currency: EUR, slot_hour: 1.0, late_minute: 0.001}\n")
    options = ["--spec", str(spec), "--load", "step", "--hours", "0.5", "--policy", "hpa", "--policy", "threshold"]
    result = CliRunner().invoke(simulate_app, options)
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    months = [float(rows[policy].split(" EUR")[0].split()[-1].replace(",", "")) for policy in list(rows)[1:]]
    assert months == sorted(months)


def test_simulate_takes_a_trace_and_recorded_snapshots(tmp_path: Path) -> None:
    """A CSV trace is the load; recorded snapshots, not the given figures, calibrate the twin."""
    spec, trace, seen = tmp_path / "job.yaml", tmp_path / "load.csv", tmp_path / "seen.ndjson"
    spec.write_text(SPEC)
    trace.write_text("seconds,records_per_second\n0,500\n900,1500\n1800,500\n")
    model = replace(lab_model("rates"))
    recorded = simulate(one_job(model, spec_for(model), SHAPES["diurnal"](2000.0, 1800.0)), keep_snapshots=True)[
        "rates"
    ].snapshots
    seen.write_text("\n".join(snapshot.model_dump_json() for snapshot in recorded))
    options = ["--spec", str(spec), "--load", str(trace), "--snapshots", str(seen)]
    result = CliRunner().invoke(simulate_app, options)
    assert result.exit_code == 0, result.output
    assert "0.74" in result.output or "0.75" in result.output  # hours: the trace's own length
    # As on a topic, a snapshot may stand there twice; the one read first counts.
    seen.write_text("\n".join(snapshot.model_dump_json() for snapshot in [*recorded, *recorded[40:60]]))
    assert CliRunner().invoke(simulate_app, options).output == result.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--load", "nowhere.csv"], "neither a file nor one of step"),
        (["--load", "step", "--policy", "nope"], "--policy: unknown policy 'nope'"),
        (["--load", "step", "--speed", "2"], "--speed, --from: only for a CSV"),
        (["--load", "step", "--from", "1"], "--speed, --from: only for a CSV"),
        (["--load", "step", "--snapshots", os.devnull], "holds no snapshot of 'rates'"),
        (["--load", "step", "--start", "1969-12-31"], "--start: must be from 1970 to 2199, found 1969-12-31"),
    ],
)
def test_simulate_refuses_what_it_cannot_do(tmp_path: Path, options: list[str], told: str) -> None:
    """Bad input ends in one problem that names the option and its value."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    result = CliRunner().invoke(simulate_app, ["--spec", str(spec), *options])
    assert result.exception is not None
    assert told in str(problem_of(result.exception))


def test_a_job_of_the_largest_size_that_a_spec_may_have_is_simulated(tmp_path: Path) -> None:
    """Its pool has room for two of it, which are more slots than a snapshot may tell of."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC.replace("max_parallelism: 8", "max_parallelism: 1000000"))
    options = ["--spec", str(spec), "--load", str(trace_file(tmp_path)), "--hours", "0.1"]
    result = CliRunner().invoke(simulate_app, options)
    assert result.exit_code == 0, result.exception


def test_a_figure_that_no_snapshot_may_hold_is_not_taken_for_a_setting(tmp_path: Path) -> None:
    """A load that no job could process gives tasks of more than thirty years: the error names the figure and it."""
    spec, load = tmp_path / "job.yaml", tmp_path / "load.csv"
    spec.write_text(SPEC)
    load.write_text("seconds,records_per_second\n0,1e12\n60,1e12\n")
    result = CliRunner().invoke(simulate_app, ["--spec", str(spec), "--load", str(load)])
    assert result.exception is not None
    problem = problem_of(result.exception)
    assert problem is not None
    assert "busy_seconds: must be at most 1,000,000,000, found " in str(problem)
    assert "setting" not in f"{problem} {problem.hint}"


def test_simulate_plays_the_part_of_a_trace_that_it_is_asked_for(tmp_path: Path) -> None:
    """`--speed`, `--from` and `--hours` choose the part as in the lab; a part beyond the trace is refused."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    options = ["--spec", str(spec), "--load", str(trace_file(tmp_path)), "--speed", "2", "--from", "1"]
    played = CliRunner().invoke(simulate_app, [*options, "--hours", "0.4"])
    assert played.exit_code == 0, played.output
    assert "0.40" in played.output
    refused = CliRunner().invoke(simulate_app, [*options, "--hours", "0.6"])
    assert refused.exception is not None
    assert "0.5 h are left, not 0.6" in str(problem_of(refused.exception))


@pytest.mark.parametrize("option", ["--record-cost-ms", "--overhead", "--partitions"])
def test_what_a_recording_tells_is_refused_next_to_it(tmp_path: Path, option: str) -> None:
    """The simulated job is fitted to the recording, so the option would be ignored."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    given = ["--spec", str(spec), "--load", "step", "--snapshots", "seen.ndjson", option, "4"]
    refused = CliRunner().invoke(simulate_app, given)
    assert refused.exception is not None
    told = problem_of(refused.exception)
    assert told is not None
    assert str(told) == f"{option}: seen.ndjson tells that"


@pytest.mark.parametrize(("start", "scheduled"), [("2026-11-27T06:00", True), ("2026-11-26", False)])
def test_simulate_starts_at_the_time_that_it_is_told(tmp_path: Path, start: str, scheduled: bool) -> None:
    """`--start` is the time that a schedule sees, in UTC: here that of a Friday morning."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC + "  guards: {schedule: {at_least: '6:05:00-7:00:00 && * * * ? * FRI | 7'}}\n")
    options = ["--spec", str(spec), "--load", "step", "--hours", "0.2", "--peak", "100", "--start", start]
    result = CliRunner().invoke(simulate_app, options)
    assert result.exit_code == 0, result.output
    assert ("at least 7 slots" in " ".join(result.output.split())) is scheduled
