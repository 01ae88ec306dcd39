"""A change of size in place: batches interrupted, tasks failed, and the seconds until the new slots work.

A job under load grows from two to four slots and back, again and again. Spark's own event log and checkpoints are
looked at afterwards: no batch may be missing or have run twice, and no task may have failed.
`TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is started.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from bench.rescale import KINDS, Commits, JobKind, failed_tasks, load, operator_for, settings_for, spec_of
from bench.servers import servers
from bench.table import BenchRow
from tidegate.events.command import CommandKind
from tidegate.events.way import Way
from tidegate.stack import StackInfo

ROUNDS = 5
SMALL, LARGE = 2, 4
SETTLE_COMMITS = 3


@dataclass(frozen=True, slots=True)
class InPlace:
    """What was seen of one kind of job."""

    growing: list[float]
    """Seconds from the command until the new slots worked."""
    shrinking: list[float]
    """Seconds from the command until the slots were gone."""
    outages: list[float]
    """Seconds without commits beyond the usual time between two, around each change."""
    failed: int
    """Tasks that failed, and batches that are missing."""


def main() -> list[BenchRow]:
    """Measure each kind of job; return the rows."""
    rows: list[BenchRow] = []
    with servers(spark=True) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for number, kind in enumerate(KINDS):
            seen = measure(info, Path(folder) / str(number), kind)
            took = f"new slots work after {statistics.median(seen.growing):.1f} s (worst {max(seen.growing):.1f} s)"
            took += f", gone after {statistics.median(seen.shrinking):.1f} s"
            took += f"; longest gap beyond the pace {max(seen.outages):.1f} s"
            what = f"in place, {kind.name}: tasks failed, batches lost"
            rows.append(BenchRow(what, took, "", seen.failed, 0, at_most=True))
    return rows


def measure(info: StackInfo, folder: Path, kind: JobKind) -> InPlace:
    """Change the size of a job `ROUNDS` times up and down; return what was seen."""
    tag = uuid.uuid4().hex[:8]
    spec = spec_of(info, folder, kind, f"bench-in-{tag}", f"bench-{tag}", largest=LARGE, cores=1)
    operator, commits = operator_for(spec, settings_for(info, tag)), Commits(spec.application.checkpoint_location)
    seen = InPlace([], [], [], 0)
    with load(info, f"bench-in-{tag}", kind):
        operator.order(CommandKind.START, SMALL)
        try:
            commits.wait_for(2 * SETTLE_COMMITS, kind.queries)
            for _ in range(ROUNDS):
                for size, took in ((LARGE, seen.growing), (SMALL, seen.shrinking)):
                    at = time.time()
                    result = operator.order(CommandKind.RESCALE, size, Way.IN_PLACE)
                    commits.wait_for(SETTLE_COMMITS, kind.queries)
                    took.append(result.delay_seconds or 0.0)
                    seen.outages.append(commits.outage(at))
                sys.stderr.write(f"  {kind.name}: up {seen.growing[-1]:.1f} s, down {seen.shrinking[-1]:.1f} s\n")
        finally:
            operator.order(CommandKind.STOP, 0)
            operator.close()
    commits.look()
    failed, missing = failed_tasks(spec), commits.missing()
    sys.stderr.write("".join(f"  {kind.name}: a task failed in {line}\n" for line in failed))
    sys.stderr.write(f"  {kind.name}: {missing} batches lost\n" if missing else "")
    return InPlace(seen.growing, seen.shrinking, seen.outages, len(failed) + missing)
