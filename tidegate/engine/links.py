"""Links between jobs: two jobs of one pipeline are linked when one writes a topic that the other reads.

A job also sees the jobs further downstream: those that read what its readers write, and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidegate.events.decision import Evidence, Neighbour
from tidegate.events.job import JobSpec


@dataclass(frozen=True, slots=True)
class Link:
    """A linked job, seen from another job."""

    job_id: str
    upstream: bool
    """True when its sink is one of our sources."""
    topics: tuple[str, ...]
    distance: int | None = None
    """Links on the way to a job further downstream, 2 or more; None for a direct link."""

    def neighbour(self, parallelism: int | None, evidence: Evidence | None) -> Neighbour:
        """Return the linked job with what is known of it now."""
        return Neighbour(self.job_id, self.upstream, self.topics, parallelism, evidence, self.distance)


def find_links(specs: Iterable[JobSpec]) -> dict[str, tuple[Link, ...]]:
    """Return the links of each job by job id; jobs without links are left out.

    Direct links come first, in the order of the linked jobs' ids, then the jobs further downstream, nearest first.
    """
    pipelines: dict[str, list[JobSpec]] = defaultdict(list)
    for spec in sorted(specs, key=lambda spec: spec.job_id):
        pipelines[spec.pipeline_id].append(spec)
    found: dict[str, tuple[Link, ...]] = {}
    for jobs in pipelines.values():
        readers: dict[str, list[JobSpec]] = defaultdict(list)
        for reader in jobs:
            for topic in reader.sources:
                readers[topic].append(reader)
        for spec in jobs if len(jobs) > 1 else ():
            links = [link for other in jobs if other is not spec for link in _between(spec, other)]
            if links:
                found[spec.job_id] = (*links, *_further(spec, readers))
    return found


def _between(spec: JobSpec, other: JobSpec) -> Iterable[Link]:
    """Yield the links from `spec` to another job: upstream first."""
    for upstream, writer, reader in ((True, other, spec), (False, spec, other)):
        shared = tuple(sorted(set(writer.sinks) & set(reader.sources)))
        if shared:
            yield Link(other.job_id, upstream, shared)


def _further(spec: JobSpec, readers: Mapping[str, Sequence[JobSpec]]) -> Iterator[Link]:
    """Yield the jobs further downstream, each once, by the shortest way; `readers` has the jobs that read a topic."""
    reached, writers, distance = {spec.job_id}, [spec], 0
    while writers:
        written = {topic for writer in writers for topic in writer.sinks}
        reading = {reader.job_id: reader for topic in written for reader in readers.get(topic, ())}
        writers = [reading[job_id] for job_id in sorted(reading.keys() - reached)]
        reached |= reading.keys()
        distance += 1
        for reader in writers if distance > 1 else ():
            yield Link(reader.job_id, False, tuple(sorted(written & set(reader.sources))), distance)
