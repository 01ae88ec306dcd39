"""A restart by Tidegate against a bare stop and submit of the same job, on the same cluster, alternating.

The bare restart is what an operator's script does: kill the driver through REST, wait until the master reports its
end, submit the script. Tidegate stops at a batch boundary, waits until driver, application and JVM are gone, records
every phase on Kafka, takes the fence in Redis and verifies. Both are measured at the checkpoint, which neither of them
writes: from the last commit before the stop to the first commit after the start, so a batch lost to a kill counts. With
several queries, the slowest counts.
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

from bench.rescale import KINDS, WAIT_SECONDS, Commits, JobKind, load, operator_for, settings_for, spec_of
from bench.servers import servers
from bench.table import BenchRow
from services.actuator.backends import LAUNCHER, Submission
from services.actuator.backends.standalone import Standalone
from services.actuator.settings import ActuatorSettings
from tidegate.events.command import CommandKind
from tidegate.events.job import JobSpec
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control import Token
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


def main() -> list[BenchRow]:
    """Measure each kind of job; return a row for each."""
    with servers(spark=True) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        return [_row(kind, *measure(info, Path(folder) / str(number), kind)) for number, kind in enumerate(KINDS)]


def _row(kind: JobKind, ours: list[float], bare: list[float]) -> BenchRow:
    """Return the row of a kind. The ratio is the median of the rounds': other load affects both of a pair alike."""
    return BenchRow(
        f"restart, {kind.name}: last commit to first commit",
        f"{statistics.median(ours):.1f} s",
        f"bare kill + submit: {statistics.median(bare):.1f} s",
        statistics.median(mine / other for mine, other in zip(ours, bare, strict=True)),
        BAR,
        at_most=True,
    )


def measure(info: StackInfo, folder: Path, kind: JobKind) -> tuple[list[float], list[float]]:
    """Restart a job of this kind by Tidegate and bare, alternately; return the downtimes of both in seconds."""
    tag = uuid.uuid4().hex[:8]
    source = f"bench-in-{tag}"
    specs = [
        spec_of(info, folder / who, kind, source, f"bench-{who}-{tag}", largest=SIZE, cores=SIZE)
        for who in ("ours", "bare")
    ]
    settings = settings_for(info, tag)
    ours: list[float] = []
    bare: list[float] = []
    turns: list[tuple[list[float], Callable[[], float]]] = [
        (bare, partial(_bare, specs[1], kind)),
        (ours, partial(_ours, specs[0], kind, settings)),
    ]
    with load(info, source, kind):
        for _ in range(ROUNDS):
            # one job at a time, so that the other's load does not slow it
            for downtimes, restart in turns:
                downtimes.append(restart())
            turns.reverse()
            sys.stderr.write(f"  {kind.name}: tidegate {ours[-1]:.1f} s, bare {bare[-1]:.1f} s\n")
    return ours, bare


def _bare(spec: JobSpec, kind: JobKind) -> float:
    cluster, commits = BareCluster(), Commits(spec.application.checkpoint_location)
    run = Submission(spec, Token(0), SIZE)
    driver = cluster.submit(run)
    try:
        commits.wait_for(2, kind.queries)
        cluster.kill(spec, driver)
        while cluster.state(spec, driver).alive:
            time.sleep(0.02)
        commits.look()
        before = dict(commits.times)
        driver = cluster.submit(run)
        commits.wait_for(1, kind.queries)
        return _downtime(before, commits)
    finally:
        cluster.kill(spec, driver)
        _until_ended(cluster, spec, driver)
        cluster.close()


def _ours(spec: JobSpec, kind: JobKind, settings: ActuatorSettings) -> float:
    operator, commits = operator_for(spec, settings), Commits(spec.application.checkpoint_location)
    operator.order(CommandKind.START, SIZE)
    try:
        commits.wait_for(2, kind.queries)
        operator.order(CommandKind.RESCALE, SIZE, Way.RESTART)
        restarted_at = next(r.at.timestamp() for r in reversed(operator.results) if r.phase is Phase.STOPPED)
        commits.wait_for(1, kind.queries)
        before = {key: at for key, at in commits.times.items() if at <= restarted_at}
        return _downtime(before, commits)
    finally:
        operator.order(CommandKind.STOP, 0)
        operator.close()


def _downtime(before: dict[tuple[str, int], float], commits: Commits) -> float:
    """Return the seconds from a query's last commit of `before` to its next one; the longest of all queries."""
    return max(
        min(at for (name, _), at in commits.times.items() if name == query and at > last) - last
        for query, last in (
            (query, max(at for (name, _), at in before.items() if name == query)) for query, _ in before
        )
    )


def _until_ended(cluster: Standalone, spec: JobSpec, driver: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while cluster.state(spec, driver).alive and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3.0)  # its JVM may run on for some seconds and slow the next measurement
