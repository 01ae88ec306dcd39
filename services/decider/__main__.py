"""`python -m services.decider`: run the decider with settings from `TIDEGATE_…` variables."""

from __future__ import annotations

import logging
import signal
import sys

from pydantic import ValidationError

from services.decider.app import run
from services.decider.settings import DeciderSettings
from tidegate.runtime.kafka import TopicsDoNotFit
from tidegate.runtime.logs import configure
from tidegate.runtime.settings import wrong_settings


def main() -> int:
    """Run until a signal; return 2 for settings or topics that do not fit."""
    try:
        settings = DeciderSettings()
    except ValidationError as error:
        sys.stderr.write(wrong_settings("decider", error))
        return 2
    configure("decider", settings)
    # Until Faust's own handlers are there: a start, with its reading of topics, can be ended as well (as process 1 of
    # a container it would not even notice the signal).
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        run(settings)
    except TopicsDoNotFit as error:
        logging.getLogger("decider").critical("%s", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
