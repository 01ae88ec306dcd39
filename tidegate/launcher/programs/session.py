"""Keeps the settings that decide where and how large a run is, and who sees it, whatever a script sets by itself.

Spark prefers what a program gives to `SparkSession.builder` or `SparkConf` to what `spark-submit` was told. With a
master `local[*]` of its own, or an event log that is off, a job would run where nobody sees it.

Jars that a program asks for there come too late: its JVM runs already, and only `spark-submit` puts them on the class
path. A job that was started with `python job.py` before may do so, and fails for want of a class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

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

_TOO_LATE = {"spark.jars.packages": "application.conf", "spark.jars": "application.jars"}
"""Settings of which Spark takes no notice in a JVM that runs, and the field of the job file where they belong."""
_MAX_CHARS = 200
"""No more of such a setting is told."""


def keep_settings(say: Callable[[str], None], too_late: Callable[[str], None]) -> None:
    """Wrap how PySpark makes the JVM's context; `say` each setting of a script's that does not hold.

    `too_late` is told, in a sentence, which jars a script asks for that it does not get.
    """
    create = SparkContext._initialize_context

    def create_with_kept(context: Any, settings: Any) -> Any:
        ours = dict(SparkConf(_jvm=context._jvm).getAll())
        for name, value in ours.items():
            theirs = settings.get(name, "")  # a `SparkConf(loadDefaults=False)` may have none of ours
            if name.startswith(_KEPT) and theirs != value:
                if theirs:
                    say(f"the program sets {name} to {theirs}, but Tidegate has set it to {value}, which holds")
                settings.set(name, value)
        for name, place in _TOO_LATE.items():
            theirs = settings.get(name, "")
            if theirs and theirs != ours.get(name):
                too_late(
                    f"The program itself sets {name} to {theirs[:_MAX_CHARS]}, which is too late for its class path:"
                    f" say so in {place} of the job file."
                )
        context.master = settings.get("spark.master", context.master)  # PySpark has read it before
        return create(context, settings)

    SparkContext._initialize_context = create_with_kept


def refuse_connect() -> None:
    """Have a script fail that makes a session of Spark Connect, before it can start a query."""
    for name in ("getOrCreate", "create"):
        original = getattr(SparkSession.Builder, name)

        @functools.wraps(original)
        def made(builder: Any, _original: Callable[[Any], Any] = original) -> Any:
            session = _original(builder)
            if not isinstance(session, SparkSession):
                raise TypeError(
                    "The program uses Spark Connect, under which Tidegate cannot start and stop its queries: leave out"
                    " `remote`, `spark.remote` and `spark.api.mode`, also in the environment and in application.conf."
                )
            return session

        setattr(SparkSession.Builder, name, made)
