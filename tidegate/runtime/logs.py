"""Logs of the services: one JSON object per line, with the job and the decision that a line is about.

A service says with `about` what it works on; every line from there on has it, whichever module or library writes it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from tidegate.runtime.settings import ServiceSettings

CHATTY = ("httpx", "faust", "mode", "aiokafka")
"""Libraries that log every request or every record at INFO, and some of them every try of a retry as an error."""

REPEATING = (*CHATTY, "librdkafka")
"""Those, and the one whose lines at INFO are worth reading, but not several times a second."""

REPEAT_SECONDS = 30.0
"""For so long, a line of theirs is not repeated."""

TOOK = re.compile(r"after \d+ ?ms")
"""In librdkafka's lines, what differs each time."""

_ABOUT: ContextVar[dict[str, str]] = ContextVar("about", default={})  # noqa: B039 - it is replaced, never changed


@contextmanager
def about(**ids: str) -> Iterator[None]:
    """Add ids, such as `job_id` and `decision_id`, to every log line of this thread or task until the block ends."""
    token = _ABOUT.set(_ABOUT.get() | ids)
    try:
        yield
    finally:
        _ABOUT.reset(token)


class Repeats(logging.Filter):
    """Lets each line of these libraries through once in `REPEAT_SECONDS`; it then tells how often it was repeated.

    While a broker is away, or gives no access, Faust's client would write twenty lines a second, and librdkafka eight.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        """When a line was let through, and how often it was held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the line."""
        if record.name.partition(".")[0] not in REPEATING:
            return True
        text = record.getMessage()
        now, line = self._now(), (record.name, TOOK.sub("", text))
        with self._lock:
            at, repeated = self._said.get(line, (-REPEAT_SECONDS, 0))
            if now - at < REPEAT_SECONDS:
                self._said[line] = at, repeated + 1
                return False
            self._said = {other: said for other, said in self._said.items() if now - said[0] < 2 * REPEAT_SECONDS}
            self._said[line] = now, 0
        if repeated:
            record.msg, record.args = f"{text} (and {repeated} times more in the last {now - at:.0f} s)", ()
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, including its exception."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            **_ABOUT.get(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(service: str, settings: ServiceSettings) -> None:
    """Send log lines, Python warnings and exceptions of threads to standard error; log the settings without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Repeats())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    threading.excepthook = _log_exception
    for library in CHATTY:
        logging.getLogger(library).setLevel(logging.WARNING)
    shown = " ".join(f"{name}={value}" for name, value in settings.redacted().items() if value != "None")
    logging.getLogger(service).info("starting with %s", shown)


def log_stopped(service: str, code: int) -> None:
    """Log the last line of a service, which says how it ended."""
    how = "a signal" if code == 0 else "an error"
    logging.getLogger(service).info("stopped by %s, exit code %d", how, code)


def _log_exception(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread else "unknown"
    logging.getLogger(__name__).error("thread %s ended by an error", name, exc_info=ended.exc_value)
