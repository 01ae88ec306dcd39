"""Stand-ins for the run of a driver in a handover, and for the JVM's side of its queries."""

# ruff: noqa: N802 - the JVM's names

from __future__ import annotations

import threading
import types
from typing import Any

from tests.support.wait import wait_until
from tidegate.launcher.control import Token

OLD = Token(5, 1)
"""The run of every driver at first."""


class FakeRun:
    """A run that takes newer tokens."""

    submission_id = "driver-1-0"
    parallelism = 2

    def __init__(self) -> None:
        self.token = OLD
        self.failures: list[str] = []

    def adopt(self, token: Token) -> None:
        """Go on as a newer run."""
        self.token = token

    def asked_to_stop(self) -> float | None:
        """Nobody asks it to stop."""
        return None

    def report_failure(self, failure: BaseException | str) -> None:
        """Remember the failure."""
        self.failures.append(str(failure))

    def leave(self, failure: BaseException) -> None:
        """Remember that the driver is to end."""
        self.failures.append(f"left: {failure}")


class FakeJava:
    """The JVM's side of a query."""

    def __init__(self, id_: str = "q") -> None:
        self._id = id_
        self.active = True
        self.ended = threading.Event()

    def id(self) -> Any:
        """Return the id, which survives restarts."""
        return types.SimpleNamespace(toString=lambda: self._id)

    def isActive(self) -> bool:
        """Whether the query runs."""
        return self.active

    def lastProgress(self) -> None:
        """There was no batch."""

    def stop(self) -> None:
        """End the query."""
        self.active = False
        self.ended.set()

    def awaitTermination(self, milliseconds: int | None = None) -> bool:
        """Wait for the end."""
        return self.ended.wait(30 if milliseconds is None else milliseconds / 1000)


class FakeManager:
    """The JVM's side of `spark.streams`."""

    def __init__(self, *queries: FakeJava) -> None:
        self.queries = list(queries)
        self.terminated = False

    def active(self) -> list[FakeJava]:
        """Return the queries that run."""
        return [query for query in self.queries if query.active]

    def awaitAnyTermination(self, milliseconds: int | None = None) -> bool:
        """Wait for the end of any."""
        return wait_until(
            lambda: self.terminated or any(not query.active for query in self.queries),
            30 if milliseconds is None else milliseconds / 1000,
            0.01,
        )

    def resetTerminated(self) -> None:
        """Forget what has ended."""
        self.terminated = False
        self.queries = self.active()
