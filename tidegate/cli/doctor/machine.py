"""This machine: Python, Java, Spark, jars, Redis, memory, ports."""

from __future__ import annotations

import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tidegate.cli.doctor.clusters import spark_finding
from tidegate.cli.doctor.finding import Finding, Verdict, probe
from tidegate.stack import StackError
from tidegate.stack.jars import (
    KAFKA,
    cache_root,
    checksums,
    differences,
    read_lock,
    spark_home,
    spark_kafka,
    spark_version,
)
from tidegate.stack.java import find_java
from tidegate.stack.redis import find_redis

DEMO_MEMORY_GB = 4.0
"""What the demo's Kafka, Redis, Spark master, worker, driver and executors need together."""


def here(*, embedded: bool) -> Iterator[Finding]:
    """Check this machine; with `embedded`, also what only the embedded stack needs."""
    yield _python()
    if not embedded:
        return
    yield probe("Java", _java, "install Java 17 or newer, or set JAVA_HOME")
    spark = _spark()
    yield spark
    if spark.verdict != "fail":  # the jars are those of its version
        yield probe("jars", _jars, "run `tidegate up`, which downloads them")
    yield probe("Redis server", _redis_server, "install redis-server")
    yield _memory()
    yield probe("loopback ports", _port, "allow programs to listen on 127.0.0.1")


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= (3, 15):
        return Finding("warn", "Python", found, "Tidegate is tested on Python 3.11 to 3.14")
    return Finding("ok", "Python", found)


def _java() -> str:
    java = find_java()
    return f"{java.version} in {java.home}"


def _spark() -> Finding:
    try:
        return spark_finding("Spark of the embedded stack", spark_version(), str(spark_home()))
    except StackError as error:
        what, _, remedy = str(error).partition(": ")
        return Finding("fail", "Spark of the embedded stack", what, remedy)


def _redis_server() -> str:
    server = find_redis()
    return f"{server.version} at {server.executable}"


def _jars() -> str:
    locked, folder = read_lock(), cache_root() / "jars"
    needed = (KAFKA, spark_kafka())
    wrong = [phrase for jars in needed for phrase in differences(locked[jars.name], checksums(folder / jars.name))]
    if wrong:
        raise StackError(f"{folder}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""))
    return f"{sum(len(locked[jars.name]) for jars in needed)} in {folder}, checksums correct"


def _memory() -> Finding:
    text = Path("/proc/meminfo").read_text(encoding="utf-8") if Path("/proc/meminfo").exists() else ""
    free = next((int(line.split()[1]) / 1e6 for line in text.splitlines() if line.startswith("MemAvailable")), None)
    if free is None:
        return Finding("warn", "memory", "unknown on this system", f"the demo needs about {DEMO_MEMORY_GB:g} GB")
    verdict: Verdict = "ok" if free >= DEMO_MEMORY_GB else "warn"
    remedy = "" if verdict == "ok" else f"the demo needs about {DEMO_MEMORY_GB:g} GB"
    return Finding(verdict, "memory", f"{free:.1f} GB available", remedy)


def _port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
    return "free ports available"
