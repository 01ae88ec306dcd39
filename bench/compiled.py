"""The engine compiled by mypyc against the same engine in Python: decisions per second, and the bytes of all decisions.

Jobs are independent, so two processes decide on two cores. Recomputing on Spark does so too, and reads and compares.

The compiled engine is made in a copy of this checkout, in `.tidegate/compiled`, so nothing here changes. It needs a C
compiler; where there is none, this benchmark has no rows.

    python -m bench compiled     all figures
    python -m bench.compiled     only whether the bytes are the same; leaves the copy for the tests of `make compiled`
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from bench import recompute
from bench.engine import PARTITIONS, pace_and_state
from bench.streams import decided
from bench.table import BenchRow
from tidegate.events.decision import Decision
from tidegate.events.envelope import value_of
from tidegate.events.way import ALL_WAYS
from tidegate.installed import engine_name, is_compiled
from tidegate.lab.jobs import lab_job, lab_model, lab_peak, spec_for
from tidegate.lab.scenarios import word_count
from tidegate.lab.simulate import simulate
from tidegate.twin.workloads import SHAPES

CHECKOUT = Path(__file__).resolve().parent.parent
COPY = CHECKOUT / ".tidegate" / "compiled"
BAR = 20_000
SECONDS = 7200.0
"""Simulated time of each of the lab's streams."""
NO_COMPILER = "no C compiler (cc): nothing is compiled"


def main() -> list[BenchRow]:
    """Compile, compare and measure; return the rows."""
    if shutil.which("cc") is None:
        sys.stderr.write(f"{NO_COMPILER}\n")
        return []
    same, streams_seen = compare()
    pace, _ = pace_and_state()
    compiled = json.loads(in_copy("pace"))
    with ThreadPoolExecutor(2) as cores:
        together = sum(map(json.loads, cores.map(in_copy, ("pace", "pace"))))
    again = BenchRow(**json.loads(in_copy("recompute")))
    return [
        BenchRow(
            f"compiled engine, decisions/s on one core ({PARTITIONS} partitions)",
            f"{compiled:,.0f}/s",
            f"in Python: {pace:,.0f}/s, so {compiled / pace:.2f} times as many",
            compiled,
            BAR,
        ),
        BenchRow("compiled engine, decisions/s on two cores", f"{together:,.0f}/s", "", together, BAR),
        replace(again, what=f"{again.what}, compiled engine"),
        BenchRow("streams decided to the same bytes", f"{same}", f"{streams_seen}", same / streams_seen, 1.0),
    ]


def compare() -> tuple[int, int]:
    """Compile a copy; return how many streams both engines decide to the same bytes, and how many there are."""
    compile_copy()
    there, here = json.loads(in_copy("digests")), digests()
    return sum(there.get(name) == digest for name, digest in here.items()), len(here)


def compile_copy() -> None:
    """Copy the checkout and compile the engine there."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(CHECKOUT, COPY, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info"))
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    switch = {**os.environ, "TIDEGATE_COMPILE": "1"}
    made = subprocess.run(command, check=False, cwd=COPY, env=switch, capture_output=True, text=True)
    if made.returncode:
        raise RuntimeError(f"mypyc could not compile the engine:\n{made.stdout}{made.stderr}")


def in_copy(figure: str) -> str:
    """Return the JSON of one of the `FIGURES`, measured in the copy."""
    command = [sys.executable, "-m", "bench.compiled", figure]
    return subprocess.run(command, cwd=COPY, check=True, stdout=subprocess.PIPE, text=True).stdout


def digests() -> dict[str, str]:
    """Return the SHA-256 of each stream's decisions, by the name of the stream."""
    made = {}
    for name, decisions in streams():
        digest = hashlib.sha256()
        for decision in decisions:
            digest.update(value_of(decision))
        made[name] = digest.hexdigest()
    return made


def streams() -> Iterator[tuple[str, list[Decision]]]:
    """Yield streams of decisions by name: those of the benchmarks, and jobs of the twin in the lab's workloads."""
    for seed in range(3):
        yield f"stream {seed}", [decision for _, decision in decided("bench", 2000, seed=seed, respec_every=700)]
    for way in ALL_WAYS:
        model = lab_model(ways=(way,))
        peak = lab_peak(model, spec_for(model))
        for shape, load in SHAPES.items():
            for policy in ("tide", "flip271"):
                scenario = lab_job(load(peak, SECONDS), ways=(way,)).with_policy(policy)
                [recording] = simulate(scenario).values()
                yield f"{shape}, {way.value}, {policy}", recording.decisions
    for job, recording in simulate(word_count().scenario.with_policy("tide")).items():
        yield f"word count, {job}", recording.decisions


FIGURES: dict[str, Callable[[], object]] = {
    "pace": lambda: pace_and_state()[0],
    "digests": digests,
    "recompute": lambda: asdict(recompute.main()[0]),
}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        if not is_compiled():
            sys.exit(f"{engine_name()} is not compiled")
        print(json.dumps(FIGURES[sys.argv[1]]()))
    else:
        if shutil.which("cc") is None:
            sys.exit(NO_COMPILER)
        same, streams_seen = compare()
        print(f"{same} of {streams_seen} streams were decided to the same bytes by the compiled engine")
        sys.exit(same != streams_seen)
