"""A load for an example job: creates its topics, then writes records, in turn at the full rate and at a third of it.

    python load.py rates-in rates-out --rate 600 --seconds 180   writes to rates-in
    python load.py --job demo.json --rate 600 --seconds 180      uses the job's topics, and puts it under Tidegate

It runs in a service's image with the service's settings, until SIGTERM or SIGINT ends it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import signal
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.events.envelope import decode
from tidegate.events.job import JobSpec
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.service import run_service
from tidegate.runtime.settings import ServiceSettings

PARTITIONS = 8
TICK_SECONDS = 0.1
TOPIC = {"retention.ms": str(24 * 3600 * 1000), "compression.type": "lz4"}
"""The load never ends by itself, so the topics keep one day of it."""

log = logging.getLogger("load")


def arguments(words: list[str]) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Creates an example job's topics and writes records to the first.")
    parser.add_argument("topics", nargs="*", help="the topic to write to, then others to create")
    parser.add_argument("--job", type=Path, help="JSON file of a job: use its topics, and put it under Tidegate")
    parser.add_argument("--rate", type=float, default=600.0, help="records per second at the higher level")
    parser.add_argument("--seconds", type=float, default=180.0, help="duration of each level")
    found = parser.parse_args(words)
    if bool(found.topics) == bool(found.job):
        parser.error("give either topics or --job")
    return found


def run(settings: ServiceSettings, args: argparse.Namespace) -> int:
    """Create the topics, put the job under Tidegate if one is given, and write until a signal comes."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    topics = args.topics
    if args.job:
        spec = decode(JobSpec, args.job.read_bytes())
        topics = [*spec.sources, *spec.sinks]
    create_topics(settings, topics)
    if args.job:
        apply(settings, spec)
    written = write(settings, topics[0], args.rate, args.seconds, stop)
    log.info("wrote %d records", written)
    return 0


def create_topics(settings: ServiceSettings, names: list[str]) -> None:
    """Create the topics that do not exist."""
    admin = AdminClient(settings.kafka())
    missing = sorted(set(names) - set(admin.list_topics(timeout=30).topics))
    if missing:
        new = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1, config=TOPIC) for name in missing]
        for future in admin.create_topics(new).values():
            future.result(timeout=30)
        log.info("created %s", ", ".join(missing))


def apply(settings: ServiceSettings, spec: JobSpec) -> None:
    """Put the job under Tidegate, unless it is there: its spec may have been changed since."""
    jobs = JobsView(settings)
    jobs.load()
    if spec.job_id not in {known.job_id for known in jobs}:
        Publisher(settings).publish(spec)
    jobs.close()
    log.info("job %s is under Tidegate", spec.job_id)


def write(settings: ServiceSettings, topic: str, rate: float, seconds: float, stop: threading.Event) -> int:
    """Write to every partition in turn until `stop` is set; return the number of records."""
    producer = Producer({**settings.kafka(), "linger.ms": 5})
    written = 0
    for level in itertools.cycle((rate, rate / 3)):
        log.info("%g records/s to %s for %g s", level, topic, seconds)
        started, at_start = time.monotonic(), written
        while (passed := time.monotonic() - started) < seconds:
            due = at_start + int(passed * level)
            # After a pause of this process the records of that time are left out, not written all at once.
            skipped = max(0, due - written - int(level * 2 * TICK_SECONDS) - 1)
            at_start -= skipped
            for number in range(written, due - skipped):
                producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
            written = max(written, due - skipped)
            producer.poll(0)
            if stop.wait(TICK_SECONDS):
                producer.flush(5)
                return written
    raise AssertionError("a cycle does not end")


if __name__ == "__main__":
    given = arguments(sys.argv[1:])
    sys.exit(run_service("load", ServiceSettings, lambda settings: run(settings, given)))
