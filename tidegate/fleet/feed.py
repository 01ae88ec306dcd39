"""Reads the topics into a fleet: the last hours at the start, then whatever comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from confluent_kafka import Message

from tidegate.client import ClientSettings, check_reachable, received, skip
from tidegate.events.decision import Decision
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.result import ActionResult
from tidegate.events.topics import DECISIONS, JOBS, RESULTS, SNAPSHOTS
from tidegate.events.wire import Wire
from tidegate.fleet.fleet import Fleet
from tidegate.runtime.consumer import TopicReader, headers_of
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.settings import ServiceSettings

FOLLOWED = (DECISIONS, RESULTS)
"""Topics of which the last hours are read."""
FRESH = timedelta(minutes=1)
"""How far back to read snapshots: the fleet keeps only the newest of each job."""
FIND_SECONDS = 20.0
"""How long to look for a single decision."""
CLOCKS_DIFFER = timedelta(minutes=1)
"""By how much the clocks of collector and broker may differ."""
PLAUSIBLE = (86_400, 2**33)
"""Sequences outside are no seconds at which anything was measured."""


class Feed:
    """A fleet that a thread of its own keeps up to date. Use the fleet only inside `reading()`."""

    def __init__(self, settings: ClientSettings, history: timedelta) -> None:
        """Raise `Unreachable` or `NoSuchTopic` if there is nothing to read from."""
        check_reachable(settings, JOBS.named(settings.topic_prefix))
        self._settings = settings
        self._history = history
        self._fleet = Fleet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self._failure: Exception | None = None
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
        if self._failure is not None:
            return str(self._failure) or type(self._failure).__name__
        return "live" if self._caught_up.is_set() else "loading"

    @property
    def revision(self) -> int:
        """A number that changes with the fleet."""
        return self._fleet.revision

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # noqa: BLE001  (whatever it is, readers must learn that the fleet stands still)
            self._failure = error

    def _follow(self) -> None:
        prefix, now = self._settings.topic_prefix, datetime.now(UTC)
        models = {topic.named(prefix): topic.model for topic in (*FOLLOWED, SNAPSHOTS)}
        history = TopicReader(self._settings, [topic.named(prefix) for topic in FOLLOWED], since=now - self._history)
        measured = TopicReader(self._settings, [SNAPSHOTS.named(prefix)], since=now - FRESH)
        with closing(history), closing(measured), closing(JobsView(self._settings)) as specs:
            specs.load()
            with self._lock:
                for spec in specs:
                    self._fleet.take_spec(spec)
            while not self._stop.is_set():
                message = history.poll(0.1)
                self._take_specs(specs)
                if message is None:
                    message = measured.poll()
                while message is not None:
                    self._take(models[message.topic() or ""], message)
                    message = measured.poll()
                if history.at_end:
                    self._caught_up.set()

    def _take_specs(self, specs: JobsView) -> None:
        for job_id in specs.poll():
            spec = specs.get(job_id)
            with self._lock:
                if spec is None:
                    self._fleet.remove(job_id)
                else:
                    self._fleet.take_spec(spec)

    def _take(self, model: type[Wire], message: Message) -> None:
        try:
            event = decode(model, message.value(), headers_of(message), message.key())
        except Unreadable:
            return
        with self._lock:
            self._fleet.take(event)


def decision_on(settings: ServiceSettings, job_id: str, sequence: int) -> Decision | None:
    """Return the decision on a snapshot from its topic; None if it is not there any more.

    A sequence is the second in which its snapshot was measured, and its decision was written soon after. Raises
    `TimeoutError` if the topic cannot be read in time.
    """
    if not PLAUSIBLE[0] < sequence < PLAUSIBLE[1]:
        return None
    since = datetime.fromtimestamp(sequence, UTC) - CLOCKS_DIFFER
    events = received(Decision, settings, job=job_id, since=since, on_error=skip, timeout_seconds=FIND_SECONDS)
    with closing(events):
        found = next((one.event for one in events if one.event.sequence >= sequence), None)
    return found if found is not None and found.sequence == sequence else None


def results_of(settings: ServiceSettings, decision: Decision) -> list[ActionResult]:
    """Return the results of a decision's command, oldest first; raises `TimeoutError` like the others."""
    command = decision.command
    if command is None:
        return []
    since = command.issued_at - CLOCKS_DIFFER
    events = received(ActionResult, settings, job=decision.job_id, since=since, on_error=skip)
    return sorted((r.event for r in events if r.event.command_id == command.command_id), key=attrgetter("at"))
