"""Publishing a recording again, in its order and at its pace, to try services or policies on it.

Without `rebase`, keys, headers, values and timestamps are the recorded ones (mind the topics' retention). With it,
every instant moves by one span, so that a decider finds the snapshots fresh; see `tidegate.replay.rebase`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.events.command import ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import COMMANDS, JOBS, RESULTS, SNAPSHOTS, Topic
from tidegate.replay.files import read
from tidegate.replay.rebase import moved_result, moved_snapshot, moved_spec, shift_to_now
from tidegate.replay.schedule import Departure, Republished, readable, schedule
from tidegate.runtime.kafka import Publisher
from tidegate.runtime.settings import ServiceSettings

FLUSH_SECONDS = 1.0
"""How often to wait for the broker's acknowledgements."""
TURN_SECONDS = 1.0
"""Least time between two records of one pipeline on different topics.

Kafka keeps no order between topics. This gives the decider time to take in a spec (it polls them five times a second)
or a result before the snapshot that follows, and to decide on a snapshot before the spec that follows.
"""


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
        BadRecording: the recording cannot be used.
        NotDelivered: the broker did not acknowledge everything.
    """
    departures = schedule(directory, job=job, whole=whole)
    shift, recorded = 0, len(departures)
    if rebase:
        shift = shift_to_now([d.event for d in departures if isinstance(d.event, MetricSnapshot)], speed)
        departures = _moved(departures, shift, directory)
    publisher = Publisher(settings)
    try:
        _send(publisher, settings, departures, speed=speed, moved=rebase, on_progress=on_progress)
    finally:
        publisher.close()
    sent = Counter(departure.topic for departure in departures)
    return Published(sent[SNAPSHOTS], sent[JOBS], sent[RESULTS], recorded - len(departures), shift)


def _send(
    publisher: Publisher,
    settings: ServiceSettings,
    departures: Sequence[Departure],
    *,
    speed: float | None,
    moved: bool,
    on_progress: Callable[[int, int], None],
) -> None:
    """Send each record when it is due and its pipeline's last record on another topic is `TURN_SECONDS` old."""
    latest: dict[bytes, tuple[Topic, float]] = {}
    started = flushed = time.monotonic()
    for count, departure in enumerate(departures):
        due = started
        if speed is not None:
            due += (departure.due_ms - departures[0].due_ms) / 1000 / speed
        topic, sent_at = latest.get(departure.pipeline, (departure.topic, started))
        if topic is not departure.topic:
            due = max(due, sent_at + TURN_SECONDS)
        if due > time.monotonic() or time.monotonic() - flushed > FLUSH_SECONDS:
            publisher.flush()
            flushed = time.monotonic()
            on_progress(count, len(departures))
            time.sleep(max(0.0, due - flushed))
        if moved and departure.event is not None:
            publisher.send(departure.event)
        else:
            record, name = departure.record, departure.topic.named(settings.topic_prefix)
            publisher.send_raw(name, record.key, record.value, record.headers, timestamp_ms=record.timestamp_ms)
        latest[departure.pipeline] = departure.topic, time.monotonic()
    publisher.flush()
    on_progress(len(departures), len(departures))


def _moved(departures: Sequence[Departure], seconds: int, directory: Path) -> list[Departure]:
    """Return the departures with their events moved; those that cannot be moved are left out."""
    versions = _spec_versions(directory)
    kept = []
    for departure in departures:
        event: Republished | None
        match departure.event:
            case MetricSnapshot() as snapshot:
                event = moved_snapshot(snapshot, seconds)
            case ActionResult() as result:
                event = moved_result(result, seconds, versions)
            case JobSpec() as spec:
                event = moved_spec(spec, seconds)
            case None:
                event = None
        if event is not None or departure.tombstone:
            kept.append(Departure(departure.due_ms, departure.topic, departure.record, event))
    return kept


def _spec_versions(directory: Path) -> dict[str, int]:
    """Return the spec version of each recorded command, by command id."""
    commands = (readable(ScalingCommand, record) for record in read(directory, COMMANDS.suffix))
    return {command.command_id: command.spec_version for command in commands if command is not None}
