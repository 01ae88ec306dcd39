"""Recording: topics of a broker into files, complete or not at all.

    python -m tidegate.replay.record --bootstrap-servers HOST:PORT --to DIR [--since T] [--until T] [--job J] [--gzip]

Everything is written into `DIR.partial` and renamed at the end, so a recording that was cut off is never taken for
a whole one. The `jobs` topic is a table, not a log: it is recorded whole whatever `since` says.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.events.topics import JOBS, TOPICS, Topic
from tidegate.replay.files import KafkaRecord, Manifest, TopicFile, sha256, to_line, write_manifest
from tidegate.runtime.clock import Clock, SystemClock
from tidegate.runtime.kafka import TopicReader, headers_of
from tidegate.runtime.settings import ServiceSettings

Progress = Callable[[str, int, int], None]
"""Told (topic without prefix, records read so far, records in the topic when it was begun) now and then."""
EVERY = 1000
NO_LEADER_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class CannotRecord(RuntimeError):
    """The recording cannot be made; the text says why."""


def record(
    settings: ServiceSettings,
    directory: Path,
    *,
    topics: Sequence[Topic] = TOPICS,
    since: datetime | None = None,
    until: datetime | None = None,
    job: str | None = None,
    compress: bool = False,
    timeout_seconds: float = 600.0,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Manifest:
    """Record topics, up to where they end now, into a new directory; return its manifest.

    Args:
        settings: where the broker is, and the topics' prefix.
        directory: must not exist, or be empty and not the present one.
        topics: what to record.
        since: records with a Kafka timestamp from then on, except of `jobs`.
        until: records with a Kafka timestamp before then.
        job: only records about this job: those whose value has its `job_id`, or whose key is it.
        compress: write `.ndjson.gz`.
        timeout_seconds: longest wait for one topic.
        progress: told how far it is.
        clock: where `recorded_at` comes from.

    Raises:
        CannotRecord: the directory is in use, or a topic cannot be read.
    """
    directory = directory.resolve()
    if directory == Path.cwd():
        raise CannotRecord(
            f"{directory} is the present directory; a recording needs one of its own, such as ./recording"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CannotRecord(f"{directory} exists already; a recording is never written over")
    if since is not None and until is not None and since >= until:
        raise CannotRecord(f"since {since.isoformat()} is not before until {until.isoformat()}")
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what an earlier run that was cut off left
    partial.mkdir(parents=True)
    until_ms = None if until is None else int(until.timestamp() * 1000)
    files = []
    try:
        for topic in topics:
            records = _read(settings, topic, since, timeout_seconds, progress)
            wanted = (r for r in records if (until_ms is None or r.timestamp_ms < until_ms) and _about(r, job))
            files.append(_write(partial, topic, wanted, compress))
        manifest = Manifest(
            topic_prefix=settings.topic_prefix,
            recorded_at=(clock or SystemClock()).now(),
            since=since,
            until=until,
            job=job,
            files=tuple(files),
        )
        write_manifest(partial, manifest)
        if directory.exists():
            directory.rmdir()
        partial.rename(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _read(
    settings: ServiceSettings, topic: Topic, since: datetime | None, timeout_seconds: float, progress: Progress | None
) -> Iterator[KafkaRecord]:
    name = topic.named(settings.topic_prefix)
    try:
        total = _length(settings, name, timeout_seconds)
        reader = TopicReader(settings, [name], since=None if topic is JOBS else since)
    except KafkaException as error:
        raise CannotRecord(f"topic {name} at {settings.bootstrap_servers}: {error.args[0].str()}") from None
    done = 0
    try:
        for message in reader.read_to_end(timeout_seconds):
            yield KafkaRecord(
                partition=message.partition(),
                offset=message.offset(),
                timestamp_ms=message.timestamp()[1],
                key=message.key(),
                value=message.value(),
                headers=tuple(headers_of(message) or ()),
            )
            done += 1
            if progress and done % EVERY == 0:
                progress(topic.suffix, done, max(total, done))
        if progress:
            progress(topic.suffix, done, max(total, done))
    finally:
        reader.close()


def _length(settings: ServiceSettings, name: str, timeout_seconds: float) -> int:
    """Return how many offsets the topic holds now; a topic just made may have no leader yet and is asked again."""
    admin = AdminClient(settings.kafka())
    found = admin.list_topics(name, timeout=30).topics[name]
    if found.error is not None:
        raise KafkaException(found.error)
    partitions = [TopicPartition(name, number) for number in found.partitions]

    def offsets(spec: Any) -> int:
        asked = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=30)
        return sum(future.result(timeout=30).offset for future in asked.values())

    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            return offsets(OffsetSpec.latest()) - offsets(OffsetSpec.earliest())
        except KafkaException as error:
            if error.args[0].code() not in NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _about(record: KafkaRecord, job: str | None) -> bool:
    if job is None or record.key == job.encode():
        return True
    try:
        value = json.loads(record.value or b"null")
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("job_id") == job


def _write(directory: Path, topic: Topic, records: Iterator[KafkaRecord], compress: bool) -> TopicFile:
    path = directory / f"{topic.suffix}.ndjson{'.gz' if compress else ''}"
    count, first, last = 0, None, None
    with _opened(path, compress) as file:
        for record in records:
            file.write(to_line(record).encode() + b"\n")
            count += 1
            first = record.timestamp_ms if first is None else min(first, record.timestamp_ms)
            last = record.timestamp_ms if last is None else max(last, record.timestamp_ms)
    return TopicFile(
        topic=topic.suffix,
        file=path.name,
        records=count,
        bytes=path.stat().st_size,
        sha256=sha256(path),
        first_timestamp_ms=first,
        last_timestamp_ms=last,
    )


@contextmanager
def _opened(path: Path, compress: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if not compress:
            yield file
            return
        # No name and no time inside: the same records give the same file.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            yield packed  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code: 0, or 2 when nothing could be recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.replay.record", description=(__doc__ or "").split("\n", 1)[0]
    )
    parser.add_argument("--bootstrap-servers", help="default: TIDEGATE_BOOTSTRAP_SERVERS or 127.0.0.1:9092")
    parser.add_argument("--topic-prefix", help="default: TIDEGATE_TOPIC_PREFIX or tidegate.")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR")
    parser.add_argument("--since", type=datetime.fromisoformat, help="such as 2026-03-01T12:00:00+00:00")
    parser.add_argument("--until", type=datetime.fromisoformat)
    parser.add_argument("--job")
    parser.add_argument("--gzip", action="store_true")
    asked = parser.parse_args(arguments)
    given = {"bootstrap_servers": asked.bootstrap_servers, "topic_prefix": asked.topic_prefix}
    settings = ServiceSettings(**{name: value for name, value in given.items() if value is not None})
    for name in ("since", "until"):
        if (instant := getattr(asked, name)) is not None and instant.tzinfo is None:
            parser.error(f"--{name} {instant.isoformat()} has no offset from UTC, such as +00:00")
    try:
        manifest = record(settings, asked.to, since=asked.since, until=asked.until, job=asked.job, compress=asked.gzip)
    except (CannotRecord, TimeoutError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for entry in manifest.files:
        sys.stdout.write(f"{entry.topic:14} {entry.records:>9} records  {entry.bytes:>12} bytes  {entry.file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
