"""A chain of four jobs on Spark: how long after a step at the first one the last one has its size.

Each job copies a topic to the next, and starts with two slots. The load of the first one rises sevenfold at once. It is
run twice: as one pipeline, and *hop by hop*, with a pipeline for each job, so that each learns of the load when it
arrives. `TIDEGATE_STACK_DIR` names a running stack to use; otherwise one is started.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.feed import feeding
from bench.servers import servers
from bench.services import Services
from bench.table import BenchRow
from tidegate.client import received
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec, Scaling
from tidegate.events.result import Phase
from tidegate.runtime.publisher import Publisher

JOBS = ("parsed", "joined", "scored", "stored")
PARTITIONS = 8
INTERVAL_SECONDS = 5
LOW, HIGH = 200.0, 1400.0
"""Records/s before and after the step. A slot takes 2 ms per record."""
TRIGGER = "4 seconds"
CORES, LARGEST = 2, 6
"""Slots of an executor, and of a job at most: few JVMs, because a small machine starts them slowly."""
WARM_SECONDS = 75.0
STEADY_SECONDS = 15.0
WATCH_SECONDS = 240.0
"""From the step on."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How one job took the step."""

    ordered: float
    """Seconds from the step until its first growth was ordered."""
    grown: float
    """Seconds from the step until the first new slots worked."""
    lag: int
    """Most records that waited after the step."""
    delay: float
    """Highest age of the oldest record not committed, in seconds."""


def main() -> list[BenchRow]:
    """Run the chain both ways; return the rows."""
    found = {}
    with servers(spark=True, worker_slots=LARGEST * len(JOBS)) as info:
        for label in ("together", "hop by hop"):
            with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, ExitStack() as end:
                services = Services(info, Path(folder), f"chain-{uuid.uuid4().hex[:8]}")
                end.callback(services.end)
                services.start()
                found[label] = run(services, as_one=label == "together")
            for job, reach in found[label].items():
                sys.stderr.write(f"  {label}, {job}: {reach}\n")
    together, alone = (found[label][JOBS[-1]] for label in ("together", "hop by hop"))
    return [
        BenchRow(
            "chain of four: the last job's new slots work",
            f"{together.grown:.0f} s after the step, ordered after {together.ordered:.0f} s",
            f"hop by hop: {alone.grown:.0f} s, ordered after {alone.ordered:.0f} s",
            together.grown / alone.grown,
            0.7,
            at_most=True,
        )
    ]


def run(services: Services, *, as_one: bool) -> dict[str, Reach]:
    """Start the jobs, let the load rise, and return how each job took it."""
    topics = [f"{services.tag}-{number}" for number in range(len(JOBS) + 1)]
    services.create_topics(*topics, partitions=PARTITIONS)
    publisher = Publisher(services.settings)
    specs = [
        _spec(services, job, source, sink, as_one=as_one)
        for job, source, sink in zip(JOBS, topics, topics[1:], strict=False)
    ]
    with feeding(services.settings, topics[0], PARTITIONS, LOW) as feed:
        # While they start, records pile up, and nobody may grow for them.
        for spec in specs:
            scaling = spec.scaling.model_copy(update={"interactive": True})
            publisher.publish(spec.model_copy(update={"scaling": scaling}))
        services.wait("all jobs run", lambda: len(_verified(services)) == len(JOBS))
        time.sleep(WARM_SECONDS)
        for spec in specs:
            publisher.publish(spec.model_copy(update={"version": 2}))
        time.sleep(STEADY_SECONDS)
        step = time.time()
        feed.rate = HIGH
        time.sleep(WATCH_SECONDS)
    reaches = {job: _reach(services, job, step) for job in JOBS}
    for spec in specs:
        publisher.publish(spec.model_copy(update={"running": False, "version": 3}))
    services.wait("all jobs are stopped", lambda: len(_verified(services, parallelism=0)) == len(JOBS))
    return reaches


def _spec(services: Services, job: str, source: str, sink: str, *, as_one: bool) -> JobSpec:
    application = services.application(job, source, sink, record_ms=2.0, trigger=TRIGGER)
    return JobSpec(
        job_id=job,
        pipeline_id=services.tag if as_one else job,
        sources=(source,),
        sinks=(sink,),
        interval_seconds=INTERVAL_SECONDS,
        application=application.model_copy(update={"executor_cores": CORES}),
        scaling=Scaling(min_parallelism=CORES, max_parallelism=LARGEST),
    )


def _verified(services: Services, parallelism: int | None = None) -> set[str]:
    """Return the jobs with a verified command, of one to this size if given."""
    return {r.job_id for r in services.results() if r.phase is Phase.VERIFIED and parallelism in (None, r.parallelism)}


def _reach(services: Services, job: str, step: float) -> Reach:
    decisions = [one.event for one in received(Decision, services.settings, job=job)]
    after = [each for each in decisions if each.decided_at.timestamp() > step]
    growths = [each for each in after if each.command is not None and each.command.adds_slots]
    ids = {each.decision_id for each in growths}  # a command has the id of its decision
    worked = [
        each.at.timestamp() - step
        for each in services.results()
        if each.command_id in ids and each.phase is Phase.VERIFIED
    ]
    if not worked:
        raise RuntimeError(f"{job} has not grown\n{services.story()}")
    return Reach(
        ordered=growths[0].decided_at.timestamp() - step,
        grown=min(worked),
        lag=max(each.evidence.lag_records or 0 for each in after),
        delay=max(each.evidence.delay_seconds or 0.0 for each in after),
    )
