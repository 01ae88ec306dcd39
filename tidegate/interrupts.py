"""Ctrl-C and SIGTERM that do not get lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a `__del__` it is printed and dropped, and an
extension in C or Rust may turn it into another error. This module remembers the signal and raises it again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_interrupted = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt. If it gets lost, the next `check` or the end raises it again.

    A signal that is ignored stays ignored: shells do that for background processes of a script. In threads other than
    the main thread, which get no signals, this does nothing.
    """
    global _interrupted  # noqa: PLW0603  (signals are the whole process's)
    if not _in_main_thread():
        yield
        return
    try:
        with _handled_by(_interrupt):
            try:
                yield
            except Exception:
                check()  # the error may be a lost interrupt
                raise
            check()
    finally:
        _interrupted = False


def check() -> None:
    """Raise KeyboardInterrupt if a signal came and got lost; for loops that wait."""
    if _interrupted and _in_main_thread():
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM while cleaning up."""
    if not _in_main_thread():
        yield
        return
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back while something starts that would otherwise be left behind; then raise them."""
    if not _in_main_thread():
        yield
        return
    came: list[int] = []
    with _handled_by(lambda number, _frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Take back the handler of SIGINT that a library installs while it starts."""
    former = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if former is not None and _in_main_thread():
            signal.signal(signal.SIGINT, former)


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: known for number, known in former.items() if known not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _interrupted  # noqa: PLW0603
    _interrupted = True
    raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
