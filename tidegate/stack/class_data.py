"""An archive of Spark's classes: a JVM that has it maps them into memory, instead of reading and checking each.

It is a dynamic archive of Java's Class Data Sharing (JEP 350). A Spark driver of version 4.2 that runs one small query
takes 5.9 s of CPU with it, and 10.2 s without. It fits one Java and one installation of pyspark. A JVM checks that, and
starts as always where it does not fit, or is not there. A folder in front of the jars on the class path would not fit,
so `SPARK_CONF_DIR` of the embedded stack does not exist.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tidegate.stack.errors import StackError
from tidegate.stack.jars import cache_root, spark_home
from tidegate.stack.java import Java
from tidegate.stack.processes import inherited_by_java

TRAINING = Path(__file__).with_name("training.py")
TRAINING_SECONDS = 300.0
OF = "pyspark "
"""What a line of a note begins with that says which installation its archive is of."""


def class_data() -> Path:
    """Return the file of the archive for the installed pyspark; it may not exist."""
    try:
        home = str(spark_home().resolve())
    except StackError:
        home = ""
    return cache_root() / "classes" / f"spark-{hashlib.sha256(home.encode()).hexdigest()[:12]}.jsa"


def light_jvm() -> str:
    """Return the options of a JVM that starts fast, with the archive, and compiles fast instead of well.

    It prints nothing about an archive that does not fit. Its room for compiled code is that of other JVMs: the 48 MB
    that it would have are full after a few hundred queries, and then Java goes on without a compiler.
    """
    return f"-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC {with_archive()}"


def with_archive() -> str:
    """Return the options of a JVM that maps the archive, and prints nothing about one that does not fit.

    Spark splits options as a shell does.
    """
    return f"{shlex.quote(f'-XX:SharedArchiveFile={class_data()}')} -Xshare:auto -Xlog:disable"


def light_conf() -> dict[str, str]:
    """Return Spark's settings for a job with light JVMs, without a web page, and with a driver that takes no slot."""
    return {
        "spark.driver.extraJavaOptions": light_jvm(),
        "spark.executor.extraJavaOptions": light_jvm(),
        "spark.ui.enabled": "false",
        "spark.driver.cores": "0",
    }


def _jars() -> str:
    """Return a digest of what a JVM compares of the installed jars: their names, sizes and times.

    A second installation in the same place has other times, and its JVMs refuse the archive without a word.
    """
    found = sorted((spark_home() / "jars").glob("*.jar"))
    told = [f"{jar.name} {jar.stat().st_size} {int(jar.stat().st_mtime)}" for jar in found]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def ensure_class_data(java: Java, on_progress: Callable[[str], None]) -> Path:
    """Return the archive; make it, by a small Spark program, if there is none for this Java and these jars.

    Raises StackError if that fails, with the end of the program's output, and if this Java refuses what it has made:
    21 does, since Spark puts slf4j on the class path twice.
    """
    archive = class_data()
    note = archive.with_suffix(".made-for")
    made_for = f"{java.home} {java.version}\njars {_jars()}\n{OF}{spark_home().resolve()}\n"
    refused = StackError(f"Java {java.version} refuses its archive of Spark's classes")
    known = note.read_text("utf-8") if note.exists() else ""
    if known == made_for and archive.exists():
        return archive
    if known == f"{made_for}refused\n":
        raise refused
    on_progress("Making an archive of Spark's classes, with which JVMs start faster; takes half a minute")
    archive.parent.mkdir(parents=True, exist_ok=True)
    _remove_others_of_no_use(archive.parent)
    archive.unlink(missing_ok=True)
    scratch = archive.with_name(f"{archive.name}.{os.getpid()}")
    try:
        done = _submit(java, f"-XX:ArchiveClassesAtExit={scratch}", TRAINING)
        if done.returncode != 0 or not scratch.exists():
            raise StackError(f"no archive of Spark's classes could be made: {(done.stderr or done.stdout)[-500:]}")
        if _submit(java, f"-XX:SharedArchiveFile={scratch}", "--version", share="on").returncode != 0:
            note.write_text(f"{made_for}refused\n", "utf-8")
            raise refused
        note.write_text(made_for, "utf-8")
        scratch.replace(archive)
    except subprocess.TimeoutExpired as error:
        raise StackError(f"no archive of Spark's classes was made within {TRAINING_SECONDS:g} s") from error
    finally:
        scratch.unlink(missing_ok=True)
    return archive


def _remove_others_of_no_use(folder: Path) -> None:
    """Remove the archives of pyspark installations that are gone; each has 170 MB."""
    for note in folder.glob("*.made-for"):
        homes = [line.removeprefix(OF) for line in note.read_text("utf-8").splitlines() if line.startswith(OF)]
        if homes and not Path(homes[0]).exists():
            for path in (note.with_suffix(".jsa"), note):
                path.unlink(missing_ok=True)


def _submit(java: Java, option: str, argument: str | Path, share: str = "auto") -> subprocess.CompletedProcess[str]:
    """Run `spark-submit` in a JVM with an option, as the stack's JVMs are run."""
    environment = inherited_by_java(java.home) | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_CONF_DIR": str(class_data().parent / "none"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{shlex.quote(option)} -Xshare:{share} -XX:+UseSerialGC -Xlog:disable",
    }
    command = [spark_home() / "bin" / "spark-submit", argument]
    return subprocess.run(
        command, env=environment, check=False, capture_output=True, text=True, timeout=TRAINING_SECONDS
    )
