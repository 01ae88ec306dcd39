"""The local backend, with a stand-in for `spark-submit`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from services.actuator.backends import BackendRefused, Submission, local
from services.actuator.backends.local import Local
from services.actuator.processes import command_line
from tests.support.events import job
from tests.support.spark_submit import stand_in
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until


def test_a_driver_does_not_inherit_the_actuators_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's script is not our code: of our variables it sees only those of the embedded stack."""
    stand_in(tmp_path, "#!/bin/sh\nenv\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEGATE_REDIS_PASSWORD", "hunter2")
    monkeypatch.setenv("TIDEGATE_STACK_ID", "stack-1")
    backend, spec = Local(tmp_path), job("rates")
    driver = backend.submit(Submission(spec, Token(1), 2))
    assert wait_until(lambda: not backend.state(spec, driver).alive, 20, 0.05)
    seen = (tmp_path / "rates-1-1.log").read_text()
    assert "TIDEGATE_STACK_ID=stack-1" in seen
    assert "hunter2" not in seen


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["--name", "rates", "rates.py"], True),
        (["--conf", "spark.app.name=rates", "pyspark-shell"], True),
        (["--name", "rates-2", "rates.py"], False),
        (["--name", "rates", "launcher/__main__.py", "--control-dir", "/c", "--job-id", "rates"], False),
    ],
    ids=["spark-submit", "python", "another job", "the launcher's"],
)
def test_a_driver_that_names_the_job_is_seen(tmp_path: Path, words: list[str], seen: bool) -> None:
    """A foreign driver on this machine is found by its command line, and our own drivers are not counted (I4)."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen([*command, "org.apache.spark.deploy.SparkSubmit", *words], stdout=subprocess.PIPE) as driver:
        try:
            assert driver.stdout is not None
            driver.stdout.readline()
            found = Local(tmp_path).applications(job("rates"))
        finally:
            driver.kill()
    assert [name for key, name in found.items() if key.startswith(f"{driver.pid}-")] == ["rates"] * seen
    driver.wait(10)
    assert not [key for key in Local(tmp_path).applications(job("rates")) if key.startswith(f"{driver.pid}-")]


def test_the_end_of_a_drivers_log_is_read(tmp_path: Path) -> None:
    """A log of any size is read only at its end."""
    (tmp_path / "rates-1-2.log").write_bytes(b"x" * 100_000 + b"\xff last line")
    tail = Local(tmp_path).log_tail(job("rates"), "1-1", Token(1, 2))
    assert tail.endswith("\ufffd last line")
    assert len(tail) == 65_536


def test_the_log_of_a_driver_is_in_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default logs are in a folder where anyone may put a link under the name that is known before."""
    stand_in(tmp_path, "#!/bin/sh\necho password\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    (tmp_path / "rates-1-1.log").symlink_to(theirs)
    backend = Local(tmp_path)
    with pytest.raises(BackendRefused, match=r"rates-1-1\.log"):
        backend.submit(Submission(job(), Token(1), 2))
    driver, own = backend.submit(Submission(job(), Token(2), 2)), tmp_path / "rates-2-1.log"
    assert wait_until(lambda: not backend.state(job(), driver).alive, 20, 0.05)
    assert own.read_text() == "password\n"
    assert own.stat().st_mode & 0o077 == 0
    assert theirs.read_text() == "kept"


def test_a_driver_is_found_as_soon_as_it_is_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process has no command line for a moment; nobody may take that for "no driver runs"."""
    stand_in(tmp_path, "#!/bin/sh\nsleep 20\n:\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    looks: Counter[int] = Counter()

    def late(pid: int) -> list[bytes]:
        looks[pid] += 1
        return command_line(pid) if looks[pid] > 3 else [b""]

    monkeypatch.setattr(local, "command_line", late)
    backend, spec = Local(tmp_path), job(f"rates-{os.getpid()}")  # other tests may run on this machine
    driver = backend.submit(Submission(spec, Token(1), 2))
    try:
        assert driver in backend.live_drivers(spec)
    finally:
        backend.kill(spec, driver)
    assert wait_until(lambda: not backend.state(spec, driver).alive, 20, 0.05)


def test_a_driver_that_has_ended_stays_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In months, its process group's number is given to another group, which must not be taken for it and killed."""
    stand_in(tmp_path, "#!/bin/sh\nsleep 20\n:\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    backend, spec = Local(tmp_path), job("rates")
    driver = backend.submit(Submission(spec, Token(1), 2))
    backend.kill(spec, driver)
    assert wait_until(lambda: not backend.state(spec, driver).alive, 20, 0.05)
    monkeypatch.setattr(local, "_group_alive", lambda _group: True)
    assert not backend.state(spec, driver).alive
