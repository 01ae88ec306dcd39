"""The guardian: a small process that ends a stack whose owner died, by waiting for a pipe that only the owner holds.

The kernel closes the pipe however the owner ends, even by SIGKILL. If the owner tells the guardian to stand down first,
it exits and changes nothing. This is the owner's side; the process is `tidegate.stack.guardian_process`.
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
                # Without -P, a file of the user's such as random.py would be imported instead of Python's.
                [sys.executable, "-P", "-m", "tidegate.stack.guardian_process", str(work_dir), stack_id],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the owner's terminal must not reach it.
                start_new_session=True,
            )

    def stand_down(self) -> None:
        """Let the stack outlive its owner."""
        try:
            self._child.communicate(STAND_DOWN, timeout=10)
        except subprocess.TimeoutExpired:
            self.end()

    def end(self) -> None:
        """End the guardian when there is nothing left to guard; safe during or after `stand_down`."""
        with self._child:
            self._child.kill()
