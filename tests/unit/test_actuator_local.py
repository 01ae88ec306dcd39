"""The local backend with a stand-in for `spark-submit`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.control import Token
from services.actuator.backends import Run
from services.actuator.backends.local import Local
from tests.support.events import job


def test_a_driver_does_not_inherit_the_actuators_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's script is somebody else's code: of our variables it sees those of the embedded stack alone."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\nenv\n")
    submit.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEGATE_REDIS_PASSWORD", "hunter2")
    monkeypatch.setenv("TIDEGATE_STACK_ID", "stack-1")
    backend, spec = Local(tmp_path), job("rates")
    driver = backend.submit(Run(spec, Token(1), 2))
    deadline = time.monotonic() + 20
    while backend.state(spec, driver).alive:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    seen = (tmp_path / "rates-1-1.log").read_text()
    assert "TIDEGATE_STACK_ID=stack-1" in seen
    assert "hunter2" not in seen
