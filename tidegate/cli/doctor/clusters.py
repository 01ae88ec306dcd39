"""The clusters on which jobs run: masters of Spark, and ResourceManagers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from tidegate.cli.doctor.finding import NAMED, Finding
from tidegate.events.job import JobSpec
from tidegate.stack import StackInfo
from tidegate.stack.versions import SPARK_VERSIONS, known
from tidegate.words import some

_ASKED_AT_ONCE = 16
"""How many clusters are asked at once."""


def spark_of_jobs(specs: Mapping[str, JobSpec]) -> Iterator[Finding]:
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
        return look(f"{kind} of {some(jobs[url], NAMED)}", url)

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        yield from pool.map(named, sorted(jobs))


def spark_master(info: StackInfo) -> str:
    """Return what the master of the embedded stack says of itself."""
    import httpx  # noqa: PLC0415 - few commands need it, and it takes long to import

    seen = httpx.get(f"{info.spark_ui}/json/", timeout=5, trust_env=False).raise_for_status().json()
    return f"{seen['status']}, workers: {len(seen['workers'])}, {seen['coresused']} of {seen['cores']} cores in use"


def spark_finding(what: str, version: str, where: str) -> Finding:
    """Return the line about one Spark: its version, and what Tidegate can not do with it."""
    found, seen = known(version), f"{version} at {where}"
    if found is None:
        return Finding("warn", what, seen, f"Tidegate is tested on Spark {', '.join(v.minor for v in SPARK_VERSIONS)}")
    if not found.lacks:
        return Finding("ok", what, seen)
    return Finding("ok", what, f"{seen}. Spark {found.minor} lacks: {'; '.join(found.lacks)}")
