"""F1: a collector killed between measuring and publishing leaves a gap, not a zero and not a duplicate."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime

from tests.integration.test_collector import INTERVAL, Rig, rig
from tests.support.eventlogs import as_app, recorded, rolling
from tidegate.events.snapshot import Part

__all__ = ["rig"]

KILLED_BEFORE_SEND = """
import asyncio, os, signal
from tidegate.runtime.publisher import Publisher
from services.collector import __main__ as program
from services.collector.settings import CollectorSettings

class Deadly(Publisher):
    sent = 0
    def send(self, event, **more):
        if self.sent == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        type(self).sent += 1
        super().send(event, **more)

program.Publisher = Deadly
asyncio.run(program.serve(CollectorSettings()))
"""
"""The service with a publisher that kills the process at the third snapshot."""


def fresh(rig: Rig) -> list[bytes]:
    """Return the recorded log changed to the rig's job and topic, with batches of the last seconds."""
    lines = []
    for line in as_app(recorded()[:-2], job_id=rig.name):
        event = json.loads(line)
        if "QueryProgressEvent" in event["Event"]:
            event["progress"]["timestamp"] = datetime.now(UTC).isoformat(timespec="milliseconds")
            event["progress"]["sources"][0]["endOffset"] = json.dumps({rig.source: {"0": 5, "1": 5, "2": 5, "3": 5}})
        lines.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
    return lines


def test_a_snapshot_that_was_not_sent_is_a_gap(rig: Rig) -> None:
    """The third snapshot is measured and never sent; a new collector continues with correct figures."""
    logs = rig.work / "events"
    logs.mkdir()
    rig.load(40)
    rolling(logs, fresh(rig), codec=".zstd")
    rig.spec(logs)

    victim = rig.collector("-c", KILLED_BEFORE_SEND)
    assert victim.wait(60) == -signal.SIGKILL, victim.text()
    rig.wait_for("before the kill", lambda _: len(rig.seen) == 2)

    rig.load(4)
    successor = rig.collector()
    rig.wait_for("after the kill", lambda _: len(rig.seen) == 4)
    assert successor.stop(15) == 0
    while (extra := rig.reader.poll(1.0)) is not None:
        assert extra.value(), "a last snapshot at most"

    before, after = rig.seen[:2], rig.seen[2:]
    steps = [b.sequence - a.sequence for a, b in zip(rig.seen, rig.seen[1:], strict=False)]
    assert steps[0] == INTERVAL
    assert steps[1] >= 2 * INTERVAL, "the snapshot that was never sent is missing"
    assert len({snapshot.snapshot_id for snapshot in rig.seen}) == 4
    assert [s.sources[0].end_offsets for s in before] == [(10, 10, 10, 10)] * 2
    assert [s.sources[0].end_offsets for s in after] == [(11, 11, 11, 11)] * 2
    assert {s.sources[0].committed_offsets for s in rig.seen} == {(5, 5, 5, 5)}
    # not a local job and without a master: capacity is missing and named, everything else is present
    assert {s.missing for s in rig.seen} == {(Part.CAPACITY,)}
    told = [batch.batch_id for s in rig.seen for batch in s.batches]
    assert len(told) == len(set(told)), "no batch is told twice"
