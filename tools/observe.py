"""Writes what an operator sees: docs/metrics.md, the dashboards and the alert rules.

python -m tools.observe            writes
python -m tools.observe --check    fails if a file is not what it would write; for `make check`
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tidegate.runtime.metrics import TABLE, Metric
from tools.alerts import ALERTS, rules
from tools.dashboards import dashboards
from tools.generated import write_or_check

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = "# Written by `python -m tools.observe`; change tools/alerts.py instead.\n"


def files() -> dict[Path, str]:
    """Return the content of every file."""
    made = {
        Path("docs/metrics.md"): metrics_page(),
        Path("deploy/prometheus/rules/tidegate.yaml"): WRITTEN
        + yaml.safe_dump(rules(), sort_keys=False, allow_unicode=True, width=1000),
    }
    for name, dashboard in dashboards().items():
        text = JSONEncoder(sort_keys=True, indent=2).encode(dashboard)
        made[Path(f"deploy/grafana/dashboards/{name}.json")] = text + "\n"
    return made


def metrics_page() -> str:
    """Return docs/metrics.md."""
    lines = [
        "# Metrics, traces and logs",
        "",
        "<!-- Written by `python -m tools.observe` from tidegate/runtime/metrics.py and tools/alerts.py. -->",
        "",
        TEXT.strip(),
        "",
        "## Alerts",
        "",
        "| alert | after | severity | condition |",
        "| --- | --- | --- | --- |",
    ]
    for alert in ALERTS:
        link = f"[{alert.name}](runbook.md#{alert.name.lower()})"
        lines.append(f"| {link} | {alert.wait} | {alert.severity} | `{alert.expr.replace('|', chr(92) + '|')}` |")
    lines += ["", "## Metrics", "", "| metric | labels | of | meaning |", "| --- | --- | --- | --- |"]
    lines += [_row(metric) for metric in TABLE]
    lines += ["", MORE.strip()]
    return "\n".join(lines) + "\n"


TEXT = """
Each service serves its metrics at `/metrics`, if `TIDEGATE_HEALTH_PORT` is set (it is 8081 in the images). Without
`TIDEGATE_HEALTH_HOST` only its own machine can read them. The profile `observe` of `deploy/compose.yaml` starts a
Prometheus that reads them, an Alertmanager, and a Grafana with the dashboards. With a Prometheus of your own, take
`deploy/prometheus/rules` and `deploy/grafana/dashboards`, and give each service's targets the label `service`:
`collector`, `decider` or `actuator`.

To be notified of alerts, add a receiver: in the Compose stack, to `deploy/alertmanager/alertmanager.yml`.

A figure that is not known has no sample; it is never zero. The decider that handles a job has the job's series; if
there are several deciders, ask with `max by (job_id) (…)`. The series of a removed job go away within a second or two.
"""

MORE = """
## Traces

With the setting `otlp_endpoint` (`TIDEGATE_OTLP_ENDPOINT=http://tempo:4318`) decider and actuator send a trace of each
change to an OpenTelemetry collector, over OTLP/HTTP: the snapshot, the decision, the command, each phase, and the first
committed batch.

    snapshot
      decision                 what was decided, with its reason codes
        rescale                from the order to the last result
          accepted
          stopping
          stopped
          starting
          running
          verified
            first batch

Ids and times of the spans come from the events. So the `traceparent` of each record on the topics belongs to the same
trace, a restarted service continues it, and a replay gives the same one. Decisions without a command have no trace. The
images have the packages; elsewhere run `pip install ".[traces]"` in a checkout.

## Logs

The services write one JSON object per line to standard error: `at`, `level`, `logger`, `message`, an `exception` where
there is one, and `job_id` and `decision_id` in every line that is about a job or a decision. A command has the id of
its decision, so one search finds a change in the decider's and in the actuator's log. librdkafka's lines have the same
format.
"""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    kind = "" if metric.kind == "gauge" else f" ({metric.kind})"
    services = "all" if len(metric.services) > 1 else metric.services[0]
    return f"| `{metric.name}`{kind} | {labels} | {services} | {metric.says} |"


def main(arguments: list[str]) -> int:
    """Write the files, or check them; return the exit code."""
    return write_or_check({ROOT / path: text for path, text in files().items()}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
