"""What the topics hold at one moment, although each of them is asked, and later read, at another time."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import KafkaException

from tidegate.events.topics import TOPICS, Topic
from tidegate.runtime.consumer import offset_ranges
from tidegate.runtime.producer import said
from tidegate.runtime.settings import ServiceSettings

Ranges = dict[tuple[str, int], tuple[int, int]]
"""By full topic name and partition: the first offset, and the end."""


class TopicUnreadable(Exception):
    """A topic is not there, or the broker does not tell what it holds."""


def ranges_now(settings: ServiceSettings, topics: Collection[Topic] = TOPICS) -> Ranges:
    """Return the ranges of topics, asked in an order in which every event within them has its cause within them.

    An event comes later than its cause, so the topics of effects are asked first: results before commands, decisions
    before snapshots, specs last. Timestamps would not do, since the clocks of services differ.

    Raises `TopicUnreadable`.
    """
    ranges: Ranges = {}
    for topic in reversed(TOPICS):
        if topic in topics:
            name = topic.named(settings.topic_prefix)
            try:
                ranges |= offset_ranges(settings, [name])
            except KafkaException as error:
                where = settings.bootstrap_servers
                raise TopicUnreadable(f"topic {name} at {where}: {said(error)}") from None
    return ranges
