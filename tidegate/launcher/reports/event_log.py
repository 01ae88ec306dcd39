"""Writes out what Spark's event log holds back.

Spark keeps the end of a task in a buffer until the next event that it finds important: in a compressed log, all tasks
of a stage appear when the stage ends. Then nobody could see how far a long batch has come. Spark has no setting for
this, so the launcher flushes the log's writer, and where the log is in HDFS, its stream: from then on readers see what
was written. A flush with nothing to write adds no bytes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

FLUSH_SECONDS = 1.0


class EventLogFlusher:
    """Flushes the event log of the running application, at most every `FLUSH_SECONDS`."""

    def __init__(self, context: Callable[[], Any], say: Callable[[str], None]) -> None:
        """`context` returns the application's SparkContext, or None while there is none."""
        self._context = context
        self._say = say
        self._next = 0.0
        self._works = True

    def flush(self) -> None:
        """Flush if it is time. An error ends it, because the same call would fail again; the script goes on."""
        if not self._works or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + FLUSH_SECONDS
        context = self._context()
        if context is None:
            return
        try:
            log = context._jsc.sc().eventLogger()
            if not log.isDefined() or not log.get().logWriter().writer().isDefined():
                return
            files = log.get().logWriter()
            files.writer().get().flush()
            stream = files.hadoopDataStream()
        except Exception as error:  # noqa: BLE001 - the user's script must not fail for it
            if self._context() is not context:  # the script has stopped its session
                return
            self._works = False
            self._say(f"cannot flush the event log, so tasks are seen only when their stage ends: {error}"[:500])
            return
        if stream.isDefined():  # the log is not on this machine; if its file system fails, the next flush may not
            with contextlib.suppress(Exception):
                stream.get().hflush()
