"""Ends a stack whose owner died: a small process that waits for the end of a pipe which only the owner holds.

The kernel closes the pipe however the owner ends, SIGKILL included. Told to stand down first, it goes quietly. This is
the owner's side; the process itself is `tidegate.stack.guardian_process`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STAND_DOWN = b"stand down\n"


class Guardian:
    """The owner's side of the pipe."""

    def __init__(self, work_dir: Path, stack_id: str) -> None:
        with (work_dir / "logs" / "guardian.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "tidegate.stack.guardian_process", str(work_dir), stack_id],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the owner's terminal must not reach it.
                start_new_session=True,
            )

    def stand_down(self) -> None:
        """Lets the stack live on without its owner."""
        try:
            self._child.communicate(STAND_DOWN, timeout=10)
        except subprocess.TimeoutExpired:
            self.end()

    def end(self) -> None:
        """Ends it, when there is nothing left to guard; safe in the midst of `stand_down` or after it."""
        with self._child:
            self._child.kill()
