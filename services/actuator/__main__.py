"""`python -m services.actuator`: run the actuator with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import signal
import sys

from services.actuator.app import build
from services.actuator.settings import ActuatorSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.service import run_service


def run(settings: ActuatorSettings) -> int:
    """Run until a signal; return the exit code: 0, or 75 if another actuator took over."""
    actuator = build(settings, clock=SystemClock())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: actuator.stop())
    return actuator.run()


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("actuator", ActuatorSettings, run)


if __name__ == "__main__":
    sys.exit(main())
