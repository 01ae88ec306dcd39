"""Get what the embedded stack needs besides the Python packages: Java, the jars, a Redis server.

`python -m tidegate.stack.setup` is safe to repeat and does only what is missing. `--write-lock` fetches all jars again
and writes their checksums to `jars.lock`.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from tidegate.interrupts import interruptible
from tidegate.stack.class_data import ensure_class_data
from tidegate.stack.errors import StackError
from tidegate.stack.jars import lock_all
from tidegate.stack.java import ensure_java
from tidegate.stack.toolbox import prepare

tell = partial(print, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.stack.setup", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write-lock", action="store_true", help="fetch all jars again and write their checksums")
    options = parser.parse_args(arguments)
    try:
        with interruptible():
            return _set_up(options.write_lock)
    except KeyboardInterrupt:
        tell("setup: interrupted")
        return 130


def _set_up(write_lock: bool) -> int:
    try:
        if write_lock:
            lock_all(ensure_java(tell), tell)
        tools = prepare(tell)
    except (StackError, OSError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    print(f"Java {tools.java.version} in {tools.java.home}")
    print(f"Redis {tools.redis.version}: {tools.redis.executable}")
    for name, jars in (("Kafka", tools.kafka_jars), ("Spark connector", tools.connector_jars)):
        print(f"{name}: {len(jars)} jars in {jars[0].parent}")
    try:
        print(f"Spark's classes: {ensure_class_data(tools.java, tell)}")
    except (StackError, OSError) as error:
        tell(f"setup: {error}\nsetup: without it, JVMs start slower, and all else works")
    return 0


if __name__ == "__main__":
    sys.exit(main())
