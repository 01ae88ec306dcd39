"""`tidegate replay step`: a recording event by event, at a key or at its pace, with the engine deciding along."""

from __future__ import annotations

import io
import os
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.connect import connect_apart
from tidegate.cli.problems import Problem
from tidegate.installed import engine
from tidegate.replay.publish import Move, Sender, check_kept, mover, unmoved
from tidegate.replay.schedule import Departure, Schedule, schedule
from tidegate.replay.walk import Walk, WalkedEvent, details, heading
from tidegate.terminal import is_terminal, stderr, stdout

HELP = "Enter or space: next event · n: next decision · j: next event of this job · q: quit"


class Key(Enum):
    """What a key asks for."""

    EVENT = "event"
    DECISION = "decision"
    JOB = "job"
    QUIT = "quit"


KEYS = {"\n": Key.EVENT, "\r": Key.EVENT, " ": Key.EVENT, "n": Key.DECISION, "j": Key.JOB, "q": Key.QUIT}
SLOWEST = 0.001
"""The smallest --speed: at this one a recorded minute lasts 17 hours."""
NO_INPUT = ("", "\x04")
"""What a key press is when the input has ended; the second is Ctrl-D."""


def step(
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="The recording.")],
    speed: Annotated[
        str | None,
        typer.Option("--speed", metavar="FACTOR|max", help="Do not wait for keys: 1 is the recorded pace."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only this job.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="HOST:PORT", help="Also publish each event to these Kafka brokers.")
    ] = None,
    topic_prefix: Annotated[
        str | None, typer.Option("--topic-prefix", help="Prefix of the topics to write to; required with --to.")
    ] = None,
    rebase: Annotated[
        bool, typer.Option("--rebase", help="With --to: move everything to now, as `tidegate replay publish` does.")
    ] = False,
) -> None:
    """Go through a recording event by event.

    Specs, results and snapshots come in their recorded order. On each snapshot the engine decides with what the
    recorded decision had seen; shown are the decision, the guards, what the engine then knows, and whether the recorded
    decision is the same. Enter goes to the next event, n to the next decision, j to the next event of the same job, q
    quits; with --speed nothing waits for keys. Keys may also come from a pipe.

    With --to, each event is also published, under a prefix of its own, so that a decider there can be watched. What
    `tidegate replay publish --help` says of prefix and pace holds here too.

    Example:  tidegate replay step --from noon --job rates
              tidegate replay step --from noon --speed 10
    """
    pace = None if speed is None else speed_of(speed)
    if to is None and (topic_prefix is not None or rebase):
        raise Problem("--topic-prefix and --rebase are for publishing", "name the broker with --to HOST:PORT")
    with ExitStack() as opened:
        departures = schedule(source, job=job, whole=True)
        walk = opened.enter_context(closing(Walk(source, engine(), job)))
        if not departures:
            raise Problem(f"{source}: nothing to step through" + (f" of job {job!r}" if job else ""))
        publish = None if to is None else opened.enter_context(_published(to, topic_prefix, source, departures, rebase))
        keys = opened.enter_context(_keys()) if speed is None else None
        _go(departures, walk, keys, pace, publish)


def _go(
    departures: Schedule,
    walk: Walk,
    keys: Iterator[Key] | None,
    pace: float | None,
    publish: Callable[[Departure], None] | None,
) -> None:
    """Show the events, each when a key asks for it, or when it is due; without keys and pace, all at once."""
    asked, last = Key.EVENT, ""
    started = time.monotonic()
    for count, departure in enumerate(departures, 1):
        if pace is not None:
            due = started + (departure.due_ms - departures.start_ms) / 1000 / pace
            time.sleep(min(max(0.0, due - time.monotonic()), threading.TIMEOUT_MAX))
        if publish is not None:
            publish(departure)
        walked = walk.take(departure)
        if keys is None:
            _show(walked, count, len(departures))
            continue
        if (asked is Key.DECISION and walked.decision is None) or (asked is Key.JOB and walked.job_id != last):
            continue
        _show(walked, count, len(departures))
        last, asked = walked.job_id, next(keys, Key.QUIT)
        if asked is Key.QUIT:
            return


def _show(walked: WalkedEvent, count: int, total: int) -> None:
    out = stdout()
    out.print(f"[{count}/{total}] {heading(walked)}", style="bold" if walked.decision else "")
    for line in details(walked):
        out.print(f"    {line}", style="bold red" if "DIFFERS" in line else "")


@contextmanager
def _published(
    to: str, prefix: str | None, source: Path, departures: Schedule, rebase: bool
) -> Iterator[Callable[[Departure], None]]:
    """Yield what publishes an event; at the end everything has been acknowledged."""
    settings = connect_apart(to, prefix)
    if not rebase:
        check_kept(settings, departures)
    move: Move = mover(source, departures, 1.0)[1] if rebase else unmoved
    sender = Sender(settings, moved=rebase)

    def publish(departure: Departure) -> None:
        moved = move(departure)
        if moved is not None:
            time.sleep(max(0.0, sender.due(moved) - time.monotonic()))
            sender.send(moved)
            sender.flush()

    try:
        yield publish
    finally:
        sender.flush()


@contextmanager
def _keys() -> Iterator[Iterator[Key]]:
    """Yield the keys pressed; on a terminal each at once, from a pipe line by line."""
    if not is_terminal(sys.stdin):
        yield _from_lines()
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        stderr().print(HELP, style="dim")
        yield _from_terminal(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _from_terminal(descriptor: int) -> Iterator[Key]:
    while (pressed := os.read(descriptor, 1).decode("utf-8", "replace")) not in NO_INPUT:
        if pressed in KEYS:
            yield KEYS[pressed]
        else:
            stderr().print(HELP, style="dim")


def _from_lines() -> Iterator[Key]:
    """Yield the keys in each line; an empty line is Enter."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="backslashreplace")
    for line in sys.stdin or ():  # None if it is closed from the start
        for pressed in line.rstrip("\r\n") or "\n":
            if pressed not in KEYS:
                raise Problem(f"standard input: {pressed!r} is no key", HELP)
            yield KEYS[pressed]


def speed_of(text: str) -> float | None:
    """Return how many recorded seconds pass in one, None for `max`; raises `Problem`."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not SLOWEST <= speed < float("inf"):
        raise Problem(
            f"--speed {text!r} is neither a factor above 0 nor max",
            f"1 is the recorded pace, 10 is ten times as fast; at least {SLOWEST:g}",
        )
    return speed
