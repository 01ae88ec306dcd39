"""Ends a stack whose owner died: a small process that waits for the end of a pipe which only the owner holds.

The kernel closes the pipe however the owner ends, SIGKILL included. Told to stand down first, it goes quietly.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidegate.stack.errors import StackError
from tidegate.stack.info import StackInfo

STAND_DOWN = b"stand down\n"
# Not `-m`: the package imports this module, and a second copy of it would run.
PROGRAM = "import sys; from tidegate.stack.guardian import main; sys.exit(main())"


class Guardian:
    """The owner's side of the pipe."""

    def __init__(self, work_dir: Path, stack_id: str) -> None:
        with (work_dir / "logs" / "guardian.log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(work_dir), stack_id],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the owner's terminal must not reach it.
                start_new_session=True,
            )

    def stand_down(self) -> None:
        """Lets the stack live on without its owner (or: it is down already)."""
        try:
            self._child.communicate(STAND_DOWN, timeout=10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


def main() -> int:
    """The guardian's side: `WORK_DIR STACK_ID` on the command line, the pipe as standard input."""
    work_dir, stack_id = Path(sys.argv[1]), sys.argv[2]
    if sys.stdin.buffer.read() == STAND_DOWN:
        return 0
    from tidegate.stack.stack import down  # noqa: PLC0415 - that module imports this one

    try:
        if StackInfo.load(work_dir).stack_id == stack_id:
            print(f"the owner of stack {stack_id} is gone: ending the stack", flush=True)
            down(work_dir, wait_seconds=30)
    except StackError as error:
        print(error, flush=True)
        return 1
    return 0
