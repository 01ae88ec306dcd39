"""The engine alone: decisions per second on one core, snapshots of 50 partitions, and the size of a job's state."""

from __future__ import annotations

import gc
import json
from time import process_time

from bench.streams import decided, spec_of
from bench.table import BenchRow
from tidegate.engine.state import JobState, to_wire
from tidegate.installed import engine

COUNT = 4000
ROUNDS = 10
PARTITIONS = 50


def main() -> list[BenchRow]:
    """Measure this engine, compiled or not, and return the rows."""
    pace, size = pace_and_state()
    policy = spec_of("bench").scaling.policy
    return [
        BenchRow(
            f"engine, decisions/s on one core ({policy}, {PARTITIONS} partitions)", f"{pace:,.0f}/s", "", pace, 10_000
        ),
        BenchRow("engine, state per job as JSON", f"{size:,} B", "", size, 4096, at_most=True),
    ]


def pace_and_state() -> tuple[float, int]:
    """Return the decisions per second and the bytes of the state after deciding on a recorded stream repeatedly.

    The best round counts, since other load on the machine only slows it.
    """
    spec = spec_of("bench")
    pairs = [(snapshot, decision.observed) for snapshot, decision in decided("bench", COUNT, partitions=PARTITIONS)]
    gc.collect()
    gc.freeze()  # the recording is not part of the engine: keep it out of garbage collection
    best, state = 0.0, JobState.new()
    for _ in range(ROUNDS):
        state = JobState.new()
        began = process_time()
        for snapshot, observed in pairs:
            state, _decision = engine().step(state, snapshot, spec, observed)
        best = max(best, COUNT / (process_time() - began))
    gc.unfreeze()
    return best, len(json.dumps(to_wire(state), separators=(",", ":")))
