"""The jobs under Tidegate, as the compacted `jobs` topic says: read whole at the start, then kept up with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from confluent_kafka import Message

from tidegate.events.envelope import Headers, Unreadable, decode
from tidegate.events.job import JobSpec
from tidegate.events.topics import JOBS
from tidegate.runtime.kafka import TopicReader, headers_of
from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger(__name__)


class JobsView:
    """Every JobSpec by job id; the highest version holds, a tombstone removes. Not thread-safe: one owner polls it.

    A spec that cannot be read, or in which `check` finds problems, is told to `on_unreadable` with its record, and the
    version before it stays in force.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        on_unreadable: Callable[..., None] | None = None,
        *,
        check: Callable[[JobSpec], list[str]] | None = None,
    ) -> None:
        self._reader = TopicReader(settings, [JOBS.named(settings.topic_prefix)])
        self._on_unreadable = on_unreadable
        self._check = check
        self._specs: dict[str, JobSpec] = {}

    def load(self, timeout_seconds: float = 60.0) -> None:
        """Read the topic to its present end."""
        for message in self._reader.read_to_end(timeout_seconds):
            self._take(message)

    def poll(self) -> list[str]:
        """Take in what has come since; return the ids of the jobs that changed. Never waits."""
        changed = []
        while (message := self._reader.poll()) is not None:
            job_id = self._take(message)
            if job_id is not None:
                changed.append(job_id)
        return changed

    def get(self, job_id: str) -> JobSpec | None:
        """Return a job's spec, or None if there is no such job."""
        return self._specs.get(job_id)

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over all specs, in the order of their ids."""
        return iter([self._specs[job_id] for job_id in sorted(self._specs)])

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._specs)

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _take(self, message: Message) -> str | None:
        key, value = message.key(), message.value()
        if value is None:
            job_id = (key or b"").decode("utf-8", "replace")
            return job_id if self._specs.pop(job_id, None) else None
        try:
            spec = self._read(key, value, headers_of(message))
        except Unreadable as error:
            log.warning("jobs topic, offset %s: unreadable spec kept out: %s", message.offset(), error)
            if self._on_unreadable:
                self._on_unreadable(message, error)
            return None
        known = self._specs.get(spec.job_id)
        if known is not None and spec.version < known.version:
            log.warning(
                "job %s: version %d came after version %d and is ignored", spec.job_id, spec.version, known.version
            )
            return None
        self._specs[spec.job_id] = spec
        return spec.job_id

    def _read(self, key: bytes | None, value: bytes, headers: Headers | None) -> JobSpec:
        spec = decode(JobSpec, value, headers, key)
        problems = self._check(spec) if self._check else []
        if problems:
            raise Unreadable("INVALID", "; ".join(problems))
        return spec
