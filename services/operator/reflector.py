"""The objects of a list, kept as the API server tells them: listed once, then watched, as client-go's reflector does.

A watch tells each change since the version of the list. It lasts a minute at most, and the next one goes on from the
version that was told last, by a change or by a bookmark. If the server no longer knows that version, or if the stream
breaks, the objects are listed again; after failures in a row, after longer and longer pauses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.launcher.kubernetes.api import ApiUnreachable
from tidegate.runtime.clock import Clock

log = logging.getLogger("operator")

WATCH_SECONDS = 60
"""How long a watch may last: by its end, a connection is noticed that has died without a word."""
PAUSE_SECONDS = 1.0
"""How long to wait between two watches and after a failure; after each further failure twice as long."""
MOST_DOUBLINGS = 5
STUCK_AFTER_SECONDS = 180.0
"""How long there may be neither an answer nor a failure: longer than a watch, a pause and a list take together."""

Listed = Callable[[], tuple[list[dict[str, Any]], str]]
"""Returns all objects, and the version of the list."""
Watched = Callable[[str, int], Iterable[tuple[str, dict[str, Any]]]]
"""Yields what has changed since a version, for so many seconds: the type of the event, and the object."""


class Reflector:
    """The objects by name, which a thread of its own keeps up to date."""

    def __init__(self, listed: Listed, watched: Watched, clock: Clock) -> None:
        self._listed = listed
        self._watched = watched
        self._clock = clock
        self._objects: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._not_listed: str | None = None
        """Why the newest list failed."""
        self._failures = 0
        """How many lists and watches have failed since a watch told something."""
        self._warned = False
        self._heard_at = clock.monotonic()
        self._lock = threading.Lock()
        self._tried = threading.Event()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start to list and watch."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        """Have the thread end at its next step; a watch may last on, so nothing waits for it."""
        self._stopping.set()

    @property
    def alive(self) -> bool:
        """Whether there still are answers, or failures."""
        return self._clock.monotonic() - self._heard_at <= STUCK_AFTER_SECONDS

    def all(self) -> list[dict[str, Any]]:
        """Return every object as it was told last; the first time, wait until they are listed.

        Raises `ApiUnreachable` if the newest list has failed, or if there is no answer at all any more.
        """
        self._tried.wait()
        with self._lock:
            if self._not_listed is not None:
                raise ApiUnreachable(self._not_listed)
            if not self.alive:
                raise ApiUnreachable(f"neither an answer nor a failure for {STUCK_AFTER_SECONDS:g} s")
            return list(self._objects.values())

    def take(self, changed: dict[str, Any]) -> None:
        """Take in what a change of our own has made of an object, unless it is gone or something newer was told."""
        with self._lock:
            if _name(changed) in self._objects:
                self._objects[_name(changed)] = self._newest(changed)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._list()
                while not self._stopping.wait(PAUSE_SECONDS):
                    for kind, one in self._watched(self._version, WATCH_SECONDS):
                        self._note_success()
                        self._apply(kind, one)
                    self._note_success()
            except OSError as error:
                self._note_failure()
                if self._not_listed is None and self._failures > 1 and not self._warned:
                    self._warned = True
                    log.warning("cannot watch the StreamingJobs, and lists them now and then instead: %s", error)
            except Exception:
                self._note_failure()
                log.exception("watching the StreamingJobs: an error that Tidegate does not expect; trying again")
            self._stopping.wait(PAUSE_SECONDS * 2 ** min(self._failures - 1, MOST_DOUBLINGS))

    def _list(self) -> None:
        before = self._objects.copy()
        try:
            listed, version = self._listed()
            with self._lock:  # of what was known, only our own changes since may be newer than the list
                self._objects = {name: one for name, one in self._objects.items() if one is not before.get(name)}
                self._objects = {_name(one): self._newest(one) for one in listed}
                self._version, self._not_listed = version, None
        except Exception as error:
            self._not_listed = str(error)
            raise
        finally:
            self._heard_at = self._clock.monotonic()
            self._tried.set()

    def _apply(self, kind: str, one: dict[str, Any]) -> None:
        with self._lock:
            self._version = one["metadata"]["resourceVersion"]
            if kind == "BOOKMARK" or self._newest(one) is not one:
                return
            if kind == "DELETED":
                self._objects.pop(_name(one), None)
            else:
                self._objects[_name(one)] = one

    def _note_success(self) -> None:
        if self._warned:
            log.info("the StreamingJobs are watched again")
        self._warned, self._failures, self._heard_at = False, 0, self._clock.monotonic()

    def _note_failure(self) -> None:
        self._failures, self._heard_at = self._failures + 1, self._clock.monotonic()

    def _newest(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return an object as it was told now or before, whichever is newer."""
        known = self._objects.get(_name(told), told)
        return known if _version(known) > _version(told) else told


def _name(one: dict[str, Any]) -> str:
    name: str = one["metadata"]["name"]
    return name


def _version(one: dict[str, Any]) -> int:
    """Return the version of an object. Kubernetes compares two of the same kind as numbers."""
    return int(one["metadata"]["resourceVersion"])
