"""How a service starts and ends: settings, logs, signals, and a last log line that says how it ended."""

from __future__ import annotations

import logging
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException
from pydantic import ValidationError
from pydantic_settings import SettingsError

from tidegate.events.invalid import in_words
from tidegate.runtime.dead_letters import TooManyDeadLetters
from tidegate.runtime.extras import WRONG_SET_UP
from tidegate.runtime.logs import configure, log_stopped
from tidegate.runtime.producer import said
from tidegate.runtime.reach import Unreachable
from tidegate.runtime.settings import ServiceSettings, UnknownSetting
from tidegate.runtime.topics import TopicsDoNotFit, TopicsLost

S = TypeVar("S", bound=ServiceSettings)

FAILED = 1
"""Exit code for every other error: starting again may help."""
EXPLAINED = (TooManyDeadLetters, KafkaException, Unreachable, TopicsLost, TimeoutError)
"""Errors whose text says enough; any other is logged with its traceback."""


def read_settings(name: str, settings: type[S]) -> S:
    """Return the settings; if they are wrong, write one line per problem and exit with `WRONG_SET_UP`."""
    try:
        settings.refuse_unknown()
        return settings()
    except UnknownSetting as error:
        sys.stderr.write(f"{name}: {error}\n")
    except ValidationError as error:
        for problem in error.errors(include_url=False, include_input=False):
            sys.stderr.write(f"{name}: {in_words(problem, 'settings')}\n")
    except SettingsError as error:  # no JSON
        sys.stderr.write(f"{name}: {error}: {error.__cause__}\n")
    raise SystemExit(WRONG_SET_UP)


def take_no_arguments(name: str) -> None:
    """End the process if it was started with arguments: a service that ignored `--help` would start."""
    ArgumentParser(
        f"python -m services.{name}",
        description=f"Run Tidegate's {name}. It takes no arguments: its settings are environment variables, such as"
        " TIDEGATE_BOOTSTRAP_SERVERS. docs/reference/settings.md lists them.",
    ).parse_args()


def run_service(name: str, settings_type: type[S], run: Callable[[S], int]) -> int:
    """Run a service until `run` returns its exit code, raises, or a signal ends it; return the exit code."""
    settings = read_settings(name, settings_type)
    configure(name, settings)
    signals: list[int] = []

    def end_start(number: int, _: object) -> None:
        signals.append(number)
        sys.exit(0)

    # Until `run` installs its own handlers, a signal must end the start as well: process 1 of a container would
    # ignore it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_start)
    log = logging.getLogger(name)
    try:
        code = run(settings)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FAILED
    except TopicsDoNotFit as error:
        log.critical("%s", error)
        code = WRONG_SET_UP
    except Exception as error:
        if signals:  # librdkafka replaces an exit that starts in one of its callbacks by another error
            code = 0
        else:
            where = f"Kafka at {settings.bootstrap_servers}: " if isinstance(error, KafkaException) else ""
            log.critical("cannot continue: %s%s", where, said(error), exc_info=not isinstance(error, EXPLAINED))
            code = FAILED
    log_stopped(name, code)
    return code
