"""One run of a job's application: the events of its log, aggregated for snapshots.

If several queries run in one application, the snapshot lists the micro-batches of all of them (then `batch_id` is
unique only within a query), sums a batch's input over its sources, and reports for each partition the lowest committed
offset among the queries that read it: only up to there is everything done. Batches of queries that read the same topic
are taken together, see `rounds`. Those of a query that reads no Kafka do not count if another query does: lag has none
of their records. A query that has ended without a failure reads no more, so it counts only for topics that no other
query reads. One that failed has left work behind and still counts, until one of the same name, or also without one, has
taken its topics over: a script may start a failed query again without its checkpoint. `query_id` is that of the query
that started first.

An application may start queries for ever, each with an id of its own if its checkpoint is temporary. Of those that have
ended, `MAX_ENDED` count: the newest ones, and before them those that have failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean, median

from pydantic import ValidationError

from tidegate.events.invalid import first_problem
from tidegate.events.snapshot import MicroBatch, RunningBatch, StageTasks, StateOperator
from tidegate.sparklog import events
from tidegate.sparklog.parse import BrokenLine
from tidegate.sparklog.rehearsals import Rehearsals
from tidegate.sparklog.rounds import Round, growth
from tidegate.sparklog.running import BatchInProgress

MAX_BATCHES = 200
MAX_ENDED = 100
"""Queries that are kept although they have ended."""
MAX_RUNNING = 50
MAX_STAGES = 200
"""The busiest stages of an interval; a `foreachBatch` that loops over actions can have any number."""
MAX_AHEAD = 10_000
"""Batches, and runs of stages, that are kept for later intervals: the clock of a driver may be days ahead."""
MAX_OPEN_STAGES = 1000
"""Stages whose end has not been read and of which tasks have ended: more than Spark runs at once."""
LATE = timedelta(seconds=5)
"""How late Spark may write an event of the previous interval; older ones fell into a gap and are left out."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The time span of a snapshot: (start, end]."""

    start: datetime
    end: datetime
    first: bool = False
    """There was no snapshot of the previous interval, so none of its events can be late."""

    def holds(self, instant: datetime) -> bool:
        """Whether this snapshot covers what ended at `instant`, if no earlier one did."""
        earliest = self.start if self.first else self.start - LATE
        return earliest < instant <= self.end

    def misses(self, instant: datetime) -> bool:
        """Whether what was read of this interval ended at an `instant` that no snapshot, or only a later one, covers.

        The driver's clock is behind or ahead then, or the log was read late.
        """
        if instant <= self.start - LATE:
            return not self.first  # else it fell into a gap, or was there before
        return instant > self.end + (self.end - self.start) + LATE


@dataclass(frozen=True, slots=True)
class Reading:
    """What the log of one run says about one interval."""

    app_id: str
    started_at: datetime
    ended: bool
    failure: str | None
    """The error of a query or of the application."""
    query_seen: bool
    query_active: bool
    query_id: str | None
    committed: events.PartitionOffsets
    batches: tuple[MicroBatch, ...]
    batches_left_out: int
    current_batch_started_at: datetime | None
    running: tuple[RunningBatch, ...]
    """Oldest first."""
    stages: tuple[StageTasks, ...]
    gc_ratio: float | None
    operators: tuple[StateOperator, ...]
    local_cores: int | None
    """Cores of a `local[n]` application; None for any other."""
    topics: frozenset[str] = frozenset()
    """The topics that its queries read; once all have ended, those that they have read."""
    assigned: frozenset[str] = frozenset()
    """Those among them of which only the partitions with a committed offset are read."""
    clock_ahead_seconds: float | None = None
    """How far the driver's clock is ahead of the collector's, or behind if negative, to about an interval. None unless
    batches were left out for that. A log that is read late looks as if its clock was behind."""
    real_time: bool = False
    """Whether a query has a real-time trigger: its batches last as long as they should, whatever there is to do."""
    reads_on: bool = False
    """Whether such a query has processed more than it has committed: it has ended no batch in the interval."""
    continuous: bool = False
    """Whether a query has a continuous trigger: it has no batches that could tell what it does."""
    idle_at: datetime | None = None
    """When all queries that read Kafka have found nothing new, and none has been in a batch since; None otherwise."""
    all_told: bool = False
    """Whether every query that has not ended has told what it reads."""
    limited: frozenset[str] = frozenset()
    """Topics of which the newest batch of a query left records, as a limit of their own source binds."""
    failed: frozenset[str] | None = None
    """The topics of which failed queries have told, while others go on; None if none has failed."""
    ends: int = 0
    """How many runs of its queries have ended; one query may run again and again."""


@dataclass(slots=True)
class _Query:
    name: str | None = None
    active: bool = True
    failure: str | None = None
    started_at_end: int = 0
    """How many runs of queries had ended when it started."""
    ended: int = 0
    """How many had when it ended itself, itself included."""
    replaced: bool = False
    """Whether it failed, and a later query reads its topics in its place."""
    last_batch: int = -1
    run_id: str = ""
    """Which run of it told its progress last."""
    told_at: datetime | None = None
    """When the trigger started of which it told last."""
    batch_at: datetime | None = None
    """When it ended its last batch."""
    running: BatchInProgress | None = None
    idle_at: datetime | None = None
    """When it found nothing new, if it has not been in a batch since."""
    committed: events.PartitionOffsets = field(default_factory=dict)
    assigned: frozenset[str] = frozenset()
    limited: frozenset[str] = frozenset()
    real_time: bool = False
    continuous: bool = False
    told: bool = False
    """Whether it has told what it reads."""
    operators: tuple[StateOperator, ...] = ()

    @property
    def done(self) -> bool:
        """Whether it has ended, and left no work behind."""
        return not self.active and (self.failure is None or self.replaced)

    def replaces(self, other: _Query) -> bool:
        """Whether it was started after another one had failed, as that one was, and reads all that that one told of."""
        later = not other.active and other.failure is not None and self.started_at_end >= other.ended
        return later and self.name == other.name and other.committed.keys() <= self.committed.keys()

    def is_newer_run(self, event: events.QueryProgress) -> bool:
        """Whether another run tells this, later; within a run, batch ids never fall."""
        return event.run_id != self.run_id and (self.told_at is None or event.started_at > self.told_at)


@dataclass(frozen=True, slots=True)
class _StageRun:
    name: str
    tasks: int
    at: datetime
    run_seconds: list[float]
    gc_seconds: float
    slowest_place: int


class ApplicationRun:
    """The state of one run: `apply` adds events, `reading` returns those of an interval, `cut` also ends it."""

    def __init__(self) -> None:
        self.job_id: str | None = None
        self.started: events.ApplicationStarted | None = None
        self.ended: events.ApplicationEnded | None = None
        self.inherited: events.PartitionOffsets = {}
        """Committed offsets of the previous run; they apply until this run commits, as the checkpoint is the same. Its
        queries commit at different times, so they apply topic by topic."""
        self.inherited_assigned: frozenset[str] = frozenset()
        """Of the previous run, for as long."""
        self._local_cores: int | None = None
        self._queries: dict[str, _Query] = {}
        self._first_query_id: str | None = None
        self._ended: list[str] = []
        """Queries in the order in which they ended; some of them may run again."""
        self._ends = 0
        self._rehearsals = Rehearsals()
        self._tasks: dict[tuple[int, int], list[events.TaskEnded]] = {}
        self._stage_runs: list[_StageRun] = []
        self._batches: list[tuple[datetime, MicroBatch]] = []
        self._round = Round()

    def apply(self, event: events.SparkEvent) -> None:
        """Add one event; raise `BrokenLine` for figures that no snapshot may hold."""
        if not self._rehearsals.has(event):
            try:
                self._apply(event)
            except ValidationError as error:
                raise BrokenLine(first_problem(error)) from None

    def _apply(self, event: events.SparkEvent) -> None:
        match event:
            case events.TaskEnded():
                self._task_ended(event)
            case events.StageStarted():
                self._stage_started(event)
            case events.StageEnded():
                self._stage_ended(event)
            case events.JobStarted():
                self._job_started(event)
            case events.QueryProgress():
                self._progress(event)
            case events.QueryStarted():
                before = self._query(event.query_id)
                self._queries[event.query_id] = _Query(
                    name=event.name,
                    started_at_end=self._ends,
                    committed=before.committed,
                    assigned=before.assigned,
                    last_batch=before.last_batch,
                    run_id=before.run_id,
                    told_at=before.told_at,
                )
            case events.QueryIdle():
                query = self._query(event.query_id)
                query.running, query.idle_at = None, event.at
            case events.QueryTerminated():
                self._terminated(event)
            case events.ApplicationProperties():
                self.job_id = event.job_id or event.app_name
            case events.ApplicationStarted():
                self.started = event
                self.job_id = self.job_id or event.app_name
            case events.ApplicationEnded():
                self.ended = event
            case events.LocalCores():
                self._local_cores = event.cores

    @property
    def committed(self) -> events.PartitionOffsets:
        """The lowest committed offset of each partition over all queries; of a topic without, the previous run's."""
        lowest: dict[str, dict[int, int]] = {}
        for query, topic in self._readers():
            of_topic = lowest.setdefault(topic, {})
            for partition, offset in query.committed[topic].items():
                of_topic[partition] = min(offset, of_topic.get(partition, offset))
        return {**self.inherited, **lowest}

    @property
    def topics(self) -> frozenset[str]:
        """The topics that the queries read; once all have ended, those that they have read."""
        queries = list(self._queries.values())
        if any(query.active for query in queries):
            queries = [query for query in queries if not query.done]
        return frozenset(topic for query in queries for topic in query.committed)

    @property
    def assigned(self) -> frozenset[str]:
        """Topics of which only the partitions in `committed` are read; of a topic without, by the previous run."""
        readers = self._readers()
        whole = {topic for query, topic in readers if topic not in query.assigned}
        return self.inherited_assigned.union(topic for _, topic in readers) - whole

    def _readers(self) -> list[tuple[_Query, str]]:
        """Return the queries that count, with each of their topics; one that is done does where no other one reads."""
        queries = self._queries.values()
        reading = {topic for query in queries if not query.done for topic in query.committed}
        return [(each, topic) for each in queries for topic in each.committed if not each.done or topic not in reading]

    @property
    def has_committed(self) -> bool:
        """Whether a query of this run has committed a batch that reads Kafka."""
        return any(query.committed for query in self._queries.values())

    def cut(self, interval: Interval) -> Reading:
        """Return the interval's reading and drop what ended in it; what ended later stays."""
        reading = self.reading(interval)
        self._batches = [(at, batch) for at, batch in self._batches if at > interval.end][-MAX_AHEAD:]
        self._stage_runs = [run for run in self._stage_runs if run.at > interval.end][-MAX_AHEAD:]
        return reading

    def counts(self, interval: Interval) -> tuple[int, int, int]:
        """Return how many micro-batches and runs of stages ended in an interval, and how many tasks in running ones.

        It costs far less than `reading`.
        """
        return (
            sum(interval.holds(at) or interval.misses(at) for at, _ in self._batches),
            sum(interval.holds(run.at) for run in self._stage_runs),
            sum(batch.tasks_finished for batch in self._running()),
        )

    def reading(self, interval: Interval) -> Reading:
        """Return what the events so far say about an interval; drop nothing."""
        assert self.started is not None  # noqa: S101 - a run is followed only after its start was read
        batches = [batch for at, batch in self._batches if interval.holds(at)]
        missed = [at for at, _ in self._batches if interval.misses(at)]
        runs = [run for run in self._stage_runs if interval.holds(run.at)]
        queries = self._queries.values()
        running = sorted(self._running(), key=lambda batch: batch.started_at)
        failed = [query for query in queries if query.failure is not None and not query.replaced]
        active = any(query.active for query in queries) and self.ended is None
        told = all(query.told for query in queries if query.active)
        # A query that has ended holds no state any more; of an application without any other it is what was there last.
        holding = [query for query in queries if query.active] or queries
        idle = [query.idle_at for query in queries if query.active and query.committed]
        real_time = [query for query in queries if query.active and query.real_time]
        return Reading(
            app_id=self.started.app_id,
            started_at=self.started.at,
            ended=self.ended is not None,
            failure=failed[-1].failure if failed else ("exit code" if self.ended and self.ended.failed else None),
            query_seen=bool(queries),
            query_active=active,
            query_id=self._first_query_id,
            committed=self.committed,
            batches=tuple(batches[-MAX_BATCHES:]),
            batches_left_out=max(0, len(batches) - MAX_BATCHES) + len(missed),
            current_batch_started_at=running[0].started_at if running else None,
            running=tuple(batch.figures() for batch in running[:MAX_RUNNING]),
            stages=_stages(runs),
            gc_ratio=_gc_ratio(runs),
            operators=tuple(operator for query in holding for operator in query.operators),
            local_cores=self._local_cores,
            topics=self.topics,
            assigned=self.assigned,
            clock_ahead_seconds=(max(missed) - interval.end).total_seconds() if missed else None,
            real_time=bool(real_time),
            continuous=any(query.active and query.continuous for query in queries),
            reads_on=any(query.batch_at is None or not interval.holds(query.batch_at) for query in real_time),
            idle_at=min((at for at in idle if at is not None), default=None) if None not in idle else None,
            all_told=all(query.told for query in queries if not query.done),
            limited=frozenset(topic for query in queries if query.active for topic in query.limited),
            failed=frozenset().union(*(each.committed for each in failed)) if failed and active and told else None,
            ends=self._ends,
        )

    def _running(self) -> list[BatchInProgress]:
        if self.ended is not None:
            return []
        queries = [query for query in self._queries.values() if query.active and not self._beside_kafka(query)]
        return [query.running for query in queries if query.running is not None]

    def _beside_kafka(self, query: _Query) -> bool:
        """Whether a query has told that it reads no Kafka, while another one does or may."""
        if query.committed or not query.told:
            return False
        others = [other for other in self._queries.values() if other is not query]
        return bool(self.inherited) or any(other.committed or not (other.told or other.done) for other in others)

    def _query(self, query_id: str) -> _Query:
        # a log that is read from its newest files on contains batches of queries whose start was skipped
        self._first_query_id = self._first_query_id or query_id
        return self._queries.setdefault(query_id, _Query())

    def _terminated(self, event: events.QueryTerminated) -> None:
        query = self._query(event.query_id)
        self._ends += 1
        query.active, query.failure, query.running, query.ended = False, event.failure, None, self._ends
        ended = [id_ for id_ in self._ended if id_ != event.query_id and not self._queries[id_].active]
        if len(ended) >= MAX_ENDED:
            oldest = next((id_ for id_ in ended if self._queries[id_].done), ended[0])
            ended.remove(oldest)
            del self._queries[oldest]
        self._ended = [*ended, event.query_id]

    def _progress(self, event: events.QueryProgress) -> None:
        query = self._query(event.query_id)
        if event.batch_id <= query.last_batch and query.is_newer_run(event):
            query.last_batch = event.batch_id - 1  # its checkpoint is an older one
        elif event.batch_id < query.last_batch:
            return  # repeated in a compacted log
        query.run_id, query.told_at = event.run_id, event.started_at
        before = self.committed if len(self._queries) > 1 else {}
        query.active = True
        query.committed = event.committed or query.committed
        for other in self._queries.values():
            other.replaced = other.replaced or query.replaces(other)
        query.assigned, query.told = event.assigned, True
        query.real_time = event.real_time or (query.real_time and not event.input_records)
        query.operators = _operators(event.operators, query.operators)
        running = query.running if query.running is not None and query.running.batch_id == event.batch_id else None
        if query.running is not None and query.running.batch_id <= event.batch_id:
            query.running = None
        if event.add_batch_seconds is None or event.batch_id <= query.last_batch:
            return  # a trigger without a batch, or a repetition
        batch = MicroBatch(
            batch_id=event.batch_id,
            started_at=event.started_at,
            duration_seconds=event.duration_seconds,
            add_batch_seconds=event.add_batch_seconds,
            input_records=event.input_records if event.start else _read_once(event.input_records, running),
            output_records=event.output_records,
        )
        query.last_batch, query.batch_at, query.idle_at = event.batch_id, event.finished_at, None
        query.limited = event.limited
        if self._beside_kafka(query):
            return
        if topics := self._shared_by(query):
            made = self._round.add(batch, event.finished_at, growth(before, self.committed, topics))
            if made is None:
                return
            self._round, batch = Round(event.finished_at), made
        self._batches.append((event.finished_at, batch))

    def _shared_by(self, query: _Query) -> frozenset[str]:
        """Return the topics of the queries of which each reads one that another reads; none if `query` does not."""
        going = [each.committed.keys() for each in self._queries.values() if not each.done]
        sharing = [topics for topics in going if sum(not topics.isdisjoint(other) for other in going) > 1]
        return frozenset().union(*sharing) if query.committed.keys() in sharing else frozenset()

    def _job_started(self, event: events.JobStarted) -> None:
        query = self._query(event.query_id)
        query.continuous = event.continuous
        if event.continuous:
            return
        new = query.running is None or query.running.batch_id != event.batch_id
        if new and event.batch_id > query.last_batch:
            query.running, query.idle_at = BatchInProgress(event.batch_id, event.at), None

    def _stage_started(self, event: events.StageStarted) -> None:
        query = self._query(event.query_id)
        query.real_time = query.real_time or event.real_time  # the first batch may take minutes to its end
        running = query.running
        if running is not None and running.batch_id == event.batch_id:
            running.stage_started(event)

    def _task_ended(self, event: events.TaskEnded) -> None:
        self._tasks.setdefault(event.stage, []).append(event)
        if len(self._tasks) > MAX_OPEN_STAGES:  # the oldest one has ended before this task of it was told
            del self._tasks[next(iter(self._tasks))]
        for query in self._queries.values():
            if query.running is not None:
                query.running.task_ended(event)

    def _stage_ended(self, event: events.StageEnded) -> None:
        tasks = self._tasks.pop(event.stage, [])
        if tasks and not event.failed:
            run_seconds = [task.run_seconds for task in tasks]
            gc_seconds = sum(task.gc_seconds for task in tasks)
            slowest = max(tasks, key=lambda task: task.run_seconds)
            place = sum(task.task_id < slowest.task_id for task in tasks)
            self._stage_runs.append(
                _StageRun(event.name, max(1, event.tasks), event.at, run_seconds, gc_seconds, place)
            )


def _operators(told: Sequence[events.OperatorState], before: Sequence[StateOperator]) -> tuple[StateOperator, ...]:
    """Return the operators of a query; one whose rows were not counted `before` has not been emptied since."""
    made = []
    for place, operator in enumerate(operator for operator in told if operator.partitions):
        uncounted = not operator.rows and place < len(before) and before[place].rows is None
        made.append(
            StateOperator(
                name=operator.name,
                rows=None if uncounted else operator.rows,
                memory_bytes=operator.memory_bytes,
                partitions=operator.partitions,
            )
        )
    return tuple(made)


def _read_once(records: int, batch: BatchInProgress | None) -> int:
    """Return the records of a query's first batch, whose offsets do not tell how many there are at most.

    Spark counts a record each time it is read; the tasks tell how many one reading took.
    """
    read = 0 if batch is None else batch.figures().records_read
    return min(records, read) if read else records


def _stages(runs: list[_StageRun]) -> tuple[StageTasks, ...]:
    """Return the figures of each stage by name, busiest first; the number of tasks is that of the newest run."""
    by_name: dict[str, list[_StageRun]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    stages = [
        StageTasks(
            name=name,
            tasks=same[-1].tasks,
            runs=len(same),
            busy_seconds=sum(sum(run.run_seconds) for run in same),
            median_task_seconds=fmean(median(run.run_seconds) for run in same),
            slowest_task_seconds=fmean(max(run.run_seconds) for run in same),
            slowest_task_place=same[-1].slowest_place,
        )
        for name, same in by_name.items()
    ]
    return tuple(sorted(stages, key=lambda stage: (-stage.busy_seconds, stage.name))[:MAX_STAGES])


def _gc_ratio(runs: list[_StageRun]) -> float | None:
    """Return garbage collection time over run time, both by the executor's clock; None if no task ran."""
    busy = sum(sum(run.run_seconds) for run in runs)
    return min(1.0, sum(run.gc_seconds for run in runs) / busy) if busy else None
