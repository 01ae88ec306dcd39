"""Writes a throw-away checkpoint from which a query repeats the newest batch of its real one, in small batches.

That works if all sources of the query are Kafka topics. Its batches read again the end of what the newest logged batch
read, at most `RECORDS` of each partition. They are small then, however much the topic holds.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tidegate.launcher.queries.checkpoints import newest_batch
from tidegate.launcher.spark.hadoop import HadoopPath, place_of, write

RECORDS = 200
"""The most records that a rehearsal reads from one partition of a Kafka topic."""
TIMES = 4
"""How often a known batch is rehearsed: the first loads what it runs, the others let the JVM compile that well."""
_OLDER_BATCHES = 20
"""How far back to look for a batch that read something."""
_Offsets = dict[str, dict[str, int]]
"""Of a source, by topic and partition."""


def repeat_newest_batch(location: str, place: Path | HadoopPath) -> list[str]:
    """Begin a checkpoint at `place` which repeats the end of the newest logged batch, in `TIMES` batches.

    Returns what to log as the offsets of each of them; nothing if the batch cannot be repeated.
    """
    offsets = place_of(location) / "offsets"
    newest = newest_batch(offsets)
    ends = None if newest is None else _kafka_offsets(offsets / str(newest))
    if newest is None or ends is None:
        return []
    starts = ends
    for batch in range(newest - 1, max(-1, newest - _OLDER_BATCHES) - 1, -1):
        older = _kafka_offsets(offsets / str(batch)) if batch >= 0 else [{} for _ in ends]
        if older is None or len(older) != len(ends):
            return []
        starts = [_within_reach(first, last) for first, last in zip(older, ends, strict=True)]
        if starts != ends:
            break
    for number, source in enumerate(starts):
        # as KafkaSourceInitialOffsetWriter does
        write(place / "sources" / str(number) / "0", b"\0v1\n" + json.dumps(source).encode())
    write(place / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    settings = json.loads((offsets / str(newest)).read_text(encoding="utf-8").splitlines()[1])
    head = ["v1", json.dumps(settings | {"batchWatermarkMs": 0})]
    return ["\n".join([*head, *_part(starts, ends, number / TIMES)]) for number in range(1, TIMES + 1)]


def _part(starts: list[_Offsets], ends: list[_Offsets], share: float) -> list[str]:
    """Return the offsets of each source after this share of the records from `starts` to `ends`."""
    return [
        json.dumps(
            {t: {p: start + int((last[t][p] - start) * share) for p, start in of.items()} for t, of in first.items()}
        )
        for first, last in zip(starts, ends, strict=True)
    ]


def _within_reach(first: _Offsets, last: _Offsets) -> _Offsets:
    return {
        topic: {p: max(first.get(topic, {}).get(p, 0), end - RECORDS) for p, end in ends.items()}
        for topic, ends in last.items()
    }


def _kafka_offsets(file: Path | HadoopPath) -> list[_Offsets] | None:
    """Return the offsets of each source of a batch, by topic and partition; None if one of them is not Kafka's."""
    try:
        version, _, *sources = file.read_text(encoding="utf-8").splitlines()
        found = [json.loads(source) for source in sources]
    except (OSError, ValueError):
        return None
    of_kafka = version == "v1" and all(
        isinstance(topics, dict)
        and all(isinstance(ends, dict) and all(isinstance(n, int) for n in ends.values()) for ends in topics.values())
        for topics in found
    )
    return found if of_kafka and found else None
