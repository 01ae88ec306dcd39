"""Brings a Java file of the launcher into the driver's JVM.

Janino compiles it: Spark has this compiler for the code that it generates. So nobody needs a JDK, and Tidegate ships no
jar.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

_JAVA = 8
"""The version of Java that Janino understands best, and every later one runs."""


def load_java(jvm: Any, source: Path, files: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Compile a Java file, and put its classes, and other `files`, on the class path of the JVM's programs."""
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
