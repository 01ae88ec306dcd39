"""Another time for one module. `time.sleep` itself is everybody's: other threads would move the test's clock."""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

import pytest


def fake_time(monkeypatch: pytest.MonkeyPatch, module: str, **members: Callable[..., Any]) -> None:
    """Give a module that imports `time` other members of it, such as `monotonic` and `sleep`."""
    monkeypatch.setattr(f"{module}.time", types.SimpleNamespace(**{**vars(time), **members}))
