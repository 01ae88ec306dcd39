"""An outbox around the decider's own; a fault overrides what it changes."""

from __future__ import annotations

from collections.abc import Collection

from services.decider.ports import Outbox
from tidegate.events.wire import Wire


class WrappedOutbox:
    """Passes everything on."""

    def __init__(self, inner: Outbox) -> None:
        self._inner = inner

    async def publish(self, event: Wire, *, trace_id: str | None = None, key: bytes | None = None) -> None:
        """Publish an event."""
        await self._inner.publish(event, trace_id=trace_id, key=key)

    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        """Store a state."""
        await self._inner.keep(partition, key, value)

    def kept(self, key: bytes) -> bytes | None:
        """Return the newest state under the key."""
        return self._inner.kept(key)

    def keys(self) -> Collection[bytes]:
        """Return the keys of all states."""
        return self._inner.keys()

    async def drop(self, key: bytes) -> None:
        """Remove a state."""
        await self._inner.drop(key)
