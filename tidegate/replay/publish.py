"""Publishing: a recorded metric stream to a broker again, at a chosen speed, to try things on.

    python -m tidegate.replay.publish --from DIR --bootstrap-servers B --topic-prefix try. [--speed 10|max] [--rebase]

Records go out in the order of their timestamps; the jobs, when they are wanted, all before the first snapshot.
Without `--rebase` keys, headers and values are the recorded bytes and timestamps the recorded ones (mind the
topic's retention). With it every instant of a snapshot moves by one span of whole seconds, and with it the sequence
and the id, so that a decider's freshness guards take it; spans between instants, and so all rates, stay as they were.
At speed 1 or less the first snapshot is moved to now; above it, where the stream's own time runs faster than the
clock, the last is moved to when it will be published: then none is from the future, and the early ones look old.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tidegate.events.envelope import Unreadable, decode, encode
from tidegate.events.snapshot import MetricSnapshot, snapshot_id
from tidegate.events.topics import JOBS, SNAPSHOTS, Topic
from tidegate.replay.files import BadRecording, KafkaRecord, read, read_manifest
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.kafka import Publisher
from tidegate.runtime.producer import NotDelivered
from tidegate.runtime.settings import ServiceSettings

Progress = Callable[[int, int], None]
"""Told (records published, records in all) now and then."""
FLUSH_SECONDS = 1.0
"""The broker's acknowledgements are waited for this often."""


@dataclass(frozen=True, slots=True)
class Published:
    """What was published."""

    jobs: int
    snapshots: int
    skipped: int
    """Snapshots that cannot be read and so cannot be moved in time; only with `rebase`."""
    shift_seconds: int
    """By how much every instant was moved; 0 without `rebase`."""


def publish(
    settings: ServiceSettings,
    directory: Path,
    *,
    speed: float | None = 1.0,
    rebase: bool = False,
    jobs_first: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Published:
    """Publish the snapshots of a recording under the prefix of `settings`; the topics must exist.

    Args:
        settings: the broker and the topics' prefix.
        directory: a recording made by `tidegate.replay.record`.
        speed: how many recorded seconds pass in one second; None: as fast as the broker takes them.
        rebase: move the stream to now, see the top of this file.
        jobs_first: publish the recorded `jobs` before everything else.
        job: only snapshots, and the spec, of this job.
        progress: told how far it is.
        clock: what now is.
        sleep: how to wait.

    Raises:
        BadRecording: the recording cannot be used.
        NotDelivered: the broker did not acknowledge everything.
        ValueError: the speed is not above 0.
    """
    if speed is not None and not speed > 0:
        raise ValueError(f"speed must be above 0, found {speed}")
    clock = clock or SystemClock()
    specs = [r for r in read(directory, JOBS.suffix) if job is None or r.key == job.encode()] if jobs_first else []
    records = sorted(read(directory, SNAPSHOTS.suffix), key=lambda r: (r.timestamp_ms, r.partition, r.offset))
    snapshots = [(record, _readable(record)) for record in records]
    if job is not None:
        snapshots = [(r, s) for r, s in snapshots if s is not None and s.job_id == job]
    skipped = shift = 0
    if rebase:
        readable = [(r, s) for r, s in snapshots if s is not None]
        skipped, shift = len(snapshots) - len(readable), _shift([s for _, s in readable], speed, clock)
        snapshots = [*readable]
    publisher = Publisher(settings)
    try:
        for record in specs:
            _send(publisher, settings, JOBS, record)
        publisher.flush()
        begun = flushed = clock.monotonic()
        for count, (record, snapshot) in enumerate(snapshots, 1):
            passed = (record.timestamp_ms - snapshots[0][0].timestamp_ms) / 1000
            wait = begun + passed / speed - clock.monotonic() if speed is not None else 0.0
            if wait > 0 or clock.monotonic() - flushed > FLUSH_SECONDS:
                publisher.flush()
                flushed = clock.monotonic()
                if progress:
                    progress(len(specs) + count - 1, len(specs) + len(snapshots))
            sleep(max(0.0, wait))
            if rebase and snapshot is not None:
                publisher.send_record(encode(moved(snapshot, shift)))
            else:
                _send(publisher, settings, SNAPSHOTS, record)
        publisher.flush()
        if progress:
            progress(len(specs) + len(snapshots), len(specs) + len(snapshots))
    finally:
        publisher.close()
    return Published(len(specs), len(snapshots), skipped, shift)


def moved(snapshot: MetricSnapshot, seconds: int) -> MetricSnapshot:
    """Return a snapshot with every instant later by whole seconds; sequence and id follow."""
    span = timedelta(seconds=seconds)
    sequence = snapshot.sequence + seconds
    started, current = snapshot.incarnation_started_at, snapshot.current_batch_started_at
    return snapshot.model_copy(
        update={
            "sequence": sequence,
            "snapshot_id": snapshot_id(snapshot.job_id, sequence),
            "observed_at": snapshot.observed_at + span,
            "incarnation_started_at": started and started + span,
            "current_batch_started_at": current and current + span,
            "batches": tuple(
                batch.model_copy(update={"started_at": batch.started_at + span}) for batch in snapshot.batches
            ),
        }
    )


def _shift(snapshots: Sequence[MetricSnapshot], speed: float | None, clock: Clock) -> int:
    """Return by how many whole seconds the stream is to be moved, rounded down: never into the future."""
    if not snapshots:
        return 0
    first, last = snapshots[0].observed_at, max(s.observed_at for s in snapshots)
    if speed is not None and speed <= 1:
        return int((clock.now() - first).total_seconds() // 1)
    takes = (last - first) / speed if speed is not None else timedelta()
    return int((clock.now() + takes - last).total_seconds() // 1)


def _readable(record: KafkaRecord) -> MetricSnapshot | None:
    try:
        return decode(MetricSnapshot, record.value, record.headers)
    except Unreadable:
        return None


def _send(publisher: Publisher, settings: ServiceSettings, topic: Topic, record: KafkaRecord) -> None:
    """Send a record as it was, bytes and timestamp."""
    name = topic.named(settings.topic_prefix)
    publisher.send_raw(name, record.key, record.value, record.headers, timestamp_ms=record.timestamp_ms)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 0, or 2 when it could not be published."""
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.replay.publish", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--from", dest="directory", type=Path, required=True, metavar="DIR")
    parser.add_argument("--bootstrap-servers", help="default: TIDEGATE_BOOTSTRAP_SERVERS or 127.0.0.1:9092")
    parser.add_argument("--topic-prefix", required=True, help="services on these topics take it for what is measured")
    parser.add_argument("--speed", default="1", metavar="X|max", help="recorded seconds in one second (default 1)")
    parser.add_argument("--rebase", action="store_true", help="move every instant, sequence and id to now")
    parser.add_argument("--jobs-first", action="store_true", help="publish the recorded specs first")
    parser.add_argument("--job", help="only this job")
    asked = parser.parse_args(arguments)
    given = {"bootstrap_servers": asked.bootstrap_servers, "topic_prefix": asked.topic_prefix}
    try:
        speed = None if asked.speed == "max" else float(asked.speed)
    except ValueError:
        parser.error(f"--speed {asked.speed!r} is neither a number nor max")
    try:
        read_manifest(asked.directory)
        done = publish(
            ServiceSettings(**{name: value for name, value in given.items() if value is not None}),
            asked.directory,
            speed=speed,
            rebase=asked.rebase,
            jobs_first=asked.jobs_first,
            job=asked.job,
        )
    except (BadRecording, NotDelivered, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"published {done.snapshots} snapshots and {done.jobs} jobs, moved by {done.shift_seconds} s\n")
    if done.skipped:
        sys.stdout.write(f"left out {done.skipped} snapshots that cannot be read\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
