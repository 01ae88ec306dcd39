"""What the rescale benchmarks share: the kinds of job, a job under load, and what its checkpoints say."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pydantic import SecretStr

from bench.feed import feeding
from bench.orders import JobOperator
from bench.servers import on_stack
from services.actuator.backends.standalone import Standalone
from services.actuator.checkpoint import read_checkpoints
from services.actuator.fence import RedisFence
from services.actuator.settings import ActuatorSettings
from tidegate.client import ClientSettings
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.remote.files import Place
from tidegate.remote.redis_client import RedisClient
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.topics import create_topics, ensure_topics
from tidegate.sparklog.event_log import ApplicationLog
from tidegate.stack import StackInfo

RECORDS_PER_SECOND = 100
PARTITIONS = 8
WAIT_SECONDS = 300.0
JOB = Path(__file__).with_name("jobs") / "keyed.py"
ROW_BYTES = 1024
"""State per key."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job to rescale."""

    name: str
    queries: int = 1
    state_bytes: int = 0
    memory_mb: int = 512


KINDS = (
    JobKind("one query"),
    JobKind("1 GB of state", state_bytes=1 << 30, memory_mb=1536),
    JobKind("two queries", queries=2, memory_mb=768),
)


def spec_of(
    info: StackInfo, folder: Path, kind: JobKind, source: str, job_id: str, *, largest: int, cores: int
) -> JobSpec:
    """Return the spec of a job that reads `source`, with executors of `cores` slots.

    Its JVMs are light, like those of the demo: in a handover, six of them share the machine's cores, and on two cores
    their compilers would take more CPU than the job.
    """
    place = on_stack(info, folder)
    return JobSpec(
        job_id=job_id,
        sources=(source,),
        scaling=Scaling(min_parallelism=cores, max_parallelism=largest),
        application=Application(
            script=str(JOB),
            args=(
                *("--bootstrap-servers", info.bootstrap_servers, "--input", source),
                *("--checkpoint", place["checkpoint_location"], "--queries", str(kind.queries)),
            ),
            jars=tuple(str(jar) for jar in info.connector_jars),
            executor_cores=cores,
            executor_memory_mb=kind.memory_mb,
            stop_deadline_seconds=WAIT_SECONDS,
            start_deadline_seconds=WAIT_SECONDS,
            **place,
        ),
    )


@contextmanager
def load(info: StackInfo, topic: str, kind: JobKind) -> Iterator[None]:
    """Make the topic, fill it with a record per key of the job's state, and keep records coming."""
    create_topics(AdminClient({"bootstrap.servers": info.bootstrap_servers}), [NewTopic(topic, PARTITIONS, 1)])
    producer = Producer({"bootstrap.servers": info.bootstrap_servers, "queue.buffering.max.messages": 2_000_000})
    for number in range(kind.state_bytes // ROW_BYTES):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush(WAIT_SECONDS)
    with feeding(ClientSettings(bootstrap_servers=info.bootstrap_servers), topic, PARTITIONS, RECORDS_PER_SECOND):
        yield


@dataclass
class Commits:
    """The commits of all queries of a job, collected while it runs, because Spark removes old ones."""

    location: str
    times: dict[tuple[str, int], float] = field(default_factory=dict)
    """When each batch was committed, by query and batch id."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where each of these batches ended: its end offsets, added up over the partitions."""

    def look(self) -> int:
        """Read the checkpoints; return how many commits are known."""
        for checkpoint in read_checkpoints(self.location):
            for batch, at in checkpoint.commit_times.items():
                key = checkpoint.path.name, batch
                if key not in self.ends:
                    self.ends[key] = _end(checkpoint.path / "offsets" / str(batch))
                self.times[key] = at
        return len(self.times)

    def wait_for(self, count: int, queries: int) -> None:
        """Wait until each query has committed `count` more batches."""
        self.look()
        before = self._newest()

        def grown() -> bool:
            self.look()
            more = [batch - before.get(name, -1) for name, batch in self._newest().items()]
            return len(more) == queries and min(more) >= count

        if not wait_until(grown, WAIT_SECONDS, every=0.05):
            raise TimeoutError(f"{self.location}: fewer than {count} commits of each query in {WAIT_SECONDS:g} s")

    def wait_past(self, offset: int, queries: int) -> None:
        """Wait until each query has committed a batch that ends after `offset`, added up over the partitions."""

        def past() -> bool:
            self.look()
            return len({name for (name, _), end in self.ends.items() if end > offset}) == queries

        if not wait_until(past, WAIT_SECONDS, every=0.05):
            raise TimeoutError(f"{self.location}: no commit of each query past offset {offset} in {WAIT_SECONDS:g} s")

    def downtime(self, stopped_at: float, past: int = -1) -> float:
        """Return the seconds from a query's last commit until `stopped_at` to its next one that ends after `past`.

        The longest of all queries.
        """
        longest = 0.0
        for name in {name for name, _ in self.times}:
            mine = [(at, self.ends[query, batch]) for (query, batch), at in self.times.items() if query == name]
            last = max(at for at, _ in mine if at <= stopped_at)
            longest = max(longest, min(at for at, end in mine if at > stopped_at and end > past) - last)
        return longest

    def outage(self, since: float, until: float = math.inf) -> float:
        """Return the longest time between two commits of a query, the later one in this time, beyond its usual time."""
        return self._longest(lambda _, later: since <= later <= until)

    def outage_at(self, instant: float) -> float:
        """Return the longest time between a query's commits before and after an instant, beyond its usual time."""
        return self._longest(lambda earlier, later: earlier <= instant < later)

    def _longest(self, wanted: Callable[[float, float], bool]) -> float:
        longest = 0.0
        for name in {name for name, _ in self.times}:
            pairs = list(pairwise(at for (query, _), at in sorted(self.times.items()) if query == name))
            pace = statistics.median(later - earlier for earlier, later in pairs)
            longest = max([longest, *(later - earlier - pace for earlier, later in pairs if wanted(earlier, later))])
        return longest

    def missing(self) -> int:
        """Return how many batch ids were skipped; nothing, unless a commit was lost."""
        newest = self._newest()
        first = {name: min(batch for query, batch in self.times if query == name) for name in newest}
        return sum(newest[name] - first[name] + 1 for name in newest) - len(self.times)

    def _newest(self) -> dict[str, int]:
        newest: dict[str, int] = {}
        for name, batch in self.times:
            newest[name] = max(batch, newest.get(name, -1))
        return newest


def _end(offsets: Place) -> int:
    """Return the end offsets of a batch, added up: one line per source after the version and the metadata."""
    try:
        _, _, *sources = offsets.read_text("utf-8").splitlines()
    except FileNotFoundError:  # Spark removes those of old batches
        return 0
    return sum(end for source in sources for of_topic in json.loads(source).values() for end in of_topic.values())


def arrived(info: StackInfo, topic: str, at: float) -> int:
    """Return how many records of the topic, over its partitions, had arrived at this instant (epoch seconds)."""
    with closing(Consumer({"bootstrap.servers": info.bootstrap_servers, "group.id": "tidegate-bench"})) as consumer:
        asked = [TopicPartition(topic, number, int(at * 1000)) for number in range(PARTITIONS)]
        found = consumer.offsets_for_times(asked, timeout=30)
        # -1: nothing has arrived since
        return sum(
            each.offset if each.offset >= 0 else consumer.get_watermark_offsets(each, timeout=30)[1] for each in found
        )


def operator_for(spec: JobSpec, settings: ActuatorSettings) -> JobOperator:
    """Return an operator whose actuator fences with Redis and publishes its results, as the service does."""
    fence = RedisFence(RedisClient(**settings.redis()), settings.redis_prefix)
    publisher = Publisher(settings)
    return JobOperator(
        spec,
        Standalone(),
        fence=fence,
        publish=lambda result, trace_id: publisher.publish(result, trace_id=trace_id),
    )


def settings_for(info: StackInfo, tag: str) -> ActuatorSettings:
    """Return the actuator's settings on topics of the benchmark's own, which exist afterwards."""
    settings = ActuatorSettings(
        bootstrap_servers=info.bootstrap_servers,
        topic_prefix=f"b{tag}.",
        redis_url=info.redis_url,
        redis_password=SecretStr(info.redis_password),
    )
    ensure_topics(settings, partitions=1)
    return settings


def failed_tasks(spec: JobSpec) -> list[str]:
    """Return why tasks of the job's runs did not succeed, one line for each, by Spark's event logs."""
    runs = sorted(Path(spec.application.event_log_dir).iterdir())
    ends = (json.loads(line) for run in runs for line in ApplicationLog(run).lines(1 << 30) if _task_failed(line))
    return [f"stage {end['Stage ID']}: {json.dumps(end['Task End Reason'])[:300]}" for end in ends]


def _task_failed(line: bytes) -> bool:
    return b'"Event":"SparkListenerTaskEnd"' in line[:60] and b'"Task End Reason":{"Reason":"Success"}' not in line
