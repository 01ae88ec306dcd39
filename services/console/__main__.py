"""`python -m services.console`: serves the console until a signal ends it."""

from __future__ import annotations

import sys

from tidegate.console.server import serve
from tidegate.console.settings import ConsoleSettings
from tidegate.runtime.service import run_service

if __name__ == "__main__":
    sys.exit(run_service("console", ConsoleSettings, serve))
