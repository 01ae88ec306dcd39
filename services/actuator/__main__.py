"""`python -m services.actuator`: run the actuator with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from tidegate.runtime.extras import needs

with needs("actuator", "actuator"):
    from services.actuator.app import build
    from services.actuator.consumer import THREADS
    from services.actuator.settings import ActuatorSettings
    from tidegate.runtime.clock import SystemClock
    from tidegate.runtime.service import run_service, take_no_arguments


def run(settings: ActuatorSettings) -> int:
    """Run until a signal; return the exit code: 0, or 75 if another actuator took over."""
    actuator = build(settings, clock=SystemClock())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: actuator.stop())
    return actuator.run()


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("actuator", ActuatorSettings, run)


def end(code: int) -> None:
    """End the process. A command whose thread is still in a long call is left where it is, as after a crash."""
    if any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # `sys.exit` would wait for the thread, for minutes, and nobody restarts the service meanwhile
    sys.exit(code)


if __name__ == "__main__":
    take_no_arguments("actuator")
    end(main())
