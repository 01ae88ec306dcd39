"""The archive and its hash chain: records/s, against a bare Spark read of the same topics."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from bench.servers import servers
from bench.streams import decided
from bench.table import BenchRow
from tidegate.archive import keys, stream
from tidegate.archive.prove import prove, sign_heads
from tidegate.archive.store import load
from tidegate.events.topics import TOPICS
from tidegate.replay.source import start_session
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import ensure_topics

JOBS, PER_JOB, REPEATED = 20, 500, 5
"""Jobs, snapshots and decisions of each that are made, and how often each is published: 100,000 records."""
PARTITIONS = 8
BAR = 0.4
"""The archive writes and compresses what the bare read only reads."""


def main() -> list[BenchRow]:
    """Fill the topics with real events, archive, sign and verify them; return the rows."""
    with servers(spark=False) as info, tempfile.TemporaryDirectory(prefix="tidegate-bench-") as work:
        settings = ServiceSettings(
            bootstrap_servers=info.bootstrap_servers, topic_prefix=f"bench-{int(time.time() * 1000)}."
        )
        ensure_topics(settings, partitions=PARTITIONS)
        records = _fill(settings)
        spark = start_session("local[2]", list(info.connector_jars))
        try:
            _read(spark, settings)  # the first read starts what Spark needs
            floor = records / _read(spark, settings)
            folder = Path(work) / "archive"
            started = time.monotonic()
            stream.archive(spark, settings, folder, once=True)
            archived = records / (time.monotonic() - started)
            held = sum(file.records for file in load(folder).files)
            key = keys.new_key(Path(work) / "key", "archive")
            sign_heads(spark, folder, key, [key.public])
            started = time.monotonic()
            proof = prove(spark, folder, [key.public])
            proved = records / (time.monotonic() - started)
        finally:
            spark.stop()
    if held != records or not proof.ok or sum(each.proved for each in proof.partitions) != records:
        raise RuntimeError(f"{records} records were published, {held} archived; proved: {proof}")
    against = f"bare Spark read: {floor:,.0f}/s"
    return [
        BenchRow("archived on local[2], records/s", f"{archived:,.0f}/s", against, archived / floor, BAR),
        BenchRow("chain verified on local[2], records/s", f"{proved:,.0f}/s", against, proved / floor, BAR),
    ]


def _fill(settings: ServiceSettings) -> int:
    """Publish real snapshots and decisions again and again; return their number."""
    publisher = Publisher(settings)
    records = 0
    for job in range(JOBS):
        events = [event for pair in decided(f"job-{job:04}", PER_JOB, partitions=16, seed=job) for event in pair]
        for _ in range(REPEATED):
            for event in events:
                publisher.send(event)
            publisher.flush()
            records += len(events)
    return records


def _read(spark: Any, settings: ServiceSettings) -> float:
    """Return how long Spark takes to read every record of the topics and add up the lengths of their values."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (seconds to import)

    started = time.monotonic()
    read = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("subscribe", ",".join(topic.named(settings.topic_prefix) for topic in TOPICS))
        .option("includeHeaders", "true")
        .load()
    )
    read.agg(f.count("value"), f.sum(f.length("value")), f.sum(f.size("headers"))).first()
    return time.monotonic() - started
