"""Random changes of size in place: no batch interrupted, no task failed, every row counted once.

A stateful job with shuffles gets another random size again and again, while its batches go on. After each change the
master must have granted exactly the ordered slots. `TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is
started. For more changes than the few of `python -m bench random_changes`:

    python -m bench.random_changes --changes 100 --pause 1
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from bench.arguments import count
from bench.counting import CountingJob, StandaloneCountingJob
from bench.servers import servers
from bench.table import BenchRow, render
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way

CHANGES = 8
MOST = 6
SEED = 12


def main(changes: int = CHANGES, pause: int = 2) -> list[BenchRow]:
    """Change the size `changes` times, `pause` batches apart; return the rows."""
    with (
        servers(spark=True) as info,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        closing(StandaloneCountingJob(info, Path(folder), most=MOST, rescale=(Way.IN_PLACE,))) as job,
    ):
        return _measure(job, changes, pause)


def _measure(job: CountingJob, changes: int, pause: int) -> list[BenchRow]:
    job.order(CommandKind.START, 2)
    sizes = random.Random(SEED)  # noqa: S311 - sizes, not secrets
    grown: list[float] = []
    shrunk: list[float] = []
    other, failed = 0, 0
    for number in range(changes):
        job.wait_for_batches(pause)
        before = job.size
        size = sizes.choice([size for size in range(1, MOST + 1) if size != before])
        end = job.carry_out(CommandKind.RESCALE, size)
        granted = job.granted()
        other += end.phase is not Phase.VERIFIED or end.parallelism != size or granted != size
        failed += int(end.details.get("tasks_failed", 0))
        (grown if size > before else shrunk).append(end.delay_seconds or 0.0)
        sys.stderr.write(
            f"  {number + 1}: {before} -> {size}: {end.phase} {end.code}, {granted} slots, {end.details}\n"
        )
    job.wait_for_batches(pause)
    job.carry_out(CommandKind.STOP, 0)
    wrong, batches = job.wrong_batches(), len(job.batches())
    return [
        BenchRow("in place, changes that ended at another size", f"{other} of {changes}", "", other, 0, at_most=True),
        BenchRow("in place, tasks that failed", f"{failed}", "", failed, 0, at_most=True),
        BenchRow("in place, batches lost or repeated", f"{len(wrong)} of {batches}", "", len(wrong), 0, at_most=True),
        _seconds("grow, command to new slots at work", grown),
        _seconds("shrink, command to slots free", shrunk),
    ]


def _seconds(what: str, seconds: list[float]) -> BenchRow:
    median = statistics.median(seconds) if seconds else 0.0
    return BenchRow(
        f"in place, {what}", f"{median:.1f} s, at most {max(seconds, default=0.0):.1f} s", "", 0, 0, at_most=True
    )


def run() -> int:
    """Print the rows; return 0 if all bars are met."""
    parser = argparse.ArgumentParser("python -m bench.random_changes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=count, default=CHANGES, help="how many changes of size")
    parser.add_argument("--pause", type=int, default=2, help="batches between two changes")
    asked = parser.parse_args()
    rows = main(asked.changes, asked.pause)
    print(render(rows))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(run())
