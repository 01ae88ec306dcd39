"""Logs of the services: one line per event, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime

from tidegate.runtime.settings import ServiceSettings

CHATTY = ("httpx", "faust", "mode", "aiokafka")
"""Libraries that log every request or every record at INFO."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, including its exception."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(service: str, settings: ServiceSettings) -> None:
    """Send log lines, Python warnings and exceptions of threads to standard error; log the settings without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
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
