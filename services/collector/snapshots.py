"""Assembles a MetricSnapshot from the sources' answers about one job. Pure.

The state comes from the cluster if the job has one, and from the log:

    the log ends with the application's end              stopped; failed if a query or the exit code says so
    the application is active at the cluster             running; starting before its first query, and while it may
                                                         start one again; then stopped or failed
    the application is no longer active at the cluster   stopped; failed if the cluster or a query in the log says so
    no log, and no application with the job's name       stopped without an incarnation: it never started
    no answer from the cluster or the log                unknown, with `job_state` missing
    no cluster (`local[n]`)                              running while the log grows (an idle query writes every 10 s),
                                                         unknown after a longer silence

So an idle query counts as running, without batches and with nothing missing; a dead one does not count as running.

Committed offsets come from the newest progress. Until a new run has committed, those of the previous run apply, because
the checkpoint is the same. Where the log of a job that may be scaled to zero does not tell them, because it was deleted
or its newest run has processed nothing, the checkpoint does. It also tells where a query stands of which the log shows
no batch: the first one may take long, and a query of a quiet topic may wait for weeks. A partition that the query has
not seen yet (just added) has the committed offset null, and `committed_offsets` is missing until the query has seen it.
If the broker has fewer partitions than the query has committed (the topic was recreated), the end offsets are null
there.

A query with a real-time trigger processes records minutes before it commits them, and no event tells how far it is. So
its committed offsets are null, but for the interval in which it has ended a batch.

Topics that the queries read and the spec does not name, such as those of a `subscribePattern`, are measured as well:
batches process their records, too. Of a topic that is read with `assign`, only the assigned partitions count.

The first offsets are told only where records were removed before the job has read them. In a compacted topic the
offsets have gaps, so lag is the most that there can be; the markers of transactions count as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from services.collector.pauses import Pause, paused
from services.collector.sources import KafkaAnswer
from services.collector.view import App, ClusterView
from services.collector.waiting import Waited, holds_back
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import (
    ClusterState,
    MetricSnapshot,
    Part,
    Pool,
    SnapshotWarning,
    SourceOffsets,
    WarningCode,
    snapshot_id,
)
from tidegate.sparklog.application_run import Reading
from tidegate.sparklog.events import PartitionOffsets
from tidegate.sparklog.log_directory import JobReading


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAnswers:
    """Each source's answer about one job in one interval; None for no answer."""

    sequence: int
    kafka: KafkaAnswer
    logs: JobReading | None
    cluster: ClusterView | None
    last_app_id: str | None = None
    """The newest known run, in case the log does not answer."""
    checkpoint: PartitionOffsets | None = None
    """Committed offsets by the checkpoint; asked only where the log does not tell them."""
    others: frozenset[str] = frozenset()
    """Topics that Kafka was asked about, although the spec does not name them: the job reads them."""
    waited: Waited | None = None
    """What waited at an earlier snapshot."""
    pause_before: Pause | None = None
    """The pause that the job made at the previous snapshot."""

    @property
    def runs(self) -> Sequence[Reading]:
        """The runs that the log tells of, newest last."""
        return self.logs.runs if self.logs is not None else ()

    @property
    def active(self) -> Mapping[str, App]:
        """The applications that the cluster calls active, by id."""
        return self.cluster.active if self.cluster is not None else {}

    @property
    def run(self) -> Reading | None:
        """The newest run; during a handover the older one as long as it does the work."""
        for older in self.runs[:-1]:
            if older.query_active and older.app_id in self.active:
                return older
        return self.runs[-1] if self.runs else None

    @property
    def pause(self) -> Pause | None:
        """The pause that the job makes now."""
        return paused(self.pause_before, self.kafka.at, self.run)


def snapshot(spec: JobSpec, seen: SourceAnswers, silence_seconds: float) -> MetricSnapshot:
    """Return the job's snapshot, which names what is missing."""
    has_cluster = spec.application.cluster_place is not None
    run, pause = seen.run, seen.pause
    app = _app(spec, seen, run)
    named_only = app is not None and (run is None or run.app_id != app.id)  # active, but without a log so far
    rests = pause is not None and pause.seconds(seen.kafka.at) <= silence_seconds
    if has_cluster:
        state = _state_by_cluster(seen, run, app, named_only=named_only, rests=rests)
    else:
        state = _state_by_log(seen, run, silence_seconds, rests=rests)
    alive = state in (ClusterState.STARTING, ClusterState.RUNNING)
    incarnation = app.id if app is not None else (run.app_id if run else seen.last_app_id)
    figures = None if named_only else run

    sources = _sources(spec, seen, read_on=alive and figures is not None and figures.reads_on)
    slots = _slots(seen, state, app, figures)
    pool = _pool(spec, seen.cluster)

    missing = []
    if any(None in source.end_offsets or not source.end_offsets for source in sources):
        missing.append(Part.END_OFFSETS)
    if any(None in source.committed_offsets or not source.committed_offsets for source in sources):
        missing.append(Part.COMMITTED_OFFSETS)
    if seen.logs is None or not seen.logs.complete or (run is None and state is ClusterState.RUNNING):
        missing += [Part.PROGRESS, Part.TASKS]
    elif figures is not None and (figures.real_time or figures.continuous) and alive:
        missing.append(Part.PROGRESS)  # its batches last as long as they should, or there are none, whatever the work
    if slots is None or (has_cluster and pool is None):
        missing.append(Part.CAPACITY)
    if state is ClusterState.UNKNOWN:
        missing.append(Part.JOB_STATE)

    return MetricSnapshot(
        snapshot_id=snapshot_id(spec.job_id, seen.sequence),
        job_id=spec.job_id,
        pipeline_id=spec.pipeline_id,
        sequence=seen.sequence,
        interval_seconds=spec.interval_seconds,
        observed_at=seen.kafka.at,
        state=state,
        incarnation=incarnation,
        incarnation_started_at=figures.started_at if figures else (app.started_at if app else None),
        query_id=figures.query_id if figures else None,
        sources=sources,
        batches=figures.batches if figures else (),
        batches_left_out=figures.batches_left_out if figures else 0,
        current_batch_started_at=figures.current_batch_started_at if figures and alive else None,
        running=(figures.running or None) if figures and alive and Part.TASKS not in missing else None,
        stages=figures.stages if figures else (),
        state_operators=figures.operators if figures else (),
        slots_granted=slots,
        gc_ratio=figures.gc_ratio if figures else None,
        pool=pool,
        missing=tuple(missing),
        warnings=_warnings(spec, seen, figures, sources) or None,
    )


def _app(spec: JobSpec, seen: SourceAnswers, run: Reading | None) -> App | None:
    """Return the job's application: by the log's application id, or else the newest of the job's name."""
    if seen.cluster is None:
        return None
    app_id = run.app_id if run is not None else seen.last_app_id
    if app_id is not None and app_id in seen.cluster.active:
        return seen.cluster.active[app_id]
    named = seen.cluster.active_by_name.get(spec.job_id)
    over = seen.cluster.completed.get(app_id) if app_id is not None else None
    # The log has the times of its driver's clock, so those of the cluster are compared where it still knows the run.
    began = over.started_at if over is not None else run.started_at if run is not None else None
    if named is not None and (run is None or began is None or named.started_at > began):
        return named
    return over


def _state_by_cluster(
    seen: SourceAnswers, run: Reading | None, app: App | None, *, named_only: bool, rests: bool
) -> ClusterState:
    if app is not None and app.id in seen.active:
        if run is None and seen.logs is None:
            return ClusterState.RUNNING  # it is active; only the log, which is missing, knows its progress
        if named_only or run is None or not run.query_seen or rests:
            return ClusterState.STARTING
        return ClusterState.RUNNING if run.query_active else _ended(run)
    if run is not None and run.ended:
        return _ended(run)
    if seen.cluster is None or (seen.logs is None and seen.last_app_id is None):
        return ClusterState.UNKNOWN
    if app is not None and app.state == "FAILED":
        return ClusterState.FAILED
    return _ended(run) if run is not None else ClusterState.STOPPED


def _state_by_log(seen: SourceAnswers, run: Reading | None, silence_seconds: float, *, rests: bool) -> ClusterState:
    if seen.logs is None:
        return ClusterState.UNKNOWN
    if run is None:
        return ClusterState.STOPPED
    if run.ended or (run.query_seen and not run.query_active and not rests):
        return _ended(run)
    grown_at = seen.logs.grown_at
    if grown_at is None or (seen.kafka.at - grown_at).total_seconds() > silence_seconds:
        return ClusterState.UNKNOWN
    return ClusterState.RUNNING if run.query_active else ClusterState.STARTING


def _ended(run: Reading) -> ClusterState:
    return ClusterState.FAILED if run.failure else ClusterState.STOPPED


def _committed(seen: SourceAnswers) -> PartitionOffsets:
    told = next((run.committed for run in reversed(seen.runs) if run.committed), {})
    return {**(seen.checkpoint or {}), **told}


def untold_topics(spec: JobSpec, logs: JobReading | None) -> set[str]:
    """Return the topics of which the checkpoint must tell the committed offsets, because the log does not."""
    works_untold = logs is not None and logs.works_untold
    if spec.scaling.min_parallelism > 0 and not works_untold:
        return set()
    return set(spec.sources) - {topic for run in (logs.runs if logs is not None else ()) for topic in run.committed}


def _slots(seen: SourceAnswers, state: ClusterState, app: App | None, run: Reading | None) -> int | None:
    if app is not None and app.id in seen.active:
        return app.cores
    if state in (ClusterState.STARTING, ClusterState.RUNNING):
        return run.local_cores if run is not None else None
    return None if state is ClusterState.UNKNOWN else 0  # nothing runs, so 0 slots is a measurement and not missing


def other_topics(spec: JobSpec, logs: JobReading | None, known: frozenset[str]) -> frozenset[str]:
    """Return the topics that a job reads and its spec does not name; those `known` before if its log tells none."""
    read = frozenset(topic for run in (logs.runs if logs is not None else ()) for topic in run.topics)
    return (read or known) - frozenset(spec.sources)


def _warnings(
    spec: JobSpec, seen: SourceAnswers, run: Reading | None, sources: tuple[SourceOffsets, ...]
) -> tuple[SnapshotWarning, ...]:
    """Return what somebody should look at."""
    listed, answered = frozenset(spec.sources), seen.kafka.ends
    unknown = frozenset() if answered is None else (listed | seen.others) - answered.keys()
    read = run.topics if run is not None and run.query_active and run.all_told else listed
    found = {
        WarningCode.TOPIC_UNKNOWN: unknown,
        WarningCode.TOPIC_NOT_READ: listed - unknown - read,
        WarningCode.TOPIC_NOT_LISTED: seen.others - unknown,
        WarningCode.SOURCE_LIMITED: frozenset() if run is None else run.limited,
    }
    named = [SnapshotWarning(code=code, topics=tuple(sorted(topics))) for code, topics in found.items() if topics]
    if run is not None and run.failed is not None:
        named.append(SnapshotWarning(code=WarningCode.QUERY_FAILED, topics=tuple(sorted(run.failed))))
    if not seen.kafka.is_known:
        named.append(SnapshotWarning(code=WarningCode.KAFKA_UNKNOWN))
    if run is not None and run.real_time:
        named.append(SnapshotWarning(code=WarningCode.REAL_TIME))
    if run is not None and holds_back(seen.waited, run.idle_at, sources):
        named.append(SnapshotWarning(code=WarningCode.SOURCE_WAITS))
    if run is not None and run.clock_ahead_seconds is not None:
        named.append(SnapshotWarning(code=WarningCode.CLOCK_APART, seconds=round(run.clock_ahead_seconds, 1)))
    return tuple(named)


def _sources(spec: JobSpec, seen: SourceAnswers, *, read_on: bool) -> tuple[SourceOffsets, ...]:
    """Return the offsets of the topics that a job reads; all rows are as long as the longest one.

    If it has `read_on` since its last commit, nobody knows how far.

    Of the topics that the spec does not name, only those that Kafka tells are there: to read a topic without measuring
    it is allowed.
    """
    ends, committed = seen.kafka.ends, _committed(seen)
    assigned = next((run.assigned for run in reversed(seen.runs) if run.committed), frozenset())
    sources = []
    for topic in (*spec.sources, *sorted(topic for topic in seen.others if ends is None or topic in ends)):
        end, done = (ends or {}).get(topic, ()), committed.get(topic, {})
        if topic in assigned:
            done = {p: done.get(p, 0) for p in range(max(len(end), max(done, default=-1) + 1))}
            end = tuple(offset if p in committed[topic] else 0 for p, offset in enumerate(end))
        width = max(len(end), max(done, default=-1) + 1)
        sources.append(
            SourceOffsets(
                topic=topic,
                end_offsets=tuple(end[p] if p < len(end) else None for p in range(width)),
                committed_offsets=(None,) * width if read_on else tuple(done.get(p) for p in range(width)),
                first_offsets=None if read_on else _firsts(end, done, seen.kafka.firsts.get(topic, ()), width),
            )
        )
    return tuple(sources)


def _firsts(
    end: Sequence[int | None], done: Mapping[int, int], first: Sequence[int | None], width: int
) -> tuple[int | None, ...] | None:
    """Return the first offsets of a topic; None unless one of them is above what is committed.

    One above the end offset is from before the topic was recreated.
    """
    row: list[int | None] = [None] * width
    for partition, (offset, until) in enumerate(zip(first, end, strict=False)):
        if offset is not None and until is not None and offset <= until:
            row[partition] = offset
    return tuple(row) if any((offset or 0) > done.get(p, 0) for p, offset in enumerate(row)) else None


def _pool(spec: JobSpec, cluster: ClusterView | None) -> Pool | None:
    if cluster is None:
        return None
    total = cluster.slots_total
    if spec.pool_max_slots is not None:
        total = max(total or 0, cluster.slots_used, spec.pool_max_slots)
    if total is None:
        return None
    return Pool(
        pool_id=spec.pool_id,
        slots_total=total,
        slots_used=cluster.slots_used,
        workers_alive=cluster.workers_alive,
    )
