"""The time without commits when a second driver takes a job over, beyond the job's usual time between two commits.

Both drivers read the job's topic, share its checkpoint and run on one cluster, which must have room for both. The
figures are from the checkpoint, which Tidegate does not write. The bar is for the time between the last commit of the
first driver and the first one of the second, for the slowest query, less the usual time between two. The row also says
how much longer than usual the first driver's batches took at most while the second one warmed up on the same machine. A
round takes 40 s to 150 s on two cores, most of it the warm-up. `TIDEGATE_STACK_DIR` names a running stack to use;
otherwise one is started.
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
from tidegate.events.result import Phase
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
            found = measure(info, Path(folder) / str(number), kind)
            gaps, before = ([each[column] for each in found] for column in (0, 1))
            figure = statistics.median(gaps)
            worst = f"worst of {len(gaps)}: {max(gaps):.1f} s; before it: {max(before):.1f} s"
            took = f"{figure:.1f} s beyond the pace ({worst})"
            rows.append(BenchRow(f"handover, {kind.name}: seconds", took, "", figure, BAR_SECONDS, at_most=True))
    return rows


def measure(info: StackInfo, folder: Path, kind: JobKind) -> list[tuple[float, float]]:
    """Hand a job over `ROUNDS` times; return the times without commits beyond the usual, in seconds.

    Each is a pair: at the switch, and the longest before.
    """
    tag = uuid.uuid4().hex[:8]
    spec = spec_of(info, folder, kind, f"bench-in-{tag}", f"bench-{tag}", largest=SIZE, cores=1)
    operator, commits = operator_for(spec, settings_for(info, tag)), Commits(spec.application.checkpoint_location)
    gaps: list[tuple[float, float]] = []
    with load(info, f"bench-in-{tag}", kind):
        operator.order(CommandKind.START, SIZE)
        try:
            commits.wait_for(2 * SETTLE_COMMITS, kind.queries)
            for _ in range(ROUNDS):
                at = time.time()
                operator.order(CommandKind.RESCALE, SIZE, Way.HANDOVER)
                commits.wait_for(SETTLE_COMMITS, kind.queries)
                switched_at = next(r.at.timestamp() for r in reversed(operator.results) if r.phase is Phase.RUNNING)
                gaps.append((commits.outage_at(switched_at), commits.outage(at, switched_at)))
                sys.stderr.write("  {}: {:.1f} s beyond the pace, {:.1f} s before\n".format(kind.name, *gaps[-1]))
        finally:
            operator.order(CommandKind.STOP, 0)
            operator.close()
    return gaps
