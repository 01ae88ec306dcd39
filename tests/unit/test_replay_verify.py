"""Verifying: unaltered decisions are identical, altered ones are reported, and missing records are counted."""

from __future__ import annotations

import dataclasses
import json
import queue
from collections.abc import Callable
from datetime import timedelta
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest

from bench.streams import decided, spec_of
from tests.support.engine import step
from tests.support.history import LIVELY
from tests.support.verified import Rows, verified
from tidegate.engine.decide import KEYFRAME_EVERY
from tidegate.engine.state import JobState
from tidegate.events.decision import decision_id
from tidegate.events.envelope import value_of
from tidegate.events.snapshot import snapshot_id
from tidegate.replay.difference import Difference, first_difference
from tidegate.replay.recompute import RecomputeResult, watched
from tidegate.replay.report import render
from tidegate.replay.verify import JobTally

JOB = "orders"
COUNT = 2 * KEYFRAME_EVERY + 20
verify = partial(verified, job=JOB)


@cache
def _stream() -> tuple[tuple[int, bytes, bytes], ...]:
    return tuple((s.sequence, value_of(s), value_of(d)) for s, d in decided(JOB, COUNT, partitions=32, scaling=LIVELY))


def rows(keep: Callable[[int], bool] = lambda _: True) -> Rows:
    """Return the records of a stream decided by the real engine, or some of them."""
    made = [(number, row) for number, row in enumerate(_stream()) if keep(number)]
    return [(s, kind, number, v) for number, (s, *values) in made for kind, v in enumerate(values)]


def altered(number: int, change: Callable[[dict[str, Any]], None], kind: int = 1) -> Rows:
    """Return the stream with one record's fields changed."""
    changed = []
    for sequence, is_decision, offset, value in rows():
        if offset == number and is_decision == kind:
            fields = json.loads(value)
            change(fields)
            value = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()  # noqa: PLW2901
            sequence = fields["sequence"]  # noqa: PLW2901
        changed.append((sequence, is_decision, offset, value))
    return changed


def test_unaltered_decisions_are_identical() -> None:
    """A stream with rescales, results and several keyframes is recomputed to the last bit."""
    assert any(b'"command":' in value for _, kind, _, value in rows() if kind)
    assert verify(rows()) == JobTally(JOB, identical=COUNT)


def test_a_new_version_of_the_spec_comes_from_its_keyframe() -> None:
    """Specs come from the recording alone: the keyframe of its first decision holds each version."""
    made = [
        (s.sequence, value_of(s), value_of(d))
        for s, d in decided(JOB, 60, partitions=32, scaling=LIVELY, respec_every=17)
    ]
    assert verify([(s, k, n, v) for n, (s, *values) in enumerate(made) for k, v in enumerate(values)]) == JobTally(
        JOB, identical=60
    )


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *steps, last = path.split(".")

    def change(fields: dict[str, Any]) -> None:
        part: Any = fields
        for name in steps:
            part = part[int(name) if isinstance(part, list) else name]
        assert part[last] != value
        part[last] = value

    return change


ALTERED = {
    "status": "STOPPED_STATE_LIMIT",
    "final_parallelism": 31,
    "sentence": "All is well.",
    "policy": "hpa",
    "evidence.lag_records": 12345,
    "evidence.window_seconds": 1.5,
    "trail.0.code": "OTHER",
    "trail.0.after": 30,
    "decided_at": "2026-03-01T01:00:00Z",
    "decision_id": "00000000-0000-0000-0000-000000000000",
    "pipeline_id": "shop",
    "current_parallelism": 3,
}


@pytest.mark.parametrize("path", ALTERED)
def test_an_altered_field_is_reported(path: str) -> None:
    """One changed field is one difference, reported with its path and both values; all else is identical."""
    tally = verify(altered(150, _set(path, ALTERED[path])))
    assert (tally.identical, tally.differing) == (COUNT - 1, 1)
    assert tally.first is not None
    assert (tally.first.path, tally.first.place) == (path, "partition 0, offset 150")
    assert tally.first.recorded == json.dumps(ALTERED[path])
    assert tally.first.recomputed != tally.first.recorded
    assert "150" in render(RecomputeResult((tally,), 1.0))


def test_every_flipped_bit_of_a_decision_is_found() -> None:
    """Whichever bit of a decision is flipped, the decision is not identical and something is reported."""
    number = 150
    value = next(v for _, kind, offset, v in rows() if kind and offset == number)
    near = [row for row in rows() if KEYFRAME_EVERY <= row[2] <= number + 1]
    keyed_by_head = value.index(b'"decided_at"')  # job and sequence stand before it and also place the record
    for bit in range(keyed_by_head * 8, len(value) * 8, 97):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << (bit % 8)
        if _feeds_back(value, bit // 8):
            continue
        tally = verify([(s, k, n, bytes(flipped) if k and n == number else v) for s, k, n, v in near])
        assert tally.differing >= 1, (bit, value[bit // 8 - 20 : bit // 8 + 20])
        assert tally.first is not None


def _feeds_back(value: bytes, at: int) -> bool:
    """Whether a byte is in `observed`, which is an input of the decision and not computed."""
    start = value.index(b'"observed"')
    return start <= at


@pytest.mark.parametrize("name", ["job_id", "snapshot_id", "sequence", "spec_version", "engine_version"])
def test_altered_ids_are_found(name: str) -> None:
    """Ids follow from other fields, so an altered field never counts as merely not recomputable."""
    other = {"sequence": 999, "spec_version": 9}.get(name, "other")
    tally = verify(altered(150, _set(name, other)))
    assert tally.differing >= 1
    assert tally.other_version == 0
    assert tally.decisions == COUNT


def test_equal_values_in_other_bytes_are_a_difference() -> None:
    """Identical means the same bytes: equal values with other spacing differ, reported with the first byte."""
    spaced = [(s, k, n, v.replace(b',"policy"', b', "policy"') if k and n == 7 else v) for s, k, n, v in rows()]
    tally = verify(spaced)
    assert tally.differing == 1
    assert tally.first is not None
    assert tally.first.path.startswith("(byte ")


def test_other_bytes_next_to_a_wide_character_are_a_difference() -> None:
    """What is shown of the bytes may begin within a character, or be the end of the longer one."""
    wide = '{"a":1,"b":"' + 30 * "€" + '"}'
    for place in range(12, 42):
        path, was, made = first_difference(wide.encode(), f"{wide[:place]}\\u20ac{wide[place + 1 :]}".encode())
        assert path.startswith("(byte ")
        assert was != made
    path, was, made = first_difference(b'{"a":1}\n', b'{"a":1}')
    assert (path, was, made) == ("(byte 7)", '{"a":1}\n', '{"a":1}')


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"[]", b"{}", b'{"sequence":1}'])
def test_an_unreadable_decision_is_a_difference(garbage: bytes) -> None:
    """An unreadable decision counts as differing, and verifying resumes at the next keyframe."""
    tally = verify([(s, k, n, garbage if k and n == 150 else v) for s, k, n, v in rows()])
    assert tally.differing == 1
    assert tally.not_recomputable == {"STATE_UNKNOWN": 2 * KEYFRAME_EVERY - 151}
    assert tally.identical == COUNT - 1 - tally.not_recomputable["STATE_UNKNOWN"]


def test_a_missing_snapshot_is_reported() -> None:
    """A decision without its snapshot is not recomputable, nor are those after it up to the next keyframe."""
    tally = verify([row for row in rows() if not (row[1] == 0 and row[2] == 150)])
    assert tally.not_recomputable == {"SNAPSHOT_MISSING": 1, "STATE_UNKNOWN": 2 * KEYFRAME_EVERY - 151}
    assert (tally.differing, tally.identical) == (0, COUNT - 50)
    report = render(RecomputeResult((tally,), 2.0))
    assert "1 not recomputable (SNAPSHOT_MISSING)" in report
    assert f"identical {COUNT - 50}/{COUNT}" in report


def test_an_altered_snapshot_makes_a_difference() -> None:
    """A snapshot altered after the decision makes the decision differ."""
    tally = verify(altered(150, _set("slots_granted", 63), kind=0))
    assert tally.differing >= 1
    assert tally.first is not None
    assert tally.first.path.startswith("evidence")


def test_a_recording_from_the_middle_is_verified_from_its_first_keyframe() -> None:
    """Decisions before the first keyframe are counted separately; the rest is verified."""
    tally = verify(rows(lambda number: number >= 30))
    assert tally.not_recomputable == {"BEFORE_FIRST_KEYFRAME": KEYFRAME_EVERY - 30}
    assert tally.identical == COUNT - KEYFRAME_EVERY


def test_a_missing_decision_is_noted_with_the_difference() -> None:
    """A gap in the decisions is not skipped: the next one differs, and the note says which is missing."""
    tally = verify([row for row in rows() if not (row[1] == 1 and row[2] == 150)])
    assert tally.undecided == 1
    assert tally.differing >= 1
    assert tally.first is not None
    assert str(_stream()[150][0]) in tally.first.note


def test_a_repeated_decision_is_identical_twice() -> None:
    """A decision repeated after a crash has the same bytes and starts from the same state."""
    again = [(s, k, n, v) for s, k, n, v in rows() if k and n in (0, 7, 100)]
    repeats = [(s, k, n * 1000 + 1, v) for s, k, n, v in again]
    assert verify(rows() + repeats) == JobTally(JOB, identical=COUNT + 3, repeated=3)


@pytest.mark.parametrize("number", [60, KEYFRAME_EVERY + 5])
def test_the_decider_may_continue_from_either_of_two_decisions(number: int) -> None:
    """If a repeat saw another time, the decider continued from either; a later decision or keyframe shows which."""
    pairs = list(decided(JOB, number, partitions=32, scaling=LIVELY))
    at = next(n for n, (_, d) in enumerate(pairs) if d.command is not None)  # its state remembers the time
    state = JobState.new()
    for s, d in pairs[:at]:
        state, _ = step(state, s, spec_of(JOB, 1, LIVELY), d.observed)

    s, d = pairs[at]
    later = dataclasses.replace(d.observed, at=d.observed.at + timedelta(seconds=3))
    _, other = step(state, s, spec_of(JOB, 1, LIVELY), later)
    assert value_of(other) != value_of(d)
    base: Rows = [(p.sequence, k, n, value_of(e)) for n, (p, q) in enumerate(pairs) for k, e in enumerate((p, q))]
    for offset in (at - 0.5, at + 0.5):  # the repeat comes before or after the one that counted
        tally = verify([*base, (s.sequence, 1, offset, value_of(other))])  # type: ignore[list-item]
        assert tally == JobTally(JOB, identical=number + 1, repeated=1)


def test_a_job_whose_state_was_reset_is_still_verified() -> None:
    """A keyframe with an empty state starts the job from scratch, and the report says that the state was lost."""
    later = [(s, k, n + COUNT, v) for n, (s, *values) in enumerate(_shifted()) for k, v in enumerate(values)]
    tally = verify(rows() + later)
    assert tally == JobTally(JOB, identical=COUNT + 10, state_resets=1)
    assert "orders restarted from an empty state 1 times" in render(RecomputeResult((tally,), 1.0))


def test_of_many_jobs_a_report_shows_some() -> None:
    """An engine that decides otherwise, or a decider that lost its table, concerns all of 1,000 jobs."""
    difference = Difference("job", 17, "a decision", "partition 0, offset 17", "status", "FINE", "LATE")
    jobs = [JobTally(f"job-{n}", differing=1, state_resets=1, first=difference) for n in range(1000)]
    lines = render(RecomputeResult(tuple(jobs), 1.0)).splitlines()
    assert len(lines) < 400
    assert sum("restarted from an empty state" in line for line in lines) == 50
    assert sum("… and 950 more jobs" in line for line in lines) == 3


def test_while_it_recomputes_it_tells_how_far_spark_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of 1,000 jobs takes minutes. A stage that has just ended is passed over."""

    class Context:
        def statusTracker(self) -> Context:  # noqa: N802 - so it is called in Spark
            return self

        def getActiveStageIds(self) -> list[int]:  # noqa: N802
            return [1, 2]

        def getStageInfo(self, number: int) -> SimpleNamespace | None:  # noqa: N802
            return SimpleNamespace(numCompletedTasks=3, numTasks=8) if number == 2 else None

    monkeypatch.setattr("tidegate.replay.recompute.TOLD_SECONDS", 0.001)
    told: queue.Queue[tuple[int, int]] = queue.Queue()
    with watched(Context(), lambda done, total: told.put((done, total))):
        assert told.get(timeout=10) == (3, 8)


def _shifted() -> list[tuple[int, bytes, bytes]]:
    """Ten decisions from an empty state, later than the stream."""
    state, made = JobState.new(), []
    for s, d in list(decided(JOB, COUNT + 10, partitions=32, scaling=LIVELY))[COUNT:]:
        state, decision = step(state, s, spec_of(JOB, 1, LIVELY), d.observed)
        made.append((s.sequence, value_of(s), value_of(decision)))
    return made


def test_another_engine_version_is_counted_separately() -> None:
    """Decisions by another engine version count neither way; verifying resumes at this version's next keyframe."""

    def other(fields: dict[str, Any]) -> None:
        fields["engine_version"] = "0"
        fields["decision_id"] = decision_id(JOB, snapshot_id(JOB, fields["sequence"]), fields["spec_version"], "0")

    tally = verify(altered(150, other))
    assert (tally.other_version, tally.differing) == (1, 0)
    assert tally.not_recomputable == {"STATE_UNKNOWN": 2 * KEYFRAME_EVERY - 151}


def test_what_follows_a_decision_that_this_version_made_again_is_verified() -> None:
    """A newer decider died before it had stored its state: one of this version went on from the state before."""
    newer = json.loads(_stream()[150][2])
    newer["engine_version"] = "99"
    newer["decision_id"] = decision_id(JOB, newer["snapshot_id"], newer["spec_version"], "99")
    first = [(s, kind, 10 * offset, value) for s, kind, offset, value in rows()]
    tally = verify([*first, (newer["sequence"], 1, 10 * 150 - 1, json.dumps(newer).encode())])
    assert tally == JobTally(JOB, identical=COUNT, other_version=1, repeated=1)


@pytest.mark.parametrize("forged", [False, True])
def test_a_decision_of_an_older_version_may_have_a_spec_that_this_one_refuses(forged: bool) -> None:
    """0.1.0 accepted a `command_ttl_seconds` of 2e9. That is no difference, but its ids must still follow."""

    def older(fields: dict[str, Any]) -> None:
        fields["keyframe"]["spec"]["scaling"]["command_ttl_seconds"] = 2e9
        fields["engine_version"] = "4"
        identity = decision_id(JOB, snapshot_id(JOB, fields["sequence"]), fields["spec_version"], "4")
        fields["decision_id"] = identity[::-1] if forged else identity

    tally = verify(altered(KEYFRAME_EVERY, older))
    assert (tally.other_version, tally.differing) == ((0, 1) if forged else (1, 0))
    if forged:
        assert tally.first is not None
        assert tally.first.path == "decision_id"


def test_an_unknown_policy_is_not_recomputable() -> None:
    """A decision whose spec this engine rejects is not recomputable, which is no difference."""

    def foreign(fields: dict[str, Any]) -> None:
        fields["keyframe"]["spec"]["scaling"]["policy"] = "of-somebody-else"

    tally = verify(altered(0, foreign))
    assert tally.not_recomputable["SPEC_REFUSED"] == 1
    assert tally.differing == 0


@pytest.mark.parametrize(
    "change",
    [
        _set("keyframe.state.last_sequence", 2**40),
        _set("keyframe.state.window", [[1]]),
        _set("keyframe.spec.scaling.policy", "of-somebody-else"),
    ],
    ids=["decided already", "no state", "a policy that is not installed"],
)
def test_an_altered_keyframe_is_one_difference(change: Callable[[dict[str, Any]], None]) -> None:
    """Where the engine cannot go on from the recorded state, it does from its own: all else is identical."""
    tally = verify(altered(KEYFRAME_EVERY, change))
    assert (tally.identical, tally.differing, tally.not_recomputable) == (COUNT - 1, 1, {})
    assert tally.first is not None
    assert tally.first.path.startswith("keyframe")


@pytest.mark.parametrize("state", [{"window": [[1]]}, {"last_sequence": "never"}], ids=["no state", "no number"])
def test_a_first_keyframe_whose_state_is_none_is_a_difference(state: dict[str, Any]) -> None:
    """One damaged job must not keep the others from being verified."""
    tally = verify(altered(0, _set("keyframe.state", state)))
    assert (tally.identical, tally.differing) == (COUNT - KEYFRAME_EVERY, 1)
    assert tally.first is not None
    assert tally.first.path == "keyframe.state"
