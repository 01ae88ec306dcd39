"""Ctrl-C and SIGTERM that are not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. In a `__del__` it is printed and dropped, and an
extension in C or Rust may make an error of its own of it. So here it is remembered as well, and raised again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_came = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt: if it is lost, at the next `check`, at the latest as this ends.

    A signal that is ignored stays ignored: so do shells protect what a script starts in the background. Only the main
    thread hears signals; in any other this does nothing.
    """
    global _came  # noqa: PLW0603  (signals are the whole process's)
    if not _hears():
        yield
        return
    try:
        with _handled_by(_interrupt):
            try:
                yield
            except Exception:
                check()  # the error may be what became of the interrupt
                raise
            check()
    finally:
        _came = False


def check() -> None:
    """Raise KeyboardInterrupt if the block that runs was interrupted and goes on; for loops that wait."""
    if _came and _hears():
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let no second Ctrl-C cut a clean-up short."""
    if not _hears():
        yield
        return
    with _handled_by(signal.SIG_IGN):
        yield


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
    global _came  # noqa: PLW0603
    _came = True
    raise KeyboardInterrupt


def _hears() -> bool:
    return threading.current_thread() is threading.main_thread()
