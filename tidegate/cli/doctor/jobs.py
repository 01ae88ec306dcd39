"""What is wrong with specs, and what snapshots warn of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidegate.cli.doctor.finding import NAMED, Finding
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.fleet.warnings import in_words
from tidegate.installed import engine
from tidegate.words import some


def refused_specs(specs: Mapping[str, JobSpec], unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """Name the specs that this version cannot read or use, such as for an option that only an older one had."""
    problems = {job_id: "; ".join(engine().check(spec)) for job_id, spec in specs.items()} | dict(unreadable)
    for job_id, found in sorted(problems.items()):
        if found:
            remedy = "correct the job's file and apply it; until then the decider makes no decisions on the job"
            yield Finding("fail", f"spec of {job_id}", found, remedy)


def warnings_about(newest: Mapping[str, MetricSnapshot]) -> Iterator[Finding]:
    """Name what the newest snapshot of each job warns of, once for all jobs of which it says the same."""
    jobs: dict[tuple[str, str], list[str]] = {}
    for job_id, snapshot in sorted(newest.items()):
        for words in map(in_words, snapshot.warnings or ()):
            jobs.setdefault(words, []).append(job_id)
    for (said, remedy), names in jobs.items():
        yield Finding("warn", f"measurement of {some(names, NAMED)}", said, remedy)
