"""The event logs and checkpoints of jobs whose files are not on the services' machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from shlex import quote

from tidegate.cli.doctor.finding import NAMED, Finding
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.remote.checkpoints import candidates, query_id
from tidegate.remote.files import Files, Place, entries, log_directory

_NOT_LOOKED_FOR = ": not looked for"


def files_of_jobs(specs: Mapping[str, JobSpec], files: Files, silent: dict[str, str]) -> Iterator[Finding]:
    """Look for the event logs, and ask for the checkpoints, of jobs whose files are not on the services' machines.

    Each question to a file system that does not answer lasts as long as its time limit, so it is asked once: `silent`
    gets such a file system, with what was looked for. What is well, or was not looked for, is one line for many jobs of
    a file system.
    """
    found = list(_files_of_each(specs, files, silent))

    def is_common(finding: Finding) -> bool:
        return finding.verdict == "ok" or _NOT_LOOKED_FOR in finding.found

    alike = Counter((name, root, finding.verdict) for name, root, finding in found if is_common(finding))
    told = set[tuple[str, str, str]]()
    for name, root, finding in found:
        kind = name, root, finding.verdict
        if not is_common(finding) or alike[kind] <= NAMED:
            yield finding
        elif kind not in told:
            told.add(kind)
            _, what, why = finding.found.partition(_NOT_LOOKED_FOR)
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
                yield name, root, Finding("fail", what, f"{location}{_NOT_LOOKED_FOR}; see {silent[root]}", advice)
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
