"""Many small jobs are ordered to grow in place at the same moment: what the operator of each reads, and when.

    python -m bench.many_changes --jobs 20
    python -m bench.many_changes --jobs 6 --slots 9      not enough slots for all

Each job has a driver and an executor of its own before the change and two executors after it. A machine needs about
0.8 GB for each job, and some seconds of a core to start each of its processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.arguments import count
from bench.orders import JobOperator
from bench.servers import on_stack
from services.actuator.backends.standalone import Standalone
from tidegate.events.command import CommandKind
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.stack import StackInfo, down, up
from tidegate.stack.class_data import light_jvm

SCRIPT = Path(__file__).with_name("jobs") / "small.py"
SMALL, LARGE = 1, 2
STARTS_AT_ONCE = 3
"""More of them would only slow each other."""
SETTLE_SECONDS = 10.0
EXECUTOR_MB = 512
JVM = f"{light_jvm()} -Xmn48m"
"""A JVM fills its young generation, by default a third of its heap, before it collects it for the first time."""


def spec_of(info: StackInfo, folder: Path, name: str) -> JobSpec:
    """Return the spec of one small job."""
    place = on_stack(info, folder)
    settings = {"spark.driver.extraJavaOptions": JVM, "spark.executor.extraJavaOptions": JVM}
    place["conf"] |= settings | {"spark.sql.shuffle.partitions": "2"}
    return JobSpec(
        job_id=name,
        sources=("made-up",),
        scaling=Scaling(min_parallelism=SMALL, max_parallelism=LARGE),
        application=Application(
            script=str(SCRIPT),
            args=("--checkpoint", place["checkpoint_location"]),
            executor_memory_mb=EXECUTOR_MB,
            driver_memory_mb=EXECUTOR_MB,
            rescale=(Way.IN_PLACE,),
            **place,
        ),
    )


def grow_together(jobs: int, slots: int) -> list[tuple[float, ActionResult]]:
    """Start so many jobs on a cluster of so many slots, then grow all at once; return seconds and result of each."""
    cluster, operators = Standalone(), list[JobOperator]()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        try:
            memory = f"{slots * EXECUTOR_MB + jobs * EXECUTOR_MB + 1024}m"
            stack = Path(folder) / "stack"
            info = up(stack, kafka=False, redis=False, worker_slots=slots, worker_memory=memory, tied=True)
            for number in range(jobs):
                name = f"small-{number:02}"
                operators.append(JobOperator(spec_of(info, Path(folder) / name, name), cluster))
            began = time.monotonic()
            with ThreadPoolExecutor(STARTS_AT_ONCE) as pool:
                list(pool.map(lambda operator: operator.order(CommandKind.START, SMALL), operators))
            sys.stderr.write(f"  {jobs} jobs run, after {time.monotonic() - began:.0f} s\n")
            time.sleep(SETTLE_SECONDS)
            with ThreadPoolExecutor(jobs) as pool:
                return list(pool.map(_grow, operators))
        finally:
            for operator in operators:
                operator.close()
            cluster.close()
            down(Path(folder) / "stack")


def _grow(operator: JobOperator) -> tuple[float, ActionResult]:
    began = time.monotonic()
    end = operator.carry_out(CommandKind.RESCALE, LARGE, Way.IN_PLACE)
    return time.monotonic() - began, end


def run() -> int:
    """Print what each job's operator reads; return 0 if all have ended as verified."""
    parser = argparse.ArgumentParser("python -m bench.many_changes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=count, default=20, help="how many jobs")
    parser.add_argument("--slots", type=count, default=None, help="slots of the cluster; by default, enough for all")
    asked = parser.parse_args()
    ends = grow_together(asked.jobs, asked.slots or asked.jobs * LARGE)
    for seconds, end in ends:
        print(f"{end.job_id}  {seconds:5.1f} s  {end.phase} at {end.parallelism}  {end.code}: {end.sentence}")
    return 0 if all(end.phase is Phase.VERIFIED for _, end in ends) else 1


if __name__ == "__main__":
    sys.exit(run())
