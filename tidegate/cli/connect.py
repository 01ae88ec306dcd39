"""Finding the broker: by an option, a variable, or the embedded stack that runs here."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.problems import Problem
from tidegate.client import ClientSettings, check_reachable, current_specs
from tidegate.events.job import JobSpec
from tidegate.runtime.topics import ensure_topics
from tidegate.stack import StackError, StackInfo
from tidegate.stack.info import info_path
from tidegate.stack.stack import DEFAULT_WORK_DIR

DEMO_DIR = Path(".tidegate/demo")
DEMO_STACK_DIR = DEMO_DIR / "stack"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        envvar="TIDEGATE_BOOTSTRAP_SERVERS",
        show_envvar=True,
        metavar="HOST:PORT",
        help="Kafka brokers. Default: the embedded ones that run here.",
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        "--topic-prefix", envvar="TIDEGATE_TOPIC_PREFIX", help="Prefix of the topics.", show_default="tidegate."
    ),
]
StackDir = Annotated[
    Path | None,
    typer.Option(
        "--work-dir",
        envvar="TIDEGATE_STACK_DIR",
        help="Folder of the embedded stack.",
        show_default=".tidegate/stack",
    ),
]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as shown by `tidegate jobs`.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="AGE|INSTANT",
        help="From when on: 90s, 10m, 2h or 1d ago, or an instant such as 2026-01-31T12:00:00Z.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, as they are on the topic.")]


def stack_dir(given: Path | None = None) -> Path:
    """Return the embedded stack's folder: the given one, else that of a running stack, which may be the demo's."""
    if given is not None:
        return given
    if chosen := os.environ.get("TIDEGATE_STACK_DIR"):
        return Path(chosen)
    return next(
        (folder for folder in (DEFAULT_WORK_DIR, DEMO_STACK_DIR) if info_path(folder).exists()), DEFAULT_WORK_DIR
    )


def connect(bootstrap_servers: str | None, topic_prefix: str | None = None) -> ClientSettings:
    """Return the settings for reaching the broker; raises `Problem` if none is given and no embedded stack runs."""
    given: dict[str, object] = {} if topic_prefix is None else {"topic_prefix": topic_prefix}
    if bootstrap_servers is not None:
        return ClientSettings(bootstrap_servers=bootstrap_servers, **given)  # type: ignore[arg-type]
    try:
        info = StackInfo.load(stack_dir())
    except StackError:
        raise Problem(
            f"no broker given, and no embedded stack is running in {stack_dir()}",
            "use --bootstrap-servers HOST:PORT, set TIDEGATE_BOOTSTRAP_SERVERS, or run `tidegate up`",
        ) from None
    return ClientSettings(bootstrap_servers=info.bootstrap_servers, **stack_redis(info), **given)  # type: ignore[arg-type]


def connect_apart(bootstrap_servers: str | None, topic_prefix: str | None) -> ClientSettings:
    """Return the settings for publishing a recording under a prefix of its own, whose topics are created.

    They keep records of any age. Raises `Problem` without a prefix.
    """
    if topic_prefix is None:
        raise Problem(
            "--topic-prefix is required: services on the live topics would rescale jobs by this recording",
            "choose a new prefix, such as --topic-prefix try.",
        )
    settings = connect(bootstrap_servers, topic_prefix)
    check_reachable(settings)
    ensure_topics(settings, for_ever=True)
    return settings


def stack_redis(info: StackInfo) -> dict[str, object]:
    """Return the settings of an embedded stack's Redis."""
    return {"redis_url": info.redis_url, "redis_password": info.redis_password}


NAMED = 5
"""How many jobs of similar names an error names."""


def spec_of(settings: ClientSettings, job: str) -> JobSpec:
    """Return a job's current spec; raises `Problem` with the known jobs if there is none."""
    specs = current_specs(settings)
    if job not in specs:
        alike = get_close_matches(job, specs, n=NAMED, cutoff=0.0)
        known = ", ".join(alike) if specs else "none; add one with `tidegate apply job.yaml`"
        more = f", and {len(specs) - len(alike)} more; `tidegate jobs` shows all" if len(specs) > len(alike) else ""
        what = f"Tidegate does not manage a job {job!r} at {settings.bootstrap_servers}"
        raise Problem(what, f"known jobs: {known}{more}")
    return specs[job]


_AGE = re.compile(r"^(\d+(?:\.\d+)?)\s*(s|m|min|h|d)$")
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def instant_of(since: str | None, name: str = "--since") -> datetime | None:
    """Return the instant that an option gives as an age or in RFC 3339; raises `Problem` otherwise."""
    if since is None:
        return None
    try:
        if matched := _AGE.match(since.strip()):
            return datetime.now(UTC) - timedelta(seconds=float(matched[1]) * _UNITS[matched[2]])
        instant = datetime.fromisoformat(since)
    except (ValueError, OverflowError):  # the latter for an age before the first year
        instant = None
    if instant is None or instant.tzinfo is None:
        raise Problem(
            f"{name} {since!r} is neither an age nor an instant",
            "write 90s, 10m, 2h, 1d, or an instant with its offset such as 2026-01-31T12:00:00Z",
        )
    return instant


def refuse_since(since: str | None) -> None:
    """Raise `Problem` if a time is given for a recording or an archive."""
    if since is not None:
        raise Problem(
            "--since is for the topics; what --from names is read whole",
            "leave one of them out; `tidegate archive export` takes some days of an archive",
        )
