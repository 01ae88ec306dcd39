"""Where the tests' Kafka, Redis and Spark come from; each part starts when a test first asks for it.

`embedded` runs them as processes (the product's own stack), `attach` uses a stack that runs already, `containers`
(in `containers.py`) runs the official images with the same settings.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from tidegate.stack import Stack, StackInfo, down, up

WORKER_SLOTS = 8
WORKER_MEMORY = "8g"


class Controllable(Protocol):
    """A server that a test may break and repair."""

    def kill(self) -> None:
        """End it as a crash would."""

    def pause(self) -> None:
        """Freezes it."""

    def resume(self) -> None:
        """Resume it."""

    def start(self) -> None:
        """Starts it again on its data and port, and returns when it is healthy."""


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A standalone cluster. Drivers submitted with `spark.driver.cores=0` leave all slots to executors."""

    master: str
    rest: str
    ui: str
    event_log_dir: Path
    connector_jars: tuple[Path, ...]
    slots: int


class StackProvider(Protocol):
    """The servers and their controls. Methods that return endpoints start the server if needed."""

    @property
    def info(self) -> StackInfo:
        """All endpoints, including those of servers that are not running yet."""

    @property
    def kafka(self) -> Controllable:
        """The broker."""

    @property
    def redis(self) -> Controllable:
        """The Redis server."""

    @property
    def spark_master(self) -> Controllable:
        """The master."""

    @property
    def spark_worker(self) -> Controllable:
        """The (only) worker."""

    def need(self, *, kafka: bool = False, redis: bool = False, spark: bool = False) -> StackInfo:
        """Start the requested servers that are not running, wait until they are healthy, and return the endpoints."""

    def close(self) -> None:
        """Ends what this provider started."""


class ProcessProvider(StackProvider):
    """Plain processes: a stack of our own, or an attached one, which is left running."""

    def __init__(self, work_dir: Path, *, attach: bool) -> None:
        self._attached = attach
        if not attach:
            up(
                work_dir,
                kafka=False,
                redis=False,
                spark=False,
                worker_slots=WORKER_SLOTS,
                worker_memory=WORKER_MEMORY,
                tied=True,
            )
        self._stack = Stack(work_dir)

    @property
    @override
    def info(self) -> StackInfo:
        return self._stack.info

    @property
    @override
    def kafka(self) -> Controllable:
        return self._stack.kafka

    @property
    @override
    def redis(self) -> Controllable:
        return self._stack.redis

    @property
    @override
    def spark_master(self) -> Controllable:
        return self._stack.master

    @property
    @override
    def spark_worker(self) -> Controllable:
        return self._stack.workers[0]

    @override
    def need(self, *, kafka: bool = False, redis: bool = False, spark: bool = False) -> StackInfo:
        self._stack.start(kafka=kafka, redis=redis, spark=spark)
        return self._stack.info

    @override
    def close(self) -> None:
        if not self._attached:
            down(self._stack.work_dir)
            # Logs and event logs stay for a look at a failure; the bulk goes.
            for bulk in ("kafka/data", "spark/local"):
                shutil.rmtree(self._stack.work_dir / bulk, ignore_errors=True)
