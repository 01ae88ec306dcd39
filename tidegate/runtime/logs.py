"""Logs of the services: one line an event, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from tidegate.runtime.settings import ServiceSettings


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, the exception included."""
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
    """Set up logging to standard error and print the settings, secrets as stars."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells each request, and a restart is watched by many
    shown = " ".join(f"{name}={value}" for name, value in settings.redacted().items() if value != "None")
    logging.getLogger(service).info("starting with %s", shown)
