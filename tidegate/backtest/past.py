"""What a job's event logs say of its past: arrivals, commits and slots over time, as the twin and its score need them.

End offsets are known at the moments at which Spark looked for new records: when it planned a batch, and when it found
none. In between they are taken as even. The past begins with the first commit, because only then is the lag known, and
ends with the last look at the topics.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise

from tidegate.backtest.logs import LogBatch, Run
from tidegate.events.snapshot import ClusterState, MetricSnapshot, MicroBatch, SourceOffsets, snapshot_id
from tidegate.lab.simulate import JobRecording
from tidegate.lab.traces import MOST_HOURS
from tidegate.twin.load import Load
from tidegate.twin.world import Truth

LONGEST_GAP_SECONDS = 3600.0
"""A job that did not run for longer was stopped on purpose: the times before and after are not one past."""
INTERVAL_SECONDS = 10
MOST_SNAPSHOTS = 20_000
MIN_BATCHES = 20

Key = tuple[str, int]
"""Topic and partition."""


class CannotBacktest(ValueError):
    """The logs do not hold enough; the text says what is missing."""


class OffsetCurves:
    """The end offset of each partition over time. Instants are epoch seconds."""

    def __init__(self, points: Mapping[Key, Sequence[tuple[float, int]]]) -> None:
        """`points` are (when, end offset), oldest first, at least one for each partition."""
        self.keys = tuple(sorted(points))
        self._at: list[list[float]] = []
        self._ends: list[list[int]] = []
        for key in self.keys:
            at: list[float] = []
            ends: list[int] = []
            for moment, end in points[key]:
                if not at or moment > at[-1]:
                    at.append(moment)
                    ends.append(max(end, ends[-1]) if ends else end)
            self._at.append(at)
            self._ends.append(ends)

    @property
    def last_at(self) -> float:
        """The newest look at a topic."""
        return max(at[-1] for at in self._at)

    def ends(self, moment: float) -> list[float]:
        """Return the end offset of each partition; before the first look, and after the last, as at that look."""
        found = []
        for at, ends in zip(self._at, self._ends, strict=True):
            place = bisect_right(at, moment)
            if place == 0 or place == len(at):
                found.append(float(ends[place - 1 if place else 0]))
            else:
                share = (moment - at[place - 1]) / (at[place] - at[place - 1])
                found.append(ends[place - 1] + share * (ends[place] - ends[place - 1]))
        return found

    def oldest_at(self, committed: Sequence[float], begin: float) -> float:
        """Return when the oldest record after these offsets arrived, `begin` if before; infinite if there is none."""
        oldest = math.inf
        for at, ends, done in zip(self._at, self._ends, committed, strict=True):
            place = bisect_right(ends, done)
            if place == len(ends):
                continue
            if place == 0:
                return begin
            share = (done - ends[place - 1]) / (ends[place] - ends[place - 1])
            oldest = min(oldest, at[place - 1] + share * (at[place] - at[place - 1]))
        return max(begin, oldest)

    def load(self, begin: float, end: float, step_seconds: float) -> Load:
        """Return the arrivals on all partitions as a load."""
        steps = max(1, math.ceil((end - begin) / step_seconds - 1e-9))
        sums = [sum(self.ends(begin + step * step_seconds)) for step in range(steps + 1)]
        return Load([max(0.0, after - before) / step_seconds for before, after in pairwise(sums)], step_seconds)


class SlotSteps:
    """The slots held over time, constant between changes. Instants are epoch seconds."""

    def __init__(self, changes: Sequence[tuple[float, int]]) -> None:
        """`changes` are (when, slots), oldest first; before the first one no slot is held."""
        self.changes = tuple(changes)
        self._at = [at for at, _ in changes]
        areas = (size * (then - at) for (at, size), (then, _) in pairwise(changes))
        self._sums = [0.0, *accumulate(areas)]

    @property
    def most(self) -> int:
        """The largest size."""
        return max(size for _, size in self.changes)

    def size(self, at: float) -> int:
        """Return the slots held at an instant."""
        place = bisect_right(self._at, at)
        return self.changes[place - 1][1] if place else 0

    def slot_seconds(self, begin: float, end: float) -> float:
        """Return the slot-seconds held between two instants."""
        return self._until(end) - self._until(begin)

    def _until(self, at: float) -> float:
        place = bisect_right(self._at, at) - 1
        return self._sums[place] + self.changes[place][1] * (at - self._at[place]) if place >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; instants are epoch seconds."""

    at: float
    offsets: tuple[float, ...]
    """Of each partition, in the order of the arrivals."""


@dataclass(frozen=True, slots=True)
class Past:
    """What one job did."""

    name: str
    runs: tuple[Run, ...]
    begin: float
    end: float
    arrivals: OffsetCurves
    commits: tuple[Commit, ...]
    """From the first one on."""
    slots: SlotSteps
    """0 while no run was active."""
    remarks: tuple[str, ...]
    """What was left out."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    @property
    def shares(self) -> tuple[float, ...]:
        """Each partition's share of the arrivals."""
        first, last = self.arrivals.ends(self.begin), self.arrivals.ends(self.end)
        grown = [max(after - before, 1e-6) for before, after in zip(first, last, strict=True)]
        return tuple(count / sum(grown) for count in grown)

    def load(self, begin: float | None = None, end: float | None = None, step_seconds: float = 5.0) -> Load:
        """Return the arrivals between two instants, by default of all of it."""
        return self.arrivals.load(
            self.begin if begin is None else begin, self.end if end is None else end, step_seconds
        )

    def lag(self, at: float) -> float:
        """Return how many records had arrived but were not committed."""
        return sum(max(0.0, end - done) for end, done in zip(self.arrivals.ends(at), self._done(at), strict=True))

    def oldest_at(self, at: float) -> float:
        """Return when the oldest record arrived that was not committed at an instant; at most that instant."""
        return min(at, self.arrivals.oldest_at(self._done(at), self.begin))

    def batches(self, begin: float = -math.inf, end: float = math.inf) -> Iterator[LogBatch]:
        """Yield the batches that started between two instants."""
        return (batch for run in self.runs for batch in run.batches if begin <= batch.started_at < end)

    def recording(self, begin: float, end: float) -> JobRecording:
        """Return what was between two instants in the form in which a simulation is recorded, to be scored alike."""
        found = JobRecording()
        span = [commit for commit in self.commits if begin < commit.at <= end]
        done = self._done(begin)
        for commit in span:
            found.commits.append((commit.at - begin, self.arrivals.oldest_at(done, self.begin) - begin))
            done = commit.offsets
        found.commits.append((end - begin, self.arrivals.oldest_at(done, self.begin) - begin))
        arrived = sum(self.arrivals.ends(begin))
        place = 0
        for step in range(math.floor((end - begin) / INTERVAL_SECONDS) + 1):
            at = begin + step * INTERVAL_SECONDS
            while place < len(span) and span[place].at <= at:
                place += 1
            oldest = found.commits[place][1]
            size, held = self.slots.size(at), self.slots.slot_seconds(begin, at)
            age = max(0.0, at - begin - oldest)
            known = sum(self.arrivals.ends(at)) - arrived
            found.ticks.append(Truth(at - begin, known, round(self.lag(at)), age, size, size > 0, held, 0.0))
        return found

    def snapshots(self, begin: float, end: float) -> list[MetricSnapshot]:
        """Return snapshots as the collector would have taken them, for the calibration; at most `MOST_SNAPSHOTS`."""
        interval = max(INTERVAL_SECONDS, math.ceil((end - begin) / MOST_SNAPSHOTS))
        batches = sorted(self.batches(), key=lambda batch: batch.ended_at)
        place = bisect_right(batches, begin, key=lambda batch: batch.ended_at)
        return [
            self._snapshot(interval, sequence, batches[first:last])
            for sequence, first, last in _cuts(batches, place, math.floor(begin), math.ceil(end), interval)
        ]

    def _done(self, at: float) -> tuple[float, ...]:
        """Return the committed offsets at an instant; before the first commit, those of that."""
        return self.commits[max(0, bisect_right(self.commits, at, key=lambda commit: commit.at) - 1)].offsets

    def _snapshot(self, interval: int, sequence: int, batches: Sequence[LogBatch]) -> MetricSnapshot:
        run = next((run for run in reversed(self.runs) if run.started_at <= sequence), self.runs[0])
        started, done = sequence >= self.commits[0].at, self._done(sequence)
        ends, topics = self.arrivals.ends(sequence), {topic for topic, _ in self.arrivals.keys}
        rows = list(zip(self.arrivals.keys, ends, done, strict=True))
        return MetricSnapshot(
            snapshot_id=snapshot_id("past", sequence),
            job_id="past",
            pipeline_id="past",
            sequence=sequence,
            interval_seconds=interval,
            observed_at=datetime.fromtimestamp(sequence, UTC),
            state=ClusterState.RUNNING,
            incarnation=run.app_id,
            incarnation_started_at=datetime.fromtimestamp(run.started_at, UTC),
            sources=tuple(
                SourceOffsets(
                    topic=name,
                    end_offsets=tuple(int(end) for key, end, _ in rows if key[0] == name),
                    committed_offsets=tuple(
                        min(int(end), int(offset)) if started else None for key, end, offset in rows if key[0] == name
                    ),
                )
                for name in sorted(topics)
            ),
            batches=tuple(_micro_batch(batch) for batch in batches[-200:]),
            slots_granted=self.slots.size(sequence),
        )


def past_of(name: str, runs: Sequence[Run]) -> Past:
    """Return the past of a job by its runs, oldest first. Raises `CannotBacktest`."""
    remarks = []
    stretch = _longest_stretch(runs)
    if len(stretch) < len(runs):
        hours = (stretch[-1].last_at - stretch[0].started_at) / 3600
        remarks.append(
            f"{len(runs) - len(stretch)} of {len(runs)} runs are left out: between them the job did not run for over "
            f"an hour; the longest time without such a gap is {hours:.1f} h"
        )
    batches = sorted((batch for run in stretch for batch in run.batches), key=lambda batch: batch.ended_at)
    if len(batches) < MIN_BATCHES:
        raise CannotBacktest(f"{len(batches)} micro-batches ended, and at least {MIN_BATCHES} are needed")
    arrivals, commits = _arrivals(stretch, batches), _commits(batches, sorted(_ends(stretch)))
    begin, end = commits[0].at, arrivals.last_at
    if end <= begin:
        raise CannotBacktest("nothing was read after the first commit")
    if end - begin > MOST_HOURS * 3600:
        first, last = (datetime.fromtimestamp(at, UTC) for at in (begin, end))
        raise CannotBacktest(
            f"its batches are from {first:%Y-%m-%d} to {last:%Y-%m-%d}, and a past of more than {MOST_HOURS:,.0f} h, a "
            "year, is not played: was a clock wrong?"
        )
    return Past(name, tuple(stretch), begin, end, arrivals, commits, SlotSteps(list(_slots(stretch))), tuple(remarks))


def _longest_stretch(runs: Sequence[Run]) -> list[Run]:
    """Return the runs of the longest time in which the job was never down for long."""
    stretches: list[list[Run]] = []
    for run in runs:
        if stretches and run.batches[0].started_at - stretches[-1][-1].last_at <= LONGEST_GAP_SECONDS:
            stretches[-1].append(run)
        else:
            stretches.append([run])
    return max(stretches, key=lambda some: some[-1].last_at - some[0].started_at)


def _arrivals(runs: Sequence[Run], batches: Sequence[LogBatch]) -> OffsetCurves:
    """Return the end offsets at each look at the topics: at the start of each batch, and when there was nothing new."""
    looks = [(batch.started_at, batch.latest) for batch in batches]
    by_query: dict[str, list[LogBatch]] = {}
    for batch in batches:
        by_query.setdefault(batch.query_id, []).append(batch)
    for at, query in (idle for run in runs for idle in run.idle):
        theirs = by_query.get(query, [])
        place = bisect_right(theirs, at, key=lambda batch: batch.ended_at)
        if place:
            looks.append((at, theirs[place - 1].end))
    points: dict[Key, list[tuple[float, int]]] = {}
    for at, offsets in sorted(looks, key=lambda look: look[0]):
        for topic, partitions in offsets.items():
            for partition, end in partitions.items():
                points.setdefault((topic, partition), []).append((at, end))
    return OffsetCurves(points)


def _ends(runs: Sequence[Run]) -> Iterator[tuple[float, str]]:
    """Yield (when, query): it has ended without a failure while others go on, or the following run is without it."""
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        yield from ((at, query) for query, at in run.done.items() if at < run.batches[-1].ended_at)
        if following is not None:
            gone = {batch.query_id for batch in run.batches} - {batch.query_id for batch in following.batches}
            yield from ((following.batches[0].started_at, query) for query in gone)


def _commits(batches: Sequence[LogBatch], over: list[tuple[float, str]]) -> tuple[Commit, ...]:
    """Return the commits: of each partition the lowest offset over all queries that read it, until they are `over`."""
    keys = sorted({(topic, p) for batch in batches for topic, ends in batch.end.items() for p in ends})
    firsts: dict[Key, int] = {}
    for batch in batches:
        for offsets in (batch.start, batch.end):  # a partition that is new has no start
            for topic, ends in offsets.items():
                for partition, offset in ends.items():
                    firsts.setdefault((topic, partition), offset)
    done: dict[str, dict[Key, int]] = {}
    found = []
    for batch in batches:
        while over and over[0][0] < batch.ended_at:
            done.pop(over.pop(0)[1], None)
        done.setdefault(batch.query_id, {}).update(
            {(topic, p): offset for topic, ends in batch.end.items() for p, offset in ends.items()}
        )
        lowest = (min((each[key] for each in done.values() if key in each), default=firsts[key]) for key in keys)
        found.append(Commit(batch.ended_at, tuple(float(offset) for offset in lowest)))
    return tuple(found)


def _slots(runs: Sequence[Run]) -> Iterator[tuple[float, int]]:
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        until = min(run.ended_at or run.last_at, following.started_at if following else math.inf)
        yield from ((at, size) for at, size in run.slots() if at < until)
        yield until, 0 if following is not None or run.ended_at is not None else run.slots()[-1][1]


def _cuts(
    batches: Sequence[LogBatch], first: int, begin: int, end: int, interval: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (sequence, first batch, batch after the last) for each interval."""
    for sequence in range(begin, end + interval, interval):
        last = bisect_right(batches, float(sequence), lo=first, key=lambda batch: batch.ended_at)
        yield sequence, first, last
        first = last


def _micro_batch(batch: LogBatch) -> MicroBatch:
    return MicroBatch(
        batch_id=batch.batch_id,
        started_at=datetime.fromtimestamp(batch.started_at, UTC),
        duration_seconds=batch.seconds,
        add_batch_seconds=batch.add_batch_seconds,
        input_records=batch.input_records,
        output_records=batch.output_records,
    )


def first_after(past: Past, at: float) -> float:
    """Return the first commit at or after an instant."""
    place = bisect_left(past.commits, at, key=lambda commit: commit.at)
    return past.commits[min(place, len(past.commits) - 1)].at
