"""What the doctor says about Tidegate's own topics, from what a broker tells of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka.admin import PartitionMetadata, TopicMetadata

from tidegate.cli.doctor.own_topics import STATES, TopicProblem, problems_of
from tidegate.events.topics import TOPICS

SOUND = {"retention.ms": str(30 * 86_400_000), "retention.bytes": "-1", "min.insync.replicas": "2"}


def described(*partitions: tuple[int, Sequence[int]]) -> TopicMetadata:
    """Return a topic of three replicas: the leader and the replicas in sync of each partition."""
    topic = TopicMetadata()
    topic.topic, topic.partitions = "tidegate.any", {}
    for number, (leader, in_sync) in enumerate(partitions):
        partition = PartitionMetadata()
        partition.id, partition.leader, partition.replicas, partition.isrs = number, leader, [1, 2, 3], list(in_sync)
        topic.partitions[number] = partition
    return topic


def problems(suffix: str, **config: str) -> list[TopicProblem]:
    """Return what is wrong with a topic of one partition with this configuration."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    return list(problems_of(suffix, described((1, (1, 2, 3))), SOUND | named, partitions=1))


def test_topics_as_tidegate_makes_them_are_sound() -> None:
    """Also with records that are kept longer than they need be, and where the broker tells no configuration."""
    for topic in TOPICS:
        assert problems(topic.suffix, cleanup_policy=topic.cleanup) == []
        assert problems(topic.suffix, cleanup_policy=topic.cleanup, retention_ms="-1") == []
        assert list(problems_of(topic.suffix, described((1, (1, 2, 3))), {}, partitions=1)) == []


@pytest.mark.parametrize("cleanup", ["delete", "compact,delete"])
@pytest.mark.parametrize("suffix", ["jobs", STATES])
def test_what_must_stay_must_not_be_deleted(suffix: str, cleanup: str) -> None:
    """Specs and states are needed whatever their age."""
    (problem,) = problems(suffix, cleanup_policy=cleanup)
    assert (problem.verdict, problem.remedy.split(",")[0]) == ("fail", "set cleanup.policy=compact")


@pytest.mark.parametrize("suffix", [topic.suffix for topic in TOPICS if topic.cleanup == "delete"])
def test_a_history_must_not_be_compacted(suffix: str) -> None:
    """Of all events of a pipeline, only the newest would stay."""
    (problem,) = problems(suffix, cleanup_policy="compact")
    assert (problem.verdict, problem.remedy) == ("fail", "set cleanup.policy=delete")


@pytest.mark.parametrize("suffix", ["commands", "results"])
def test_commands_and_results_are_kept_for_a_month(suffix: str) -> None:
    """Kept for a shorter time, or up to a size, they may be gone while they are needed."""
    (short,) = problems(suffix, cleanup_policy="delete", retention_ms="3600000")
    assert (short.verdict, short.remedy) == ("warn", "set retention.ms=2592000000 and retention.bytes=-1")
    (small,) = problems(suffix, cleanup_policy="delete", retention_bytes="1000")
    assert "retention.bytes=1000" in small.found
    assert problems("snapshots", cleanup_policy="delete", retention_ms="3600000") == []  # as the operator likes


def test_partitions_that_nobody_can_use_are_named() -> None:
    """Without a leader nothing can be read, with too few replicas in sync nothing written."""
    topic = described((1, (1, 2)), (-1, ()), (2, (2,)), (-1, ()))
    unled, short = problems_of("commands", topic, SOUND | {"cleanup.policy": "delete"}, partitions=4)
    assert unled.found == "without a leader, so nobody can read or write them: partitions 1, 3"
    assert short.found.endswith("min.insync.replicas=2, so nobody can write them: partitions 2")
    assert short.remedy == "start the other brokers"
    more = SOUND | {"cleanup.policy": "delete", "min.insync.replicas": "4"}
    assert list(problems_of("commands", described((1, (1, 2, 3))), more, partitions=1)) == []


def test_states_are_on_the_partitions_of_their_snapshots() -> None:
    """Partitions were added to the pipeline topics: no decider starts."""
    (problem,) = problems_of(STATES, described((1, (1, 2, 3))), {}, partitions=8)
    assert problem.found == "it has 1 partitions, the pipeline topics have 8, so no decider starts"


@pytest.mark.parametrize(("suffix", "fits"), [("jobs", "2097152"), (STATES, "16777216")])
def test_old_versions_must_not_stay_for_long(suffix: str, fits: str) -> None:
    """Topics of an older Tidegate have Kafka's 1 GB, which is read at each start before it is compacted."""
    (large,) = problems(suffix, cleanup_policy="compact", segment_bytes=str(2**30))
    assert (large.verdict, large.remedy.split(" and ")[0]) == ("warn", f"set segment.bytes={fits}")
    assert "up to 1024 MB of old records" in large.found
    assert problems(suffix, cleanup_policy="compact", segment_bytes=fits) == []
    assert problems("decisions", cleanup_policy="delete", segment_bytes=str(2**30)) == []  # is read from an instant on
