"""The installed engine, as the tests call it."""

from __future__ import annotations

from tidegate.installed import engine

OURS = tuple(engine().policies.values())
step = engine().step
check_spec = engine().check
