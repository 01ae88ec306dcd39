"""Links between jobs: two jobs of one pipeline are linked when one writes a topic that the other reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
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

    def neighbour(self, parallelism: int | None, evidence: Evidence | None) -> Neighbour:
        """Return the linked job with what is known of it now."""
        return Neighbour(self.job_id, self.upstream, self.topics, parallelism, evidence)


def find_links(specs: Iterable[JobSpec]) -> dict[str, tuple[Link, ...]]:
    """Return the links of each job by job id, in the order of the linked jobs' ids; jobs without links are left out."""
    pipelines: dict[str, list[JobSpec]] = defaultdict(list)
    for spec in sorted(specs, key=lambda spec: spec.job_id):
        pipelines[spec.pipeline_id].append(spec)
    found: dict[str, tuple[Link, ...]] = {}
    for jobs in pipelines.values():
        for spec in jobs if len(jobs) > 1 else ():
            links = [link for other in jobs if other is not spec for link in _between(spec, other)]
            if links:
                found[spec.job_id] = tuple(links)
    return found


def _between(spec: JobSpec, other: JobSpec) -> Iterable[Link]:
    """Yield the links from `spec` to another job: upstream first."""
    for upstream, writer, reader in ((True, other, spec), (False, spec, other)):
        shared = tuple(sorted(set(writer.sinks) & set(reader.sources)))
        if shared:
            yield Link(other.job_id, upstream, shared)
