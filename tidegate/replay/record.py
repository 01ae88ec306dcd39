"""Recording: a broker's topics as files, complete or not at all.

Everything is written into `DIR.partial`, which is renamed at the end, so nobody mistakes an interrupted recording for a
complete one. The `jobs` topic is a table, not a log: all of it is recorded, whatever `since` says.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaException
from pydantic_core import from_json

from tidegate.archive.durable import sync
from tidegate.events.topics import JOBS, TOPICS, Topic
from tidegate.replay.files import MANIFEST, KafkaRecord, RecordingManifest, TopicFile, sha256, to_line, write_manifest
from tidegate.replay.ranges import Ranges, TopicUnreadable, ranges_now
from tidegate.runtime.consumer import TopicReader, headers_of
from tidegate.runtime.producer import said
from tidegate.runtime.settings import ServiceSettings

OnProgress = Callable[[str, int, int], None]
"""Called now and then with the topic (without prefix), the records read, and how many there are to read."""
PROGRESS_RECORDS = 1000
TOPIC_SECONDS = 600.0
"""Longest time to read one topic."""


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
    on_progress: OnProgress = lambda _topic, _done, _total: None,
) -> RecordingManifest:
    """Record topics up to now into a new directory; return its manifest.

    Args:
        settings: where the broker is, and the topics' prefix.
        directory: must be absent or empty, and not the current directory.
        topics: what to record.
        since: leave out records with an earlier Kafka timestamp, except in `jobs`.
        until: leave out records with this or a later Kafka timestamp.
        job: only records about this job: its id is their key or the `job_id` in their value.
        compress: write `.ndjson.gz`.
        on_progress: see `OnProgress`.

    Raises:
        CannotRecord: the directory is in use, or a topic cannot be read.
    """
    if since is not None and until is not None and since >= until:
        raise CannotRecord(f"since {since.isoformat()} is not before until {until.isoformat()}")
    until_ms = None if until is None else int(until.timestamp() * 1000)
    try:
        ranges = ranges_now(settings, topics)
    except TopicUnreadable as error:
        raise CannotRecord(str(error)) from None

    def wanted(topic: Topic) -> Iterator[KafkaRecord]:
        for one in _read(settings, topic, ranges, since, on_progress):
            if (until_ms is None or one.timestamp_ms < until_ms) and _about(one, job):
                yield one

    def described(files: tuple[TopicFile, ...]) -> RecordingManifest:
        return RecordingManifest(
            topic_prefix=settings.topic_prefix,
            recorded_at=datetime.now(UTC),
            since=since,
            until=until,
            job=job,
            files=files,
        )

    return write_recording(directory, ((topic, wanted(topic)) for topic in topics), described, compress=compress)


def write_recording(
    directory: Path,
    records: Iterable[tuple[Topic, Iterable[KafkaRecord]]],
    described: Callable[[tuple[TopicFile, ...]], RecordingManifest],
    *,
    compress: bool = False,
) -> RecordingManifest:
    """Write records, by topic, into a new directory, completely or not at all; return the manifest.

    `described` makes the manifest of the written files. Raises `CannotRecord` if the directory is in use.
    """
    directory = directory.resolve()
    if directory == Path.cwd():
        raise CannotRecord(f"{directory} is the current directory; give a recording its own, such as ./recording")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CannotRecord(f"{directory} already exists; a recording is never overwritten")
    partial = directory.with_name(directory.name + ".partial")
    if partial.exists() and not _was_left(partial):
        raise CannotRecord(f"{partial} is in the way: it was not left by an interrupted recording; move it away")
    partial.mkdir(parents=True, exist_ok=True)
    with _alone(partial):
        for each in partial.iterdir():  # left by an interrupted run
            each.unlink()
        try:
            manifest = described(tuple(_write(partial, topic, some, compress) for topic, some in records))
            write_manifest(partial, manifest)
            for each in (*partial.iterdir(), partial):  # a power cut must not leave half a recording under its name
                sync(each)
            if directory.exists():
                directory.rmdir()
            partial.rename(directory)
            sync(directory.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return manifest


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Be the only process that writes into a folder; raise `CannotRecord` if another one does, or has just done."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        taken = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            taken = isinstance(error, BlockingIOError)  # NFS has no locks of folders
        if taken or not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise CannotRecord(f"another process is writing {folder.name} in {folder.parent}")
        yield
    finally:
        os.close(descriptor)


def _was_left(partial: Path) -> bool:
    """Whether a folder holds nothing but what a recording writes."""
    return partial.is_dir() and all(
        each.is_file() and (each.name == MANIFEST or each.name.endswith((".ndjson", ".ndjson.gz")))
        for each in partial.iterdir()
    )


def _read(
    settings: ServiceSettings, topic: Topic, ranges: Ranges, since: datetime | None, on_progress: OnProgress
) -> Iterator[KafkaRecord]:
    """Yield the records of a topic that were there when its ranges were asked."""
    name = topic.named(settings.topic_prefix)
    of_topic = {partition: span for (each, partition), span in ranges.items() if each == name}
    try:
        reader = TopicReader(settings, [name], since=None if topic is JOBS else since)
    except KafkaException as error:
        raise CannotRecord(f"topic {name} at {settings.bootstrap_servers}: {said(error)}") from None
    starts = {partition: offset for (_, partition), offset in reader.starts.items()}
    total = sum(max(0, end - max(first, starts.get(each, first))) for each, (first, end) in of_topic.items())
    done = 0
    with closing(reader):
        on_progress(topic.suffix, done, total)
        for message in reader.read_to_end(TOPIC_SECONDS):
            if message.offset() >= of_topic.get(message.partition(), (0, 0))[1]:
                continue
            yield KafkaRecord(
                partition=message.partition(),
                offset=message.offset(),
                timestamp_ms=message.timestamp()[1],
                key=message.key(),
                value=message.value(),
                headers=tuple(headers_of(message) or ()),
            )
            done += 1
            if done % PROGRESS_RECORDS == 0:
                on_progress(topic.suffix, done, max(total, done))
        on_progress(topic.suffix, done, done)  # a compacted topic has fewer than its offsets tell


def _about(record: KafkaRecord, job: str | None) -> bool:
    if job is None or record.key == job.encode():
        return True
    try:
        value = from_json(record.value or b"null")
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("job_id") == job


def _write(directory: Path, topic: Topic, records: Iterable[KafkaRecord], compress: bool) -> TopicFile:
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
        # Without name and time in the header, the same records give the same file.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            yield packed  # type: ignore[misc]
