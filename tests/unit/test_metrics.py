"""The metrics: names and units, what a job's series say, and that none outlives its job."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from services.actuator.metrics import ActuatorMetrics
from services.collector.metrics import CollectorMetrics
from services.decider.metrics import DeciderMetrics
from tests.support.events import START, job, overloaded, result, snapshot
from tests.support.set_clock import SetClock
from tests.unit.test_collector_app import World, spec
from tests.unit.test_decider_handler import Bench
from tidegate.engine.guards.worth import RestartBudget
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState, Part
from tidegate.events.way import Way
from tidegate.runtime.dependencies import Dependencies
from tidegate.runtime.health import Health
from tidegate.runtime.metrics import TABLE, new_registry
from tidegate.stack.ports import free_ports

MADE = {"collector": CollectorMetrics, "decider": DeciderMetrics, "actuator": ActuatorMetrics}


def whole(service: str) -> CollectorRegistry:
    """Return the registry of a service, as its composition root fills it."""
    registry = new_registry(service)
    MADE[service](registry)
    Health(SetClock(), registry)
    Dependencies(SetClock(), registry, {})
    return registry


@pytest.mark.parametrize("service", MADE)
def test_a_service_has_the_metrics_that_the_table_gives_it(service: str) -> None:
    """No service has a metric that the table does not list for it, and each has all that it lists."""
    names = {family.name for family in whole(service).collect() if family.name.startswith("tidegate_")}
    assert names == {metric.family for metric in TABLE if service in metric.services}


def test_names_are_unique_and_have_their_units() -> None:
    """Each name is in the table once; counters end with `_total`, and times are seconds."""
    assert max(Counter(metric.name for metric in TABLE).values()) == 1
    for metric in TABLE:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not metric.name.endswith(("_ms", "_millis", "_minutes", "_percent")), metric.name
        assert metric.kind != "histogram" or metric.unit == "seconds", metric.name


def test_promtool_finds_nothing_wrong_with_the_names() -> None:
    """Prometheus' own linter accepts the exposition of a decider with a job."""
    promtool = shutil.which("promtool")
    assert promtool is not None, "install Debian's package prometheus: `make prometheus` does it"
    bench = Bench()
    bench.take(*overloaded(7))
    text = generate_latest(bench.registry)
    linted = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False, timeout=60)
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, b"", b"")


def test_metrics_are_served_as_openmetrics_to_whom_asks_for_it() -> None:
    """Prometheus asks for OpenMetrics and gets it; a person with curl gets plain text."""
    registry, (port,) = new_registry("decider"), free_ports(1)
    health = Health(SetClock(), registry)
    health.serve("127.0.0.1", port)
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        answer = httpx.get(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        parsed = list(text_string_to_metric_families(answer.text))  # type: ignore[no-untyped-call]
        assert {family.name: family.unit for family in parsed}["tidegate_main_loop_age_seconds"] == "seconds"
        assert httpx.get(url).headers["Content-Type"].startswith("text/plain")
    finally:
        health.close()


def test_a_jobs_series_say_what_its_newest_decision_says() -> None:
    """Delay, lag, rates, sizes, status, reasons and the ordered change are those of the decision."""
    bench = Bench()
    bench.take(*overloaded(7))
    decision, command = bench.decisions()[-1], bench.commands()[-1]

    def value(name: str, **labels: str) -> float | None:
        return bench.registry.get_sample_value(f"tidegate_job_{name}", {"job_id": "rates", **labels})

    evidence = decision.evidence
    assert value("delay_seconds") == evidence.delay_seconds
    assert value("lag_records") == evidence.lag_records
    assert value("arrival_records_per_second") == pytest.approx(800)
    assert value("capacity_records_per_second") == evidence.true_processing_rate
    assert (value("current_slots"), value("granted_slots")) == (4, 4)
    assert value("proposed_slots") == decision.proposed_parallelism
    assert value("final_slots") == decision.final_parallelism == command.to_parallelism
    assert value("status", status="PENDING_SCALE_UP") == 1
    assert value("status", status="FINE") == 0
    assert value("change_phase", kind="rescale", phase="ordered") == 1
    assert value("change_timestamp_seconds") == command.issued_at.timestamp()
    assert value("change_deadline_seconds") == 60 + 2 * 180
    assert value("commands_total", kind="rescale", way="in_place") == len(bench.commands())
    assert value("snapshot_timestamp_seconds") == overloaded(7)[-1].observed_at.timestamp()
    assert (value("interval_seconds"), value("lag_objective_seconds")) == (10, 60)
    assert (value("failed_starts"), value("restarts_left")) == (0, RestartBudget().per_day)
    reasons = sum(len(each.trail) for each in bench.decisions())
    counted = [s for f in bench.registry.collect() for s in f.samples if s.name.endswith("decision_reasons_total")]
    assert sum(sample.value for sample in counted) == reasons
    assert bench.registry.get_sample_value("tidegate_pool_used_slots", {"pool_id": "default"}) == 4
    bench.take(result(command.command_id, Phase.RESIZING, 7, way=Way.IN_PLACE))
    assert value("change_phase", kind="rescale", phase="resizing") == 1
    bench.take(result(command.command_id, Phase.VERIFIED, 8, way=Way.IN_PLACE, outage_seconds=0.0, delay_seconds=12.5))
    assert value("change_phase", kind="rescale", phase="resizing") is None
    assert value("results_total", phase="verified", code="OK") == 1
    assert value("change_delay_seconds_sum", way="in_place") == 12.5
    assert value("change_outage_seconds_count", way="in_place") == 1


def test_of_the_jobs_in_a_pool_the_newest_snapshot_tells_its_slots() -> None:
    """One job may be measured every ten seconds, and another one once an hour."""
    bench = Bench(job("often"), job("seldom"))

    def used() -> float | None:
        return bench.registry.get_sample_value("tidegate_pool_used_slots", {"pool_id": "default"})

    bench.take(snapshot(1, job_id="often", slots=4))
    bench.take(snapshot(2, job_id="seldom", slots=6))
    assert used() == 6
    bench.take(snapshot(3, job_id="often", slots=8))
    assert used() == 8


def test_what_is_unknown_has_no_sample() -> None:
    """A delay that nobody knows is absent: zero would look like a job that is up to date."""
    bench = Bench()
    bench.take(snapshot(1, committed=None, missing=(Part.COMMITTED_OFFSETS,)))
    assert bench.registry.get_sample_value("tidegate_job_delay_seconds", {"job_id": "rates"}) is None
    assert bench.registry.get_sample_value("tidegate_job_current_slots", {"job_id": "rates"}) == 4


def test_a_size_that_nobody_knows_has_no_sample() -> None:
    """A job whose cluster has never said its size is not one of no slots; a job that does not run is."""
    sizes = [f"tidegate_job_{name}_slots" for name in ("current", "proposed", "final")]
    unknown, stopped = Bench(), Bench()
    unknown.take(snapshot(1, slots=None))
    stopped.take(snapshot(1, slots=0, state=ClusterState.STOPPED))
    assert unknown.decisions()[-1].trail[0].code == "SIZE_UNKNOWN"
    assert [unknown.registry.get_sample_value(name, {"job_id": "rates"}) for name in sizes] == [None] * 3
    assert stopped.registry.get_sample_value(sizes[0], {"job_id": "rates"}) == 0


def test_a_guard_that_stops_a_change_is_counted() -> None:
    """A change that a guard brings back to the current size counts as held by that guard, and no other does."""
    bench = Bench(job(guards={"excluded_periods": {"periods": "0:00:00-23:59:59"}}, max_parallelism=16))
    bench.take(*overloaded(7))
    held = {
        sample.labels["guard"]: sample.value
        for family in bench.registry.collect()
        for sample in family.samples
        if sample.name == "tidegate_job_guard_holds_total"
    }
    assert bench.commands() == []
    assert held == {"excluded_periods": sum("EXCLUDED_PERIOD" in [e.code for e in d.trail] for d in bench.decisions())}


def test_the_restarts_left_fall_with_each_restart() -> None:
    """A change by restart takes one of the budget's restarts."""
    bench = Bench(job(rescale=(Way.RESTART,)))
    bench.take(*overloaded(7))
    assert len(bench.commands()) == 1
    assert (
        bench.registry.get_sample_value("tidegate_job_restarts_left", {"job_id": "rates"})
        == RestartBudget().per_day - 1
    )


def test_a_failed_start_shows_until_one_succeeds() -> None:
    """The gauge has the engine's own count of failed starts in a row."""
    bench = Bench()
    bench.take(snapshot(1, state=ClusterState.STOPPED, slots=0, incarnation=None))
    command = bench.commands()[-1]
    failed = result(command.command_id, Phase.FAILED, 2, kind=CommandKind.START, code="NOT_VERIFIED", parallelism=0)
    bench.take(failed, snapshot(3, state=ClusterState.STOPPED, slots=0, incarnation=None))
    assert bench.registry.get_sample_value("tidegate_job_failed_starts", {"job_id": "rates"}) == 1


def test_a_forgotten_job_leaves_no_series() -> None:
    """After a job is removed no sample names it, counters and histograms included; other jobs keep theirs."""
    bench = Bench(job("one"), job("two"))
    for each in ("one", "two"):
        bench.take(*overloaded(7, job_id=each))
        ended = result("x", Phase.VERIFIED, 8, job_id=each, way=Way.RESTART, outage_seconds=1.0, delay_seconds=2.0)
        bench.take(ended)
    before = generate_latest(bench.registry).decode()
    assert before.count('"one"') == before.count('"two"') > 50
    bench.handler.metrics.jobs.follow([job("two")], START)
    after = generate_latest(bench.registry).decode()
    assert (after.count('"one"'), after.count('"two"')) == (0, before.count('"two"'))
    bench.handler.metrics.jobs.follow([], START)
    assert '"two"' not in generate_latest(bench.registry).decode()


def test_a_job_that_nobody_measures_is_noticed() -> None:
    """A job without a decision counts from when it was first known, so the alert on old snapshots finds it too."""
    bench, name = Bench(), "tidegate_job_snapshot_timestamp_seconds"
    jobs, later = bench.handler.metrics.jobs, START + timedelta(hours=1)
    jobs.follow([job("rates"), job("lost")], START)
    jobs.follow([job("rates"), job("lost")], later)
    bench.take(*overloaded(1))
    assert bench.registry.get_sample_value(name, {"job_id": "lost"}) == START.timestamp()
    assert bench.registry.get_sample_value("tidegate_job_interval_seconds", {"job_id": "lost"}) == 10
    assert bench.registry.get_sample_value(name, {"job_id": "rates"}) == overloaded(1)[0].observed_at.timestamp()
    jobs.follow([job("rates")], later)
    assert bench.registry.get_sample_value(name, {"job_id": "lost"}) is None
    assert bench.registry.get_sample_value(name, {"job_id": "rates"}) is not None


def test_dead_letters_are_counted_from_zero() -> None:
    """Each topic and code has a series before the first letter, so that the first one is an increase."""
    bench = Bench()
    labels = {"topic": "snapshots", "code": "NOT_JSON"}
    assert bench.registry.get_sample_value("tidegate_dead_letters_total", labels) == 0
    bench.raw(b"{")
    assert bench.registry.get_sample_value("tidegate_dead_letters_total", labels) == 1


def test_the_collector_says_how_old_each_part_and_source_is(tmp_path: Path) -> None:
    """A part that stays missing keeps its old time; a removed job's series and places go away."""

    async def play() -> None:
        world = World(spec(tmp_path))
        await world.begin()
        await world.turn(0)
        await world.snapshots(1)
        at = world.clock.now().timestamp()
        assert world.figure("part_timestamp_seconds", job_id="recorded", part="end_offsets") == at
        assert world.figure("source_timestamp_seconds", source="kafka", place="") == at
        assert world.figure("source_timestamp_seconds", source="master", place="http://m:8080") == at
        world.offsets.fails = ConnectionError("no broker")
        await world.turn(10)
        await world.snapshots(2)
        assert world.figure("part_timestamp_seconds", job_id="recorded", part="end_offsets") == at
        assert world.figure("source_timestamp_seconds", source="kafka", place="") == at
        assert world.figure("source_timestamp_seconds", source="master", place="http://m:8080") == at + 10
        world.jobs.specs, world.jobs.changed = [], ["recorded"]
        await world.turn(11)
        text = generate_latest(world.registry).decode()
        assert "recorded" not in text
        assert "http://m:8080" not in text

    asyncio.run(play())


def test_a_dependency_that_does_not_answer_is_down() -> None:
    """Up follows the newest answer; errors are counted, and only answers are timed."""
    registry = CollectorRegistry()
    dependencies = Dependencies(SetClock(), registry, {})

    def refuse() -> None:
        raise ConnectionError("refused")

    dependencies.ask("redis", lambda: None)
    assert registry.get_sample_value("tidegate_dependency_up", {"dependency": "redis"}) == 1
    dependencies.ask("redis", refuse)
    assert registry.get_sample_value("tidegate_dependency_up", {"dependency": "redis"}) == 0
    assert registry.get_sample_value("tidegate_dependency_errors_total", {"dependency": "redis"}) == 1
    assert registry.get_sample_value("tidegate_dependency_answer_seconds_count", {"dependency": "redis"}) == 1
