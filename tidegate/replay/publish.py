"""Publishing a recording again, in its order and at its pace, to try services or policies on it.

Without `rebase`, keys, headers, values and timestamps are the recorded ones, so the topics must keep records of that
age. With it, every instant moves by one span, so that a decider finds the snapshots fresh: `tidegate.replay.rebase`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import COMMANDS, JOBS, RESULTS, SNAPSHOTS, Topic
from tidegate.replay.files import BadRecording, read, read_manifest
from tidegate.replay.rebase import moved_result, moved_snapshot, moved_spec, shift_to_now
from tidegate.replay.schedule import Departure, Republished, Schedule, readable, schedule
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import kept_ms

FLUSH_SECONDS = 1.0
"""How often to wait for the broker's acknowledgements."""
TURN_SECONDS = 1.0
"""Least time between two records of one pipeline on different topics.

Kafka keeps no order between topics. This gives the decider time to take in a spec (it polls them five times a second)
or a result before the snapshot that follows, and to decide on a snapshot before the spec that follows.
"""


Move = Callable[[Departure], Departure | None]
"""Moves a record in time; None for one that cannot be moved and is left out."""


class TooOld(RuntimeError):
    """Kafka would delete what is published; the text says why."""


@dataclass(frozen=True, slots=True)
class Published:
    """What was published."""

    snapshots: int
    specs: int
    results: int
    skipped: int
    """Records that cannot be moved and are left out: unreadable ones, and results of commands not in the recording."""
    shift_seconds: int
    """By how much every instant was moved; 0 without `rebase`."""


def publish(
    settings: ServiceSettings,
    directory: Path,
    *,
    speed: float | None = 1.0,
    rebase: bool = False,
    whole: bool = False,
    job: str | None = None,
    on_progress: Callable[[int, int], None] = lambda _sent, _total: None,
) -> Published:
    """Publish the snapshots of a recording under the prefix of `settings`; the topics must exist.

    Args:
        settings: the broker and the topics' prefix.
        directory: a recording made by `tidegate.replay.record`.
        speed: how many recorded seconds pass in one second; None: as fast as the broker takes them.
        rebase: move the stream to now.
        whole: publish the recorded specs and results too, each before the first snapshot decided with it.
        job: only the records of this job.
        on_progress: called with the records sent and the records in all, now and then.

    Raises:
        BadRecording: the recording cannot be used, or nothing in it is to be published.
        TooOld: a topic does not keep records of this age; nothing was published.
        NotDelivered: the broker did not acknowledge everything.
    """
    departures = schedule(directory, job=job, whole=whole)
    if not departures:
        raise BadRecording(f"{directory}: nothing to publish" + (f" of job {job!r}" if job else ""))
    shift = 0
    move: Move = unmoved
    if rebase:
        shift, move = mover(directory, departures, speed)
    else:
        check_kept(settings, departures)
    sender = Sender(settings, moved=rebase)
    try:
        sent = _send(sender, departures, move, speed=speed, on_progress=on_progress)
    finally:
        sender.flush()
    return Published(sent[SNAPSHOTS], sent[JOBS], sent[RESULTS], len(departures) - sent.total(), shift)


def check_kept(settings: ServiceSettings, departures: Schedule) -> None:
    """Raise `TooOld` if a topic does not keep records as old as some of these: Kafka deletes them within minutes."""
    oldest = {topic.named(settings.topic_prefix): written for topic, written in departures.oldest().items()}
    for name, kept in kept_ms(settings, oldest).items():
        if oldest[name] < time.time() * 1000 - kept:
            day = datetime.fromtimestamp(max(0, oldest[name]) / 1000, UTC).date()
            raise TooOld(
                f"{name} keeps records for {kept / 86_400_000:.3g} days, and some of these are of {day}:"
                " Kafka would delete them within minutes"
            )


class Sender:
    """Sends records, and waits between two of one pipeline that are on different topics."""

    def __init__(self, settings: ServiceSettings, *, moved: bool) -> None:
        """With `moved`, an event is sent as it is now, and not as the bytes that were recorded."""
        self._publisher = Publisher(settings)
        self._prefix = settings.topic_prefix
        self._moved = moved
        self._latest: dict[bytes, tuple[Topic, float]] = {}

    def due(self, departure: Departure) -> float:
        """Return the monotonic time at which its turn comes: its pipeline's last record is old enough by then."""
        topic, sent_at = self._latest.get(departure.pipeline, (departure.topic, 0.0))
        return sent_at + TURN_SECONDS if topic is not departure.topic else 0.0

    def send(self, departure: Departure) -> None:
        """Send a record now."""
        if self._moved and departure.event is not None:
            self._publisher.send(departure.event)
        else:
            record, name = departure.record, departure.topic.named(self._prefix)
            self._publisher.send_raw(name, record.key, record.value, record.headers, timestamp_ms=record.timestamp_ms)
        self._latest[departure.pipeline] = departure.topic, time.monotonic()

    def flush(self) -> None:
        """Wait for the broker's acknowledgements; raises `NotDelivered`."""
        self._publisher.flush()


def _send(
    sender: Sender,
    departures: Schedule,
    move: Move,
    *,
    speed: float | None,
    on_progress: Callable[[int, int], None],
) -> Counter[Topic]:
    """Send each record when it is due and its turn has come; return how many were sent to each topic."""
    sent = Counter[Topic]()
    started = flushed = time.monotonic()
    for count, recorded in enumerate(departures):
        departure = move(recorded)
        if departure is None:
            continue
        due = sender.due(departure)
        if speed is not None:
            due = max(due, started + (departure.due_ms - departures.start_ms) / 1000 / speed)
        if due > time.monotonic() or time.monotonic() - flushed > FLUSH_SECONDS:
            sender.flush()
            flushed = time.monotonic()
            on_progress(count, len(departures))
            time.sleep(max(0.0, due - flushed))
        sender.send(departure)
        sent[departure.topic] += 1
    sender.flush()
    on_progress(len(departures), len(departures))
    return sent


def unmoved(departure: Departure) -> Departure:
    """Return a record as it is."""
    return departure


def mover(directory: Path, departures: Iterable[Departure], speed: float | None) -> tuple[int, Move]:
    """Return by how many seconds to move a recording so that it is from now, and what moves its records."""
    snapshots = (d.event for d in departures if isinstance(d.event, MetricSnapshot))
    shift = shift_to_now(snapshots, speed, read_manifest(directory).recorded_at)
    versions = _spec_versions(directory)

    def move(departure: Departure) -> Departure | None:
        event: Republished | None = None
        with suppress(OverflowError):  # a wrong clock's instant may be the last one that there is
            match departure.event:
                case MetricSnapshot() as snapshot:
                    event = moved_snapshot(snapshot, shift)
                case ActionResult() as result:
                    event = moved_result(result, shift, versions)
                case JobSpec() as spec:
                    event = moved_spec(spec, shift)
        if event is None and not departure.tombstone:
            return None
        return Departure(departure.due_ms, departure.topic, departure.record, event)

    return shift, move


def _spec_versions(directory: Path) -> dict[str, int]:
    """Return the spec version of each recorded command, by command id."""
    commands = (readable(ScalingCommand, record) for record in read(directory, COMMANDS.suffix))
    return {command.command_id: command.spec_version for command in commands if command is not None}
