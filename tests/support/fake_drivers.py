"""Stand-ins for the run of a driver in a handover, and for the JVM's side of its queries."""

# ruff: noqa: N802 - the JVM's names

from __future__ import annotations

import os
import threading
import types
from typing import Any
from unittest import mock

from tidegate.launcher.control.files import SUBMISSION_ID, Control, Token
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.runtime.poll import wait_until

OLD = Token(5, 1)
"""The run of every driver at first."""


DRIVER = "driver-1-0"
LOG = DriverLog(print)


def driver_run(control: Control, driver: str = DRIVER, token: Token = OLD) -> DriverRun:
    """Return the run of a driver with two slots."""
    with mock.patch.dict(os.environ, {SUBMISSION_ID: driver}):
        return DriverRun(control, token, 2, LOG)


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

    def get(self, _id: str) -> FakeJava | None:
        """Return the query that runs."""
        return next(iter(self.active()), None)

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
