"""A script's own settings of its session, next to those that the actuator has set."""

from __future__ import annotations

import types
from typing import Any

import pytest
from pyspark import SparkContext

from tidegate.launcher.programs.session import keep_settings

OURS = {
    "spark.master": "spark://cluster:7077",
    "spark.cores.max": "4",
    "spark.eventLog.enabled": "true",
    "spark.dynamicAllocation.enabled": "false",
    "spark.executor.memory": "512m",
}


class JavaConf(dict[str, str]):
    """The JVM's SparkConf."""

    def set(self, name: str, value: str) -> None:
        """Set one."""
        self[name] = value

    def getAll(self) -> list[Any]:  # noqa: N802 - the JVM's name
        """Return pairs of Scala."""
        return [types.SimpleNamespace(_1=lambda k=k: k, _2=lambda v=v: v) for k, v in self.items()]


def test_a_script_does_not_move_its_job_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Master, size and event log are the actuator's; other settings hold, and the log says which do not."""
    made: list[JavaConf] = []
    monkeypatch.setattr(SparkContext, "_initialize_context", lambda _context, settings: made.append(settings))
    said: list[str] = []
    keep_settings(said.append)
    own = {"spark.master": "local[*]", "spark.eventLog.enabled": "false", "spark.dynamicAllocation.enabled": "true"}
    own |= {"spark.executor.memory": "4g", "spark.sql.shuffle.partitions": "8"}
    context = types.SimpleNamespace(
        master="local[*]", _jvm=types.SimpleNamespace(SparkConf=lambda _load: JavaConf(OURS))
    )
    SparkContext._initialize_context(context, JavaConf(OURS | own))
    assert made == [OURS | {"spark.executor.memory": "4g", "spark.sql.shuffle.partitions": "8"}]
    assert context.master == OURS["spark.master"]
    assert len(said) == 3
    assert said[0] == (
        "the program sets spark.master to local[*], but Tidegate has set it to spark://cluster:7077, which holds"
    )
