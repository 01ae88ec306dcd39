"""The brokers and Tidegate's topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tidegate.cli.doctor.finding import Finding
from tidegate.cli.doctor.own_topics import STATES, problems_of
from tidegate.cli.expected import EXPECTED, problem_of
from tidegate.client import ClientSettings, NoLogin, Unreachable, check_reachable
from tidegate.events.topics import JOBS, TOPICS
from tidegate.runtime.topics import configurations, ensure_topics, partition_counts, pipeline_partitions


def broker(settings: ClientSettings, create_topics: bool) -> Iterator[Finding]:
    """Check the brokers and Tidegate's topics; with `create_topics`, first create those that are missing."""
    try:
        check_reachable(settings)
    except NoLogin as error:
        yield Finding("fail", "Kafka", str(error), EXPECTED[NoLogin])
        return
    except Unreachable as error:
        yield Finding("fail", "Kafka", str(error), "start Kafka, or check its address and the listener's security")
        return
    brokers = AdminClient(settings.kafka()).list_topics(timeout=10).brokers
    yield Finding(
        "ok", "Kafka", f"{len(brokers)} broker{'' if len(brokers) == 1 else 's'} at {settings.bootstrap_servers}"
    )
    try:
        created = ensure_topics(settings) if create_topics else []
        counts = partition_counts(settings)
        partitions = pipeline_partitions(settings, counts)
    except Exception as error:  # noqa: BLE001  (whatever is wrong belongs in the report)
        problem = problem_of(error) or error
        remedy = "if topics are missing, run `tidegate doctor --create-topics`"
        yield Finding("fail", "topics", str(problem), remedy)
        return
    note = f"; created {len(created)}" if created else ""
    what = (
        f"{len(TOPICS)} topics with prefix {settings.topic_prefix!r}, {partitions} partitions per pipeline topic{note}"
    )
    yield Finding("ok", "topics", what)
    jobs = counts[JOBS.named(settings.topic_prefix)]  # created with as many as the pipeline topics
    if jobs != partitions:
        yield Finding(
            "warn",
            "jobs topic",
            f"{settings.topic_prefix}jobs has {jobs} partitions, the pipeline topics have {partitions}",
            "if partitions were added to it, create topics under another prefix and apply the specs there",
        )
    yield from own_topics(settings, partitions)


def own_topics(settings: ClientSettings, partitions: int) -> Iterator[Finding]:
    """Name what is wrong with Tidegate's topics, and that of the decider's states, as the broker describes them."""
    described = AdminClient(settings.kafka()).list_topics(timeout=10).topics
    suffixes = {settings.topic_prefix + suffix: suffix for suffix in (*(topic.suffix for topic in TOPICS), STATES)}
    found = [name for name in suffixes if name in described]
    configs = dict[str, dict[str, str]]()
    with suppress(KafkaException):  # not everything that speaks Kafka's protocol tells them
        configs = configurations(settings, found)
    for name in found:
        for problem in problems_of(suffixes[name], described[name], configs.get(name, {}), partitions=partitions):
            yield Finding(problem.verdict, f"topic {name}", problem.found, problem.remedy)
