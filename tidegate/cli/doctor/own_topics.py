"""What is wrong with Tidegate's own topics, as the broker describes them: their settings, leaders and replicas.

Whoever made them may have made them otherwise than `ensure_topics`, and a policy for all topics of a cluster may have
changed them since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from confluent_kafka.admin import PartitionMetadata, TopicMetadata

from tidegate.events.topics import COMMANDS, JOBS, RESULTS
from tidegate.runtime.topics import JOBS_CONFIG, LARGEST_SEGMENT_BYTES, STATES_CONFIG

STATES = "decider-state-changelog"
"""The topic of the decider's states, without the prefix."""
REMOVED = {
    JOBS.suffix: "old specs, so jobs are gone when a service starts again",
    STATES: "old states, so the decider forgets what it has learned of jobs",
}
"""What Kafka removes from a topic that should be compacted and is not."""
COMPACTED = {JOBS.suffix: JOBS_CONFIG, STATES: STATES_CONFIG}
"""The compacted topics, with what Tidegate sets of them."""
_DAY_MS = 86_400_000


class TopicProblem(NamedTuple):
    """What is wrong with a topic, and what to do."""

    verdict: Literal["warn", "fail"]
    found: str
    remedy: str


def problems_of(
    suffix: str, topic: TopicMetadata, config: Mapping[str, str], *, partitions: int
) -> Iterator[TopicProblem]:
    """Yield what is wrong with one of Tidegate's topics.

    `suffix` is its name without the prefix, `config` what the broker tells of its configuration, maybe nothing, and
    `partitions` how many the pipeline topics have.
    """
    if suffix == STATES and len(topic.partitions) != partitions:
        found = f"it has {len(topic.partitions)} partitions, the pipeline topics have {partitions}"
        yield TopicProblem("fail", f"{found}, so no decider starts", "see docs/own-cluster.md#if-partitions-were-added")
    yield from _unusable(topic, int(config.get("min.insync.replicas", 1)))
    if config:
        yield from _unfit_cleanup(suffix, config)
        yield from _short_memory(suffix, config)
        yield from _large_segments(suffix, config)


def _unusable(topic: TopicMetadata, in_sync: int) -> Iterator[TopicProblem]:
    """Yield which partitions have no leader, or too few replicas in sync for a record to be acknowledged."""
    led = {number: partition for number, partition in sorted(topic.partitions.items()) if partition.leader >= 0}
    if unled := sorted(topic.partitions.keys() - led.keys()):
        found = f"without a leader, so nobody can read or write them: partitions {_numbers(unled)}"
        yield TopicProblem("fail", found, "start the brokers that have them")

    def is_short(partition: PartitionMetadata) -> bool:
        return len(partition.isrs) < min(in_sync, len(partition.replicas))  # Kafka 4 asks for no more than there are

    if short := [number for number, partition in led.items() if is_short(partition)]:
        found = f"with fewer replicas in sync than min.insync.replicas={in_sync}, so nobody can write them: partitions"
        yield TopicProblem("fail", f"{found} {_numbers(short)}", "start the other brokers")


def _unfit_cleanup(suffix: str, config: Mapping[str, str]) -> Iterator[TopicProblem]:
    """Yield that Kafka removes records by a rule that is not the topic's."""
    cleanup = config.get("cleanup.policy", "")
    removed = REMOVED.get(suffix)
    if removed and "delete" in cleanup:
        again = ", then apply all specs again" if suffix == JOBS.suffix else ""
        found = f"with cleanup.policy={cleanup}, Kafka removes {removed}"
        yield TopicProblem("fail", found, f"set cleanup.policy=compact{again}")
    if not removed and "compact" in cleanup:
        found = f"with cleanup.policy={cleanup}, Kafka keeps only the newest record of each pipeline"
        yield TopicProblem("fail", found, "set cleanup.policy=delete")


def _short_memory(suffix: str, config: Mapping[str, str]) -> Iterator[TopicProblem]:
    """Yield that commands or results are removed while they may still be needed."""
    for topic in (COMMANDS, RESULTS):
        needed = _DAY_MS * (topic.retention_days or 0)
        age, size = int(config.get("retention.ms", -1)), int(config.get("retention.bytes", -1))
        limits = [f"retention.ms={age}"] * (0 <= age < needed) + [f"retention.bytes={size}"] * (size >= 0)
        if suffix == topic.suffix and limits:
            found = f"with {' and '.join(limits)}, services that start again may not know what was done to the jobs"
            yield TopicProblem("warn", found, f"set retention.ms={needed} and retention.bytes=-1")


def _large_segments(suffix: str, config: Mapping[str, str]) -> Iterator[TopicProblem]:
    """Yield that old records of a compacted topic stay for long, and are read at each start."""
    found = int(config.get("segment.bytes", 0))
    if suffix in COMPACTED and found > LARGEST_SEGMENT_BYTES:
        text = f"with segment.bytes={found}, up to {found / 2**20:.0f} MB of old records stay in each partition"
        wanted = " and ".join(f"{name}={value}" for name, value in COMPACTED[suffix].items())
        yield TopicProblem("warn", f"{text}, and all of it is read at each start", f"set {wanted}")


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
