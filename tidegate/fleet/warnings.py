"""What the newest snapshot of a job warns of, in words. Pure."""

from __future__ import annotations

from tidegate.events.snapshot import MetricSnapshot, SnapshotWarning, WarningCode
from tidegate.words import some

_NAMED = 5
"""How many topics of a warning are named."""

_WORDS: dict[str, tuple[str, str]] = {
    WarningCode.TOPIC_UNKNOWN: (
        "Kafka does not have {topics}, or does not let the collector describe it, so what waits there is not known",
        "create it, correct `sources` in the spec, or allow the collector Describe on it",
    ),
    WarningCode.TOPIC_NOT_READ: (
        "no query of the job reads {topics}, so the job keeps its size",
        "correct its name in `sources`, or take it out if the job reads others; a job without Kafka is not scaled",
    ),
    WarningCode.TOPIC_NOT_LISTED: (
        "the job reads {topics}, which its spec does not name; it is measured all the same",
        "add it to `sources` in the spec, so that it also links the job to the ones that write it",
    ),
    WarningCode.QUERY_FAILED: (
        "a query of the job has failed and others go on, so what it reads of {topics} waits: no size changes that",
        "read the driver's log, and let the script start that query again, or end, so that the job counts as failed",
    ),
    WarningCode.KAFKA_UNKNOWN: (
        "the collector does not know the Kafka cluster that the spec names, so what waits there is not known",
        "add it to the collector's setting TIDEGATE_KAFKA_CLUSTERS, or correct `kafka_cluster` in the spec",
    ),
    WarningCode.REAL_TIME: (
        "a query has a real-time trigger, whose batches do not show how busy it is, so the job keeps its size",
        "set the size by hand, `tidegate scale JOB SLOTS --reason …`, or use a trigger of micro-batches",
    ),
    WarningCode.SOURCE_WAITS: (
        "records wait and the job takes none, as its source waits for more, or for the end of a transaction",
        "give a job with `minOffsetsPerTrigger` an objective above its `maxTriggerDelay`, or set `read_committed`",
    ),
    WarningCode.SOURCE_LIMITED: (
        "each batch leaves records of {topics} and none of the job's other topics, as its source takes no more at once",
        "raise its `maxOffsetsPerTrigger` if the job is late: more slots do not help",
    ),
    WarningCode.CLOCK_APART: (
        "batches are left out: the driver's clock is about {seconds} the collector's, or its log is read as late",
        "synchronize the clocks of the machines of driver and collector",
    ),
}


def in_words(warning: SnapshotWarning) -> tuple[str, str]:
    """Return what a warning says, and what to do about it."""
    unknown = (f"the collector warns of {warning.code}, which this version of Tidegate does not know", "upgrade it")
    said, remedy = _WORDS.get(warning.code, unknown)
    topics = some(warning.topics, _NAMED) or "its sources"
    seconds = warning.seconds or 0.0
    apart = f"{abs(seconds):,.0f} s {'ahead of' if seconds > 0 else 'behind'}"
    return said.format(topics=topics, seconds=apart), remedy


def warnings_of(snapshot: MetricSnapshot | None) -> list[str]:
    """Return the warnings of a snapshot in words, each with what to do; none if there is no snapshot."""
    found = [in_words(each) for each in (snapshot.warnings or ())] if snapshot is not None else []
    return [f"{said}: {remedy}" for said, remedy in found]
