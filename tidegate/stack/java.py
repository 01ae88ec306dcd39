"""Find a Java that runs Kafka 4 and Spark 4.2, or install Debian's if permitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidegate.stack.debian import install_first
from tidegate.stack.errors import StackError

OLDEST_JAVA = 17
# Spark 4.2 passes --add-modules=jdk.incubator.vector to every JVM, which a runtime reduced with jlink may lack.
NEEDED_MODULE = "jdk.incubator.vector"
# Debian 12 ships 17, Debian 13 ships 21.
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
ADVICE = "install a JDK or JRE of version 17 or later and put it on PATH, or point JAVA_HOME at it"


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java: its home folder, which holds `bin/java`, and the version that it reports."""

    home: Path
    version: str

    @property
    def executable(self) -> Path:
        """The `java` program."""
        return self.home / "bin" / "java"


def probe(executable: Path) -> Java:
    """Run `executable` and return what it is. Raises StackError with the reason if it cannot be used."""
    try:
        answer = _run([executable, "-XshowSettings:properties", "-version"])
        modules = _run([executable, "--list-modules"]).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"{executable} does not run: {error}") from error
    found = dict(re.findall(r"^\s+(java\.home|java\.version) = (.+)$", answer.stderr, re.MULTILINE))
    if answer.returncode != 0 or len(found) != 2:
        raise StackError(f"{executable} -version failed ({answer.returncode}): {answer.stderr.strip()[:200]}")
    version = found["java.version"]
    major = re.match(r"(?:1\.)?(\d+)", version)
    if major is None or int(major[1]) < OLDEST_JAVA:
        raise StackError(f"{executable} is Java {version}, but {OLDEST_JAVA} or later is needed")
    if NEEDED_MODULE not in modules:
        raise StackError(f"{executable} lacks the module {NEEDED_MODULE}, which Spark 4.2 needs")
    return Java(Path(found["java.home"]), version)


def _run(command: list[Path | str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first usable Java of JAVA_HOME and PATH. Raises StackError with what is wrong with each."""
    candidates = []
    if home := environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        candidates.append(Path(on_path))
    refusals = []
    for candidate in candidates:
        try:
            return probe(candidate)
        except StackError as error:
            refusals.append(str(error))
    raise StackError("no usable Java: " + ("; ".join(refusals) or "neither JAVA_HOME nor PATH has one"))


def ensure_java(on_progress: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Java:
    """Like `find_java`, but install Debian's package if run as root on a Debian-like system."""
    try:
        return find_java(environ)
    except StackError as error:
        install_first(DEBIAN_PACKAGES, lacking=str(error), advice=ADVICE, on_progress=on_progress, environ=environ)
    return find_java(environ)
