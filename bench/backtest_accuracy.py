"""A backtest's forecast against the truth: delay and slot-seconds of a job file that a backtest proposed, run for real.

A job runs under plain `spark-submit` while its load rises and falls. Its event log is backtested. Then the proposed job
file runs through the three services under the same load, and the event log of that run says what really came of it.
`TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is started.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from bench.feed import TICK_SECONDS, RecordFeed, feeding
from bench.servers import end_group, servers
from bench.services import JOB, WAIT_SECONDS, Services
from bench.table import BenchRow
from bench.zero import Rig
from tidegate.backtest.backtest import Choices, JobReport, backtest_runs
from tidegate.backtest.delays import errors, mean_delays
from tidegate.backtest.logs import Logs
from tidegate.backtest.past import Past, SlotSteps, past_of
from tidegate.backtest.search import NOT_SEARCHED
from tidegate.backtest.trial import part
from tidegate.client import received
from tidegate.events.job import JobSpec, Mode
from tidegate.events.snapshot import MetricSnapshot
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.stack import StackInfo
from tidegate.stack.class_data import light_jvm
from tidegate.stack.processes import inherited

PARTITIONS = 8
SLOTS = 2
MAX_SLOTS = 4
OBJECTIVE_SECONDS = 20.0
RECORD_MS = 8.0
"""The job mostly waits, so that a busy machine changes little of what is measured."""
LOAD = ((40.0, 100.0), (110.0, 340.0), (70.0, 120.0))
"""(seconds, records/s): more than the plain job's slots can do, and less again."""
TRICKLE = 40.0
WARM_COMMITS = 4
WINDOW_SECONDS = 30.0
BAR = 0.20


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run by its event log."""

    past: Past
    load_began: float
    """Epoch second."""
    slots: SlotSteps
    """As the master granted them: before an executor has registered, as the twin counts them."""

    def delays(self) -> list[float]:
        """Return the mean delay of each window of the load."""
        found = self.past.recording(self.load_began, self.load_began + seconds_of_load())
        return mean_delays(found.commits, seconds_of_load(), WINDOW_SECONDS)

    def slot_seconds(self) -> float:
        """Return the slot-seconds held during the load."""
        return self.slots.slot_seconds(self.load_began, self.load_began + seconds_of_load())


def main() -> list[BenchRow]:
    """Record, backtest, run and compare; return the rows."""
    with servers(spark=True) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        before = record(info, Path(folder) / "plain")
        report = forecast(before)
        after = run(info, Path(folder) / "managed", report.spec)
    return rows(before, report, after)


def rows(before: MeasuredRun, report: JobReport, after: MeasuredRun) -> list[BenchRow]:
    """Return the rows of the comparison."""
    begin = before.load_began - before.past.begin
    forecasted = part(report.sides[1].recording, begin, begin + seconds_of_load(), report.replica.epoch)
    delays = mean_delays(forecasted.commits, seconds_of_load(), WINDOW_SECONDS)
    real = after.delays()
    for name, found in (("was", before.delays()), ("forecast", delays), ("measured", real)):
        sys.stderr.write(f"  delay {name}: {' '.join(f'{each:.1f}' for each in found)} s\n")
    off = errors(delays, real)
    held = forecasted.ticks[-1].core_seconds - forecasted.ticks[0].core_seconds
    held *= seconds_of_load() / (forecasted.ticks[-1].at - forecasted.ticks[0].at)
    slots = after.slot_seconds()
    median = off.median if off is not None else 0.0
    worst = off.p95 if off is not None else 0.0
    return [
        BenchRow(
            "backtest: error of the delay, median", f"{median:.0%} (p95 {worst:.0%})", "", median, BAR, at_most=True
        ),
        BenchRow(
            "backtest: error of the slot-seconds",
            f"{held:.0f} forecast",
            f"{slots:.0f} held",
            abs(held / slots - 1.0),
            BAR,
            at_most=True,
        ),
    ]


def forecast(before: MeasuredRun) -> JobReport:
    """Backtest the plain job, without a search."""
    choices = Choices(objective_seconds=OBJECTIVE_SECONDS, max_slots=MAX_SLOTS)
    report = backtest_runs(
        before.past.name, before.past.runs, choices, lambda _replica, _seconds, _window: NOT_SEARCHED
    )
    if report.fit is not None:
        sys.stderr.write(f"  twin against the past: delay {report.fit.delay}, batches {report.fit.batch}\n")
    return report


def record(info: StackInfo, folder: Path) -> MeasuredRun:
    """Run the job under plain spark-submit, and read its event log."""
    rig = Rig(Services(info, folder, f"plain-{uuid.uuid4().hex[:8]}"), PARTITIONS)
    process = _submit(rig)
    try:
        with feeding(rig.settings, f"{rig.tag}-in", PARTITIONS, TRICKLE) as feed:
            began = _play(feed, rig.folder / "events")
    finally:
        end_group(process, 30)
        rig.close()
    past = past_of(rig.tag, Logs(rig.folder / "events").runs(rig.tag))
    return MeasuredRun(past, began, past.slots)


def run(info: StackInfo, folder: Path, proposed: JobSpec) -> MeasuredRun:
    """Run a proposed job through the services, with what the event log did not tell, and read its event log."""
    rig = Rig(Services(info, folder, f"managed-{uuid.uuid4().hex[:8]}"), PARTITIONS)
    spec = _completed(proposed, rig)
    try:
        rig.services.start()
        Publisher(rig.settings).publish(spec)
        with feeding(rig.settings, f"{rig.tag}-in", PARTITIONS, TRICKLE) as feed:
            began = _play(feed, rig.folder / "events")
        stopped = rig.stops()
        Publisher(rig.settings).publish(spec.model_copy(update={"running": False, "version": spec.version + 1}))
        rig.services.wait("the job has stopped", lambda: rig.stops() > stopped)
        granted = [(one.event.sequence, one.event.slots_granted) for one in received(MetricSnapshot, rig.settings)]
    finally:
        rig.close()
    steps = SlotSteps(sorted((float(at), slots) for at, slots in granted if slots is not None))
    return MeasuredRun(past_of(rig.tag, Logs(rig.folder / "events").runs(rig.tag)), began, steps)


def _completed(spec: JobSpec, rig: Rig) -> JobSpec:
    """Return the proposed job on topics of its own, active, with what the log did not tell."""
    application = spec.application.model_copy(
        update={
            "script": str(JOB),
            "args": _args(rig),
            "jars": tuple(map(str, rig.info.connector_jars)),  # hidden in the log: a name has `token` in it
            "rest_url": rig.info.spark_rest,
            "master_ui_url": rig.info.spark_ui,
            "conf": {**spec.application.conf, "spark.driver.cores": "0"},
            "checkpoint_location": str(rig.folder / "checkpoint"),
            "event_log_dir": str(rig.folder / "events"),
            "control_dir": str(rig.folder / "control"),
        }
    )
    scaling = spec.scaling.model_copy(update={"mode": Mode.ACTIVE})
    return spec.model_copy(
        update={
            "job_id": rig.tag,
            "pipeline_id": rig.tag,
            "sources": (f"{rig.tag}-in",),
            "application": application,
            "scaling": scaling,
        }
    )


def _submit(rig: Rig) -> subprocess.Popen[bytes]:
    """Start the job as anyone would, with the event log on."""
    info, tag = rig.info, rig.tag
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (rig.folder / "events").as_uri(),
        "spark.cores.max": str(SLOTS),
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": light_jvm(),
        "spark.executor.extraJavaOptions": light_jvm(),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", info.spark_master, "--name", tag]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    settings = rig.folder / "spark.properties"
    settings.write_text(f"spark.jars {','.join(map(str, info.connector_jars))}\n", encoding="utf-8")
    command += ["--properties-file", str(settings), str(JOB), *_args(rig)]
    own = inherited()
    own |= {"JAVA_HOME": str(info.java_home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (rig.folder / "driver.log").open("ab") as log:
        return subprocess.Popen(command, env=own, stdout=log, stderr=log, start_new_session=True)


def _args(rig: Rig) -> tuple[str, ...]:
    source, sink = f"{rig.tag}-in", f"{rig.tag}-out"
    return rig.services.arguments(rig.tag, source, sink, record_ms=RECORD_MS, trigger="4 seconds")


def _play(feed: RecordFeed, events: Path) -> float:
    """Play the load once the job has committed a few batches; return when it began."""
    if not wait_until(lambda: _commits(events) >= WARM_COMMITS, WAIT_SECONDS, every=0.5):
        raise TimeoutError(f"the job has not committed {WARM_COMMITS} batches; see {events}")
    began = time.time()
    for seconds, rate in LOAD:
        feed.rate = rate
        time.sleep(seconds)
    feed.rate = TRICKLE
    time.sleep(2 * TICK_SECONDS + 10.0)  # so that the log shows what arrived until the end
    return began


def _commits(events: Path) -> int:
    logs = Logs(events)
    return sum(len(run.batches) for name in logs.names for run in logs.runs(name))


def seconds_of_load() -> float:
    """Return how long the load lasts."""
    return sum(seconds for seconds, _ in LOAD)
