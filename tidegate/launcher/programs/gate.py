"""Brings the gate into the driver's JVM, and shows an application of that JVM as PySpark would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import SparkConf

from tidegate.launcher.spark.java import load_java

_PROVIDERS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"


def load_gate(jvm: Any) -> Any:
    """Put the gate where every class loader of the program finds it; return the class.

    It must be there before the first session: Spark looks for extensions when it makes one.
    """
    load_java(jvm, Path(__file__).with_name("Gate.java"), {_PROVIDERS: b"tidegate.Gate\n"})
    return jvm.tidegate.Gate


class DriverContext:
    """The part of a PySpark SparkContext that the launcher uses, of an application that Python did not start."""

    def __init__(self, jvm: Any, spark: Any) -> None:
        self._jvm = jvm
        self._jsc = jvm.JavaSparkContext.fromSparkContext(spark)
        self._conf = SparkConf(_jconf=spark.getConf())
        self.applicationId = str(spark.applicationId())
        self.master = str(spark.master())

    @property
    def stopped(self) -> bool:
        """Whether the program has stopped the application."""
        return bool(self._jsc.sc().isStopped())

    def getConf(self) -> SparkConf:  # noqa: N802 - PySpark's name
        """Return the settings with which the application was started."""
        return self._conf
