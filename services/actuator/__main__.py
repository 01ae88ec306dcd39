"""`python -m services.actuator`: reads settings from the environment and runs until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import signal
import sys

from pydantic import ValidationError

from services.actuator.app import build
from services.actuator.settings import ActuatorSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.kafka import TopicsDoNotFit
from tidegate.runtime.logs import configure
from tidegate.runtime.settings import wrong_settings


def main() -> int:
    """Run the actuator; return 0 after a signal, 2 for wrong settings or topics, 75 if another actuator took over."""
    try:
        settings = ActuatorSettings()
    except ValidationError as error:
        sys.stderr.write(wrong_settings("actuator", error))
        return 2
    configure("actuator", settings)
    try:
        actuator = build(settings, clock=SystemClock())
    except TopicsDoNotFit as error:
        logging.getLogger("actuator").critical("%s", error)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: actuator.stop())
    return actuator.run()


if __name__ == "__main__":
    sys.exit(main())
