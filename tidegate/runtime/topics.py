"""Tidegate's topics on a broker: made, checked, and how long they keep a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tidegate.events.topics import TOPICS, Topic
from tidegate.runtime.poll import retry
from tidegate.runtime.reach import ask
from tidegate.runtime.settings import ServiceSettings

OF_A_CLUSTER = 3
"""From so many replicas on, one may be away while records are still acknowledged by two."""


STATES_CONFIG = {"segment.bytes": str(16 * 1024 * 1024)}
JOBS_CONFIG = {"segment.bytes": str(2 * 1024 * 1024), "min.compaction.lag.ms": str(2 * 86_400_000)}
"""Of the compacted topics. Kafka compacts no partition's newest segment, which by default grows for a week or to 1 GB.
A decider would read hours of states at its start and after each rebalance, and the watchdog could end it before it has
read them all. All versions of the specs would be read by each service at its start, and by most commands. A segment
must have room for the largest record, 1 MB. Two days are for an archive that is brought up to date once a day."""
LARGEST_SEGMENT_BYTES = 64 * 1024 * 1024
"""Of one that somebody else made; with larger ones it is slow to read."""


class TopicsDoNotFit(RuntimeError):
    """The broker's topics do not fit Tidegate; the text says which and why."""


class TopicsLost(RuntimeError):
    """The topics can no longer be read; a new start may help."""


def ensure_topics(
    settings: ServiceSettings, *, partitions: int = 8, replication: int = 1, for_ever: bool = False
) -> list[str]:
    """Create the missing Tidegate topics; return their names. With `for_ever`, they keep records of any age.

    Raises `Unreachable` if no broker answers, `TopicsDoNotFit` if existing topics do not fit.
    """
    partition_counts(settings, timeout_seconds=10)  # without a broker this fails sooner than the request below
    wanted = [
        NewTopic(
            topic.named(settings.topic_prefix),
            num_partitions=partitions,
            replication_factor=replication,
            config={"cleanup.policy": topic.cleanup} | in_sync(replication) | _kept(topic, for_ever=for_ever),
        )
        for topic in TOPICS
    ]
    created = create_topics(AdminClient(settings.kafka()), wanted)
    # The broker lists new topics only a moment after it has created them.
    retry(lambda: check_topics(settings), TopicsDoNotFit, every=0.1)
    return created


def in_sync(replication: int) -> dict[str, str]:
    """Return the configuration with which a record is acknowledged only when two brokers have it, if there are three.

    Kafka's own default is one, which would be lost with its broker.
    """
    return {"min.insync.replicas": "2"} if replication >= OF_A_CLUSTER else {}


def _kept(topic: Topic, *, for_ever: bool) -> dict[str, str]:
    if topic.retention_days is None:
        return JOBS_CONFIG
    return {"retention.ms": "-1" if for_ever else str(topic.retention_days * 86_400_000)}


def configurations(settings: ServiceSettings, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the configuration of each topic, without those that the broker does not let this client see."""
    admin = AdminClient(settings.kafka())  # its answers come only while it lives
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for resource, answer in admin.describe_configs(resources, request_timeout=30).items():
        try:
            config = answer.result(timeout=40)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                continue
            raise
        found[resource.name] = {name: entry.value for name, entry in config.items() if entry.value is not None}
    return found


def kept_ms(settings: ServiceSettings, names: Iterable[str]) -> dict[str, int]:
    """Return how long each topic keeps a record, in milliseconds, without those that keep records of any age.

    Also without all of them if the broker does not let this client see their configuration.
    """
    found = configurations(settings, names).items()
    kept = {name: int(config["retention.ms"]) for name, config in found if "delete" in config["cleanup.policy"]}
    return {name: retention for name, retention in kept.items() if retention >= 0}


def topic_ids(settings: ServiceSettings) -> dict[str, str]:
    """Return the id of each of Tidegate's topics, by its name without prefix: a topic that is made again has another.

    A broker before 2.8 knows no ids, and a topic without one is left out.
    """
    admin = AdminClient(settings.kafka())  # its answers come only while it lives
    asked = TopicCollection([topic.named(settings.topic_prefix) for topic in TOPICS])
    answers = admin.describe_topics(asked, request_timeout=30)
    found = {name: answer.result(timeout=40).topic_id for name, answer in answers.items()}
    return {
        name.removeprefix(settings.topic_prefix): str(made)
        for name, made in found.items()
        if made is not None and (made.get_most_significant_bits() or made.get_least_significant_bits())
    }


def create_topics(admin: AdminClient, wanted: list[NewTopic]) -> list[str]:
    """Create those topics that do not exist yet; return their names."""
    created = []
    for name, future in admin.create_topics(wanted, request_timeout=30).items():
        try:
            future.result(timeout=40)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return created


def check_topics(settings: ServiceSettings) -> int:
    """Return the number of partitions of the pipeline topics; raise `TopicsDoNotFit` if they differ or are missing."""
    return pipeline_partitions(settings, partition_counts(settings))


def pipeline_partitions(settings: ServiceSettings, found: Mapping[str, int]) -> int:
    """Return the number of partitions of the pipeline topics among those that were found, as `check_topics` does.

    One worker can handle a pipeline in order only if its key is on the same partition of every topic.
    """
    names = [topic.named(settings.topic_prefix) for topic in TOPICS]
    missing = [name for name in names if name not in found]
    if missing:
        raise TopicsDoNotFit(f"topics {', '.join(missing)} do not exist at {settings.bootstrap_servers}")
    pipelines = [topic.named(settings.topic_prefix) for topic in TOPICS if topic.key == "pipeline_id"]
    counts = {name: found[name] for name in pipelines}
    if len(set(counts.values())) > 1:
        text = f"the pipeline topics must have the same number of partitions, found {counts}"
        raise TopicsDoNotFit(f"{text}; if some were added, docs/own-cluster.md says what to do")
    return next(iter(counts.values()))


def partition_counts(settings: ServiceSettings, timeout_seconds: float = 30.0) -> dict[str, int]:
    """Return the number of partitions of every readable topic. Raises `Unreachable` if no broker answers in time."""
    topics = ask(settings, seconds=timeout_seconds, try_login_again=True).topics
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.partitions}
