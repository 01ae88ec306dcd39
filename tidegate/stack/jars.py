"""The jars of Kafka and of Spark's Kafka connector: fetched once, verified by checksum, cached between runs.

Maven fetches them if it is installed, otherwise the Ivy among pyspark's own jars; both give the same files.
`jars.lock`, next to this module, holds the SHA-256 of each. A set enters the cache complete and verified, by one
rename, so an interrupted run leaves nothing incomplete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tidegate.stack.errors import StackError
from tidegate.stack.fetch import Artifact, fetch_with_ivy, fetch_with_maven
from tidegate.stack.java import Java
from tidegate.stack.versions import known

LOCK = Path(__file__).with_name("jars.lock")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JarSet:
    """Artifacts for one class path; `transitive` includes their run-time dependencies."""

    name: str
    artifacts: tuple[Artifact, ...]
    transitive: bool


KAFKA = JarSet(
    "kafka-4.3.1",
    (
        Artifact("org.apache.kafka", "kafka_2.13", "4.3.1"),
        # The broker is published without a logging backend; without one it logs nothing.
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ),
    transitive=True,
)


def _connector(spark: str, scala: str, tokens: str, clients: str, pool: str) -> JarSet:
    """Return what a pyspark does not ship of the Kafka connector: lz4, snappy, zstd and slf4j are among its jars."""
    return JarSet(
        f"spark-kafka-{spark}",
        (
            Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{scala}", spark),
            Artifact("org.apache.spark", f"spark-token-provider-kafka-0-10_{scala}", tokens),
            Artifact("org.apache.kafka", "kafka-clients", clients),
            Artifact("org.apache.commons", "commons-pool2", pool),
        ),
        transitive=False,
    )


CONNECTORS = {
    "3.5": _connector("3.5.7", "2.12", "3.5.7", "3.4.1", "2.11.1"),
    "4.0": _connector("4.0.0", "2.13", "4.0.0", "3.9.0", "2.12.0"),
    "4.1": _connector("4.1.1", "2.13", "4.1.1", "3.9.1", "2.12.1"),
    "4.2": _connector("4.2.0", "2.13", "4.0.0", "3.9.2", "2.13.1"),
}
"""The Kafka connector by version of Spark."""
JAR_SETS = (KAFKA, *CONNECTORS.values())
_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+\.\d+.*)\.jar")


def spark_home() -> Path:
    """Return the folder of the installed pyspark, without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("pyspark is not installed: pip install 'tidegate[replay]'")
    return Path(spec.origin).parent


def spark_version() -> str:
    """Return the version of the installed pyspark, such as `3.5.7`, by its jars."""
    found = (_CORE.fullmatch(jar.name) for jar in (spark_home() / "jars").glob("spark-core_*.jar"))
    version = next((match[1] for match in found if match is not None), None)
    if version is None:
        raise StackError(f"{spark_home()} has no jars/spark-core_….jar: install pyspark again")
    return version


def spark_kafka() -> JarSet:
    """Return the Kafka connector for the installed pyspark. Raises StackError if none is known for its version."""
    version = spark_version()
    found = known(version)
    connector = None if found is None else CONNECTORS[found.minor]
    if connector is None:
        raise StackError(f"pyspark {version} is installed, but Tidegate runs on Spark {', '.join(CONNECTORS)}")
    return connector


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """`$TIDEGATE_CACHE`, else `$XDG_CACHE_HOME/tidegate`, else `~/.cache/tidegate`. StackError if there is no home."""
    try:
        if chosen := environ.get("TIDEGATE_CACHE"):
            return Path(chosen).expanduser().absolute()
        return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    except RuntimeError:
        raise StackError("this user has no home folder for the cache: set TIDEGATE_CACHE to a folder") from None


def read_lock(path: Path = LOCK) -> dict[str, dict[str, str]]:
    """Return `{set name: {jar name: sha256}}`. Raises StackError with the line that is not `sha256  set/name.jar`."""
    locked: dict[str, dict[str, str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        digest, _, entry = line.partition("  ")
        set_name, _, jar = entry.partition("/")
        if len(digest) != 64 or not set_name or not jar.endswith(".jar") or "/" in jar:
            raise StackError(f"{path}:{number}: expected 'sha256  set/name.jar', got {line!r}")
        locked.setdefault(set_name, {})[jar] = digest
    return locked


def write_lock(found: Mapping[str, Mapping[str, str]], path: Path = LOCK) -> None:
    """Write what `read_lock` reads, sorted."""
    lines = [
        f"{digest}  {name}/{jar}\n" for name, jars in sorted(found.items()) for jar, digest in sorted(jars.items())
    ]
    path.write_text("".join(lines), encoding="utf-8")


def checksums(folder: Path) -> dict[str, str]:
    """Return `{jar name: sha256}` of the files in `folder`; empty if there is no such folder."""
    if not folder.is_dir():
        return {}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return one phrase per jar that is missing, unexpected or different."""
    phrases = [f"{jar} is missing" for jar in sorted(expected.keys() - found.keys())]
    phrases += [f"{jar} is not in jars.lock" for jar in sorted(found.keys() - expected.keys())]
    phrases += [
        f"{jar} has sha256 {found[jar]}, but jars.lock says {expected[jar]}"
        for jar in sorted(expected.keys() & found.keys())
        if found[jar] != expected[jar]
    ]
    return phrases


def ensure_jars(
    jar_set: JarSet, java: Java, on_progress: Progress, environ: Mapping[str, str] = os.environ, lock: Path = LOCK
) -> list[Path]:
    """Return the set's jars from the cache; fetch them first if they are missing or different.

    `$TIDEGATE_JAR_FETCHER` (`maven` or `ivy`) selects the fetcher. Raises StackError if a fetch fails or the fetched
    jars differ from `jars.lock`.
    """
    expected = read_lock(lock).get(jar_set.name)
    if not expected:
        raise StackError(f"{lock} has no lines for {jar_set.name}: run python -m tidegate.stack.setup --write-lock")
    target = cache_root(environ) / "jars" / jar_set.name
    cached = checksums(target)
    wrong = differences(expected, cached)
    if wrong:
        if cached:
            on_progress(f"cached jars in {target} differ from jars.lock ({wrong[0]}): fetching them again")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{jar_set.name}-") as scratch:
            fetched = fetch(jar_set, java, Path(scratch), on_progress, len(expected), environ)
            if wrong := differences(expected, checksums(fetched)):
                raise StackError(f"fetched jars of {jar_set.name} do not match jars.lock: " + "; ".join(wrong))
            _publish(fetched, target, expected)
    return [target / jar for jar in sorted(expected)]


def fetch(
    jar_set: JarSet, java: Java, scratch: Path, on_progress: Progress, total: int | None, environ: Mapping[str, str]
) -> Path:
    """Download the set, unverified, into a folder inside `scratch`; return that folder."""
    fetcher = environ.get("TIDEGATE_JAR_FETCHER", "auto")
    if fetcher not in ("auto", "maven", "ivy"):
        raise StackError(f"TIDEGATE_JAR_FETCHER is {fetcher!r}: expected maven, ivy or auto")

    def count(done: int) -> None:
        on_progress(f"fetching jars of {jar_set.name}: {done}" + (f" of {total}" if total else ""))

    maven = shutil.which("mvn", path=environ.get("PATH", os.defpath))
    if fetcher == "maven" and maven is None:
        raise StackError("TIDEGATE_JAR_FETCHER is 'maven', but there is no mvn on PATH")
    if maven is not None and fetcher != "ivy":
        try:
            return fetch_with_maven(maven, java, jar_set.artifacts, jar_set.transitive, scratch / "maven", count)
        except StackError as error:
            if fetcher == "maven":
                raise
            on_progress(f"{error}: trying Ivy instead")
    return fetch_with_ivy(_ivy(), java, jar_set.artifacts, jar_set.transitive, scratch / "ivy", count)


def lock_all(java: Java, on_progress: Progress) -> None:
    """Fetch every set and write `jars.lock` from the result."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tidegate-jars-") as scratch:
        for jar_set in JAR_SETS:
            folder = fetch(jar_set, java, Path(scratch) / jar_set.name, on_progress, None, os.environ)
            found[jar_set.name] = checksums(folder)
    write_lock(found)


def class_path(jars: Iterable[Path]) -> str:
    """Return the jars as a Java class path."""
    return os.pathsep.join(str(jar) for jar in jars)


def _ivy() -> Path:
    found = sorted((spark_home() / "jars").glob("ivy-*.jar"))
    if not found:
        raise StackError(f"no ivy-*.jar in {spark_home() / 'jars'}: install Maven to fetch the jars")
    return found[-1]


def _publish(fetched: Path, target: Path, expected: Mapping[str, str]) -> None:
    """Rename the verified folder into the cache; if another run was first with the same jars, keep that run's."""
    if target.exists():
        shutil.rmtree(target)
    try:
        fetched.rename(target)
    except OSError:
        if differences(expected, checksums(target)):
            raise
