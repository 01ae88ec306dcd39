"""`python -m tidegate.stack up|down|status`: the embedded stack from a shell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidegate.stack.errors import StackError
from tidegate.stack.stack import (
    DEFAULT_WORK_DIR,
    DEFAULT_WORKER_MEMORY,
    DEFAULT_WORKER_SLOTS,
    down,
    status,
    up,
)
from tidegate.stack.toolbox import ProgressLine


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code (1: failed, 3: `status` found something that is not running)."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.stack", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument("--work-dir", type=Path, default=DEFAULT_WORK_DIR)
    parser.add_argument("--workers", type=int, default=1, help="Spark workers (up)")
    parser.add_argument("--worker-slots", type=int, default=DEFAULT_WORKER_SLOTS, help="cores of each worker (up)")
    parser.add_argument("--worker-memory", default=DEFAULT_WORKER_MEMORY, help="memory of each worker (up)")
    parser.add_argument("--without", action="append", choices=("kafka", "redis", "spark"), default=[], help="(up)")
    parser.add_argument("--purge", action="store_true", help="remove data and logs as well (down)")
    options = parser.parse_args(arguments)
    progress = ProgressLine()
    try:
        if options.action == "up":
            up(
                options.work_dir,
                kafka="kafka" not in options.without,
                redis="redis" not in options.without,
                spark="spark" not in options.without,
                workers=options.workers,
                worker_slots=options.worker_slots,
                worker_memory=options.worker_memory,
                on_progress=progress,
            )
        elif options.action == "down":
            found = down(options.work_dir, purge=options.purge, on_progress=progress)
            progress.close()
            print("ended" if found else f"no stack in {options.work_dir}")
            return 0
    except (StackError, KeyboardInterrupt) as error:
        progress.close()
        print(f"stack: {error or 'interrupted'}", file=sys.stderr)
        return 1
    progress.close()
    states = status(options.work_dir)
    if not states:
        print(f"no stack in {options.work_dir}")
    for line in states:
        print(f"{line.name:16} {line.state:12} {line.pid or '-':>8}  {line.endpoint:28} {line.log}")
    return 0 if states and all(line.state in ("running", "not started") for line in states) else 3


if __name__ == "__main__":
    sys.exit(main())
