"""`python -m services.decider`: run the decider with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import sys

from tidegate.runtime.extras import needs

with needs("decider", "decider"):
    from services.decider.app import run
    from services.decider.settings import DeciderSettings
    from tidegate.runtime.service import run_service, take_no_arguments


def main() -> int:
    """Run until a signal or an error; return the exit code."""
    return run_service("decider", DeciderSettings, run)


if __name__ == "__main__":
    take_no_arguments("decider")
    sys.exit(main())
