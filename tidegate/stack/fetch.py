"""Fetch artifacts with Maven or with Ivy, from the Maven repository that the machine's client is configured for."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from tidegate.interrupts import deferred
from tidegate.stack.errors import StackError
from tidegate.stack.java import Java

FETCH_SECONDS = 600.0


class Artifact(NamedTuple):
    """Maven coordinates."""

    group: str
    name: str
    version: str


def fetch_with_maven(
    maven: str, java: Java, artifacts: Sequence[Artifact], transitive: bool, folder: Path, count: Callable[[int], None]
) -> Path:
    """Copy the artifacts into a folder below `folder`; call `count` with the number of jars so far."""
    folder.mkdir(parents=True)
    # The wildcard exclusion means "this artifact only" in Maven.
    exclusions = (
        ""
        if transitive
        else "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    )
    dependencies = "".join(
        f"<dependency><groupId>{a.group}</groupId><artifactId>{a.name}</artifactId><version>{a.version}</version>"
        f"{exclusions}</dependency>"
        for a in artifacts
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tidegate</groupId><artifactId>jars</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>",
        encoding="utf-8",
    )
    jars = folder / "jars"
    command = [maven, "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    _run(command, java, "Copying ", count)
    return jars


def fetch_with_ivy(
    ivy: Path, java: Java, artifacts: Sequence[Artifact], transitive: bool, folder: Path, count: Callable[[int], None]
) -> Path:
    """Like `fetch_with_maven`, but needs only Java and the Ivy jar."""
    folder.mkdir(parents=True)
    # When Ivy reads a POM, `master` is the artifact itself and `runtime` its run-time dependencies.
    conf = "default->master,runtime" if transitive else "default->master"
    dependencies = "".join(
        f"<dependency org={quoteattr(a.group)} name={quoteattr(a.name)} rev={quoteattr(a.version)} "
        f'conf="{conf}" transitive="{str(transitive).lower()}"/>'
        for a in artifacts
    )
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="tidegate" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{dependencies}</dependencies>'
        "</ivy-module>",
        encoding="utf-8",
    )
    jars = folder / "jars"
    command = [str(java.executable), "-jar", str(ivy), "-ivy", str(folder / "ivy.xml"), "-cache", str(folder / "cache")]
    command += ["-types", "jar", "bundle", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    _run(command, java, "[SUCCESSFUL ]", count)
    return jars


def _run(command: list[str], java: Java, arrival: str, count: Callable[[int], None]) -> None:
    """Run a fetch in its own process group, within FETCH_SECONDS; each output line with `arrival` is one more jar."""
    env = {**os.environ, "JAVA_HOME": str(java.home)}
    tail: list[str] = []
    arrived = 0
    late = threading.Event()

    def kill() -> None:
        # The whole group: a script such as mvn may have started the program that holds our end of the pipe.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def kill_after_error(error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            kill()

    def give_up() -> None:
        late.set()
        kill()

    with ExitStack() as ending:
        with deferred():  # Ctrl-C during the start would leave the program and the timer behind
            child = ending.enter_context(
                subprocess.Popen(
                    command,
                    env=env,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
            ending.push(kill_after_error)
            timer = threading.Timer(FETCH_SECONDS, give_up)
            ending.callback(timer.cancel)
            timer.start()
        for line in child.stdout or ():
            tail = [*tail[-14:], line.rstrip()]
            if arrival in line and ".jar" in line:
                arrived += 1
                count(arrived)
    if late.is_set():
        raise StackError(f"{Path(command[0]).name} took more than {FETCH_SECONDS:g} s:\n  " + "\n  ".join(tail))
    if child.returncode != 0:
        raise StackError(f"{Path(command[0]).name} ended with {child.returncode}:\n  " + "\n  ".join(tail))
