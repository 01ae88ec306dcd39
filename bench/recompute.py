"""Recompute on Spark: decisions/s at local[2], against Spark only reading and counting the same records."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.streams import write_recording
from bench.table import BenchRow
from tidegate.cli.spark import prepare_java
from tidegate.replay.files import read_manifest
from tidegate.replay.index import files_of
from tidegate.replay.recompute import recompute
from tidegate.replay.source import start_session

JOBS, PER_JOB, PARTITIONS = 100, 1000, 50
BAR = 10_000


def main() -> list[BenchRow]:
    """Make 100,000 decisions with the real engine, recompute them, and return the rows."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "recording"
        decisions = write_recording(
            recording, jobs=JOBS, per_job=PER_JOB, partitions=PARTITIONS, processes=os.cpu_count() or 1
        )
        prepare_java()
        spark = start_session("local[2]")
        try:
            floor = decisions / _count_seconds(spark, recording, decisions)
            result = recompute(directory=recording, spark=spark)
        finally:
            spark.stop()
    if result.identical != decisions or not result.ok:
        raise RuntimeError(f"{result.identical} of {decisions} decisions are identical: {result.first}")
    pace = decisions / result.seconds
    against = f"10,000/s; Spark only reads and counts: {floor:,.0f}/s"
    return [
        BenchRow("recompute on Spark local[2], decisions/s", f"{pace:,.0f}/s", against, pace / BAR, 1.0),
        BenchRow(
            "recomputed decisions identical",
            f"{result.identical:,}",
            f"{decisions:,}",
            result.identical / decisions,
            1.0,
        ),
    ]


def _count_seconds(spark: Any, recording: Path, decisions: int) -> float:
    """Return how long Spark takes to read every value of the recording and sum their lengths."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (seconds to import)

    started_at = time.monotonic()
    files = [path.as_uri() for path in files_of(recording, read_manifest(recording))]
    row = spark.read.schema("value string").json(files).agg(f.count("value"), f.sum(f.length("value"))).first()
    took = time.monotonic() - started_at
    if row[0] != 2 * decisions:
        raise RuntimeError(f"{row[0]} records were read, {2 * decisions} were written")
    return took
