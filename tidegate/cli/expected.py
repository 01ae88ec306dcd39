"""Which errors Tidegate expects, of all its packages, and what to say of each. All others are bugs of Tidegate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from confluent_kafka import KafkaError, KafkaException
from pydantic import ValidationError
from pydantic_settings import SettingsError

from tidegate.archive.keys import BadKey
from tidegate.archive.manifest import ArchivedAlready
from tidegate.archive.prove import NotTrusted
from tidegate.archive.statements import BadStatement, StatementTaken
from tidegate.archive.store import BadArchive, InUse
from tidegate.archive.stream import CannotArchive
from tidegate.archive.upkeep import Incomplete
from tidegate.cli.problems import Problem
from tidegate.client import NoLogin, NoSuchTopic, Unreachable
from tidegate.engine.third_party import PolicyFailed
from tidegate.events.invalid import RAISED, first_problem
from tidegate.operate import SpecRefused
from tidegate.replay.audit.run import CannotAudit
from tidegate.replay.files import BadRecording
from tidegate.replay.publish import TooOld
from tidegate.replay.ranges import TopicUnreadable
from tidegate.replay.recompute import CannotRecompute
from tidegate.replay.record import CannotRecord
from tidegate.replay.source import NoSpark
from tidegate.runtime.producer import NotDelivered, said
from tidegate.runtime.topics import TopicsDoNotFit
from tidegate.stack import StackError
from tidegate.twin.load import BadLoad
from tidegate.twin.recorded import CannotCalibrate
from tidegate.whatif.recorded import CannotTry

EXPECTED: Mapping[type[Exception], str] = {
    NoLogin: "check the variables TIDEGATE_SASL_… and TIDEGATE_SSL_…; docs/how-to/security.md says what they need",
    Unreachable: "start Kafka (`tidegate up` starts an embedded one) or check --bootstrap-servers",
    NoSuchTopic: "check --topic-prefix; `tidegate doctor --create-topics` creates the topics",
    TopicsDoNotFit: "`tidegate doctor` shows which topics exist and which are needed",
    TimeoutError: "the broker is slow; try again, or use a shorter --since",
    TooOld: "move them to now with --rebase, or choose a new --topic-prefix: its topics will keep records of any age",
    BadRecording: "`tidegate replay record --to DIR` makes a recording",
    **dict.fromkeys((StackError, SpecRefused, NoSpark, BadLoad, CannotCalibrate, CannotTry), ""),
    PolicyFailed: "tell the authors of that package, or choose another policy",
    TopicUnreadable: "`tidegate doctor` shows which topics exist and which are needed",
    **dict.fromkeys((CannotRecord, CannotRecompute, CannotAudit), ""),
    **dict.fromkeys((CannotArchive, BadArchive, InUse, ArchivedAlready, Incomplete), ""),
    **dict.fromkeys((BadKey, NotTrusted, BadStatement, StatementTaken), ""),
}
"""Errors whose text says what is wrong, each with a hint."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""Typer's error for wrong options and arguments, which it does not export."""

NO_RIGHT = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""What a broker answers to a user whom its ACLs do not allow it."""

OPTIONAL = ("pyspark", "pyarrow", "cryptography", "jinja2", "zstandard")
"""Packages of the extra `replay`, which commands on Spark need."""


def problem_of(error: BaseException) -> Problem | None:
    """Return an expected error as a `Problem`, or None if it is a bug of Tidegate."""
    for kind, hint in EXPECTED.items():
        if isinstance(error, kind):
            return Problem(str(error), hint)
    match error:
        case Problem():
            return error
        case NotDelivered():
            return Problem(
                f"the broker did not acknowledge: {error}", "check the broker's log, and run `tidegate doctor`"
            )
        case KafkaException() if isinstance(error.args[0], KafkaError) and error.args[0].code() in NO_RIGHT:
            return Problem(f"Kafka: {said(error)}", "docs/how-to/security.md lists the rights that each user needs")
        case KafkaException():
            return Problem(f"Kafka: {said(error)}", "`tidegate doctor` checks the broker")
        case ModuleNotFoundError() if error.name in OPTIONAL:
            return Problem(f"{error.name} is not installed", "pip install 'tidegate[replay]'")
        case ValidationError():
            return _invalid(error)
        case SettingsError():
            return Problem(f"{error}: {error.__cause__}", "the value of this TIDEGATE_… variable must be JSON")
        case OSError():  # a name too long, a full disk, a file system elsewhere: what ends a command, and is no bug
            what = error.strerror or str(error)
            return Problem(what if error.filename is None else f"{error.filename}: {what}")
        case UsageError() if type(error).show is UsageError.show:  # the help itself comes as such an error too
            command = f"{error.ctx.command_path} --help" if error.ctx else "tidegate --help"
            whole = " ".join(error.format_message().split())  # choices come in lines of their own
            text = whole.rstrip(".").replace(RAISED, "")  # Typer checks choices with pydantic
            return Problem(text, f"`{command}` shows how to use it")
        case _:
            return None


def _invalid(error: ValidationError) -> Problem:
    """Return what is wrong with a setting, or with another value, such as a figure that the twin has measured."""
    if error.title.endswith("Settings"):
        what = f"setting {first_problem(error, error.title)}"
        return Problem(what, "settings come from options and TIDEGATE_… variables")
    found = error.errors(include_url=False)[0]["input"]
    what = f"{error.title}: {first_problem(error, 'value')}, found {found!r:.80}"
    return Problem(what, "a figure that was given, or one that follows from it, is out of range")
