"""`doctor`: a line for each thing Tidegate needs, and what to do if it is missing."""

from __future__ import annotations

import platform
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidegate.cli.connect import Bootstrap, Prefix, StackDir, stack_dir, stack_redis
from tidegate.cli.expected import EXPECTED, problem_of
from tidegate.cli.own_topics import STATES, problems_of
from tidegate.cli.problems import NO
from tidegate.client import (
    ClientSettings,
    NoLogin,
    NoSuchTopic,
    Unreachable,
    check_reachable,
    loaded_specs,
    received,
    skip,
)
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import JOBS, TOPICS
from tidegate.fleet.warnings import in_words
from tidegate.installed import engine
from tidegate.remote.checkpoints import candidates, query_id
from tidegate.remote.files import Files, Place, entries, log_directory
from tidegate.runtime.redis_server import remedy_of
from tidegate.runtime.settings import without_login
from tidegate.runtime.topics import configurations, ensure_topics, partition_counts, pipeline_partitions
from tidegate.stack import StackError, StackInfo, status
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
from tidegate.stack.versions import SPARK_VERSIONS, known
from tidegate.terminal import stdout, styled, table
from tidegate.words import some

DEMO_MEMORY_GB = 4.0
"""What the demo's Kafka, Redis, Spark master, worker, driver and executors need together."""


RECENT = timedelta(minutes=1)
"""How old the snapshots may be whose warnings are shown, or two of the longest interval: most jobs have one in 10 s."""
_ASKED_AT_ONCE = 16
"""How many clusters are asked at once."""
_NAMED = 3
"""How many jobs of one master, file system or warning are named."""
NOT_LOOKED_FOR = ": not looked for"


Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    what: str
    found: str
    remedy: str = ""


def doctor(
    work_dir: StackDir = None,
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Create missing topics, with one replica each.")
    ] = False,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Check what Tidegate needs, here and at the broker.

    The exit code is 1 if a check fails.

    Example:  tidegate doctor
    """
    findings: list[Finding] = []
    try:
        findings += here(embedded=bootstrap_servers is None)
        findings += servers(stack_dir(work_dir), bootstrap_servers, topic_prefix, create_topics)
    finally:  # an error on the way ends the checks, but what was found so far is shown
        rows = [[styled(f.verdict), f.what, f.found, f.remedy] for f in findings]
        stdout().print(table("", ["", "what", "found", "what to do"], rows))
    if any(f.verdict == "fail" for f in findings):
        raise typer.Exit(NO)


def here(*, embedded: bool) -> Iterator[Finding]:
    """Check this machine; with `embedded`, also what only the embedded stack needs."""
    yield _python()
    if not embedded:
        return
    yield _probe("Java", _java, "install Java 17 or newer, or set JAVA_HOME")
    spark = _spark()
    yield spark
    if spark.verdict != "fail":  # the jars are those of its version
        yield _probe("jars", _jars, "run `tidegate up`, which downloads them")
    yield _probe("Redis server", _redis_server, "install redis-server")
    yield _memory()
    yield _probe("loopback ports", _port, "allow programs to listen on 127.0.0.1")


def servers(folder: Path, bootstrap: str | None, prefix: str | None, create_topics: bool) -> Iterator[Finding]:
    """Check the stack, the broker, the topics, Redis and the Spark master."""
    info = None
    try:
        info = StackInfo.load(folder)
        components = status(folder)
        states, healthy = ", ".join(f"{c.name} {c.state}" for c in components), all(c.ok for c in components)
        remedy = "" if healthy else f"run `tidegate down` and `tidegate up`; the logs are in {info.log_dir}"
        yield Finding("ok" if healthy else "fail", "embedded stack", states, remedy)
    except StackError as error:
        if bootstrap is None:
            yield Finding("warn", "embedded stack", str(error), "run `tidegate up`, or use --bootstrap-servers")
            return
    given: dict[str, object] = {} if prefix is None else {"topic_prefix": prefix}
    if info is not None and bootstrap in (None, info.bootstrap_servers):
        bootstrap = info.bootstrap_servers
        given |= stack_redis(info)
    settings = ClientSettings(bootstrap_servers=bootstrap, **given)  # type: ignore[arg-type]
    yield from _broker(settings, create_topics)
    yield _redis(settings)
    if info is not None:
        yield _probe("Spark master", lambda: _master(info), f"see its log in {info.log_dir}")
    with suppress(Unreachable, NoSuchTopic):  # the lines above say so
        view = loaded_specs(settings)
        specs, files, silent = {spec.job_id: spec for spec in view}, Files(settings.files), dict[str, str]()
        yield from refused_specs(specs, view.unusable)
        yield from _spark_of_jobs(specs)
        yield from yarn_of_jobs(specs)
        yield from files_of_jobs(specs, files, silent)
        longest = timedelta(seconds=2 * max((spec.interval_seconds for spec in specs.values()), default=0))
        recent = received(MetricSnapshot, settings, since=max(RECENT, longest), on_error=skip)
        newest = {one.event.job_id: one.event for one in recent if one.event.job_id in specs}
        yield from warnings_about(newest)
        yield from other_checkpoints(specs, newest, files, silent)


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


def _broker(settings: ClientSettings, create_topics: bool) -> Iterator[Finding]:
    try:
        check_reachable(settings)
    except NoLogin as error:
        yield Finding("fail", "Kafka", str(error), EXPECTED[NoLogin])
        return
    except Unreachable as error:
        yield Finding("fail", "Kafka", str(error), "start Kafka, or check its address and the listener's security")
        return
    brokers = AdminClient(settings.kafka()).list_topics(timeout=10).brokers
    yield Finding(
        "ok", "Kafka", f"{len(brokers)} broker{'' if len(brokers) == 1 else 's'} at {settings.bootstrap_servers}"
    )
    try:
        created = ensure_topics(settings) if create_topics else []
        counts = partition_counts(settings)
        partitions = pipeline_partitions(settings, counts)
    except Exception as error:  # noqa: BLE001  (whatever is wrong belongs in the report)
        problem = problem_of(error) or error
        remedy = "if topics are missing, run `tidegate doctor --create-topics`"
        yield Finding("fail", "topics", str(problem), remedy)
        return
    note = f"; created {len(created)}" if created else ""
    what = (
        f"{len(TOPICS)} topics with prefix {settings.topic_prefix!r}, {partitions} partitions per pipeline topic{note}"
    )
    yield Finding("ok", "topics", what)
    jobs = counts[JOBS.named(settings.topic_prefix)]  # created with as many as the pipeline topics
    if jobs != partitions:
        yield Finding(
            "warn",
            "jobs topic",
            f"{settings.topic_prefix}jobs has {jobs} partitions, the pipeline topics have {partitions}",
            "if partitions were added to it, create topics under another prefix and apply the specs there",
        )
    yield from own_topics(settings, partitions)


def own_topics(settings: ClientSettings, partitions: int) -> Iterator[Finding]:
    """Name what is wrong with Tidegate's topics, and that of the decider's states, as the broker describes them."""
    described = AdminClient(settings.kafka()).list_topics(timeout=10).topics
    suffixes = {settings.topic_prefix + suffix: suffix for suffix in (*(topic.suffix for topic in TOPICS), STATES)}
    found = [name for name in suffixes if name in described]
    configs = dict[str, dict[str, str]]()
    with suppress(KafkaException):  # not everything that speaks Kafka's protocol tells them
        configs = configurations(settings, found)
    for name in found:
        for problem in problems_of(suffixes[name], described[name], configs.get(name, {}), partitions=partitions):
            yield Finding(problem.verdict, f"topic {name}", problem.found, problem.remedy)


def _redis(settings: ClientSettings) -> Finding:
    import redis  # noqa: PLC0415 - few commands need it, and it takes long to import

    from tidegate.remote.redis_client import RedisClient  # noqa: PLC0415 - likewise

    url = without_login(settings.redis_url)
    remedy = "set TIDEGATE_REDIS_URL and TIDEGATE_REDIS_PASSWORD as for the services"
    try:
        with RedisClient(**{**settings.redis(), "socket_timeout": 3, "socket_connect_timeout": 3}) as client:
            server = client.reach(client.info)
            if _in_cluster_mode(server):
                with suppress(redis.exceptions.NoPermissionError):  # without +cluster|info, the services' logs tell
                    server |= client.execute_command("CLUSTER INFO")
    except redis.AuthenticationError as error:
        return Finding("fail", "Redis", f"{url}: {error}", remedy)
    except (redis.RedisError, ValueError) as error:  # the latter for a port that is no number
        return Finding("fail", "Redis", f"{url}: {error}", remedy_of(error) or remedy)
    # Valkey's `redis_version` is that of the Redis it replaces, and its mode has another name
    version = f"Valkey {server['valkey_version']}" if "valkey_version" in server else server["redis_version"]
    verdict, found, remedy = _judged(server, has_password=bool(settings.redis_password))
    return Finding(verdict, "Redis", f"{version} at {url}{found}", remedy)


def _judged(server: Mapping[str, object], *, has_password: bool) -> tuple[Verdict, str, str]:
    """Judge a Redis by what it says of itself: return a verdict, what is found, and what to do."""
    policy = server.get("maxmemory_policy", "noeviction")
    clustered = _in_cluster_mode(server)
    if server.get("cluster_state", "ok") != "ok":
        remedy = "CLUSTER NODES shows which nodes lack: it needs most of its primaries, and one for every slot"
        return "fail", f" is in a cluster whose state is {server['cluster_state']}, so no job is rescaled", remedy
    if server.get("role") == "slave" and not clustered:  # in a cluster it names the primary
        remedy = "set TIDEGATE_REDIS_URL to an address that leads to the primary"
        return "fail", f" is a replica of {server.get('master_host')}, on which no job is rescaled", remedy
    if server.get("maxmemory") and policy != "noeviction":
        remedy = "set maxmemory-policy to noeviction"
        return "warn", f" may drop reservations when its memory is full (maxmemory-policy {policy})", remedy
    if not has_password:
        return "warn", ", which needs no password", "set a password in Redis"
    return "ok", f"{' in cluster mode' if clustered else ''}, password accepted", ""


def _in_cluster_mode(server: Mapping[str, object]) -> bool:
    return "cluster" in (server.get("redis_mode"), server.get("server_mode"))


def _master(info: StackInfo) -> str:
    import httpx  # noqa: PLC0415 - few commands need it, and it takes long to import

    seen = httpx.get(f"{info.spark_ui}/json/", timeout=5, trust_env=False).raise_for_status().json()
    return f"{seen['status']}, workers: {len(seen['workers'])}, {seen['coresused']} of {seen['cores']} slots in use"


def refused_specs(specs: Mapping[str, JobSpec], unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """Name the specs that this version cannot read or use, such as for an option that only an older one had."""
    problems = {job_id: "; ".join(engine().check(spec)) for job_id, spec in specs.items()} | dict(unreadable)
    for job_id, found in sorted(problems.items()):
        if found:
            remedy = "correct the job's file and apply it; until then the decider makes no decisions on the job"
            yield Finding("fail", f"spec of {job_id}", found, remedy)


def _spark_of_jobs(specs: Mapping[str, JobSpec]) -> Iterator[Finding]:
    """Name the version of Spark that each master has, with its jobs, and what that version lacks."""
    import httpx  # noqa: PLC0415 - few commands need it, and it takes long to import

    from tidegate.remote.http import HTTP_ERRORS  # noqa: PLC0415

    def look(what: str, url: str) -> Finding:
        try:
            # an answer about a driver that is not there names the version all the same
            answer = httpx.get(f"{url}/v1/submissions/status/none", timeout=5, trust_env=False).json()
            return spark_finding(what, str(answer["serverSparkVersion"]), url)
        except (*HTTP_ERRORS, ValueError, KeyError, TypeError) as error:
            said = f"{url}: {type(error).__name__}: {error}"
            return Finding("warn", what, said, "start its master, or correct application.rest_url")

    yield from _clusters("Spark", (spec for spec in specs.values() if spec.application.backend != "yarn"), look)


def yarn_of_jobs(specs: Mapping[str, JobSpec]) -> Iterator[Finding]:
    """Name the version of each ResourceManager, with its jobs, or why it does not tell."""
    jobs = [spec for spec in specs.values() if spec.application.backend == "yarn"]
    if not jobs:
        return
    from tidegate.remote.yarn import ResourceManager, RmRefused, RmUnreachable  # noqa: PLC0415 - few need it

    def look(what: str, url: str) -> Finding:
        try:
            info = manager.get(url, "info")["clusterInfo"]
            return Finding("ok", what, f"{info['hadoopVersion']} at {url}, {info['state']}")
        except (RmRefused, RmUnreachable) as error:
            return Finding("warn", what, str(error), "docs/how-to/yarn.md")
        except (KeyError, TypeError):
            return Finding("warn", what, f"{url} is no ResourceManager", "correct application.rest_url")

    with closing(ResourceManager(5.0)) as manager:
        yield from _clusters("YARN", jobs, look)


def _clusters(kind: str, specs: Iterable[JobSpec], look: Callable[[str, str], Finding]) -> Iterator[Finding]:
    """Look at each cluster of these jobs once, several at a time: those that hang take all of their time."""
    jobs: dict[str, list[str]] = {}
    for spec in specs:
        if spec.application.rest_url is not None:
            jobs.setdefault(spec.application.rest_url.rstrip("/"), []).append(spec.job_id)

    def named(url: str) -> Finding:
        return look(f"{kind} of {some(jobs[url], _NAMED)}", url)

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        yield from pool.map(named, sorted(jobs))


def warnings_about(newest: Mapping[str, MetricSnapshot]) -> Iterator[Finding]:
    """Name what the newest snapshot of each job warns of, once for all jobs of which it says the same."""
    jobs: dict[tuple[str, str], list[str]] = {}
    for job_id, snapshot in sorted(newest.items()):
        for words in map(in_words, snapshot.warnings or ()):
            jobs.setdefault(words, []).append(job_id)
    for (said, remedy), names in jobs.items():
        yield Finding("warn", f"measurement of {some(names, _NAMED)}", said, remedy)


def files_of_jobs(specs: Mapping[str, JobSpec], files: Files, silent: dict[str, str]) -> Iterator[Finding]:
    """Look for the event logs, and ask for the checkpoints, of jobs whose files are not on the services' machines.

    Each question to a file system that does not answer lasts as long as its time limit, so it is asked once: `silent`
    gets such a file system, with what was looked for. What is well, or was not looked for, is one line for many jobs of
    a file system.
    """
    found = list(_files_of_each(specs, files, silent))

    def is_common(finding: Finding) -> bool:
        return finding.verdict == "ok" or NOT_LOOKED_FOR in finding.found

    alike = Counter((name, root, finding.verdict) for name, root, finding in found if is_common(finding))
    told = set[tuple[str, str, str]]()
    for name, root, finding in found:
        kind = name, root, finding.verdict
        if not is_common(finding) or alike[kind] <= _NAMED:
            yield finding
        elif kind not in told:
            told.add(kind)
            _, what, why = finding.found.partition(NOT_LOOKED_FOR)
            yield replace(finding, what=f"{name} of {alike[kind]} jobs", found=f"{root}{what}{why}")


def _files_of_each(
    specs: Mapping[str, JobSpec], files: Files, silent: dict[str, str]
) -> Iterator[tuple[str, str, Finding]]:
    """Yield the findings on each job, with the name of the field and the file system."""
    advice = "docs/how-to/no-shared-directory.md"
    for spec in specs.values():
        app = spec.application
        logs = log_directory(app.event_log_dir)
        for name, location in (("event_log_dir", logs), ("checkpoint_location", app.checkpoint_location)):
            what, root = f"{name} of {spec.job_id}", _file_system(location)
            if root in silent:
                yield name, root, Finding("fail", what, f"{location}{NOT_LOOKED_FOR}; see {silent[root]}", advice)
                continue
            try:
                if files.near(location):
                    continue
                place = files.remote(location)
                place.stat()
                yield name, root, Finding("ok", what, location)
            except FileNotFoundError as error:
                # Spark makes the folder of a checkpoint, but none for logs
                if name == "event_log_dir" and place.has_folders:
                    remedy = f"make the folder: hdfs dfs -mkdir -p {quote(location)}"
                    yield name, root, Finding("fail", what, str(error), remedy)
            except OSError as error:
                if not isinstance(error, PermissionError):
                    silent[root] = what
                yield name, root, Finding("fail", what, str(error), advice)


def _file_system(location: str) -> str:
    """Return the scheme and the authority of a URI."""
    return "/".join(location.split("/")[:3])


def other_checkpoints(
    specs: Mapping[str, JobSpec], newest: Mapping[str, MetricSnapshot], files: Files, silent: dict[str, str]
) -> Iterator[Finding]:
    """Name the jobs whose spec has another checkpoint than their running query: if it is started, it begins again.

    That there is no checkpoint counts only where this machine sees the job's event logs. `silent` is as that of
    `files_of_jobs`.
    """
    for job_id, snapshot in sorted(newest.items()):
        app = specs[job_id].application
        location, query = app.checkpoint_location, snapshot.query_id
        root, logs = _file_system(location), log_directory(app.event_log_dir)
        if query is None or root in silent:
            continue
        what = f"checkpoint_location of {job_id}"
        remedy = "correct it before Tidegate starts the job: from another checkpoint, the query begins again"
        try:
            queries = list(_queries_at(files.place(location)))
            if query in queries:
                continue
            if queries:
                found = f"{location} belongs to the query {', '.join(queries)}, and the running one is {query}"
                yield Finding("fail", what, found, remedy)
            elif _file_system(logs) not in silent and entries(files.place(logs)):
                yield Finding("warn", what, f"{location} has no checkpoint, but the job's query is running", remedy)
        except PermissionError:
            continue
        except OSError:
            silent[root] = what


def _queries_at(root: Place) -> Iterator[str]:
    """Yield the ids of the queries whose checkpoints are `root` or folders in it; one that is broken has none."""
    for folder in candidates(root):
        with suppress(ValueError):
            if (query := query_id(folder)) is not None:
                yield query


def spark_finding(what: str, version: str, where: str) -> Finding:
    """Return the line about one Spark: its version, and what Tidegate can not do with it."""
    found, seen = known(version), f"{version} at {where}"
    if found is None:
        return Finding("warn", what, seen, f"Tidegate is tested on Spark {', '.join(v.minor for v in SPARK_VERSIONS)}")
    if not found.lacks:
        return Finding("ok", what, seen)
    return Finding("ok", what, f"{seen}. Spark {found.minor} lacks: {'; '.join(found.lacks)}")


def _probe(what: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding("ok", what, look())
    except Exception as error:  # noqa: BLE001  (whatever is wrong belongs in the report)
        return Finding("fail", what, str(error).splitlines()[0] if str(error) else type(error).__name__, remedy)
