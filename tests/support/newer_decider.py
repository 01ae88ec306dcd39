"""A decider of a later release: `python -m tests.support.newer_decider`.

Its engine has another version, and the states that it stores have fields that this release does not know, of their own
and in rows. Production code knows nothing of this: the outbox is wrapped through the composition root.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from services.decider.app import run
from services.decider.ports import Outbox
from services.decider.settings import DeciderSettings
from tidegate.engine import decide
from tidegate.engine import round as rounds
from tidegate.events.wire import Wire
from tidegate.runtime.logs import configure

NEWER = "99"


class NewerOutbox:
    """An outbox that adds to each state what only a later release knows."""

    def __init__(self, inner: Outbox) -> None:
        self._inner = inner

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish an event."""
        await self._inner.publish(event, trace_id=trace_id, key=key)

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Store a state with further fields."""
        memory: dict[str, Any] = json.loads(value)
        state = memory["state"]
        for row in (*state["window"], state.get("in_flight", [])):
            row.append("new")
        await self._inner.keep(partition, key, json.dumps(memory | {"new": 1, "state": state | {"new": 1}}).encode())

    def kept(self, key: bytes) -> bytes | None:
        """Return the newest state under the key."""
        return self._inner.kept(key)

    def keys(self) -> Collection[bytes]:
        """Return the keys of all states."""
        return self._inner.keys()

    async def drop(self, key: bytes) -> None:
        """Remove a state."""
        await self._inner.drop(key)


if __name__ == "__main__":
    for module in (decide, rounds):
        vars(module)["ENGINE_VERSION"] = NEWER
    settings = DeciderSettings()
    configure("decider", settings)
    run(settings, wrap=NewerOutbox)
