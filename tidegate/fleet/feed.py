"""Reads the topics into a fleet: the last hours at the start, then whatever comes.

A thousand jobs make a million decisions in three hours, which take minutes to read. So a feed can read the last minutes
of all jobs, and the hours before them of a job only when somebody asks for them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Literal

from confluent_kafka import Message

from tidegate.client import CLOCKS_DIFFER, check_reachable, received, skip, up_to
from tidegate.events.decision import Decision
from tidegate.events.envelope import Unreadable, decode, job_named_by
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import is_plausible
from tidegate.events.topics import DECISIONS, JOBS, RESULTS, SNAPSHOTS, Topic
from tidegate.events.wire import Wire
from tidegate.fleet.explain import phases_of
from tidegate.fleet.fleet import SILENT_INTERVALS, Fleet, FleetJob, LiveFleet
from tidegate.runtime.consumer import TopicReader, headers_of, written_at
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.producer import said
from tidegate.runtime.service import EXPLAINED
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import TopicsLost

log = logging.getLogger(__name__)

RECENT = timedelta(minutes=10)
"""How far back a feed reads decisions at its start that reads the rest on demand, or three of the longest interval."""
GIVES_WAY = 5000
"""After so many older records, new ones are read."""
FRESH = timedelta(minutes=1)
"""How far back to read snapshots, besides the longest interval: the fleet keeps only the newest of each job."""
FIND_SECONDS = 20.0
"""How long to look for a single decision."""
AHEAD = timedelta(minutes=5)
"""How far ahead of the decider's clock that of a snapshot may be: it does not decide on others."""


class Feed:
    """A fleet that a thread of its own keeps up to date. Use the fleet only inside `reading()`."""

    def __init__(self, settings: ServiceSettings, history: timedelta, *, on_demand: bool = False) -> None:
        """With `on_demand`, only `recall` reads decisions older than `RECENT`, of one job.

        Raises `Unreachable` or `NoSuchTopic` if there is nothing to read from.
        """
        check_reachable(settings, JOBS.named(settings.topic_prefix))
        self._settings = settings
        self._history = history
        self._on_demand = on_demand
        self._since = datetime.now(UTC)
        """When the decisions were written that are read at the start."""
        self._recalling = threading.Lock()
        self._fleet = Fleet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self._ended_by: str | None = None
        self._thread = threading.Thread(target=self._run, name="fleet-feed", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading, and wait for the end of it."""
        self._stop.set()
        self._thread.join(timeout=10)

    @contextmanager
    def reading(self) -> Iterator[Fleet]:
        """Hold the fleet still."""
        with self._lock:
            yield self._fleet

    @property
    def state(self) -> str:
        """`live`, `loading` while the history is being read, or what ended the reading."""
        if self._ended_by is not None:
            return self._ended_by
        return "live" if self._caught_up.is_set() else "loading"

    @property
    def revision(self) -> int:
        """A number that changes with the fleet."""
        return self._fleet.revision

    def recall(self, job_id: str) -> None:
        """Read the decisions on a job in the time of `history` before those that the fleet knows, unless it has them.

        That takes a second for each 100,000 decisions on the job's partition; raises `TimeoutError` after
        `FIND_SECONDS`, and if those of another job take so long.
        """
        if not self._on_demand or self._unread(job_id) is None:
            return
        if not self._recalling.acquire(timeout=FIND_SECONDS):
            raise TimeoutError(f"the decisions on {job_id} wait for those on another job to be read")
        try:
            unread = self._unread(job_id)  # again: somebody else may have asked for them meanwhile
            if unread is not None:
                job, place = unread
                earlier = self._decisions(job_id, *place, datetime.now(UTC) - self._history, self._since)
                with self._lock:
                    job.recall(earlier)
        finally:
            self._recalling.release()

    def _unread(self, job_id: str) -> tuple[FleetJob, tuple[int, bytes]] | None:
        """Return a job whose earlier decisions were not read, and the place of its newest; None if there is none."""
        with self._lock:
            job = self._fleet.get(job_id)
        return None if job is None or job.recalled or job.place is None else (job, job.place)

    def _decisions(self, job_id: str, number: int, key: bytes, since: datetime, until: datetime) -> list[Decision]:
        found, deadline = list[Decision](), time.monotonic() + FIND_SECONDS
        end, ahead = until + CLOCKS_DIFFER, datetime.now(UTC) + CLOCKS_DIFFER
        topic = DECISIONS.named(self._settings.topic_prefix)
        with closing(TopicReader(self._settings, [topic], since=since, number=number)) as reader:
            for message in reader.read_to_end(FIND_SECONDS):
                if end < written_at(message) <= ahead:  # one that is later is of a wrong clock
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"reading the decisions on {job_id} took more than {FIND_SECONDS:g} s")
                if message.key() != key or job_named_by(headers := headers_of(message)) not in (None, job_id):
                    continue
                with suppress(Unreadable):
                    found.append(decode(Decision, message.value(), headers, key))
        return [decision for decision in found if decision.job_id == job_id]

    def _run(self) -> None:
        try:
            self._follow()
        except EXPLAINED as error:
            self._ended_by = said(error) or type(error).__name__
        except Exception as error:  # whatever it is, readers must learn that the fleet stands still
            log.exception("reading the topics ended by an error that Tidegate does not expect")
            self._ended_by = f"{type(error).__name__}: {error}"

    def _follow(self) -> None:
        prefix, now = self._settings.topic_prefix, datetime.now(UTC)
        models = {topic.named(prefix): topic.model for topic in (DECISIONS, RESULTS, SNAPSHOTS)}

        def reader(topic: Topic, back: timedelta) -> TopicReader:
            return TopicReader(self._settings, [topic.named(prefix)], since=now - back)

        with ExitStack() as stack:
            specs = stack.enter_context(closing(JobsView(self._settings)))
            specs.load()
            with self._lock:
                self._fleet.unusable, self._fleet.unknown = specs.unusable, specs.unknown
                for spec in specs:
                    self._fleet.take_spec(spec)
                longest = max((job.silent_after for job in self._fleet), default=RECENT)
            back = min(self._history, max(RECENT, longest)) if self._on_demand else self._history
            self._since = now - back
            decided = stack.enter_context(closing(reader(DECISIONS, back)))
            done = stack.enter_context(closing(reader(RESULTS, self._history)))
            measured = stack.enter_context(closing(reader(SNAPSHOTS, FRESH + longest / SILENT_INTERVALS)))
            silent: Iterator[Literal[False]] | None = None
            while not self._stop.is_set():
                message = decided.poll(0.1)
                self._take_specs(specs)
                if message is not None:
                    self._take(models, message)
                for others in (done, measured):
                    while (message := others.poll()) is not None and not self._stop.is_set():
                        self._take(models, message)
                if decided.at_end and done.at_end:
                    # Of a job with a long interval, the newest decision may hold and be older than the history.
                    silent = silent or self._silent(now - max(self._history, longest), now - back)
                    if next(silent, True) or self._on_demand:
                        self._caught_up.set()

    def _silent(self, since: datetime, until: datetime) -> Iterator[Literal[False]]:
        """Take in older decisions on the jobs that have none so far; from time to time, say that this is not over."""
        with self._lock:
            jobs = {job.spec.job_id for job in self._fleet if job.decision is None}
        if not jobs or since >= until:
            return
        topic = DECISIONS.named(self._settings.topic_prefix)
        # While a broker is away, these jobs stay without a decision, but the reading of all others must not end.
        with closing(TopicReader(self._settings, [topic], since=since)) as reader, suppress(TimeoutError):
            for count, message in enumerate(reader.read_to_end()):
                if job_named_by(headers_of(message)) in jobs:
                    self._take({topic: Decision}, message)
                if count % GIVES_WAY == 0:
                    yield False

    def _take_specs(self, specs: JobsView) -> None:
        with self._lock:  # a spec that can be read again must not be missing for a moment
            for job_id in specs.poll():
                spec = specs.get(job_id)
                if spec is None:
                    self._fleet.remove(job_id)
                else:
                    self._fleet.take_spec(spec)

    def _take(self, models: Mapping[str, type[Wire]], message: Message) -> None:
        try:
            event = decode(models[message.topic() or ""], message.value(), headers_of(message), message.key())
        except Unreadable:
            return
        with self._lock:
            if isinstance(event, Decision) and (job := self._fleet.get(event.job_id)) is not None:
                job.place = message.partition() or 0, message.key() or b""
            self._fleet.take(event)


def is_live(jobs: LiveFleet) -> bool:
    """Return whether the topics have been read to their end; raise `TopicsLost` if they can no longer be read."""
    if jobs.state in {"live", "loading"}:
        return jobs.state == "live"
    raise TopicsLost(f"cannot read the topics: {jobs.state}")


def decision_on(settings: ServiceSettings, job_id: str, sequence: int) -> Decision | None:
    """Return the newest decision on a snapshot from its topic; None if it is not there any more.

    A sequence is the second in which its snapshot was measured, and its decision was written soon after: one that can
    be no job's is told without reading weeks of decisions. Raises `TimeoutError` if the topic cannot be read in time.
    """
    if not is_plausible(sequence):
        return None
    since = datetime.fromtimestamp(sequence, UTC) - AHEAD - CLOCKS_DIFFER
    events = received(Decision, settings, job=job_id, since=since, on_error=skip, timeout_seconds=FIND_SECONDS)
    with closing(events):
        on_it = [one.event for one in up_to(events, sequence) if one.event.sequence == sequence]
    return on_it[-1] if on_it else None


def results_of(settings: ServiceSettings, decision: Decision) -> list[ActionResult]:
    """Return the results of a decision's command, oldest first; raises `TimeoutError` like the others."""
    command = decision.command
    if command is None:
        return []
    since = command.issued_at - CLOCKS_DIFFER
    events = received(ActionResult, settings, job=decision.job_id, since=since, on_error=skip)
    return phases_of(command, (one.event for one in events))
