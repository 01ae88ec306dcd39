"""Which drivers of a job are alive, by what they wrote about themselves and by the processes of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.actuator.backends import Submission
from services.actuator.backends.local import Local
from services.actuator.command_log import CommandLog
from services.actuator.drivers import JobDrivers
from tests.support.command_log import command_log
from tests.support.events import job, result
from tests.support.fake_cluster import FakeCluster
from tidegate.events.result import Phase
from tidegate.launcher.control.files import Control, Token


def test_a_run_whose_file_is_removed_as_it_is_read_has_not_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of long ago are forgotten, and another actuator may just do so."""
    monkeypatch.setattr(Control, "runs", lambda _control: [Token(1, 1)])
    assert JobDrivers(job("rates"), Local(tmp_path), Control.at(tmp_path, "rates"), CommandLog()).live() == []


def test_a_driver_that_any_job_is_known_to_have_is_claimed(tmp_path: Path) -> None:
    """A successor waits for the others: the one that was submitted before may be among them."""
    cluster = FakeCluster(tmp_path)
    known, new = (cluster.submit(Submission(job("rates"), Token(3, run), 2)) for run in (1, 2))
    log = command_log([result("c", Phase.RUNNING, job_id="other", submission_id=known)])
    assert JobDrivers(job("rates"), cluster, cluster.control, log).unclaimed() == {new}


@pytest.fixture
def pid(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process with the command line of a driver of the job `rates`: the parameter is epoch and run."""
    words = ["--control-dir", "c", "--job-id", "rates", "--epoch", *request.param, "rates.py", "--epoch", "x"]
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    ("pid", "job_id", "alive"),
    [
        (("3", "--run", "2"), "rates", True),
        (("3", "--run", "1"), "rates", True),
        (("2", "--run", "1"), "rates", True),
        (("4", "--run", "1"), "rates", False),
        (("3", "--run", "3"), "rates", False),
        (("3", "--run", "2"), "rates-2", False),
        (("3",), "rates", True),
    ],
    ids=[
        "its own",
        "it went on as a newer run",
        "and as one of a newer command",
        "a later command's",
        "a later run's",
        "another job's",
        "no run's",
    ],
    indirect=["pid"],
)
def test_a_pid_that_was_given_to_another_process_is_not_the_driver(
    tmp_path: Path, pid: int, job_id: str, alive: bool
) -> None:
    """The cluster says that the driver has ended. Its process may still write; one of a newer driver is not it."""
    control = Control.at(tmp_path, job_id)
    facts = {"submission_id": "driver-1", "pid": pid, "jvm_pid": 0, "host": socket.gethostname()}
    control.write_running(Token(3, 2), facts | {"epoch": 3, "run": 2})
    drivers = JobDrivers(job(job_id), Local(tmp_path), control, CommandLog())
    assert [driver.submission_id for driver in drivers.live()] == ["driver-1"] * alive
    control.write_running(Token(3, 2), facts | {"epoch": 3, "run": 2, "host": "another machine"})
    assert JobDrivers(job(job_id), Local(tmp_path), control, CommandLog()).live() == []
