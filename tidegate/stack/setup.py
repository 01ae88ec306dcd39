"""Gets everything the embedded stack needs beyond the Python packages: Java, the jars, a Redis server.

`python -m tidegate.stack.setup` is safe to repeat; it does only what is missing. `--write-lock` fetches the jars anew
and writes their checksums to `jars.lock`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.stack.errors import StackError
from tidegate.stack.jars import KAFKA, SPARK_KAFKA, ensure_jars, lock_all, spark_home
from tidegate.stack.java import Java, ensure_java
from tidegate.stack.redis import RedisServer, find_redis


@dataclass(frozen=True, slots=True)
class Toolbox:
    """What the stack runs with, all of it checked."""

    java: Java
    redis: RedisServer
    spark_home: Path
    kafka_jars: tuple[Path, ...]
    connector_jars: tuple[Path, ...]


def prepare(on_progress: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Toolbox:
    """Finds or fetches all parts; raises StackError saying which one cannot be had and what to do."""
    java = ensure_java(on_progress, environ)
    return Toolbox(
        java=java,
        redis=find_redis(environ),
        spark_home=spark_home(),
        kafka_jars=tuple(ensure_jars(KAFKA, java, on_progress, environ)),
        connector_jars=tuple(ensure_jars(SPARK_KAFKA, java, on_progress, environ)),
    )


class ProgressLine:
    """Prints progress: over one line on a terminal, a line each elsewhere."""

    def __init__(self) -> None:
        self._open = False

    def __call__(self, text: str) -> None:
        """Shows `text` as what goes on now."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the line, so that other output can follow."""
        if self._open:
            print(file=sys.stderr)
            self._open = False


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tidegate.stack.setup", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write-lock", action="store_true", help="fetch the jars anew and write their checksums")
    options = parser.parse_args(arguments)
    progress = ProgressLine()
    try:
        if options.write_lock:
            lock_all(ensure_java(progress), progress)
        tools = prepare(progress)
    except StackError as error:
        progress.close()
        print(f"setup: {error}", file=sys.stderr)
        return 1
    progress.close()
    print(f"Java {tools.java.version} in {tools.java.home}")
    print(f"Redis {tools.redis.version}: {tools.redis.executable}")
    for name, jars in (("Kafka", tools.kafka_jars), ("Spark connector", tools.connector_jars)):
        print(f"{name}: {len(jars)} jars in {jars[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
