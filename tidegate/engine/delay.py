"""The delay of a job: the age of its oldest record that is not committed, found from end offsets over time.

Record number c of a partition arrived between the newest snapshot whose end offset was at most c and the next one. So
the engine keeps *knots*, each an instant with the end offsets measured then, from now back to the oldest record that is
not committed. With committed offset c_p and end offsets e_p(t) of partition p

    delay = t - min over p with c_p < e_p(t) of a_p          a_p: when record c_p arrived, e_p(a_p) = c_p + 1/2

Knots are few. Marked ones keep an end offset per partition, the others only the sum over partitions. Between two marked
knots a partition is assumed to have a constant share of all arrivals; between two knots arrivals are evenly spaced.
Whatever arrivals were, the delay found is wrong by less than the time between the two marked knots around its record.
When there are too many knots, the one goes whose loss matters least: the gap it leaves, and how far it moves the
arrivals in it, relative to their age. That spaces knots logarithmically, closer at bursts and at the ends of silences,
so that the *relative* precision of an age is kept.

Records older than the first knot have a delay of at least the time since then. It is a lower bound after the first
snapshot of a job, or after an end offset fell, a topic came or went, or the committed offsets were reset. Added
partitions were empty before. A snapshot with an unknown offset has an unknown delay and adds no knot.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from math import inf
from operator import add, sub
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from tidegate.events.snapshot import MetricSnapshot, SourceOffsets

MOST_KNOTS: Final = 20
"""With steady arrivals the gap between two knots is at most half its age, up to ages of 3,600 intervals."""

LEAST_MARKED: Final = 6
"""Marked knots, however many partitions there are."""

MARKED_OFFSETS: Final = 300
"""Offsets of all marked knots together, as far as `LEAST_MARKED` allows: what 4 kB have room for."""


class Knot(NamedTuple):
    """What had arrived at one instant."""

    at: int
    """Milliseconds since the epoch."""
    total: int
    """Sum of the end offsets."""
    ends: tuple[int, ...] | None
    """End offset per partition, topic by topic; None if the knot is not marked."""


class Arrivals(NamedTuple):
    """Arrivals of a job since its oldest record that is not committed. The first and the last knot are marked."""

    topics: tuple[tuple[str, int], ...] = ()
    """Topics and their partition counts, as the offsets are in order."""
    knots: tuple[Knot, ...] = ()
    """Oldest first."""


NO_ARRIVALS = Arrivals()


class Age(NamedTuple):
    """How old a record is."""

    seconds: float
    at_least: bool = False
    """Whether it is only a lower bound."""


class Offsets(NamedTuple):
    """The offsets of a snapshot, those of all topics in one row. A row and its sum are None if an offset is unknown."""

    at: float
    """When they were measured, epoch seconds."""
    topics: tuple[tuple[str, int], ...]
    """Topics and their partition counts, as the offsets are in order."""
    ends: tuple[int, ...] | None
    arrived: int | None
    committed: tuple[int, ...] | None
    done: int | None
    """Of a partition not more than has arrived: a topic that was recreated has no negative lag, which would hide
    that of other partitions, and a batch may commit more than had arrived when the end offsets were read."""
    lost: int = 0
    """Records that were removed before they were read. They count as done: nobody can read them any more."""


def offsets_of(snapshot: MetricSnapshot) -> Offsets:
    """Return the offsets of a snapshot."""
    sources = snapshot.sources
    ends, arrived = _row([source.end_offsets for source in sources])
    committed, done = _row([source.next_offsets for source in sources])
    lost = sum([_lost(source) for source in sources if source.first_offsets is not None]) if done is not None else 0
    if ends is not None and committed is not None and _is_below(ends, committed):
        done = sum(map(min, committed, ends))
    topics = tuple([(source.topic, len(source.end_offsets)) for source in sources])
    return Offsets(snapshot.observed_at.timestamp(), topics, ends, arrived, committed, done, lost)


def _lost(source: SourceOffsets) -> int:
    """Return how many records of a topic were removed before they were read; all its offsets are known."""
    pairs = zip(source.next_offsets, source.committed_offsets, strict=True)
    return sum([(ahead or 0) - (done or 0) for ahead, done in pairs])


def watched(arrivals: Arrivals, offsets: Offsets) -> tuple[Arrivals, Age | None]:
    """Return the arrivals with a snapshot's end offsets, and the delay at it; None if an offset is unknown.

    What the committed offsets have passed is forgotten.
    """
    at, topics, ends, arrived, committed, done, _ = offsets
    now, knots = round(at * 1000), arrivals.knots
    if not ends or arrived is None or (knots and now <= knots[-1].at):
        return arrivals, None
    if knots and topics != arrivals.topics:
        knots = _widened(knots, arrivals.topics, topics)
    if knots and _is_below(ends, knots[-1].ends or ()):
        knots = ()
    knots = (*knots, Knot(now, arrived, ends))
    if committed is None or done is None:
        return Arrivals(topics, _thinned(knots, len(ends))), None
    passed = _passed(knots, committed, done)
    age = _age(knots, committed, passed)
    return Arrivals(topics, _thinned(knots[max(0, passed) :], len(ends))), age


def has_fallen(arrivals: Arrivals, offsets: Offsets) -> bool:
    """Whether an end offset is below the newest one known, however much others have grown: a topic was recreated."""
    ends, knots = offsets.ends, arrivals.knots
    if not ends or not knots or offsets.topics != arrivals.topics:
        return False
    return _is_below(ends, knots[-1].ends or ())


def arrived_since(arrivals: Arrivals, seconds: float) -> float | None:
    """Return how many records arrived in the seconds before the newest knot; None if that is before the first."""
    knots = arrivals.knots
    if not knots or knots[-1].at - 1000 * seconds < knots[0].at:
        return None
    at = knots[-1].at - 1000 * seconds
    place = bisect_right(knots, at, key=lambda knot: knot.at)
    if place == len(knots):
        return 0.0
    low, high = knots[place - 1], knots[place]
    return knots[-1].total - low.total - (high.total - low.total) * (at - low.at) / (high.at - low.at)


def _row(columns: Sequence[tuple[int | None, ...]]) -> tuple[tuple[int, ...] | None, int | None]:
    """Return the offsets of all topics in one row and their sum; None for both if one is unknown, or there are none."""
    row: Any = columns[0] if len(columns) == 1 else tuple(chain.from_iterable(columns))
    try:
        return (row, sum(row)) if columns else (None, None)
    except TypeError:  # there is a None among them
        return None, None


def _widened(
    knots: tuple[Knot, ...], before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]
) -> tuple[Knot, ...]:
    """Return the knots of topics that got more partitions; none if the topics are others, or have fewer."""
    if len(before) != len(after) or any(a[0] != b[0] or a[1] > b[1] for a, b in zip(before, after, strict=True)):
        return ()
    wide = []
    for knot in knots:
        ends: tuple[int, ...] | None = None
        if knot.ends is not None:
            left, ends = knot.ends, ()
            for (_, few), (_, many) in zip(before, after, strict=True):
                ends += left[:few] + (0,) * (many - few)
                left = left[few:]
        wide.append(knot._replace(ends=ends))
    return tuple(wide)


def _is_below(offsets: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether any of the offsets is below its counterpart."""
    for place, other in enumerate(others):  # noqa: SIM110  (a generator has to be made for `any`)
        if offsets[place] < other:
            return True
    return False


def _passed(knots: tuple[Knot, ...], committed: tuple[int, ...], total: int) -> int:
    """Return the place of the newest marked knot all of whose records are committed; -1 if there is none.

    `total` is the sum of the committed offsets: a knot that is above it has records that are not committed.
    """
    for place in range(len(knots) - 1, -1, -1):
        knot = knots[place]
        if knot.ends is not None and knot.total <= total and not _is_below(committed, knot.ends):
            return place
    return -1


def _age(knots: tuple[Knot, ...], committed: tuple[int, ...], passed: int) -> Age:
    """Return the age of the oldest record that waits, given the place of the newest marked knot that is passed."""
    first, newest = knots[0], knots[-1]
    if passed == len(knots) - 1:
        return Age(0.0)
    if passed < 0:
        return Age((newest.at - first.at) / 1000, at_least=True)
    start = knots[passed]
    end = next(knot for knot in knots[passed + 1 :] if knot.ends is not None)
    low, share = start.ends or (), inf
    for place, until in enumerate(end.ends or ()):
        done = committed[place]
        if done < until:
            since = low[place]
            share = min(share, (done - since + 0.5) / (until - since))
    at = _when(knots, start.total + share * (end.total - start.total))
    return Age(round((newest.at - at) / 1000, 3))


def _when(knots: Sequence[Knot], total: float) -> float:
    """Return when a total was reached, in milliseconds; it must lie from the first knot's to below the newest's."""
    place = bisect_right(knots, total, key=lambda knot: knot.total)
    low, high = knots[place - 1], knots[place]
    return low.at + (high.at - low.at) * (total - low.total) / (high.total - low.total)


def _thinned(knots: tuple[Knot, ...], partitions: int) -> tuple[Knot, ...]:
    """Return at most as many knots, and marked ones, as there may be."""
    if len(knots) <= LEAST_MARKED:
        return knots
    marked = [place for place, knot in enumerate(knots) if knot.ends is not None]
    while len(marked) > max(LEAST_MARKED, min(MOST_KNOTS, MARKED_OFFSETS // partitions)):
        gone = _least([knots[place] for place in marked], range(1, len(marked) - 1))
        place = marked.pop(gone)
        knots = (*knots[:place], knots[place]._replace(ends=None), *knots[place + 1 :])
    while len(knots) > MOST_KNOTS:
        unmarked = [place for place, knot in enumerate(knots) if knot.ends is None]
        place = _least(knots, unmarked or range(1, len(knots) - 1))
        knots = knots[:place] + knots[place + 1 :]
    return knots


def _least(knots: Sequence[Knot], places: Iterable[int]) -> int:
    """Return the place whose loss matters least.

    A loss is the gap left and the time by which it moves arrivals at most, as shares of the age where the gap starts.
    """
    now, best, least = knots[-1].at, 0, inf
    for place in places:
        start, none, _ = knots[place - 1]
        at, some, _ = knots[place]
        end, whole, _ = knots[place + 1]
        gap, moved = end - start, 0.0
        if none == whole:
            gap = 0  # nothing arrived, so nothing is lost
        else:
            moved = abs(start + gap * (some - none) / (whole - none) - at)
        loss = (gap + moved) / (now - start)
        if loss < least:
            best, least = place, loss
    return best


def arrivals_to_wire(arrivals: Arrivals) -> dict[str, JsonValue]:
    """Return the arrivals as JSON values, packed: whole numbers survive exactly.

    Of the times and the totals the newest stands there, and the steps to it. Of the end offsets those of the newest
    knot, their growth since the first, and of each marked knot between them what deviates from even shares of it.
    """
    knots = arrivals.knots
    marked = [knot for knot in knots if knot.ends is not None]
    first, newest = marked[0], marked[-1]
    ends = [_packed(newest.ends or ())]
    if len(marked) > 1:
        growth = _less(newest, first.ends)
        ends.append(_packed(growth))
        ends += [_packed(_less(knot, _even(knot.total, first, newest, growth))) for knot in marked[1:-1]]
    return {
        "topics": [list(topic) for topic in arrivals.topics],
        "at": [newest.at, _packed([b.at - a.at for a, b in pairwise(knots)])],
        "total": [newest.total, _packed([b.total - a.total for a, b in pairwise(knots)])],
        "marked": sum(1 << place for place, knot in enumerate(knots) if knot.ends is not None),
        "ends": [*ends],
    }


def arrivals_from_wire(wire: dict[str, Any]) -> Arrivals:
    """Return the arrivals that `arrivals_to_wire` wrote."""
    times, totals, marked = _steps(*wire["at"]), _steps(*wire["total"]), wire["marked"]
    newest, *between = [tuple(_unpacked(row)) for row in wire["ends"]]
    knots = [Knot(at, total, None) for at, total in zip(times, totals, strict=True)]
    knots[-1] = knots[-1]._replace(ends=newest)
    if between:
        growth, *deviations = between
        knots[0] = knots[0]._replace(ends=tuple(map(sub, newest, growth)))
        places = [place for place in range(1, len(knots) - 1) if marked >> place & 1]
        for place, deviation in zip(places, deviations, strict=True):
            even = _even(knots[place].total, knots[0], knots[-1], growth)
            knots[place] = knots[place]._replace(ends=tuple(map(add, even, deviation)))
    return Arrivals(tuple((topic, partitions) for topic, partitions in wire["topics"]), tuple(knots))


def _less(knot: Knot, row: Sequence[int] | None) -> list[int]:
    return list(map(sub, knot.ends or (), row or ()))


def _even(total: int, first: Knot, newest: Knot, growth: Sequence[int]) -> list[int]:
    """Return the end offsets at a total if each partition always had its share of the growth from first to newest."""
    part, whole = total - first.total, max(1, newest.total - first.total)
    return [low + grown * part // whole for low, grown in zip(first.ends or (), growth, strict=True)]


def _steps(newest: int, packed: str) -> list[int]:
    """Return the values, oldest first, of which the newest and the steps are given."""
    values = [newest]
    for step in reversed(_unpacked(packed)):
        values.append(values[-1] - step)
    return values[::-1]


def _packed(values: Sequence[int]) -> str:
    """Return whole numbers as text: the smallest, the bits of what each is above it, and those bits in Base64."""
    low = min(values, default=0)
    width = max((max(values, default=0) - low).bit_length(), 1)
    # A 1 marks where they start, so that their number is known. Binary text takes time in proportion to its length, but
    # shifting a growing number would take the square of it: seconds for each row of 100,000 partitions.
    bits = int("1" + "".join([f"{value - low:0{width}b}" for value in values]), 2)
    return f"{low}:{width}:{b2a_base64(bits.to_bytes((bits.bit_length() + 7) // 8, 'big'), newline=False).decode()}"


def _unpacked(text: str) -> list[int]:
    """Return the whole numbers that `_packed` wrote."""
    low, width, data = text.split(":")
    bits, wide, least = f"{int.from_bytes(a2b_base64(data), 'big'):b}", int(width), int(low)
    return [least + int(bits[place : place + wide], 2) for place in range(1, len(bits), wide)]
