"""What an operator sees is what the tool writes; every alert fires on purpose, and the runbook says what to do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.contract.test_docs import sections
from tests.support.programs import captured
from tidegate.runtime.metrics import TABLE
from tools import observe
from tools.alerts import ALERTS, RUNBOOK, Alert

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules" / "tidegate.yaml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
BY_NAME = {alert.name: alert for alert in ALERTS}
NAME = re.compile(r"\btidegate_[a-z_]+")


def targets(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the title of each panel of a dashboard with each of its queries."""
    for panel in board["panels"]:
        yield from targets(panel) if panel.get("panels") else ()
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def known_names() -> set[str]:
    """Return every name that a query may use."""
    names = {metric.name for metric in TABLE}
    return names | {f"{m.name}_{end}" for m in TABLE if m.kind == "histogram" for end in ("bucket", "sum", "count")}


def test_what_is_committed_is_what_the_tool_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dashboards, alert rules and docs/metrics.md are up to date; a changed file is found."""
    assert observe.main(["--check"]) == 0
    for path, text in observe.files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, "utf-8")
    monkeypatch.setattr(observe, "ROOT", tmp_path)
    assert observe.main(["--check"]) == 0
    (tmp_path / "docs" / "metrics.md").write_text("changed", "utf-8")
    assert observe.main(["--check"]) == 1


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_what_grafana_reads(path: Path) -> None:
    """Read through the types of Grafana's schema and written again, a dashboard is the same: no field is unknown."""
    board = json.loads(path.read_text("utf-8"))
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(board))) == board
    ids = [panel["id"] for panel in board["panels"] if "id" in panel]
    assert len(ids) == len(set(ids))
    assert all(panel["datasource"]["uid"] == "prometheus" for panel in board["panels"] if panel.get("targets"))


def test_there_are_three_dashboards() -> None:
    """The fleet, one job, the services themselves."""
    assert [path.stem for path in DASHBOARDS] == ["fleet", "job", "services"]


def test_queries_and_rules_use_names_of_the_table_and_every_name_is_used() -> None:
    """No query names a metric that does not exist, and no metric is on no dashboard."""
    queries = [expr for path in DASHBOARDS for _, expr in targets(json.loads(path.read_text("utf-8")))]
    used = set(NAME.findall("\n".join([*queries, *(alert.expr for alert in ALERTS)])))
    assert used - known_names() == set()
    unused = {m.name for m in TABLE if not used & {m.name, f"{m.name}_bucket", f"{m.name}_sum"}}
    assert unused == {"tidegate_job_info", "tidegate_service_info"}


def test_prometheus_accepts_its_files() -> None:
    """Its own checker finds nothing wrong."""
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))


def promtool(*arguments: str) -> None:
    """Run Prometheus' own checker; fail with what it finds."""
    program = shutil.which("promtool") or "promtool"
    ran = captured(program, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_inhibitions_name_alerts_that_exist() -> None:
    """Alertmanager's file names no alert that was renamed or removed."""
    text = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text("utf-8")
    assert set(re.findall(r"Tidegate[A-Za-z]+", text)) <= set(BY_NAME)


@pytest.mark.parametrize(
    ("cause", "hidden"),
    [
        ({"alertname": "TidegateServiceDown", "service": "collector"}, {"TidegateJobNotMeasured"}),
        ({"alertname": "TidegateServiceDown", "service": "decider"}, {"TidegateJobNotMeasured"}),
        ({"alertname": "TidegateServiceDown", "service": "actuator"}, {"TidegateChangeHangs"}),
        (
            {"alertname": "TidegateKafkaUnreachable", "service": "collector"},
            {"TidegateJobNotMeasured", "TidegateSourceFails"},
        ),
        ({"alertname": "TidegateKafkaUnreachable", "service": "decider"}, {"TidegateJobNotMeasured"}),
        ({"alertname": "TidegateKafkaUnreachable", "service": "actuator"}, {"TidegateChangeHangs"}),
        ({"alertname": "TidegateJobGivenUp", "job_id": "a"}, {"TidegateStartFailed"}),
        ({"alertname": "TidegateJobGivenUp", "job_id": "b"}, set()),
        ({"alertname": "TidegateJobStuck", "job_id": "a"}, {"TidegateJobLate"}),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_a_cause_hides_only_what_follows_from_it(cause: dict[str, str], hidden: set[str]) -> None:
    """Without an actuator, jobs are still measured: an alert that one is not says something else."""
    rules = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text("utf-8"))["inhibit_rules"]

    def fits(matchers: list[str], labels: dict[str, str]) -> bool:
        found = [re.fullmatch(r'(\w+) =~? "?([^"]+)"?', matcher) for matcher in matchers]
        return all(each is not None and re.fullmatch(each[2], labels.get(each[1], "")) for each in found)

    targets = [{"alertname": name, "job_id": "a"} for name in BY_NAME]
    assert hidden == {
        target["alertname"]
        for rule in rules
        for target in targets
        if fits(rule["source_matchers"], cause)
        and fits(rule["target_matchers"], target)
        and all(cause.get(label) == target.get(label) for label in rule.get("equal", ()))
    }


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_the_runbook_has_a_section_for_the_alert(alert: Alert) -> None:
    """Each alert links to a section of the runbook, and its texts say what happened and what to do."""
    rules = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]}
    page, _, section = rules[alert.name]["annotations"]["runbook"].partition("#")
    assert page == RUNBOOK
    assert section in sections(ROOT / page)
    assert alert.summary.endswith(".")
    assert alert.todo.endswith(".")


class Case(NamedTuple):
    """Series that fire an alert after a time, and what it then says; `quiet` are series that must not."""

    alert: str
    series: dict[str, str]
    at: str
    labels: dict[str, str]
    value: str
    quiet: dict[str, str]


UP = {f'up{{service="{service}"}}': "1x120" for service in ("collector", "decider", "actuator")}
STUCK = 'tidegate_job_delay_seconds{job_id="a"}'
RUNS = {
    'tidegate_job_lag_objective_seconds{job_id="a"}': "60x120",
    'tidegate_job_current_slots{job_id="a"}': "4x120",
    'tidegate_job_should_run{job_id="a"}': "1x120",
}
STOPPED = RUNS | {'tidegate_job_current_slots{job_id="a"}': "0x120", 'tidegate_job_should_run{job_id="a"}': "0x120"}
A = {"job_id": "a"}
CASES = (
    Case(
        "TidegateServiceDown",
        {**UP, 'up{service="collector"}': "1 1 0x60"},
        "5m",
        {"service": "collector"},
        "",
        {**UP, 'up{service="collector"}': "1 1 0 1x60"},
    ),
    Case(
        "TidegateServiceDown",
        {**UP, 'tidegate_main_loop_age_seconds{service="decider"}': "0 60 120 180 240 300"},
        "4m",
        {"service": "decider"},
        "",
        {**UP, 'tidegate_main_loop_age_seconds{service="decider"}': "0 30 0 30 0 30"},
    ),
    Case(
        "TidegateJobNotMeasured",
        {
            'tidegate_job_snapshot_timestamp_seconds{job_id="a"}': "0x60",
            'tidegate_job_interval_seconds{job_id="a"}': "10x60",
        },
        "4m",
        A,
        "4m 0s",
        {
            'tidegate_job_snapshot_timestamp_seconds{job_id="a"}': "0+60x60",
            'tidegate_job_interval_seconds{job_id="a"}': "10x60",
        },
    ),
    Case(
        "TidegateJobNotMeasured",  # the clock that decided last was an hour ahead
        {
            'tidegate_job_snapshot_timestamp_seconds{job_id="a"}': "3600x60",
            'tidegate_job_interval_seconds{job_id="a"}': "10x60",
        },
        "4m",
        A,
        "56m 0s",
        {
            'tidegate_job_snapshot_timestamp_seconds{job_id="a"}': "30+60x60",
            'tidegate_job_interval_seconds{job_id="a"}': "10x60",
        },
    ),
    Case(
        "TidegateSourceFails",
        {'tidegate_collector_source_failures_total{source="kafka"}': "0x5 1+6x60"},
        "20m",
        {"source": "kafka"},
        "",
        {'tidegate_collector_source_failures_total{source="kafka"}': "0x5 3x60"},
    ),
    Case(
        "TidegateJobStuck",
        {STUCK: "0+60x60", **RUNS},
        "20m",
        A,
        "",
        {STUCK: "0+50x60", **RUNS},  # too small, but it commits
    ),
    Case("TidegateJobStuck", {STUCK: "0+60x60", **RUNS}, "20m", A, "", {STUCK: "0+60x60", **STOPPED}),
    Case("TidegateJobLate", {STUCK: "90x60", **RUNS}, "20m", A, "1m 30s", {STUCK: "59x60", **RUNS}),
    Case("TidegateJobLate", {STUCK: "90x60", **RUNS}, "20m", A, "1m 30s", {STUCK: "90x60", **STOPPED}),
    Case(
        "TidegateStartFailed",
        {'tidegate_job_failed_starts{job_id="a"}': "0 1x5"},
        "2m",
        A,
        "1",
        {'tidegate_job_failed_starts{job_id="a"}': "0x5"},
    ),
    Case(
        "TidegateJobGivenUp",
        {'tidegate_job_failed_starts{job_id="a"}': "1 2 3x5"},
        "4m",
        A,
        "3",
        {'tidegate_job_failed_starts{job_id="a"}': "1 2 2x5"},
    ),
    Case(
        "TidegateStateLimit",
        {'tidegate_job_status{job_id="a",status="STOPPED_STATE_LIMIT"}': "0 1x5"},
        "3m",
        {**A, "status": "STOPPED_STATE_LIMIT"},
        "",
        {'tidegate_job_status{job_id="a",status="STOPPED_STATE_LIMIT"}': "0x5"},
    ),
    Case(
        "TidegatePoolExhausted",
        {'tidegate_job_status{job_id="a",status="POOL_EXHAUSTED"}': "1x30"},
        "15m",
        A,
        "",
        {'tidegate_job_status{job_id="a",status="POOL_EXHAUSTED"}': "1x5 0x25"},
    ),
    Case(
        "TidegateRestartBudgetUsedUp",
        {'tidegate_job_restarts_left{job_id="a"}': "2 1 0x5"},
        "4m",
        A,
        "",
        {'tidegate_job_restarts_left{job_id="a"}': "2 1 1x5"},
    ),
    Case(
        "TidegateChangeHangs",
        {
            'tidegate_job_change_timestamp_seconds{job_id="a"}': "0x60",
            'tidegate_job_change_deadline_seconds{job_id="a"}': "420x60",
        },
        "25m",
        A,
        "25m 0s",
        {
            'tidegate_job_change_timestamp_seconds{job_id="a"}': "0x60",
            'tidegate_job_change_deadline_seconds{job_id="a"}': "2400x60",
        },
    ),
    Case(
        "TidegateChangeHangs",
        {
            'tidegate_job_change_timestamp_seconds{job_id="a"}': "0x60",
            'tidegate_job_change_deadline_seconds{job_id="a"}': "2400x60",
        },
        "38m",
        A,
        "38m 0s",
        {
            'tidegate_job_change_timestamp_seconds{job_id="a"}': "0x15",
            'tidegate_job_change_deadline_seconds{job_id="a"}': "2400x60",
        },
    ),
    Case(
        "TidegateDeadLetters",
        {'tidegate_dead_letters_total{service="decider",topic="snapshots",code="NOT_JSON"}': "0 0 1x10"},
        "5m",
        {"service": "decider", "topic": "snapshots", "code": "NOT_JSON"},
        "",
        {'tidegate_dead_letters_total{service="decider",topic="snapshots",code="NOT_JSON"}': "7x60"},
    ),
    Case(
        "TidegateRedisUnreachable",
        {'tidegate_dependency_up{service="decider",dependency="redis"}': "1 0x10"},
        "5m",
        {"service": "decider", "dependency": "redis"},
        "",
        {'tidegate_dependency_up{service="decider",dependency="redis"}': "1 0 1x10"},
    ),
    Case(
        "TidegateKafkaUnreachable",
        {'tidegate_dependency_up{service="decider",dependency="kafka"}': "1 0x10"},
        "5m",
        {"service": "decider", "dependency": "kafka"},
        "",
        {'tidegate_dependency_up{service="decider",dependency="kafka"}': "1x10"},
    ),
)


def filled_in(text: str, case: Case) -> str:
    """Return an annotation with its labels and its value, as Prometheus fills them in."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: case.labels[found[1]], text)
    return re.sub(r"\{\{ \$value[^}]* \}\}", case.value, text)


def told(case: Case) -> list[dict[str, Any]]:
    """Return what an alert says when it fires."""
    rule = BY_NAME[case.alert].rule()
    annotations: Any = rule["annotations"]
    labels = {**case.labels, "severity": BY_NAME[case.alert].severity}
    return [
        {"exp_labels": labels, "exp_annotations": {name: filled_in(text, case) for name, text in annotations.items()}}
    ]


def test_what_happens_once_is_on_the_dashboards(tmp_path: Path) -> None:
    """A job's counter appears with its first event, which counts too; later events and restarts count once."""
    fleet = dict(targets(json.loads((DEPLOY / "grafana" / "dashboards" / "fleet.json").read_text("utf-8"))))
    name = 'tidegate_job_results_total{job_id="a",phase="failed",code="NOT_WARM"}'
    mean = "tidegate_job_change_outage_seconds"
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "promql_expr_test": [
                {"expr": fleet[title], "eval_time": at, "exp_samples": [{"labels": labels, "value": value}]}
            ],
        }
        for title, given, at, labels, value in (
            ("Ended commands, an hour", {name: "_x30 1x60"}, "45m", '{phase="failed",code="NOT_WARM"}', 1),
            ("Ended commands, an hour", {name: "_x30 1x200"}, "150m", '{phase="failed",code="NOT_WARM"}', 0),
            ("Ended commands, an hour", {name: "4x90 _x5 0x60"}, "120m", '{phase="failed",code="NOT_WARM"}', 0),
            (
                "Outage of a change, mean of an hour",
                {
                    f'{mean}_sum{{job_id="a",way="restart"}}': "_x30 40x60",
                    f'{mean}_count{{job_id="a",way="restart"}}': "_x30 1x60",
                },
                "45m",
                '{way="restart"}',
                40,
            ),
        )
    ]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"tests": tests}), "utf-8")
    promtool("test", "rules", str(tmp_path / "tests.yaml"))


def test_every_alert_fires_when_it_must_and_not_before(tmp_path: Path) -> None:
    """Prometheus' own simulator fires each rule on its series, with the texts filled in, and not on the quiet ones."""
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}],
        }
        for case in CASES
        for series, expected in ((case.series, told(case)), (case.quiet, []))
    ]
    assert {case.alert for case in CASES} == set(BY_NAME)
    shutil.copy(RULES, tmp_path / "rules.yaml")
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": tests}), "utf-8")
    promtool("test", "rules", str(tmp_path / "tests.yaml"))
