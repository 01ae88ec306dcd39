"""A job in Scala: its jar is made with the compiler that Spark brings along, so that a test needs no JDK."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.support.programs import captured
from tidegate.stack.jars import spark_home
from tidegate.stack.java import find_java

SOURCE = Path(__file__).with_name("jvm") / "Copy.scala"
MAIN_CLASS = "example.Copy"


def make_jar(folder: Path) -> Path:
    """Compile the job, return its jar."""
    classes, jar = folder / "classes", folder / "copy.jar"
    classes.mkdir()
    class_path = str(spark_home() / "jars" / "*")
    scalac = [str(find_java().executable), "-XX:TieredStopAtLevel=1", "-cp", class_path, "scala.tools.nsc.Main"]
    command = [*scalac, "-usejavacp", "-d", str(classes), str(SOURCE)]
    done = captured(*command, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(jar, "w") as file:
        for path in sorted(classes.rglob("*.class")):
            file.write(path, path.relative_to(classes))
    return jar
