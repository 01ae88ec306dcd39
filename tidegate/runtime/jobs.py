"""The job specs on the compacted `jobs` topic: loaded at the start, then followed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

from tidegate.events.envelope import Unreadable, decode, unknown_fields
from tidegate.events.job import JobSpec
from tidegate.events.topics import JOBS
from tidegate.runtime.consumer import TopicReader, record_of
from tidegate.runtime.dead_letters import ConsumedRecord
from tidegate.runtime.logs import about
from tidegate.runtime.settings import ServiceSettings

log = logging.getLogger(__name__)


class JobsView:
    """Every JobSpec by job id: the highest version applies, a tombstone removes the job. Only one thread may use it.

    A spec that cannot be read, or in whose `scaling` `check` finds problems, goes to `on_unreadable` with its record,
    and the previous version still applies.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        on_unreadable: Callable[[ConsumedRecord, Unreadable], None] | None = None,
        *,
        check: Callable[[JobSpec], list[str]] | None = None,
    ) -> None:
        self._reader = TopicReader(settings, [JOBS.named(settings.topic_prefix)])
        self._on_unreadable = on_unreadable
        self._check = check
        self._specs: dict[str, JobSpec] = {}
        self.unusable: dict[str, str] = {}
        """Keys of the topic under which the newest record is a spec that cannot be used, with what is wrong with it."""
        self.unusable_versions: dict[str, int] = {}
        """Their versions; 0 where they tell none."""
        self.removals: dict[str, int] = {}
        """Offset of the newest record that removed each job, as far as Kafka still has it."""
        self.unknown: dict[str, list[str]] = {}
        """Fields of the specs that this version does not know, by job: a newer Tidegate has written them."""

    def load(self, silence_seconds: float = 60.0, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Read the topic to its end; raise `TimeoutError` if for so long nothing more comes.

        Once `stop()`, which is asked all the time, is true, it is over in any case.
        """
        for message in self._reader.read_to_end(silence_seconds, stop=stop):
            self._take(record_of(message))

    def poll(self) -> list[str]:
        """Apply new records without waiting; return the ids of the jobs that changed, or have only an unusable spec."""
        changed = []
        while (message := self._reader.poll()) is not None:
            job_id = self._take(record_of(message))
            if job_id is not None:
                changed.append(job_id)
        return changed

    def get(self, job_id: str) -> JobSpec | None:
        """Return a job's spec, or None if there is no such job."""
        return self._specs.get(job_id)

    def __iter__(self) -> Iterator[JobSpec]:
        """Iterate over all specs, in the order of their ids."""
        return iter([self._specs[job_id] for job_id in sorted(self._specs)])

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _take(self, record: ConsumedRecord) -> str | None:
        job_id = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            was_here = job_id in self.unusable or job_id in self._specs
            self.unusable.pop(job_id, None)
            self._specs.pop(job_id, None)
            self.unknown.pop(job_id, None)
            self.removals[job_id] = record.offset
            return job_id if was_here else None
        try:
            spec = self._read(record)
        except Unreadable as error:
            self.unusable[job_id], self.unusable_versions[job_id] = error.detail, _version_in(record.value)
            with about(job_id=job_id):
                log.warning("jobs topic, offset %d: ignored a spec that cannot be used: %s", record.offset, error)
            if self._on_unreadable:
                self._on_unreadable(record, error)
            return None if job_id in self._specs else job_id
        self.unusable.pop(job_id, None)
        known = self._specs.get(spec.job_id)
        if known is not None and spec.version < known.version:
            text = "job %s: ignored version %d, which came after version %d"
            with about(job_id=spec.job_id):
                log.warning(text, spec.job_id, spec.version, known.version)
            return None
        self._specs[spec.job_id] = spec
        self.unknown[spec.job_id] = unknown_fields(JobSpec, record.value)
        return spec.job_id

    def _read(self, record: ConsumedRecord) -> JobSpec:
        spec = decode(JobSpec, record.value, record.headers, record.key)
        known = self._specs.get(spec.job_id)
        if self._check is None or (known is not None and _scaling(known) == _scaling(spec)):
            return spec  # a check takes longer than all else, and most versions only ask for another size
        if problems := self._check(spec):
            raise Unreadable("INVALID", "; ".join(problems))
        return spec


def _scaling(spec: JobSpec) -> str:
    return spec.scaling.model_dump_json()  # to Python, True equals 1


def _version_in(value: bytes) -> int:
    """Return the version that a spec tells which is otherwise no spec; 0 if it tells none."""
    try:
        found = json.loads(value)["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
    return found if type(found) is int else 0
