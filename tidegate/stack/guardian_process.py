"""The guardian process: `python -m tidegate.stack.guardian_process WORK_DIR STACK_ID`, its owner's pipe as stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from tidegate.stack.errors import StackError
from tidegate.stack.guardian import STAND_DOWN
from tidegate.stack.stack import down


def main() -> int:
    """Wait for the end of the pipe; end the stack unless told to stand down."""
    work_dir, stack_id = Path(sys.argv[1]), sys.argv[2]
    if sys.stdin.buffer.read() == STAND_DOWN:
        return 0
    try:
        if down(work_dir, wait_seconds=30, only=stack_id):
            print(f"the owner of stack {stack_id} is gone: ended the stack", flush=True)
    except StackError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
