"""`python -m services.console`: serves the console until a signal ends it."""

from __future__ import annotations

import sys

from tidegate.runtime.extras import needs

with needs("console", "console-service"):
    from tidegate.console.server import serve
    from tidegate.console.settings import ConsoleSettings
    from tidegate.runtime.service import run_service, take_no_arguments

if __name__ == "__main__":
    take_no_arguments("console")
    sys.exit(run_service("console", ConsoleSettings, serve))
