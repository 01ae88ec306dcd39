"""A decider of a later release: `python -m tests.support.newer_decider`.

Its engine has another version, and the states that it stores have fields that this release does not know, of their own
and in rows. Production code knows nothing of this: the outbox is wrapped through the composition root.
"""

from __future__ import annotations

import json
from typing import Any

from typing_extensions import override

from services.decider.app import run
from services.decider.settings import DeciderSettings
from tests.support.wrapped_outbox import WrappedOutbox
from tidegate.engine import decide
from tidegate.engine import round as rounds
from tidegate.runtime.logs import configure

NEWER = "99"


class NewerOutbox(WrappedOutbox):
    """An outbox that adds to each state what only a later release knows."""

    @override
    async def keep(self, partition: int, key: bytes, value: bytes) -> None:
        memory: dict[str, Any] = json.loads(value)
        state = memory["state"]
        for row in (*state["window"], state.get("in_flight", [])):
            row.append("new")
        await super().keep(partition, key, json.dumps(memory | {"new": 1, "state": state | {"new": 1}}).encode())


if __name__ == "__main__":
    for module in (decide, rounds):
        vars(module)["ENGINE_VERSION"] = NEWER
    settings = DeciderSettings()
    configure("decider", settings)
    run(settings, wrap=NewerOutbox)
