"""Committed offsets from a checkpoint: the newest committed batch of each query, the lowest over queries."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from services.collector.checkpoint import checkpoint_offsets
from tests.support.events import with_application
from tests.unit.test_collector_app import PATIENT, World, spec
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part
from tidegate.remote.files import Place
from tidegate.runtime.poll import wait_until
from tidegate.sparklog.events import PartitionOffsets
from tidegate.sparklog.log_directory import READERS


def checkpoint(at: Path, committed: int, *batches: str) -> None:
    """Write a checkpoint whose batches from 0 have these sources; those above `committed` were only started."""
    for number, sources in enumerate(batches):
        for folder, text in (("offsets", f'v1\n{{"batchWatermarkMs":0}}\n{sources}'), ("commits", "v1\n{}")):
            if folder == "offsets" or number <= committed:
                (at / folder).mkdir(parents=True, exist_ok=True)
                (at / folder / str(number)).write_text(text, encoding="utf-8")


def test_a_batch_that_was_not_committed_does_not_count(tmp_path: Path) -> None:
    """Its offsets are written before it runs."""
    checkpoint(tmp_path, 1, *(json.dumps({"in": {"0": 10 * n, "1": 7 * n}}) for n in range(3)))
    (tmp_path / "commits" / ".1.crc").write_bytes(b"x")
    assert checkpoint_offsets(tmp_path, {"in"}) == {"in": {0: 10, 1: 7}}


def test_several_queries_count_with_the_lowest_and_other_sources_not_at_all(tmp_path: Path) -> None:
    """As for the progress of a run; a rate source has a number, a source without data a dash."""
    checkpoint(tmp_path / "a", 0, '{"in":{"0":5,"1":9}}\n-\n42\n{"logOffset":3}')
    checkpoint(tmp_path / "b", 0, '{"in":{"0":8,"1":2},"else":{"0":1}}')
    assert checkpoint_offsets(tmp_path, {"in"}) == {"in": {0: 5, 1: 2}}


def test_sources_may_have_names(tmp_path: Path) -> None:
    """`readStream.name("orders")` gives each line of Spark's offset log the name of its source."""
    checkpoint(tmp_path, 0, 'orders:{"in":{"0":5,"1":9}}\nclock:42\nidle:-')
    log = tmp_path / "offsets" / "0"
    log.write_text(log.read_text(encoding="utf-8").replace("v1", "v2"), encoding="utf-8")
    assert checkpoint_offsets(tmp_path, {"in"}) == {"in": {0: 5, 1: 9}}


@pytest.mark.parametrize("place", [".", "counts"])
def test_a_query_without_a_commit_stands_where_it_began(tmp_path: Path, place: str) -> None:
    """Its first batch has not ended; its sources have kept their first offsets."""
    for number, offsets in enumerate(('{"in":{"0":3,"1":7}}', '{"in":{"0":4}}', "{}")):
        (tmp_path / place / f"sources/{number}").mkdir(parents=True)
        (tmp_path / place / f"sources/{number}/0").write_bytes(b"\0v1\n" + offsets.encode())
    assert checkpoint_offsets(tmp_path, {"in"}) == {"in": {0: 3, 1: 7}}
    checkpoint(tmp_path / place, 0, '{"in":{"0":5,"1":9}}')
    assert checkpoint_offsets(tmp_path, {"in"}) == {"in": {0: 5, 1: 9}}


OTHERS = {
    "files": '{"path":"file:///in/a","timestamp":1,"batchId":0}\n{"path":"file:///in/b","timestamp":1,"batchId":0}',
    "shards": '{"metadata":{"streamName":"s"},"shardId-000":{"iteratorType":"AFTER","iteratorPosition":"495"}}',
    "rate": "1700000000000",
    "numbered": '{"rows":{"0":{"position":5}}}',
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_source_next_to_kafka_does_not_hide_where_kafka_began(tmp_path: Path, kind: str) -> None:
    """Sources of other kinds keep something else: a file source a line for each file of its first batch."""
    for number, offsets in enumerate(('{"in":{"0":3,"1":7}}', OTHERS[kind])):
        (tmp_path / f"sources/{number}").mkdir(parents=True)
        (tmp_path / f"sources/{number}/0").write_bytes(b"\0v1\n" + offsets.encode())
    assert checkpoint_offsets(tmp_path, {"in"}) == {"in": {0: 3, 1: 7}}


def test_no_checkpoint_tells_nothing(tmp_path: Path) -> None:
    """Neither a job that never committed, nor a location that is not on this machine."""
    (tmp_path / "commits").mkdir()
    assert checkpoint_offsets(tmp_path, {"in"}) == checkpoint_offsets(tmp_path / "nowhere", {"in"}) == {}


def test_a_broken_checkpoint_is_an_error(tmp_path: Path) -> None:
    """What is there and cannot be read is never taken for nothing."""
    checkpoint(tmp_path, 0, '{"in":{"0":')
    with pytest.raises(ValueError, match="Expecting value"):
        checkpoint_offsets(tmp_path, {"in"})


def sleeper(logs: Path, job_id: str, location: Path) -> JobSpec:
    """Return a job that may be scaled to zero."""
    made = spec(logs, job_id)
    scaling = made.scaling.model_copy(update={"min_parallelism": 0})
    return with_application(made.model_copy(update={"scaling": scaling}), checkpoint_location=str(location))


@pytest.mark.parametrize("broken", ["{", '{"a":' * 5000])
def test_a_new_collector_knows_the_offsets_of_a_job_whose_log_is_gone(tmp_path: Path, broken: str) -> None:
    """The log directory is empty; the checkpoint still says where the job stopped, and Kafka where the topic ends."""
    checkpoint(tmp_path / "checkpoint", 0, '{"rec":{"0":4000,"1":4000,"2":4000,"3":3999}}')
    checkpoint(tmp_path / "broken", 0, broken)
    (tmp_path / "logs").mkdir()

    async def play() -> list[MetricSnapshot]:
        logs = tmp_path / "logs"
        world = World(sleeper(logs, "sleeper", tmp_path / "checkpoint"), sleeper(logs, "other", tmp_path / "broken"))
        await world.begin()
        await world.turn(0)
        return await world.snapshots(2)

    known, unknown = sorted(asyncio.run(play()), key=lambda shot: shot.job_id, reverse=True)
    assert (known.state, known.missing) == (ClusterState.STOPPED, ())
    assert known.sources[0].end_offsets == (4000, 4000, 4000, 4000)
    assert known.sources[0].committed_offsets == (4000, 4000, 4000, 3999)
    assert unknown.missing == (Part.COMMITTED_OFFSETS,)


def test_checkpoints_that_take_longer_than_a_round_waits_are_known_in_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dozens of sleeping jobs on S3, whose logs are gone, would else all start: not knowing is no reason to sleep."""
    checkpoint(tmp_path / "checkpoint", 0, '{"rec":{"0":4000,"1":4000,"2":4000,"3":3999}}')
    (tmp_path / "logs").mkdir()
    reads, first, again = itertools.count(), threading.Event(), threading.Event()

    def slow(_root: Place, topics: Collection[str]) -> PartitionOffsets:
        (first if next(reads) < 20 else again).wait(60)
        return checkpoint_offsets(tmp_path / "checkpoint", topics)

    monkeypatch.setattr("services.collector.sources.checkpoint_offsets", slow)

    async def play() -> list[MetricSnapshot]:
        jobs = (sleeper(tmp_path / "logs", f"j{number}", tmp_path / f"ck-{number}") for number in range(20))
        world = World(*jobs, log_timeout_seconds=0.3)
        await world.begin()
        await world.turn(0)
        first.set()
        known = world.collector.sources._directory(str(tmp_path / "logs")).checkpoints
        assert await asyncio.to_thread(wait_until, lambda: len(known) == 20, 30)
        made = await world.snapshots(20)
        assert all(Part.COMMITTED_OFFSETS in each.missing for each in made)
        for number in range(1, 30):  # on a machine that stalls, a round may not have the logs in time either
            await world.turn(10 * number)
            made = (await world.snapshots(20 * (number + 1)))[20 * number :]
            if not any(Part.COMMITTED_OFFSETS in each.missing for each in made):
                break
        again.set()
        return made

    made = asyncio.run(play())
    assert [each.sources[0].committed_offsets for each in made] == [(4000, 4000, 4000, 3999)] * 20


def test_a_checkpoint_that_hangs_hides_no_other_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on a dead network disk; the jobs that have their logs in the same directory are read all the same."""
    (tmp_path / "logs").mkdir()
    checkpoint(tmp_path / "checkpoint", 0, '{"rec":{"0":4000,"1":4000,"2":4000,"3":3999}}')
    released, hung, read = threading.Event(), list[Place](), set[str]()

    def on_dead_disk(root: Place, topics: Collection[str]) -> PartitionOffsets:
        if root.name.startswith("dead"):
            hung.append(root)
            released.wait(60)
        elif root.name in {"a", "b"}:  # and not one that a thread of another test still reads
            read.add(root.name)
        return checkpoint_offsets(tmp_path / "checkpoint", topics)

    monkeypatch.setattr("services.collector.sources.checkpoint_offsets", on_dead_disk)

    async def play() -> list[MetricSnapshot]:
        names = [*(f"dead{number}" for number in range(12)), "a", "b"]
        world = World(*(sleeper(tmp_path / "logs", name, tmp_path / name) for name in names), log_timeout_seconds=0.5)
        await world.begin()
        await world.turn(0)
        assert await asyncio.to_thread(wait_until, lambda: len(hung) == READERS, 30, 0.005)
        assert read == set()
        turns = 1
        for _ in range(2):
            read.clear()
            while read != {"a", "b"} and turns < 60:  # the reader of the last round may be at work
                await world.turn(10 * turns)
                turns += 1
        world.collector.sources.settings = PATIENT  # the logs must be read, too
        await world.turn(10 * turns)
        made = await world.snapshots((turns + 1) * len(names))
        released.set()
        return made

    made = asyncio.run(play())
    assert all(Part.COMMITTED_OFFSETS in each.missing for each in made if each.job_id.startswith("dead"))
    newest = {each.job_id: each for each in made}
    assert [newest[name].missing for name in ("a", "b")] == [(), ()]
    assert len(hung) == len(set(hung)) == 12, "one that hangs costs one thread"
