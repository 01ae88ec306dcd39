"""A restart by Tidegate against a bare stop and submit of the same job, on the same cluster, alternating.

The bare restart is what an operator's script does: kill the driver through REST, wait until the master reports its
end, submit the script. Tidegate stops at a batch boundary, waits until driver, application and JVM are gone, records
every phase on Kafka, takes the fence in Redis and verifies. Both are measured at the checkpoint, which neither of them
writes: from the last commit before the stop to the first commit after the start, so a batch lost to a kill counts.
Spark's start time varies: single rounds differ by a quarter either way, so the figure is the median of seven, and the
two take turns to go first. A round takes about 40 s on an idle machine.
`TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is started.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import redis
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from bench.servers import servers
from bench.table import BenchRow
from services.actuator.backends import LAUNCHER, Submission
from services.actuator.backends.standalone import Standalone
from services.actuator.checkpoint import read_checkpoints
from services.actuator.command_log import CommandLog
from services.actuator.execute import CommandRunner
from services.actuator.fence import RedisFence
from services.actuator.settings import ActuatorSettings
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.control import Token
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.kafka import Publisher, ensure_topics
from tidegate.stack import StackInfo

ROUNDS = 7
SIZE = 2
RECORDS_PER_SECOND = 100
WAIT_SECONDS = 300.0
RATES = Path(__file__).resolve().parents[1] / "deploy" / "examples" / "rates.py"


class BareCluster(Standalone):
    """Submits the user's script itself, without the launcher."""

    def arguments(self, submission: Submission) -> list[str]:
        """Return the arguments of `spark-submit`, with the script in place of the launcher."""
        app = submission.spec.application
        args = submission.submit_args(app.master)
        return [*args[: args.index(str(LAUNCHER))], app.script, *app.args]


@dataclass(frozen=True, slots=True)
class Downtime:
    """Seconds from the last commit before a stop to the first commit after the start, of each round."""

    tidegate: list[float]
    bare: list[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios: other load on the machine affects both of a pair alike."""
        return statistics.median(ours / bare for ours, bare in zip(self.tidegate, self.bare, strict=True))


def main() -> list[BenchRow]:
    """Measure; return the row."""
    with servers(spark=True) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        downtime = measure(info, Path(folder))
    return [
        BenchRow(
            "restart, last commit to first commit",
            f"{statistics.median(downtime.tidegate):.1f} s",
            f"bare kill + submit: {statistics.median(downtime.bare):.1f} s",
            downtime.ratio,
            1.1,
            at_most=True,
        )
    ]


def measure(info: StackInfo, folder: Path) -> Downtime:
    """Restart a job of each kind alternately, `ROUNDS` times; return the downtimes."""
    tag = uuid.uuid4().hex[:8]
    source = f"bench-in-{tag}"
    admin = AdminClient({"bootstrap.servers": info.bootstrap_servers})
    topics = [NewTopic(source, 8, 1), *(NewTopic(f"bench-{kind}-{tag}", 8, 1) for kind in ("bare", "tidegate"))]
    for future in admin.create_topics(topics).values():
        future.result(timeout=30)
    specs = {kind: _spec(info, folder / kind, source, f"bench-{kind}-{tag}") for kind in ("bare", "tidegate")}
    settings = ActuatorSettings(
        bootstrap_servers=info.bootstrap_servers,
        topic_prefix=f"b{tag}.",
        redis_url=info.redis_url,
        redis_password=SecretStr(info.redis_password),
    )
    ensure_topics(settings, partitions=1)
    done = threading.Event()
    load = threading.Thread(target=_feed, args=(info, source, done), daemon=True)
    load.start()
    found = Downtime([], [])
    turns = [
        (found.bare, partial(_bare, specs["bare"])),
        (found.tidegate, partial(_tidegate, specs["tidegate"], settings, redis.Redis.from_url(**settings.redis()))),
    ]
    try:
        for _ in range(ROUNDS):
            # one job at a time, so that the other's load does not slow it
            for downtimes, restart in turns:
                downtimes.append(restart())
            turns.reverse()
            sys.stderr.write(f"  tidegate {found.tidegate[-1]:.1f} s, bare {found.bare[-1]:.1f} s\n")
    finally:
        done.set()
        load.join(30)
    return found


def _bare(spec: JobSpec) -> float:
    cluster = BareCluster()
    run = Submission(spec, Token(0), SIZE)
    driver = cluster.submit(run)
    try:
        _commit_after(spec, _newest(spec), several=2)
        cluster.kill(spec, driver)
        while cluster.state(spec, driver).alive:
            time.sleep(0.02)
        batch, at = _newest(spec)
        driver = cluster.submit(run)
        return _commit_after(spec, (batch, at)) - at
    finally:
        cluster.kill(spec, driver)
        _until_ended(cluster, spec, driver)
        cluster.close()


def _tidegate(spec: JobSpec, settings: ActuatorSettings, client: redis.Redis) -> float:
    publisher, cluster = Publisher(settings), Standalone()
    told: list[ActionResult] = []

    def publish(result: ActionResult, trace_id: str | None) -> None:
        publisher.publish(result, trace_id=trace_id)
        told.append(result)

    fence = RedisFence(client, settings.redis_prefix)
    runner = CommandRunner(SystemClock(), CommandLog(), fence, {"standalone": cluster}, publish, owner=uuid.uuid4().hex)
    epoch = int(time.time() * 1000)
    steps = [(CommandKind.START, 0, SIZE), (CommandKind.RESCALE, SIZE, SIZE), (CommandKind.STOP, SIZE, 0)]
    downtime = None
    for number, (kind, before, size) in enumerate(steps):
        command = _command(spec, kind, before, size, epoch + number)
        phase = runner.run(command, spec, threading.Event())
        if phase is not Phase.VERIFIED:
            raise RuntimeError(f"{kind} of the benchmark's job ended as {phase}: {told[-1].sentence}")
        if kind is CommandKind.START:
            _commit_after(spec, _newest(spec), several=2)
        downtime = told[-1].downtime_seconds if kind is CommandKind.RESCALE else downtime
    cluster.close()
    if downtime is None:
        raise RuntimeError("the restart reported no downtime: the job was idle")
    return downtime


def _command(spec: JobSpec, kind: CommandKind, before: int, size: int, epoch: int) -> ScalingCommand:
    now = datetime.now(UTC)
    return ScalingCommand(
        command_id=str(uuid.uuid4()),
        job_id=spec.job_id,
        pipeline_id=spec.pipeline_id,
        snapshot_id=str(uuid.uuid4()),
        spec_version=1,
        kind=kind,
        from_parallelism=before,
        to_parallelism=size,
        epoch=epoch,
        issued_at=now,
        expires_at=now + timedelta(seconds=60),
        reason="benchmark",
    )


def _newest(spec: JobSpec) -> tuple[int | None, float]:
    for checkpoint in read_checkpoints(spec.application.checkpoint_location):
        if checkpoint.newest_commit is not None:
            return checkpoint.newest_commit, checkpoint.commit_times[checkpoint.newest_commit]
    return None, 0.0


def _commit_after(spec: JobSpec, newest: tuple[int | None, float], several: int = 1) -> float:
    """Wait for the `several`-th commit after `newest`; return when the first of them was written."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        batch, _ = _newest(spec)
        if batch is not None and batch >= (-1 if newest[0] is None else newest[0]) + several:
            (checkpoint,) = read_checkpoints(spec.application.checkpoint_location)
            first = checkpoint.first_commit_after(newest[0])
            if first is not None:
                return first[1]
        time.sleep(0.02)
    raise TimeoutError(f"{spec.job_id} committed no batch in {WAIT_SECONDS:g} s")


def _until_ended(cluster: Standalone, spec: JobSpec, driver: str) -> None:
    deadline = time.monotonic() + 60
    while cluster.state(spec, driver).alive and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3.0)  # its JVM may run on for some seconds and slow the next measurement


def _spec(info: StackInfo, folder: Path, source: str, job_id: str) -> JobSpec:
    for name in ("events", "control"):
        (folder / name).mkdir(parents=True)
    checkpoint = str(folder / "checkpoint")
    return JobSpec(
        job_id=job_id,
        sources=(source,),
        scaling=Scaling(min_parallelism=SIZE, max_parallelism=SIZE),
        application=Application(
            script=str(RATES),
            args=(
                *("--bootstrap-servers", info.bootstrap_servers, "--input", source, "--output", job_id),
                *("--checkpoint", checkpoint, "--trigger", "1 second"),
            ),
            master=info.spark_master,
            rest_url=info.spark_rest,
            master_ui_url=info.spark_ui,
            jars=tuple(str(jar) for jar in info.connector_jars),
            conf={"spark.driver.cores": "0", "spark.ui.enabled": "false"},
            executor_cores=SIZE,
            checkpoint_location=checkpoint,
            event_log_dir=str(folder / "events"),
            control_dir=str(folder / "control"),
            start_deadline_seconds=WAIT_SECONDS,
            rescale=(Way.RESTART,),
        ),
    )


def _feed(info: StackInfo, topic: str, done: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": info.bootstrap_servers})
    number = 0
    while not done.wait(0.1):
        for _ in range(RECORDS_PER_SECOND // 10):
            producer.produce(topic, str(number).encode(), partition=number % 8)
            number += 1
        producer.poll(0)
    producer.flush(20)
