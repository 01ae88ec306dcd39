"""A restart by Tidegate against a bare stop and submit of the same job, on the same cluster, alternating.

The bare restart is what an operator's script does: kill the driver through REST, wait until the master reports its
end, submit the script. Tidegate stops at a batch boundary, waits until driver, application and JVM are gone, records
every phase on Kafka, takes the fence in Redis and verifies. Both are measured at the checkpoint, which neither of them
writes: from the last commit before the stop to the first commit of records that arrived after it. The first commit of
all would be no fair measure: after a kill it only repeats the broken batch, which is small, while Tidegate's new run
begins with all that waits. That figure is printed as well. With several queries, the slowest counts.
Spark's start time varies: single rounds differ by a quarter either way, so the figure is the median, and the two take
turns to go first. A round takes about 40 s on an idle machine.
`TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is started.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.rescale import KINDS, WAIT_SECONDS, Commits, JobKind, arrived, load, operator_for, settings_for, spec_of
from bench.servers import servers
from bench.table import BenchRow
from services.actuator.backends import LAUNCHER, Submission
from services.actuator.backends.standalone import Standalone
from services.actuator.settings import ActuatorSettings
from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until
from tidegate.stack import StackInfo

ROUNDS = 5
SIZE = 2
BAR = 1.05


class BareCluster(Standalone):
    """Submits the user's script itself, without the launcher."""

    def arguments(self, submission: Submission) -> list[str]:
        """Return the arguments of `spark-submit`, with the script in place of the launcher."""
        app = submission.spec.application
        args = submission.submit_args(app.master)
        return [*args[: args.index(str(LAUNCHER))], app.script, *app.args]


class Downtime(NamedTuple):
    """What one restart cost, in seconds from the last commit before it."""

    to_new_records: float
    """To the first commit of records that arrived after the stop."""
    to_any: float
    """To the first commit, which may repeat the batch that the stop broke."""


def main() -> list[BenchRow]:
    """Measure each kind of job; return a row for each."""
    with servers(spark=True) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        return [_row(kind, *measure(info, Path(folder) / str(number), kind)) for number, kind in enumerate(KINDS)]


def _row(kind: JobKind, ours: list[Downtime], bare: list[Downtime]) -> BenchRow:
    """Return the row of a kind. The ratio is the median of the rounds': other load affects both of a pair alike."""
    return BenchRow(
        f"restart, {kind.name}: last commit to new records",
        _medians(ours),
        f"bare kill + submit: {_medians(bare)}",
        statistics.median(mine.to_new_records / other.to_new_records for mine, other in zip(ours, bare, strict=True)),
        BAR,
        at_most=True,
    )


def _medians(downtimes: list[Downtime]) -> str:
    new, first = (statistics.median(column) for column in zip(*downtimes, strict=True))
    return f"{new:.1f} s (any commit: {first:.1f} s)"


def measure(info: StackInfo, folder: Path, kind: JobKind) -> tuple[list[Downtime], list[Downtime]]:
    """Restart a job of this kind by Tidegate and bare, alternately; return the downtimes of both."""
    tag = uuid.uuid4().hex[:8]
    source = f"bench-in-{tag}"
    specs = [
        spec_of(info, folder / who, kind, source, f"bench-{who}-{tag}", largest=SIZE, cores=SIZE)
        for who in ("ours", "bare")
    ]
    settings = settings_for(info, tag)
    ours: list[Downtime] = []
    bare: list[Downtime] = []
    turns: list[tuple[list[Downtime], Callable[[], Downtime]]] = [
        (bare, partial(_bare, info, specs[1], kind)),
        (ours, partial(_ours, info, specs[0], kind, settings)),
    ]
    with load(info, source, kind):
        for _ in range(ROUNDS):
            # one job at a time, so that the other's load does not slow it
            for downtimes, restart in turns:
                downtimes.append(restart())
            turns.reverse()
            (new, first), (bare_new, bare_first) = ours[-1], bare[-1]
            sys.stderr.write(
                f"  {kind.name}: tidegate {new:.1f} s ({first:.1f} s to any commit), "
                f"bare {bare_new:.1f} s ({bare_first:.1f} s)\n"
            )
    return ours, bare


def _bare(info: StackInfo, spec: JobSpec, kind: JobKind) -> Downtime:
    cluster, commits = BareCluster(), Commits(spec.application.checkpoint_location)
    run = Submission(spec, Token(0), SIZE)
    driver = cluster.submit(run)
    try:
        commits.wait_for(2, kind.queries)
        cluster.kill(spec, driver)
        while cluster.state(spec, driver).alive:
            time.sleep(0.02)
        commits.look()
        stopped_at = time.time()
        driver = cluster.submit(run)
        return _downtime(info, spec, kind, commits, stopped_at)
    finally:
        cluster.kill(spec, driver)
        _until_ended(cluster, spec, driver)
        cluster.close()


def _ours(info: StackInfo, spec: JobSpec, kind: JobKind, settings: ActuatorSettings) -> Downtime:
    operator, commits = operator_for(spec, settings), Commits(spec.application.checkpoint_location)
    operator.order(CommandKind.START, SIZE)
    try:
        commits.wait_for(2, kind.queries)
        operator.order(CommandKind.RESCALE, SIZE, Way.RESTART)
        stopped_at = next(r.at.timestamp() for r in reversed(operator.results) if r.phase is Phase.STOPPED)
        return _downtime(info, spec, kind, commits, stopped_at)
    finally:
        operator.order(CommandKind.STOP, 0)
        operator.close()


def _downtime(info: StackInfo, spec: JobSpec, kind: JobKind, commits: Commits, stopped_at: float) -> Downtime:
    past = arrived(info, spec.sources[0], stopped_at)
    commits.wait_past(past, kind.queries)
    return Downtime(commits.downtime(stopped_at, past), commits.downtime(stopped_at))


def _until_ended(cluster: Standalone, spec: JobSpec, driver: str) -> None:
    wait_until(lambda: not cluster.state(spec, driver).alive, WAIT_SECONDS)
    time.sleep(3.0)  # its JVM may run on for some seconds and slow the next measurement
