"""Links between jobs: two jobs of one pipeline are linked when one writes a topic that the other reads.

Topics of the same name on two Kafka clusters are different topics.

A job also sees the jobs further downstream: those that read what its readers write, and so on.

Jobs of one interval are decided upstream first, so that each sees what those before it plan. In a circle there is no
first: the order of the specs decides, and nobody counts on the plan of a job that it feeds (`announced`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidegate.events.command import CommandKind
from tidegate.events.decision import CHANGING, Decision, Emission, Evidence, Neighbour, Status
from tidegate.events.job import JobSpec

SATURATED: Final = 0.9
"""Utilization from which the processing rate within batches may be the capacity."""

MODELLED: Final = "tide"
"""The policy whose capacity has the overhead of the batches apart."""


class Outlook(NamedTuple):
    """What the decisions on a job tell the jobs linked to it."""

    parallelism: int | None = None
    evidence: Evidence | None = None
    emits: Emission | None = None
    ceiling: float | None = None

    def after(self, decision: Decision, spec: JobSpec) -> Outlook:
        """Return the outlook after a decision; what it does not tell is still known from the ones before.

        The plan of a job that is stopped, or stays down, is over.
        """
        emits = decision.emits
        if emits is None and not _is_over(decision):
            emits = self.emits
        elif emits is not None and not emits.steps and self.emits is not None:
            emits = replace(emits, steps=self.emits.steps, topic=self.emits.topic)
        ceiling = ceiling_of(decision, spec)
        if ceiling is None and decision.expectation is None:
            ceiling = self.ceiling
        return Outlook(decision.current_parallelism, decision.evidence, emits, ceiling)


def _is_over(decision: Decision) -> bool:
    """Whether a job is stopped, or is down and no start is ordered or under way."""
    command = decision.command
    if command is not None:
        return command.kind is CommandKind.STOP
    is_down = not decision.current_parallelism and not decision.final_parallelism
    return is_down and decision.status not in CHANGING


NO_OUTLOOK = Outlook()
"""Of a job without a decision so far."""


def ceiling_of(decision: Decision, spec: JobSpec) -> float | None:
    """Return what a job could process at most, records/s; None if it is not known, or unlimited.

    Capacity is taken as linear in the slots, so the job may in fact process less, but not more. `tide` knows it from
    its model; other policies take the rate within batches for it, which counts only once the job is saturated. A job
    that the pool keeps from growing has its size for a limit; none needs more than what makes as much as its readers
    can process.
    """
    size, seen, expected = decision.final_parallelism, decision.evidence, decision.expectation
    capacity = None if expected is None or decision.policy != MODELLED else expected.processing_rate
    if capacity is None and is_saturated(seen, spec):
        capacity, size = seen.true_processing_rate, decision.current_parallelism
    limits = []
    if capacity and size:
        most = size if decision.status is Status.POOL_EXHAUSTED else max(size, spec.scaling.max_parallelism)
        limits.append(capacity * most / size)
    best = best_reader(decision.observed.neighbours, spec)
    if best is not None and best.ceiling is not None and seen.output_ratio:
        limits.append(best.ceiling / seen.output_ratio)
    return min(limits, default=None)


def is_saturated(seen: Evidence, spec: JobSpec) -> bool:
    """Whether the rate within batches is the capacity: the job is always busy, and behind by its lag objective.

    Small batches are mostly overhead. A job whose next batch starts at once is always busy with them, and processes
    only what arrives; with larger ones it could process many times that.
    """
    behind = seen.lag_seconds is not None and seen.lag_seconds >= spec.scaling.lag_objective_seconds
    return behind and (seen.utilization or 0.0) >= SATURATED


def best_reader(neighbours: Sequence[Neighbour], spec: JobSpec) -> Neighbour | None:
    """Return the reader of a job that can process most; None if there is none, or one of them may be unlimited.

    Nor is any reader a limit for a job with several sinks, because their shares are not known, or for one in a circle,
    where each could wait for another.
    """
    readers = [each for each in neighbours if not each.upstream and each.distance is None]
    if not readers or len(spec.sinks) != 1 or None in [each.ceiling for each in readers]:
        return None
    return None if in_circle(neighbours) else max(readers, key=lambda reader: reader.ceiling or 0.0)


def in_circle(neighbours: Sequence[Neighbour]) -> bool:
    """Whether a job upstream also reads what comes of the job's own output."""
    downstream = downstream_of(neighbours)
    return any(each.upstream and each.job_id in downstream for each in neighbours)


def downstream_of(neighbours: Sequence[Neighbour]) -> set[str]:
    """Return the ids of the jobs downstream; a job upstream that is one of them is in a circle."""
    return {each.job_id for each in neighbours if not each.upstream}


@dataclass(frozen=True, slots=True)
class Link:
    """A linked job, seen from another job."""

    job_id: str
    upstream: bool
    """True when its sink is one of our sources."""
    topics: tuple[str, ...]
    distance: int | None = None
    """Links on the way to a job further downstream, 2 or more; None for a direct link."""
    only_reader: bool | None = None
    """True for a job upstream that no other job reads."""

    def neighbour(self, outlook: Outlook) -> Neighbour:
        """Return the linked job with what is known of it now."""
        size, evidence, emits, ceiling = outlook
        return Neighbour(
            self.job_id, self.upstream, self.topics, size, evidence, self.distance, emits, ceiling, self.only_reader
        )


def upstream_first(specs: Sequence[JobSpec]) -> tuple[JobSpec, ...]:
    """Return the specs with each job after those that it reads from, and otherwise in the order given."""
    writers: dict[tuple[str, str | None, str], list[JobSpec]] = defaultdict(list)
    for spec in specs:
        for topic in spec.sinks:
            writers[spec.pipeline_id, spec.kafka_cluster, topic].append(spec)
    ordered: dict[str, JobSpec] = {}
    seen: set[str] = set()
    for first in specs:
        waiting = [(first, False)]
        while waiting:
            spec, ready = waiting.pop()
            if ready:
                ordered[spec.job_id] = spec
            elif spec.job_id not in seen:
                seen.add(spec.job_id)
                place = spec.pipeline_id, spec.kafka_cluster
                upstream = [each for topic in spec.sources for each in writers[*place, topic]]
                waiting += [(spec, True), *((each, False) for each in reversed(upstream))]
    return tuple(ordered.values())


def find_links(specs: Iterable[JobSpec]) -> dict[str, tuple[Link, ...]]:
    """Return the links of each job by job id; jobs without links are left out.

    Direct links come first, in the order of the linked jobs' ids, then the jobs further downstream, nearest first.
    """
    pipelines: dict[tuple[str, str | None], list[JobSpec]] = defaultdict(list)
    for spec in sorted(specs, key=lambda spec: spec.job_id):
        pipelines[spec.pipeline_id, spec.kafka_cluster].append(spec)
    found: dict[str, tuple[Link, ...]] = {}
    for jobs in pipelines.values():
        readers: dict[str, list[JobSpec]] = defaultdict(list)
        writers: dict[str, list[JobSpec]] = defaultdict(list)
        for spec in jobs:
            for topic in spec.sources:
                readers[topic].append(spec)
            for topic in spec.sinks:
                writers[topic].append(spec)
        for spec in jobs:
            near = {each.job_id: each for topic in spec.sources for each in writers.get(topic, ())}
            near.update((each.job_id, each) for topic in spec.sinks for each in readers.get(topic, ()))
            others = sorted(near.keys() - {spec.job_id})
            links = [link for job_id in others for link in _between(spec, near[job_id], readers)]
            if links:
                found[spec.job_id] = (*links, *_further(spec, readers))
    return found


def _between(spec: JobSpec, other: JobSpec, readers: Mapping[str, Sequence[JobSpec]]) -> Iterable[Link]:
    """Yield the links from `spec` to another job: upstream first."""
    for upstream, writer, reader in ((True, other, spec), (False, spec, other)):
        shared = tuple(sorted(set(writer.sinks) & set(reader.sources)))
        if shared:
            only = upstream and all(each is reader for topic in writer.sinks for each in readers.get(topic, ()))
            yield Link(other.job_id, upstream, shared, only_reader=only or None)


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
