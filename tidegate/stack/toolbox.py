"""What the embedded stack needs besides the Python packages: Java, the jars, a Redis server. Found or fetched."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.stack.jars import KAFKA, SPARK_KAFKA, ensure_jars, spark_home
from tidegate.stack.java import Java, ensure_java
from tidegate.stack.redis import RedisServer, find_redis


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The checked tools that the stack runs with."""

    java: Java
    redis: RedisServer
    spark_home: Path
    kafka_jars: tuple[Path, ...]
    connector_jars: tuple[Path, ...]


def prepare(on_progress: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Toolbox:
    """Find or fetch all parts. Raises StackError with the missing one and what to do."""
    java = ensure_java(on_progress, environ)
    return Toolbox(
        java=java,
        redis=find_redis(environ),
        spark_home=spark_home(),
        kafka_jars=tuple(ensure_jars(KAFKA, java, on_progress, environ)),
        connector_jars=tuple(ensure_jars(SPARK_KAFKA, java, on_progress, environ)),
    )


class ProgressLine:
    """Prints progress: on a terminal in one line, elsewhere a line per message."""

    def __init__(self) -> None:
        self._open = False

    def __call__(self, text: str) -> None:
        """Show `text` as the current step."""
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            self._open = True
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line, so that other output can follow."""
        if self._open:
            print(file=sys.stderr)
            self._open = False
