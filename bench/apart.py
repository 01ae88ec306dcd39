"""A benchmark in a process of its own. A new process does not know what is defined in the program that is run."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process


def end_with_parent() -> None:
    """Interrupt this process when its parent is gone: a signal to that one alone would leave it at work, for hours.

    A shell has what it starts in the background ignore that signal, so it gets its handler here.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGINT)  # what the benchmark has started, it ends

    threading.Thread(target=wait, daemon=True).start()
