"""Brings `Gate.java` into the driver's JVM, and shows an application of that JVM as PySpark would.

Janino compiles it: Spark has this compiler for the code that it generates. So nobody needs a JDK, and Tidegate ships no
jar.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pyspark import SparkConf

SOURCE = Path(__file__).with_name("Gate.java")
_PROVIDERS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
_JAVA = 8
"""The version of Java that Janino understands best, and every later one runs."""


def load_gate(jvm: Any) -> Any:
    """Put the gate where every class loader of the program finds it; return the class.

    It must be there before the first session: Spark looks for extensions when it makes one.
    """
    # that of spark-submit, which has the job's jars too
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.cook(SOURCE.name, SOURCE.read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp(prefix="tidegate-gate-"))
    files = {f"{name.replace('.', '/')}.class": bytes(code) for name, code in compiler.getBytecodes().items()}
    files[_PROVIDERS] = b"tidegate.Gate\n"
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for place in [folder, *sorted(folder.rglob("*"))]:
        jvm.java.io.File(str(place)).deleteOnExit()  # the JVM deletes the last one first
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())
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
