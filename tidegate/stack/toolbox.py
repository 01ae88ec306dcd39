"""What the embedded stack needs besides the Python packages: Java, the jars, a Redis server. Found or fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.stack.jars import KAFKA, ensure_jars, spark_home, spark_kafka
from tidegate.stack.java import Java, ensure_java
from tidegate.stack.redis import RedisServer, ensure_redis


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The checked tools that the stack runs with."""

    java: Java
    redis: RedisServer
    spark_home: Path
    kafka_jars: tuple[Path, ...]
    connector_jars: tuple[Path, ...]


def prepare(on_progress: Callable[[str], None]) -> Toolbox:
    """Find or fetch all parts. Raises StackError with the missing one and what to do."""
    java = ensure_java(on_progress)
    return Toolbox(
        java=java,
        redis=ensure_redis(on_progress),
        spark_home=spark_home(),
        kafka_jars=tuple(ensure_jars(KAFKA, java, on_progress)),
        connector_jars=tuple(ensure_jars(spark_kafka(), java, on_progress)),
    )
