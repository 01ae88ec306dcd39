"""Flushing Spark's event log, so that finished tasks are seen before their stage ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.fake_queries import JavaOption
from tidegate.launcher import main
from tidegate.launcher.reports import event_log
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.reports.event_log import EventLogFlusher


class Application:
    """A SparkContext with an event log, or without one."""

    def __init__(self, *, logs: bool = True, broken: bool = False, remote: bool = False) -> None:
        self.flushes = 0
        self.hflushes = 0
        self.broken = broken
        writer = JavaOption(SimpleNamespace(flush=self._flush))
        stream = JavaOption(SimpleNamespace(hflush=self._hflush) if remote else None)
        files = SimpleNamespace(writer=lambda: writer, hadoopDataStream=lambda: stream)
        log = JavaOption(SimpleNamespace(logWriter=lambda: files) if logs else None)
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(eventLogger=lambda: log))

    def _hflush(self) -> None:
        self.hflushes += 1
        if self.hflushes == 1:
            raise RuntimeError("all datanodes are bad")

    def _flush(self) -> None:
        self.flushes += 1
        if self.broken:
            raise RuntimeError("no such method")


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flush at every call."""
    monkeypatch.setattr(event_log, "FLUSH_SECONDS", 0.0)


def test_the_log_is_flushed_again_and_again() -> None:
    """Each call that is due flushes once."""
    application, said = Application(), list[str]()
    flusher = EventLogFlusher(lambda: application, said.append)
    for _ in range(3):
        flusher.flush()
    assert (application.flushes, said) == (3, [])


def test_it_waits_between_two_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher calls ten times a second, which is more often than anyone reads."""
    monkeypatch.setattr(event_log, "FLUSH_SECONDS", 3600.0)
    application = Application()
    flusher = EventLogFlusher(lambda: application, print)
    for _ in range(3):
        flusher.flush()
    assert application.flushes == 1


@pytest.mark.parametrize("application", [None, Application(logs=False)])
def test_without_a_log_there_is_nothing_to_do(application: Application | None) -> None:
    """Before the session, and in an application without an event log, nothing happens."""
    said: list[str] = []
    EventLogFlusher(lambda: application, said.append).flush()
    assert said == []


def test_an_error_is_told_once_and_ends_it() -> None:
    """Another version of Spark may lack these methods: the script goes on, and the driver's log says what is lost."""
    application, said = Application(broken=True), list[str]()
    flusher = EventLogFlusher(lambda: application, said.append)
    for _ in range(3):
        flusher.flush()
    assert application.flushes == 1
    assert said == ["cannot flush the event log, so tasks are seen only when their stage ends: no such method"]


def test_a_session_that_ends_meanwhile_is_no_error() -> None:
    """A script may stop its session at any moment and start another one."""
    ending, next_one, said = Application(broken=True), Application(), list[str]()
    contexts = iter([ending, None, next_one])
    flusher = EventLogFlusher(lambda: next(contexts), said.append)
    flusher.flush()
    flusher.flush()
    assert (said, next_one.flushes) == ([], 1)


def test_a_log_elsewhere_is_flushed_to_its_readers() -> None:
    """Where the log is in HDFS, its stream is flushed too; that may fail once, and goes on."""
    application, said = Application(remote=True), list[str]()
    flusher = EventLogFlusher(lambda: application, said.append)
    for _ in range(3):
        flusher.flush()
    assert (application.flushes, application.hflushes, said) == (3, 3, [])


def test_an_event_log_that_cannot_be_shipped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the jars for the store nothing starts, and the run says which field of the spec is meant."""
    told: list[str] = []

    def ship(place: str) -> None:
        raise ValueError(f"no file system for {place}")

    monkeypatch.setattr(main, "ship_event_logs", ship)
    with pytest.raises(ValueError, match="no file system"):
        main._ship_event_logs("s3a://logs", cast(DriverRun, SimpleNamespace(report_failure=told.append)))
    assert told == ["application.event_log_dir s3a://logs: no file system for s3a://logs"]
