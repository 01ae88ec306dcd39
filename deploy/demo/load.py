"""The demo's load: makes the topics, asks for the job, then writes records: steady, three times as many, steady again.

python load.py JOB.json RATE SECONDS      RATE records/s for SECONDS, 3 x RATE for SECONDS, and so on for ever
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.events.envelope import Unreadable, decode
from tidegate.events.job import JobSpec
from tidegate.runtime.kafka import Publisher
from tidegate.runtime.settings import ServiceSettings

PARTITIONS = 8
TICK = 0.1


def main(arguments: list[str]) -> int:
    """Run until the process is ended."""
    path, rate, seconds = Path(arguments[0]), float(arguments[1]), float(arguments[2])
    settings = ServiceSettings()
    try:
        spec = decode(JobSpec, path.read_bytes())
    except Unreadable as error:
        sys.stderr.write(f"{path}: {error}\n")
        return 2
    make_topics(settings, [*spec.sources, *spec.sinks])
    Publisher(settings).publish(spec)
    sys.stdout.write(f"{spec.job_id} is asked for\n")
    for factor in itertools.cycle((1, 3)):
        sys.stdout.write(f"{rate * factor:g} records/s for {seconds:g} s\n")
        write(settings, spec.sources[0], rate * factor, seconds)
    return 0


def make_topics(settings: ServiceSettings, names: list[str]) -> None:
    """Create the job's topics that are missing."""
    admin = AdminClient(settings.kafka())
    missing = set(names) - set(admin.list_topics(timeout=30).topics)
    wanted = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1) for name in sorted(missing)]
    for name, future in (admin.create_topics(wanted) if wanted else {}).items():
        try:
            future.result(timeout=30)
        except KafkaException as error:
            sys.stderr.write(f"topic {name}: {error}\n")
            raise


def write(settings: ServiceSettings, topic: str, rate: float, seconds: float) -> None:
    """Write `rate` records/s, round robin over the partitions. What a pause held up is left out, not bunched."""
    producer = Producer({**settings.kafka(), "linger.ms": 5})
    begun = time.monotonic()
    number = 0
    while (passed := time.monotonic() - begun) < seconds:
        due = int(passed * rate)
        number = max(number, due - int(rate * 2 * TICK))
        while number < due:
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
            number += 1
        producer.poll(0)
        time.sleep(TICK)
    producer.flush(30)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
