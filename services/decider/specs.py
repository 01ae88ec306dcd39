"""The current specs: one thread follows the jobs topic, everyone else reads the book it last published.

A book never changes; the thread replaces it, so the event loop reads it without a lock. A spec that cannot be read, or
that the engine would refuse, goes to the dead letters, and the previous version still applies.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing

from services.decider.handler import CONSUMER
from tidegate.engine.links import Link, find_links
from tidegate.events.envelope import Unreadable
from tidegate.events.job import JobSpec
from tidegate.installed import engine
from tidegate.runtime.clock import Clock
from tidegate.runtime.dead_letters import ConsumedRecord, send_to_dead_letters
from tidegate.runtime.jobs import JobsView
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
CATCH_UP_SECONDS = 2.0


class SpecBook:
    """Specs by job id, and the links between jobs of one pipeline. Immutable."""

    def __init__(
        self, specs: Iterable[JobSpec], unusable: Iterable[str] = (), removals: Mapping[str, int] | None = None
    ) -> None:
        self._unusable = frozenset(unusable)
        self._removals = dict(removals or {})
        self._specs = {spec.job_id: spec for spec in specs}
        self._links = find_links(self._specs.values())

    def get(self, job_id: str) -> JobSpec | None:
        """Return the job's spec, or None."""
        return self._specs.get(job_id)

    def has(self, pipeline_id: str, job_id: str) -> bool:
        """Return whether the job is on the jobs topic, in this pipeline. One whose spec cannot be used counts too."""
        spec = self._specs.get(job_id)
        return job_id in self._unusable if spec is None else spec.pipeline_id == pipeline_id

    def removal(self, job_id: str) -> int:
        """Return the offset of the newest record that removed the job; -1 if none is known."""
        return self._removals.get(job_id, -1)

    async def caught_up(self) -> None:
        """Return at once: a book never changes."""

    def links(self, job_id: str) -> tuple[Link, ...]:
        """Return the jobs linked to this one, ordered by id."""
        return self._links.get(job_id, ())

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over the specs of all jobs."""
        return iter(self._specs.values())

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._specs)


class CurrentSpecs:
    """The `Specs` of a running decider."""

    def __init__(
        self,
        settings: ServiceSettings,
        clock: Clock,
        *,
        poll_seconds: float,
        on_refused: Callable[[Unreadable], None] = lambda _: None,
    ) -> None:
        self._on_refused = on_refused
        self._settings = settings
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._book = SpecBook(())
        self._polls = 0
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._on_failure: Callable[[BaseException], None] | None = None
        self._publisher: Publisher | None = None
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self, on_failure: Callable[[BaseException], None], beat: Callable[[], None] = lambda: None) -> None:
        """Load the topic, then follow it in a thread, which calls `on_failure` if it fails. Return after loading.

        `beat` is called until then. Raises `TimeoutError` if nothing comes before the topic's end.
        """
        self._on_failure = on_failure
        self._thread.start()
        while not self._ready.wait(BEAT_SECONDS):
            beat()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def get(self, job_id: str) -> JobSpec | None:
        """Return the job's spec, or None."""
        return self._book.get(job_id)

    def has(self, pipeline_id: str, job_id: str) -> bool:
        """Return whether the job is on the jobs topic, in this pipeline. One whose spec cannot be used counts too."""
        return self._book.has(pipeline_id, job_id)

    def removal(self, job_id: str) -> int:
        """Return the offset of the newest record that removed the job; -1 if none is known."""
        return self._book.removal(job_id)

    async def caught_up(self) -> None:
        """Return when a poll that started after the call has ended, or after `CATCH_UP_SECONDS`."""
        wanted = self._polls + 2  # the current poll may have started before the call
        deadline = self._clock.monotonic() + CATCH_UP_SECONDS
        while self._polls < wanted and self._clock.monotonic() < deadline:  # noqa: ASYNC110 - a thread counts
            await asyncio.sleep(self._poll_seconds / 4)

    def links(self, job_id: str) -> tuple[Link, ...]:
        """Return the jobs linked to this one, ordered by id."""
        return self._book.links(job_id)

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over the specs of all jobs."""
        return iter(self._book)

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - the decider must not continue with old specs, whatever the error
            self._failure = error
            if self._ready.is_set() and self._on_failure is not None:
                self._on_failure(error)
        finally:
            self._ready.set()

    def _follow(self) -> None:
        with closing(JobsView(self._settings, self._refused, check=engine().check)) as view:
            view.load()
            self._book = SpecBook(view, view.unusable, view.removals)
            log.info("read the specs of %d jobs", len(self._book))
            self._ready.set()
            while not self._stopping.wait(self._poll_seconds):
                changed = view.poll()
                if changed:
                    self._book = SpecBook(view, view.unusable, view.removals)
                    log.info("specs changed: %s", ", ".join(sorted(set(changed))))
                self._polls += 1

    def _refused(self, record: ConsumedRecord, error: Unreadable) -> None:
        """Send an unusable spec to the dead letters. After a restart it goes there again, with the same letter id."""
        if self._publisher is None:
            self._publisher = Publisher(self._settings)
        send_to_dead_letters(self._publisher.publish, record, error, consumer=CONSUMER, seen_at=self._clock.now())
        self._on_refused(error)
