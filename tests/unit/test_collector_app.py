"""The collector with fakes: what it publishes when, and how little a slow or dead source affects the others."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typing_extensions import override

from services.collector import app
from services.collector.app import build
from services.collector.delivery import DeliveryQueue
from services.collector.master import MasterUnreachable, parse_state
from services.collector.offsets import TopicOffsets
from services.collector.settings import CollectorSettings
from services.collector.sources import LogSource
from services.collector.view import ClusterView
from tests.support.eventlogs import MASTER, recorded, rolling
from tests.support.events import job, with_application
from tests.support.events import snapshot as snapshot_event
from tests.support.fake_webhdfs import fake_webhdfs
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.envelope import Unreadable
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import ClusterState, MetricSnapshot, Part, WarningCode
from tidegate.events.wire import Wire
from tidegate.remote.files import Place
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.dead_letters import ConsumedRecord, TooManyDeadLetters
from tidegate.runtime.poll import wait_until
from tidegate.runtime.producer import Delivered, NotDelivered, ProducerReplaced, TooLarge
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.log_directory import JobReading

T = datetime(2026, 11, 21, 14, 35, 0, tzinfo=UTC)
EPOCH = int(T.timestamp())
LONG = 60.0
"""How long a round waits for a source: longer than one of fakes takes on any machine. See `World.outlast`."""
PATIENT = CollectorSettings(kafka_timeout_seconds=LONG, master_timeout_seconds=LONG, log_timeout_seconds=LONG)


@pytest.fixture(autouse=True)
def _jobs_are_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "JOBS_SECONDS", LONG)


class HandClock(SystemClock):
    """A clock set by the test; durations are real."""

    def __init__(self) -> None:
        self.at = T - timedelta(seconds=5)

    @override
    def now(self) -> datetime:
        return self.at


class FakeJobs:
    """Jobs in a list."""

    def __init__(self, *specs: JobSpec) -> None:
        self.specs = list(specs)
        self.changed: list[str] = []
        self.on_unreadable: Callable[[ConsumedRecord, Unreadable], None]
        self.unreadable = 0

    def load(self) -> None:
        """Do nothing: all jobs are loaded."""

    def poll(self) -> list[str]:
        """Report unreadable specs; return the changed jobs."""
        for _ in range(self.unreadable):
            self.on_unreadable(BAD_RECORD, Unreadable("NOT_JSON", "no JSON"))
        self.unreadable = 0
        changed, self.changed = self.changed, []
        return changed

    def __iter__(self) -> Iterator[JobSpec]:
        return iter(self.specs)


BAD_RECORD = ConsumedRecord("tidegate.jobs", 0, 7, b"\xffkey", b"\x00garbage")


class FakeOffsets:
    """Returns the end offsets it was given; counts its calls."""

    def __init__(self) -> None:
        self.ends: dict[str, tuple[int | None, ...]] = {"rec": (4000, 4000, 4000, 4000)}
        self.calls: list[set[str]] = []
        self.stable: dict[str, tuple[int | None, ...]] = {"rec": (3990, 3990, 3990, 3990)}
        self.firsts: dict[str, tuple[int | None, ...]] = {}
        self.fails: Exception | None = None
        self.firsts_fail: Exception | None = None
        self.hangs: threading.Event | None = None

    def end_offsets(self, topics: Collection[str], *, read_committed: bool = False) -> TopicOffsets:
        """Return the end offsets, or fail if the test says so."""
        if read_committed:
            return {topic: self.stable[topic] for topic in topics if topic in self.stable}
        self.calls.append(set(topics))
        if self.hangs is not None:
            self.hangs.wait(60)
        if self.fails is not None:
            raise self.fails
        return {topic: self.ends[topic] for topic in topics if topic in self.ends}

    def first_offsets(self, ends: TopicOffsets) -> TopicOffsets:
        """Return the first offsets, or fail if the test says so."""
        if self.firsts_fail is not None:
            raise self.firsts_fail
        return {topic: self.firsts[topic] for topic in ends if topic in self.firsts}


class FakeMaster:
    """Masters by URL; a coroutine function replaces one that fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.special: dict[str, Callable[[], Coroutine[Any, Any, ClusterView]]] = {}
        self.kept: set[str] = set()

    async def view(self, ui_url: str) -> ClusterView:
        """Return the recorded answer, or what the test has set."""
        self.calls.append(ui_url)
        if ui_url in self.special:
            return await self.special[ui_url]()
        return parse_state(MASTER, ui_url)

    def keep(self, places: Collection[str]) -> None:
        """Remember the places."""
        self.kept = set(places)


class FakePublisher:
    """Records what is sent; `lost` has the next events lost, `gate` holds back what the broker says."""

    def __init__(self) -> None:
        self.sent: list[tuple[Wire, bytes | None]] = []
        self.lost = 0
        self.gate: threading.Event | None = None
        self.unled: set[str] = set()
        """Jobs whose partition has no leader: nothing is said of their events before the flush."""
        self.awaited: list[tuple[Wire, Delivered | None]] = []

    def send(self, event: Wire, *, key: bytes | None = None, delivered: Delivered | None = None) -> None:
        """Record it."""
        self.sent.append((event, key))
        self.awaited.append((event, delivered))

    def serve(self) -> None:
        """Tell of all events whose partition has a leader, if the gate is open; `lost` of them are."""
        if self.gate is None or self.gate.is_set():
            self._tell([one for one in self.awaited if getattr(one[0], "job_id", None) not in self.unled], None)

    def flush(self) -> None:
        """Wait at the gate, and tell of all."""
        if self.gate is not None:
            self.gate.wait(60)
        self.serve()
        self._tell(list(self.awaited), NotDelivered("no leader"))

    def _tell(self, told: list[tuple[Wire, Delivered | None]], error: NotDelivered | None) -> None:
        for one in told:
            self.awaited.remove(one)
            assert one[1] is not None
            one[1](NotDelivered("1 events not acknowledged after 30 s") if self.lost else error)
            self.lost = max(0, self.lost - 1)


class HangingLogs:
    """A directory on a dead network disk."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = threading.Event()
        self.calls = 0

    def read(self, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading]:
        """Hang."""
        self.calls += len(wanted)
        self.asked.set()
        self.release.wait(60)
        return {}


class World:
    """A collector with its fakes."""

    def __init__(self, *specs: JobSpec, logs: Callable[[Place], LogSource] | None = None, **settings: Any) -> None:
        self.clock = HandClock()
        self.jobs = FakeJobs(*specs)
        self.offsets = FakeOffsets()
        self.payments = FakeOffsets()
        """Another Kafka cluster."""
        self.master = FakeMaster()
        self.publisher = FakePublisher()
        self.registry = CollectorRegistry()

        def jobs(on_unreadable: Callable[[ConsumedRecord, Unreadable], None]) -> FakeJobs:
            self.jobs.on_unreadable = on_unreadable
            return self.jobs

        self.collector = build(
            PATIENT.model_copy(update=settings),
            clock=self.clock,
            publisher=self.publisher,
            jobs=jobs,
            offsets={None: self.offsets, "payments": self.payments},
            clusters=self.master,
            logs=logs,
            registry=self.registry,
        )

    async def begin(self) -> None:
        """Load the jobs and make the schedule aware of them."""
        await self.collector.load()
        await self.turn(-5)

    async def turn(self, seconds: float, *, settle: float = LONG) -> None:
        """Run one pass at `seconds` after T and wait for its tasks."""
        self.clock.at = T + timedelta(seconds=seconds)
        self.collector.turn()
        await self.collector.finish(settle)

    async def snapshots(self, count: int) -> list[MetricSnapshot]:
        """Wait until `count` snapshots were sent; return all."""
        deadline = time.monotonic() + LONG / 2
        while time.monotonic() < deadline:
            sent = [event for event, _ in list(self.publisher.sent) if isinstance(event, MetricSnapshot)]
            if len(sent) >= count:
                return sent
            await asyncio.sleep(0.005)
        raise TimeoutError(f"{len(self.publisher.sent)} events sent, {count} snapshots wanted")

    async def outlast(self, count: int) -> list[MetricSnapshot]:
        """Have the time be up that rounds wait for what hangs, until `count` snapshots were sent; return all.

        Only for the loop: the test does not wait, and what hangs has hung for all that time.
        """
        loop = asyncio.get_running_loop()
        while len(self.publisher.sent) < count or self.collector._rounds:
            now = loop.time() + LONG - time.monotonic()
            loop.time = lambda now=now: time.monotonic() + now  # type: ignore[method-assign,misc]
            await asyncio.sleep(0.02)
        return await self.snapshots(count)

    def figure(self, name: str, **labels: str) -> float:
        """Return one of the collector's metrics."""
        return self.registry.get_sample_value(f"tidegate_collector_{name}", labels) or 0.0


def spec(directory: Path, job_id: str = "recorded", *, url: str | None = "http://m:8080") -> JobSpec:
    """Return a job that reads the recorded topic."""
    reads = job(job_id).model_copy(update={"sources": ("rec",)})
    return with_application(reads, event_log_dir=str(directory), master_ui_url=url)


def test_one_snapshot_per_job_and_interval(tmp_path: Path) -> None:
    """However often it runs, the collector makes one snapshot per interval, from log lines, offsets and capacity."""
    lines = recorded()
    rolling(tmp_path, lines[:-2], codec=".zstd")  # without the query's and the application's end

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path))
        await world.begin()
        for tenth in range(0, 210, 5):
            await world.turn(tenth / 10)
        return await world.snapshots(3)

    made = asyncio.run(play())
    assert [snapshot.sequence - EPOCH for snapshot in made] == [0, 10, 20]
    first = made[0]
    assert first.missing == ()
    assert (first.state, first.slots_granted, first.incarnation) == (ClusterState.RUNNING, 2, "app-20261121143331-0000")
    assert first.sources[0].end_offsets == (4000, 4000, 4000, 4000)
    assert first.sources[0].committed_offsets == (3458, 3458, 3457, 3457)
    assert [batch.batch_id for batch in first.batches] == [4]  # ended at 14:34:52.8, the others before the interval
    assert made[1].batches == made[2].batches == ()
    assert made[1].missing == ()


def test_a_job_in_its_first_batch_has_a_lag(tmp_path: Path) -> None:
    """Before anything is committed, the checkpoint tells where the query began."""
    lines = recorded()
    progress = next(number for number, line in enumerate(lines) if b"QueryProgressEvent" in line)
    rolling(tmp_path, lines[:progress])
    begins = tmp_path / "ck" / "sources" / "0" / "0"
    begins.parent.mkdir(parents=True)
    begins.write_bytes(b'\0v1\n{"rec":{"0":7,"1":8,"2":9,"3":0}}')

    async def play() -> MetricSnapshot:
        world = World(with_application(spec(tmp_path), checkpoint_location=str(tmp_path / "ck")))
        await world.begin()
        await world.turn(0)
        return (await world.snapshots(1))[0]

    first = asyncio.run(play())
    assert first.sources[0].committed_offsets == (7, 8, 9, 0)
    assert first.missing == ()


def test_the_jobs_of_a_pipeline_are_published_upstream_first(tmp_path: Path) -> None:
    """The decider reads them in this order, so each decision sees the newest plan of the jobs upstream."""
    shop = {"pipeline_id": "shop"}
    last = spec(tmp_path, "a-last").model_copy(update=shop | {"sources": ("middle",), "sinks": ()})
    first = spec(tmp_path, "z-first").model_copy(update=shop | {"sinks": ("middle",)})

    async def play() -> list[MetricSnapshot]:
        world = World(last, first)
        await world.begin()
        for tenth in range(0, 110, 5):
            await world.turn(tenth / 10)
        return await world.snapshots(4)

    assert [made.job_id for made in asyncio.run(play())] == ["z-first", "a-last"] * 2


def test_two_collectors_make_the_same_snapshot(tmp_path: Path) -> None:
    """Id and content depend only on job and interval, not on which collector measured or since when."""
    rolling(tmp_path, recorded()[:-2])

    async def play(start: float) -> MetricSnapshot:
        world = World(spec(tmp_path))
        await world.collector.load()
        await world.turn(start)
        await world.turn(0.0)
        return (await world.snapshots(1))[0]

    assert asyncio.run(play(-9.5)) == asyncio.run(play(-0.5))


def test_many_jobs_share_the_calls(tmp_path: Path) -> None:
    """A round asks Kafka once and each master once, however many jobs there are."""
    specs = [spec(tmp_path, f"job-{number}", url=f"http://m{number % 2}:8080") for number in range(50)]

    async def play() -> World:
        world = World(*specs)
        await world.begin()
        await world.turn(0)
        await world.snapshots(50)
        return world

    world = asyncio.run(play())
    assert world.offsets.calls == [{"rec"}]
    assert sorted(world.master.calls) == ["http://m0:8080", "http://m1:8080"]


def test_a_dead_log_directory_delays_only_its_own_jobs(tmp_path: Path) -> None:
    """Jobs of a hanging directory get late snapshots that name the missing parts; the other jobs do not wait."""
    rolling(tmp_path, recorded()[:-2])
    hanging = HangingLogs()

    def open_logs(path: Place) -> LogSource:
        from tidegate.sparklog.log_directory import LogDirectory  # noqa: PLC0415

        return hanging if path == Path("/dead") else LogDirectory(path, limit_bytes=1_000_000)

    async def play() -> tuple[list[MetricSnapshot], int]:
        world = World(spec(tmp_path), spec(Path("/dead"), "other"), logs=open_logs)
        await world.collector.load()
        world.clock.at = T - timedelta(seconds=5)
        world.collector.turn()
        assert await asyncio.to_thread(hanging.asked.wait, 10)
        for number, seconds in enumerate((0, 10, 20)):
            world.clock.at = T + timedelta(seconds=seconds)
            world.collector.turn()
            *_, first = await world.snapshots(2 * number + 1)
            assert first.job_id == "recorded"
            made = await world.outlast(2 * number + 2)
        hanging.release.set()
        return made, threading.active_count()

    before = threading.active_count()
    made, threads = asyncio.run(play())
    assert {s.missing for s in made if s.job_id == "recorded"} == {()}
    assert {s.missing for s in made if s.job_id == "other"} == {
        (Part.COMMITTED_OFFSETS, Part.PROGRESS, Part.TASKS, Part.CAPACITY, Part.JOB_STATE)
    }
    assert threads - before <= 6, "a hanging source must not cost a thread a round"


def test_logs_in_hdfs_are_followed_and_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job with its log in HDFS is measured as others; when HDFS is silent, its parts are missing, and it is said."""
    lines = recorded()[:-2]
    rolling(tmp_path, lines)
    with fake_webhdfs() as hdfs:
        for file in tmp_path.glob("*/*"):
            hdfs.put(f"/logs/{file.relative_to(tmp_path)}", file.read_bytes())
        files = {"hdfs://nn:8020": {"url": hdfs.url}}

        async def play() -> list[MetricSnapshot]:
            elsewhere = with_application(spec(tmp_path), event_log_dir="hdfs://nn:8020/logs")
            nowhere = with_application(spec(tmp_path, "other"), event_log_dir="hdfs:///logs")
            world = World(elsewhere, nowhere, files=files)
            await world.begin()
            await world.turn(0)
            session = world.collector.sources.files.remote("hdfs://nn:8020/logs")._system.session
            session.request = partial(session.request, timeout=0.1)
            hdfs.silent.set()
            await world.turn(10)
            return await world.snapshots(4)

        made = asyncio.run(play())
    first, second = (snapshot for snapshot in made if snapshot.job_id == "recorded")
    assert first.missing == ()
    assert first.sources[0].committed_offsets == (3458, 3458, 3457, 3457)
    unknown = (Part.COMMITTED_OFFSETS, Part.PROGRESS, Part.TASKS)
    assert second.missing[:3] == unknown
    assert all(snapshot.missing[:3] == unknown for snapshot in made if snapshot.job_id == "other")
    assert "logs hdfs://nn:8020/logs does not answer: OSError: hdfs://nn:8020/logs: http://127.0.0.1" in caplog.text
    assert "logs hdfs:///logs does not answer: FilesError: hdfs:///logs: nothing says where" in caplog.text


class LooksMoveIt(HandClock):
    """A clock for durations as well: only the test and its slow logs move it."""

    @override
    def monotonic(self) -> float:
        return (self.at - T).total_seconds()


class SlowLogs:
    """A directory with so many logs that a look takes 2.6 s."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.late: list[timedelta] = []
        """How long after the end of its interval each round could begin."""

    def read(self, wanted: Mapping[str, Interval | None]) -> Mapping[str, JobReading]:
        """Take a while; nobody has logged yet."""
        self.late += [self.clock.at - interval.end for interval in wanted.values() if interval is not None]
        self.clock.at += timedelta(seconds=2.6)
        return {job_id: JobReading((), complete=True, grown_at=None) for job_id in wanted}


def test_a_look_between_rounds_makes_no_round_too_late(tmp_path: Path) -> None:
    """Of the three seconds that a round waits it needs most, so the directory must not be busy when it begins."""
    clock = LooksMoveIt()
    logs = SlowLogs(clock)

    async def play() -> int:
        world = World(spec(tmp_path), logs=lambda _: logs)
        world.clock = world.collector.clock = world.collector.sources.clock = clock
        await world.collector.load()
        looks = 0
        while clock.at < T + timedelta(seconds=42):
            before = clock.at
            await world.turn(clock.monotonic())
            looks += clock.at > before
            clock.at = max(clock.at, min(before + timedelta(seconds=1), T + timedelta(seconds=_next_round(before))))
        return looks

    looks = asyncio.run(play())
    assert logs.late == [timedelta(0)] * 5
    assert looks > len(logs.late), "the directory is read between the rounds, too"


def _next_round(at: datetime) -> int:
    return 10 * int((at - T).total_seconds() // 10 + 1)


def test_logs_elsewhere_are_read_for_snapshots_only(tmp_path: Path) -> None:
    """In HDFS and on S3 a look costs as many requests if nothing is new, so there are none between two rounds."""
    rolling(tmp_path, recorded()[:-2])
    with fake_webhdfs() as hdfs:
        for file in tmp_path.glob("*/*"):
            hdfs.put(f"/logs/{file.relative_to(tmp_path)}", file.read_bytes())

        async def play() -> list[int]:
            elsewhere = with_application(spec(tmp_path), event_log_dir="hdfs://nn:8020/logs")
            world = World(elsewhere, files={"hdfs://nn:8020": {"url": hdfs.url}})
            await world.begin()
            counts = []
            for seconds in (0, 3, 6, 10):
                await world.turn(seconds)
                counts.append(len(hdfs.requests))
            assert [made.missing for made in await world.snapshots(2)] == [(), ()]
            return counts

        first, between, later, second = asyncio.run(play())
    assert first == between == later < second


def test_a_dead_master_delays_only_its_own_jobs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a master hangs or fails, its jobs lack capacity and state, and the log says why; others are not affected."""
    rolling(tmp_path, recorded()[:-2])

    async def hang() -> ClusterView:
        await asyncio.Event().wait()
        raise AssertionError

    async def fail() -> ClusterView:
        raise MasterUnreachable("http://b: refused")

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path), spec(tmp_path, "a", url="http://a"), spec(tmp_path, "b", url="http://b"))
        world.master.special = {"http://a": hang, "http://b": fail}
        await world.begin()
        world.clock.at = T
        world.collector.turn()
        assert {each.job_id for each in await world.snapshots(2)} == {"recorded", "b"}
        return await world.outlast(3)

    made = asyncio.run(play())
    by_job = {snapshot.job_id: snapshot for snapshot in made}
    assert by_job["recorded"].missing == ()
    for job_id in "ab":
        assert by_job[job_id].state is ClusterState.UNKNOWN
        assert by_job[job_id].missing == (Part.COMMITTED_OFFSETS, Part.CAPACITY, Part.JOB_STATE)
    assert made[-1].job_id == "a"
    assert "master http://b does not answer: MasterUnreachable: http://b: refused" in caplog.messages
    assert any(said.startswith("master http://a does not answer: TimeoutError: no answer") for said in caplog.messages)


def test_the_snapshots_of_a_job_come_in_order(tmp_path: Path) -> None:
    """A source may be slow for once, and the next round has its answers first; the decider drops what comes late."""
    rolling(tmp_path, recorded()[:-2])
    slow = [0.6, 0.3]

    async def at_times() -> ClusterView:
        await asyncio.sleep(slow.pop(0) if slow else 0.0)
        return parse_state(MASTER, "http://m:8080")

    async def play() -> list[int]:
        world = World(spec(tmp_path).model_copy(update={"interval_seconds": 1}))
        world.master.special["http://m:8080"] = at_times
        await world.collector.load()
        await world.turn(-1)
        for seconds in range(5):
            world.clock.at = T + timedelta(seconds=seconds)
            world.collector.turn()
            await asyncio.sleep(0.1)
        await world.collector.finish(LONG)
        return [made.sequence - EPOCH for made in await world.snapshots(6)]

    assert asyncio.run(play()) == [-1, 0, 1, 2, 3, 4]


@pytest.mark.expects_errors("the cluster's answer about one job is wrong on purpose")
def test_a_job_that_cannot_be_judged_costs_no_other_job_its_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The jobs of a cluster and a directory are assembled together: what is wrong with one is a gap of its own."""

    class View(ClusterView):
        def of(self, spec: JobSpec) -> ClusterView:
            if spec.job_id == "odd":
                raise KeyError("availableMB")
            return self

    async def view() -> ClusterView:
        state = parse_state(MASTER, "http://m")
        return View(*(getattr(state, each.name) for each in fields(state)))

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path, "a"), spec(tmp_path, "odd"), spec(tmp_path, "z"))
        world.master.special = {"http://m:8080": view}
        await world.begin()
        await world.turn(0)
        return await world.snapshots(2)

    assert {made.job_id for made in asyncio.run(play())} == {"a", "z"}
    assert "job odd: no snapshot could be made, so there is a gap" in caplog.text


def test_what_an_open_transaction_has_written_is_no_lag_of_a_job_that_cannot_read_it(tmp_path: Path) -> None:
    """Two jobs read one topic: for the one with `read_committed` it ends where the first open transaction begins."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        strict = spec(tmp_path, "strict").model_copy(update={"read_committed": True})
        world = World(spec(tmp_path), strict)
        await world.begin()
        await world.turn(0)
        return await world.snapshots(2)

    made = {each.job_id: each.sources[0].end_offsets for each in asyncio.run(play())}
    assert made == {"recorded": (4000, 4000, 4000, 4000), "strict": (3990, 3990, 3990, 3990)}


def test_topics_of_one_name_on_two_kafka_clusters_are_two(tmp_path: Path) -> None:
    """Each job gets the offsets of its own cluster, and each cluster is asked once."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path), spec(tmp_path, "paid").model_copy(update={"kafka_cluster": "payments"}))
        world.payments.ends["rec"] = (5000, 5000, 5000, 5000)
        await world.begin()
        await world.turn(0)
        assert world.offsets.calls == world.payments.calls == [{"rec"}]
        return await world.snapshots(2)

    made = {each.job_id: each.sources[0].end_offsets for each in asyncio.run(play())}
    assert made == {"recorded": (4000, 4000, 4000, 4000), "paid": (5000, 5000, 5000, 5000)}


def test_a_dead_kafka_cluster_delays_only_its_own_jobs(tmp_path: Path) -> None:
    """The other job's snapshot is there while the cluster still hangs, although both share log and master."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path), spec(tmp_path, "paid").model_copy(update={"kafka_cluster": "payments"}))
        world.payments.hangs = threading.Event()
        await world.begin()
        world.clock.at = T
        world.collector.turn()
        assert [each.job_id for each in await world.snapshots(1)] == ["recorded"]
        made = await world.outlast(2)
        world.payments.hangs.set()
        await world.collector.finish(LONG)
        return made

    _, paid = asyncio.run(play())
    assert paid.job_id == "paid"
    assert Part.END_OFFSETS in paid.missing
    assert paid.warnings is None


def test_a_kafka_cluster_that_the_settings_do_not_name_is_said(tmp_path: Path) -> None:
    """Offsets of a topic of the same name elsewhere would be wrong, so there are none."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> MetricSnapshot:
        world = World(spec(tmp_path).model_copy(update={"kafka_cluster": "paymnets"}))
        await world.begin()
        await world.turn(0)
        assert not world.offsets.calls
        return (await world.snapshots(1))[0]

    made = asyncio.run(play())
    assert made.sources[0].end_offsets == (None, None, None, None)
    assert Part.END_OFFSETS in made.missing
    assert [each.code for each in made.warnings or ()] == [WarningCode.KAFKA_UNKNOWN]


def test_topics_of_a_pattern_are_asked_once_the_log_tells_them(tmp_path: Path) -> None:
    """The spec names none of them: from the second snapshot on, the topic that the job reads is measured, and told."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path).model_copy(update={"sources": ("other",)}))
        world.offsets.ends["other"] = (0,)
        await world.begin()
        await world.turn(0)
        await world.turn(10)
        assert world.offsets.calls[-1] == {"other", "rec"}
        return await world.snapshots(2)

    first, second = asyncio.run(play())
    assert [source.topic for source in first.sources] == ["other"]
    assert [source.topic for source in second.sources] == ["other", "rec"]
    assert [(each.code, each.topics) for each in second.warnings or ()] == [
        (WarningCode.TOPIC_NOT_READ, ("other",)),
        (WarningCode.TOPIC_NOT_LISTED, ("rec",)),
    ]


def test_a_driver_without_a_query_is_noticed_in_time(tmp_path: Path) -> None:
    """At first its program may be about to start the query again; `silence_seconds` later the job has stopped."""
    rolling(tmp_path, recorded()[:-1])  # the query has ended, and the application has not

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path), silence_seconds=15)
        await world.begin()
        for seconds in (0, 10, 20, 30):
            await world.turn(seconds)
        return await world.snapshots(4)

    made = asyncio.run(play())
    assert [snapshot.state for snapshot in made] == [ClusterState.STARTING] * 2 + [ClusterState.STOPPED] * 2
    assert {snapshot.slots_granted for snapshot in made} == {2}, "it holds its slots all the time"


def test_a_clock_that_was_an_hour_ahead_is_forgotten(tmp_path: Path) -> None:
    """The job is measured on without a restart, and a pause that began in the future does not last until then."""
    rolling(tmp_path, recorded()[:-1])  # the query has ended, and the application has not

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path), silence_seconds=15)
        await world.begin()
        for seconds in (0, -3605, -3600, -3590, -3580):
            await world.turn(seconds)
        return await world.snapshots(4)

    made = asyncio.run(play())
    assert [snapshot.sequence - EPOCH for snapshot in made] == [0, -3600, -3590, -3580]
    assert [snapshot.state for snapshot in made] == [ClusterState.STARTING] * 3 + [ClusterState.STOPPED]
    assert not any(snapshot.missing for snapshot in made)


def test_first_offsets_that_cannot_be_asked_cost_nothing_else(tmp_path: Path) -> None:
    """They tell which records were removed unread; without them all others count as there."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path))
        await world.begin()
        world.offsets.firsts = {"rec": (3900, 0, 0, 0)}
        await world.turn(0)
        world.offsets.firsts_fail = TimeoutError("broker")
        await world.turn(10)
        return await world.snapshots(2)

    told, not_told = asyncio.run(play())
    assert told.sources[0].first_offsets == (3900, 0, 0, 0)
    assert not_told.sources[0] == told.sources[0].model_copy(update={"first_offsets": None})
    assert told.missing == not_told.missing == ()


def test_a_silent_kafka_is_missing_and_never_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If Kafka fails or hangs, only end offsets are null; the log says so once, and once when Kafka is back."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path))
        await world.begin()
        world.offsets.fails = TimeoutError("broker")
        await world.turn(0)
        await world.turn(10)
        world.offsets.fails, world.offsets.hangs = None, threading.Event()
        await world.turn(20, settle=0.0)
        others = (("logs", str(tmp_path)), ("master", "http://m:8080"))

        def have_answered() -> bool:
            return all(world.figure("source_timestamp_seconds", source=s, place=p) == EPOCH + 20 for s, p in others)

        assert await asyncio.to_thread(wait_until, have_answered, 30, 0.005)
        await world.outlast(3)
        world.offsets.hangs.set()
        world.offsets.hangs = None
        await world.turn(30)
        assert world.figure("source_failures_total", source="kafka") == 3
        assert world.figure("missing_parts_total", part="end_offsets") == 3
        return await world.snapshots(4)

    with caplog.at_level(logging.INFO):
        made = asyncio.run(play())
    assert [snapshot.missing for snapshot in made] == [(Part.END_OFFSETS,)] * 3 + [()]
    assert made[0].sources[0].end_offsets == (None,) * 4
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("kafka")]
    assert said == ["kafka does not answer: TimeoutError: broker", "kafka answers again"]


def test_an_undelivered_snapshot_is_a_gap_and_the_next_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that does not acknowledge stops neither measuring nor later snapshots."""

    async def play() -> World:
        world = World(spec(tmp_path))
        world.publisher.lost = 1
        await world.begin()
        await world.turn(0)
        await world.turn(10)
        await world.snapshots(2)
        world.collector.close()
        return world

    with caplog.at_level(logging.WARNING):
        world = asyncio.run(play())
    assert (world.figure("undelivered_events_total"), world.figure("delivered_events_total")) == (1, 1)
    assert "not delivered, so there is a gap: 1 events not acknowledged" in caplog.text


def test_the_backlog_for_a_slow_broker_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While a flush hangs, rounds continue; beyond the backlog snapshots are dropped and counted."""

    async def play() -> World:
        world = World(spec(tmp_path), publish_backlog=3)
        world.publisher.gate = threading.Event()
        await world.begin()
        for number in range(10):
            await world.turn(10 * number)
        assert world.figure("undelivered_events_total") == 7, "the rounds go on while the flush hangs"
        world.publisher.gate.set()
        world.collector.close()
        return world

    with caplog.at_level(logging.WARNING):
        world = asyncio.run(play())
    assert world.figure("delivered_events_total") == 3
    assert world.figure("undelivered_events_total") == 7
    assert "dropped 1 events: 3 already wait for the broker" in caplog.text


def test_a_pause_of_the_process_is_a_gap(tmp_path: Path) -> None:
    """A collector that slept through intervals does not catch up; it continues with the next one."""
    rolling(tmp_path, recorded()[:-2])

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path))
        await world.collector.load()
        await world.turn(-45)
        await world.turn(-40)  # 14:34:20
        await world.turn(8)  # paused until 14:35:08, too late for :00
        await world.turn(10)
        assert world.figure("overdue_snapshots_total") == 4
        return await world.snapshots(2)

    made = asyncio.run(play())
    assert [snapshot.sequence - EPOCH for snapshot in made] == [-40, 10]
    assert made[1].batches == ()
    assert made[1].missing == ()


def test_jobs_come_and_go(tmp_path: Path) -> None:
    """A new job is measured from its next interval on; a removed job is no longer measured, and its threads end."""
    world = World()

    async def play() -> list[MetricSnapshot]:
        await world.begin()
        world.jobs.specs, world.jobs.changed = [spec(tmp_path, "a")], ["a"]
        await world.turn(1)
        await world.turn(2)
        await world.turn(10)
        (tmp_path / "b").mkdir()
        world.jobs.specs, world.jobs.changed = [spec(tmp_path / "b", "b")], ["a", "b"]
        await world.turn(11)
        await world.turn(12)
        await world.turn(20)
        return await world.snapshots(2)

    made = asyncio.run(play())
    assert [(snapshot.job_id, snapshot.sequence - EPOCH) for snapshot in made] == [("a", 10), ("b", 20)]
    assert str(tmp_path / "b") in world.master.kept
    assert str(tmp_path) not in world.master.kept
    of_a = [thread for thread in threading.enumerate() if thread.name == f"collector-logs {tmp_path}"]
    for thread in of_a:
        thread.join(30)
    assert not any(thread.is_alive() for thread in of_a)


def test_a_place_whose_job_is_removed_during_a_round_is_forgotten(tmp_path: Path) -> None:
    """Its answer would come back as a metric, and with it a thread, until some other job changes."""
    world = World(spec(tmp_path, "a"))
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow() -> ClusterView:
        asked.set()
        await release.wait()
        return parse_state(MASTER, "http://m:8080")

    async def play() -> None:
        await world.begin()
        world.master.special["http://m:8080"] = slow
        await world.turn(10, settle=0.01)
        await asyncio.wait_for(asked.wait(), 10)
        world.jobs.specs, world.jobs.changed = [], ["a"]
        deadline = time.monotonic() + 10
        while world.master.kept and time.monotonic() < deadline:  # the pass before may have read the jobs already
            await world.turn(11, settle=0.3)
        assert world.master.kept == set()
        release.set()
        await world.collector.finish(LONG)
        await asyncio.sleep(0)

    asyncio.run(play())
    assert world.master.kept == set()
    assert world.figure("source_timestamp_seconds", source="kafka", place="") > 0
    assert world.figure("source_timestamp_seconds", source="master", place="http://m:8080") == 0


def test_jobs_that_are_read_slowly_are_measured_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New specs whose reading takes longer than a pass waits for, or fails half-way, are known after the next pass."""
    monkeypatch.setattr(app, "JOBS_SECONDS", 0.05)

    async def play() -> list[MetricSnapshot]:
        world = World()
        await world.begin()
        read = world.jobs.poll
        for job_id, reading in (("slow", lambda: time.sleep(0.2)), ("broken", lambda: 1 / 0)):
            ended = threading.Event()

            def poll(reading: Callable[[], object] = reading, ended: threading.Event = ended) -> list[str]:
                found = read()
                try:
                    reading()
                finally:
                    ended.set()
                return found

            monkeypatch.setattr(world.jobs, "poll", poll)
            world.jobs.specs = [*world.jobs.specs, spec(tmp_path, job_id)]
            world.jobs.changed = [job_id]
            await world.turn(1)
            assert await asyncio.to_thread(ended.wait, 10)
        monkeypatch.setattr(world.jobs, "poll", read)
        monkeypatch.setattr(app, "JOBS_SECONDS", LONG)
        for seconds in (2, 3, 10):
            await world.turn(seconds)
        return await world.snapshots(2)

    assert {made.job_id for made in asyncio.run(play())} == {"slow", "broken"}


def test_a_job_that_was_removed_since_it_was_due_costs_no_other_job_its_snapshot(tmp_path: Path) -> None:
    """The jobs topic may tell so just before a round begins."""

    async def play() -> list[MetricSnapshot]:
        world = World(spec(tmp_path, "a"))
        await world.begin()
        due = Interval(T - timedelta(seconds=10), T, first=True)
        await world.collector.round({"gone": due, "a": due})
        return await world.snapshots(1)

    assert [made.job_id for made in asyncio.run(play())] == ["a"]


def test_an_unreadable_spec_goes_to_the_dead_letters(tmp_path: Path) -> None:
    """The letter has its bytes and key, and the other jobs are measured as before."""

    async def play() -> World:
        world = World(spec(tmp_path))
        await world.begin()
        world.jobs.unreadable = 1
        await world.turn(-3)
        await world.turn(0)
        await world.snapshots(1)
        world.collector.close()
        return world

    world = asyncio.run(play())
    (letter, key), (snapshot, _) = world.publisher.sent
    assert isinstance(letter, DeadLetter)
    assert (letter.consumer, letter.offset, letter.value, key) == ("collector", 7, b"\x00garbage", b"\xffkey")
    assert isinstance(snapshot, MetricSnapshot)


def test_a_topic_of_nothing_but_garbage_ends_the_service() -> None:
    """Past the limit the service stops, so that a person looks, instead of draining the topic."""

    async def play() -> None:
        world = World(dead_letter_limit=3)
        await world.collector.load()
        world.jobs.unreadable = 4
        await world.collector.run(asyncio.Event())

    with pytest.raises(TooManyDeadLetters, match="4 unreadable records in a row"):
        asyncio.run(asyncio.wait_for(play(), 10))


def test_a_stop_does_not_wait_for_the_jobs_topic() -> None:
    """While the jobs topic cannot be read, a signal still ends the service at once."""
    gate = threading.Event()

    async def play() -> float:
        world = World(job("a"))
        world.jobs.load = lambda: gate.wait(60)  # type: ignore[method-assign,assignment]
        stop = asyncio.Event()
        running = asyncio.create_task(world.collector.run(stop))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        stop.set()
        await running
        took = time.monotonic() - started
        gate.set()
        world.collector.close()
        return took

    assert asyncio.run(play()) < 30


def test_it_is_healthy_while_the_main_loop_runs(tmp_path: Path) -> None:
    """Each pass counts, even if every source is dead."""

    async def play() -> bool:
        world = World(spec(tmp_path / "nowhere"))
        world.offsets.fails = RuntimeError("gone")
        world.collector.health._last = 0.0
        await world.begin()
        await world.turn(0)
        return world.collector.health.alive

    assert asyncio.run(play())


def test_an_event_that_is_too_large_costs_no_other_event() -> None:
    """A snapshot of 50,000 partitions is above a megabyte: the other jobs of its round are delivered all the same."""
    small, large = (snapshot_event(1, partitions=partitions) for partitions in (8, 9))
    publisher, counts = FakePublisher(), []

    def send(event: Wire, *, key: bytes | None = None, delivered: Delivered | None = None) -> None:
        if event == large:
            raise TooLarge("tidegate.snapshots: Broker: Message size too large")
        take(event, key=key, delivered=delivered)

    take, publisher.send = publisher.send, send  # type: ignore[method-assign]
    queue = DeliveryQueue(publisher, 10, lambda arrived, lost: counts.append((arrived, lost)))
    queue.put([(small, None), (large, None), (small, None)])
    queue.close(30.0)
    assert [event for event, _ in publisher.sent] == [small, small]
    assert counts == [(2, 1)]


def test_events_that_were_delivered_leave_room_for_others() -> None:
    """Only what waits for the broker counts towards the backlog: otherwise a collector would fall silent one day."""
    event, counts = snapshot_event(1), SimpleQueue[tuple[int, int]]()
    queue = DeliveryQueue(FakePublisher(), 2, lambda arrived, lost: counts.put((arrived, lost)))
    for _ in range(3):
        queue.put([(event, None)] * 2)
        assert counts.get(timeout=30) == (2, 0)
    queue.put([(event, None)] * 3)
    assert counts.get(timeout=30) == (0, 3)
    queue.close(30.0)
    assert not queue._thread.is_alive()


def test_a_partition_without_a_leader_costs_only_its_own_snapshots() -> None:
    """Its acknowledgement may not come for half a minute: the snapshots of the other jobs do not wait for it."""
    publisher, counts = FakePublisher(), list[tuple[int, int]]()
    publisher.unled = {"unled"}
    queue = DeliveryQueue(publisher, 10, lambda arrived, lost: counts.append((arrived, lost)))
    unled, led = snapshot_event(1, job_id="unled"), [snapshot_event(number, job_id="led") for number in (1, 2)]
    queue.put([(unled, None), (led[0], None)])
    queue.put([(led[1], None)])
    assert wait_until(lambda: sum(arrived for arrived, _ in counts) == 2, 30.0)
    assert [event for event, _ in publisher.sent] == [unled, *led]
    assert sum(lost for _, lost in counts) == 0
    queue.close(30.0)
    assert (sum(arrived for arrived, _ in counts), sum(lost for _, lost in counts)) == (2, 1)


def test_what_a_producer_had_that_failed_for_good_is_lost() -> None:
    """Of that there is no report; a new producer takes what comes later."""
    publisher, counts = FakePublisher(), list[tuple[int, int]]()
    publisher.unled = {"unled"}

    def send(event: Wire, *, key: bytes | None = None, delivered: Delivered | None = None) -> None:
        if len(publisher.sent) == 1:
            publisher.sent.append((event, key))
            raise ProducerReplaced("another one takes its place")
        take(event, key=key, delivered=delivered)

    take, publisher.send = publisher.send, send  # type: ignore[method-assign]
    queue = DeliveryQueue(publisher, 10, lambda arrived, lost: counts.append((arrived, lost)))
    first = [snapshot_event(number, job_id="unled") for number in (1, 2)]
    queue.put([(event, None) for event in first])
    queue.put([(snapshot_event(1, job_id="led"), None)])
    queue.close(30.0)
    assert (sum(arrived for arrived, _ in counts), sum(lost for _, lost in counts)) == (1, 2)
