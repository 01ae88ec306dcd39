"""The Prometheus of the tests ends, whatever becomes of the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import prometheus
from tests.support.prometheus import Prometheus
from tidegate.runtime.metrics import SERVICES
from tidegate.runtime.poll import wait_until


def test_a_prometheus_that_does_not_get_ready_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a session of its own, and would stay after the run."""
    program = tmp_path / "prometheus"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(prometheus, "wait_until", lambda *_: False)
    server = Prometheus(tmp_path / "data", dict.fromkeys(SERVICES, 1))
    assert wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 20)
    with pytest.raises(AssertionError), server:
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 9)
