"""The time without commits when a second driver takes a job over, beyond the job's usual time between two commits.

Both drivers read the job's topic, share its checkpoint and run on one cluster, which must have room for both. The
figure is from the checkpoint, which Tidegate does not write: the longest time between two commits of a query around the
handover, less the usual one. A round takes about 40 s on an idle machine, most of it the warm-up of the second driver,
during which the first one works on. `TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is started.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

from bench.rescale import KINDS, Commits, JobKind, load, operator_for, settings_for, spec_of
from bench.servers import servers
from bench.table import BenchRow
from tidegate.events.command import CommandKind
from tidegate.events.way import Way
from tidegate.stack import StackInfo

ROUNDS = 5
SIZE = 2
SETTLE_COMMITS = 5
BAR_SECONDS = 3.0


def main() -> list[BenchRow]:
    """Measure each kind of job; return the rows."""
    rows: list[BenchRow] = []
    with servers(spark=True) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for number, kind in enumerate(KINDS):
            gaps = measure(info, Path(folder) / str(number), kind)
            figure = statistics.median(gaps)
            took = f"{figure:.1f} s beyond the pace (worst of {len(gaps)}: {max(gaps):.1f} s)"
            rows.append(BenchRow(f"handover, {kind.name}: seconds", took, "", figure, BAR_SECONDS, at_most=True))
    return rows


def measure(info: StackInfo, folder: Path, kind: JobKind) -> list[float]:
    """Hand a job over `ROUNDS` times; return the time without commits beyond the usual of each, in seconds."""
    tag = uuid.uuid4().hex[:8]
    spec = spec_of(info, folder, kind, f"bench-in-{tag}", f"bench-{tag}", largest=SIZE, cores=1)
    operator, commits = operator_for(spec, settings_for(info, tag)), Commits(spec.application.checkpoint_location)
    gaps: list[float] = []
    with load(info, f"bench-in-{tag}", kind):
        operator.order(CommandKind.START, SIZE)
        try:
            commits.wait_for(2 * SETTLE_COMMITS, kind.queries)
            for _ in range(ROUNDS):
                at = time.time()
                operator.order(CommandKind.RESCALE, SIZE, Way.HANDOVER)
                commits.wait_for(SETTLE_COMMITS, kind.queries)
                gaps.append(commits.outage(at))
                sys.stderr.write(f"  {kind.name}: {gaps[-1]:.1f} s beyond the pace\n")
        finally:
            operator.order(CommandKind.STOP, 0)
            operator.close()
    return gaps
