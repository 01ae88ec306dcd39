"""Brings the launcher's Java files into the driver's JVM, and shows an application of that JVM as PySpark would.

Janino compiles them: Spark has this compiler for the code that it generates. So nobody needs a JDK, and Tidegate ships
no jar.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark import SparkConf

_PROVIDERS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"
_JAVA = 8
"""The version of Java that Janino understands best, and every later one runs."""


def load_gate(jvm: Any) -> Any:
    """Put the gate where every class loader of the program finds it; return the class.

    It must be there before the first session: Spark looks for extensions when it makes one.
    """
    load_java(jvm, "Gate", {_PROVIDERS: b"tidegate.Gate\n"})
    return jvm.tidegate.Gate


def load_java(jvm: Any, name: str, files: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Compile `<name>.java`, and put its classes, and other `files`, on the class path of the JVM's programs."""
    source = Path(__file__).with_name(f"{name}.java")
    # that of spark-submit, which has the job's jars too
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.setSourceVersion(_JAVA)
    compiler.setTargetVersion(_JAVA)
    compiler.cook(source.name, source.read_text(encoding="utf-8"))
    folder = Path(tempfile.mkdtemp(prefix="tidegate-java-"))
    classes = {f"{each.replace('.', '/')}.class": bytes(code) for each, code in compiler.getBytecodes().items()}
    for path, content in {**classes, **files}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for place in [folder, *sorted(folder.rglob("*"))]:
        jvm.java.io.File(str(place)).deleteOnExit()  # the JVM deletes the last one first
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())


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
