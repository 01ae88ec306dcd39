"""Keeps the settings that decide where and how large a run is, and who sees it, whatever a script sets by itself.

Spark prefers what a program gives to `SparkSession.builder` or `SparkConf` to what `spark-submit` was told. With a
master `local[*]` of its own, or an event log that is off, a job would run where nobody sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import SparkConf, SparkContext

_KEPT = (
    "spark.master",
    "spark.cores.max",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.dynamicAllocation.",
    "spark.decommission.enabled",
    "spark.storage.decommission.",
    "spark.eventLog.enabled",
    "spark.eventLog.dir",
    "spark.eventLog.rolling.enabled",
    "spark.eventLog.compress",
    "spark.tidegate.",
)
"""How the names of settings begin that the actuator sets; without memory, which a script may know better."""


def keep_settings(say: Callable[[str], None]) -> None:
    """Wrap how PySpark makes the JVM's context; `say` each setting of a script's that does not hold."""
    create = SparkContext._initialize_context

    def create_with_kept(context: Any, settings: Any) -> Any:
        for name, value in SparkConf(_jvm=context._jvm).getAll():
            theirs = settings.get(name, value)
            if name.startswith(_KEPT) and theirs != value:
                say(f"the program sets {name} to {theirs}, but Tidegate has set it to {value}, which holds")
                settings.set(name, value)
        context.master = settings.get("spark.master", context.master)  # PySpark has read it before
        return create(context, settings)

    SparkContext._initialize_context = create_with_kept
