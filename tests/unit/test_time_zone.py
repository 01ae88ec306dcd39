"""The time zone of a spec: periods and windows follow the clocks there, and every decision can still be recomputed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from tests.support.cases import case, propose
from tests.support.events import NO_WAIT, codes, job, steady
from tests.unit.test_cli_decide import lines_of
from tests.unit.test_decider_handler import Bench
from tidegate.cli import app
from tidegate.engine.case import Case
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.job import JobSpec, Scaling
from tidegate.whatif.engines import ThisEngine
from tidegate.whatif.recorded import RecordedJob, moments_of
from tidegate.whatif.trial import attempt

FROM_ONE = "13:01:00-13:30:00"
"""A period that begins at 12:01 UTC in a winter of Berlin, between the last two of seven snapshots."""


def planned(time_zone: str | None, at_least: str = f"{FROM_ONE} | 12") -> JobSpec:
    """Return the spec of a job with a schedule in a time zone."""
    return job(time_zone=time_zone, guards=NO_WAIT | {"schedule": {"at_least": at_least}})


def decided(spec: JobSpec) -> Decision:
    """Return the decider's last decision on a job that needs one slot."""
    bench = Bench(spec)
    bench.take(*steady(7, rate=40, capacity=400, partitions=64))
    return bench.decisions()[-1]


@pytest.mark.parametrize(
    ("zone", "instant", "seconds"),
    [
        (None, "2026-07-01T12:00", None),
        ("UTC", "2026-07-01T12:00", 0),
        ("Europe/Berlin", "2026-03-29T00:59", 3600),
        ("Europe/Berlin", "2026-03-29T01:00", 7200),  # summer time begins
        ("Europe/Berlin", "2026-10-25T01:00", 3600),
        ("America/New_York", "2026-01-01T12:00", -18_000),
        ("Asia/Kolkata", "2026-01-01T12:00", 19_800),
        ("Pacific/Kiritimati", "2026-01-01T12:00", 50_400),
    ],
)
def test_a_zone_is_ahead_of_utc_by_what_holds_at_that_instant(
    zone: str | None, instant: str, seconds: int | None
) -> None:
    """Summer time included."""
    at = datetime.fromisoformat(instant).replace(tzinfo=UTC)
    assert Scaling(time_zone=zone).utc_offset_seconds(at) == seconds


@pytest.mark.parametrize("zone", ["Europe/Berln", "Europe", "CEST", "", "../UTC", "/etc/localtime", "Europe/Berlin\n"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    """The problem names the field and the value; what looks like a path is not looked up."""
    with pytest.raises(ValidationError) as refused:
        Scaling(time_zone=zone)
    (problem,) = refused.value.errors()
    assert problem["loc"] == ("time_zone",)
    assert problem["input"] == zone


def test_a_schedule_follows_the_clocks_of_its_zone() -> None:
    """12:01 UTC is 13:01 in Berlin, and the decision says which clocks are meant."""
    decision = decided(planned("Europe/Berlin"))
    assert decision.final_parallelism == 12, decision.sentence
    assert f"in the period {FROM_ONE} (Europe/Berlin)" in decision.sentence
    assert "SCHEDULED" not in codes(decided(planned(None)))


def test_a_period_without_changes_follows_them_too() -> None:
    """A job that should grow waits for the end of the period."""
    guards = {"excluded_periods": {"periods": FROM_ONE}, "stabilization": {"seconds": 0}}
    shots = steady(7, rate=800, capacity=400, partitions=64)
    for zone, excluded in (("Europe/Berlin", True), (None, False)):
        bench = Bench(job(time_zone=zone, guards=guards))
        bench.take(*shots)
        assert ("EXCLUDED_PERIOD" in codes(bench.decisions()[-1])) is excluded


def at_noon(offset: int | None) -> Case:
    """Return a case of 4 slots at noon UTC, where the job's clocks are ahead by so many seconds."""
    noon = case()
    return noon._replace(observed=replace(noon.observed, utc_offset_seconds=offset))


@pytest.mark.parametrize(
    ("policy", "cron"), [("keda", "0 13 * * *|0 14 * * *|9"), ("numaflow", "0 0 13 * * *|0 0 14 * * *|9|12")]
)
def test_the_windows_of_a_policy_follow_them_too(policy: str, cron: str) -> None:
    """A window from 13 to 14 o'clock is open at noon UTC where it is 13 o'clock then."""
    assert propose(policy, at_noon(None), cron=cron).size <= 4
    assert propose(policy, at_noon(3600), cron=cron).size > 4


def test_the_offset_is_recorded_so_that_a_newer_database_changes_no_decision() -> None:
    """Parliaments change time zones; what was decided is recomputed with what held then."""
    spec = planned("Europe/Berlin")
    assert decided(spec).observed.utc_offset_seconds == 3600
    assert decided(planned(None)).observed.utc_offset_seconds is None
    assert b"utc_offset_seconds" not in value_of(decided(planned(None)))


def test_decide_uses_the_zone(tmp_path: Path) -> None:
    """So do decisions on recorded snapshots."""
    spec = tmp_path / "job.json"
    spec.write_bytes(value_of(planned("Europe/Berlin")))
    shots = "".join(value_of(shot).decode() + "\n" for shot in steady(8, rate=40, capacity=400, partitions=64))
    ran = CliRunner().invoke(app, ["decide", "--spec", str(spec), "--snapshots", "-"], input=shots)
    assert ran.exit_code == 0, ran.output
    assert 12 in [decision.final_parallelism for decision in lines_of(ran.stdout)]


def test_what_if_moves_the_periods_with_the_zone() -> None:
    """Another time zone has another offset, also where the recorded decisions name theirs."""
    shots = steady(7, rate=40, capacity=400, partitions=64)
    bench = Bench(planned(None))
    bench.take(*shots)
    hour = RecordedJob(shots, [], [], bench.decisions())
    trial = attempt(hour, moments_of(hour), ThisEngine(), lambda _spec: planned("Europe/Berlin"))
    assert trial.made[-1].final_parallelism == 12, trial.made[-1].sentence
