"""The floor: a Faust agent that does the decider's I/O and nothing else.

For each record of the snapshots topic, one at a time as Faust does by default, it produces a given number of bytes to
the decisions topic and waits, then writes a given number of bytes to the states' changelog and waits. App settings,
partition and key are the same, so only the framework's cost remains.
"""

from __future__ import annotations

import sys
from typing import Any

import faust

from services.decider.settings import DeciderSettings
from services.decider.shell import RAW, new_app, prepare_topics
from tidegate.events.topics import DECISIONS, SNAPSHOTS


def run(settings: DeciderSettings, decision_bytes: int, state_bytes: int) -> None:
    """Run until a signal."""
    prepare_topics(settings)
    app = new_app(settings)
    decision, state = b"d" * decision_bytes, b"s" * state_bytes
    decisions = DECISIONS.named(settings.topic_prefix)
    headers = [("ce_type", b"floor")]

    @app.agent(app.topic(SNAPSHOTS.named(settings.topic_prefix), **RAW), concurrency=1)  # type: ignore[untyped-decorator]
    async def copy(stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            await app.producer.send_and_wait(decisions, message.key, decision, None, None, headers)
            await app.producer.send_and_wait(settings.changelog, message.key, state, message.partition, None, None)

    worker = faust.Worker(app, override_logging=False, redirect_stdouts=False, quiet=True)
    worker.spinner = None
    worker.execute_from_commandline()


if __name__ == "__main__":
    run(DeciderSettings(), int(sys.argv[1]), int(sys.argv[2]))
