"""Ending processes, and only the right ones."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.runtime.poll import wait_until
from tidegate.stack.processes import MARK, ProcessRecord, end_all, marked, spawn

Start = Callable[[str], ProcessRecord]


@pytest.fixture
def stack_id() -> str:
    """An id that no other process carries."""
    return uuid.uuid4().hex


@pytest.fixture
def start(tmp_path: Path, stack_id: str) -> Iterator[Start]:
    """Starts a Python program that prints a line when it is ready; all are ended after the test."""

    def begin(program: str) -> ProcessRecord:
        log = tmp_path / f"{uuid.uuid4().hex}.log"
        record = spawn([sys.executable, "-uc", program], os.environ, tmp_path, log, stack_id)
        assert wait_until(log.read_text, 20, 0.01)
        return record

    yield begin
    assert end_all(lambda: marked(stack_id), 0.0) == []


SLEEP = "import time; print('ready'); time.sleep(60)"


def test_a_recycled_pid_is_never_signalled(start: Start) -> None:
    """A process with the recorded pid but another start time is a different process."""
    real = start(SLEEP)
    recycled = ProcessRecord(pid=real.pid, started_ticks=real.started_ticks - 1)
    assert not recycled.alive
    recycled.signal(signal.SIGKILL)
    assert end_all(lambda: [recycled], 0.0) == []
    assert real.alive


def test_a_process_that_ended_before_it_was_looked_at_is_not_alive(start: Start) -> None:
    """A program may end before its start time can be read; it then never counts as alive."""
    gone = start("print('ready')")
    assert wait_until(lambda: not gone.alive, 20, 0.01)
    unseen = ProcessRecord(pid=gone.pid, started_ticks=-1)
    assert not unseen.alive
    assert end_all(lambda: [unseen], 0.0, 1.0) == []


def test_a_process_leads_its_own_group_and_session(start: Start) -> None:
    """Ctrl-C in the starter's terminal does not reach it, and killing it takes its group along."""
    record = start(SLEEP)
    assert os.getpgid(record.pid) == os.getsid(record.pid) == record.pid


def test_children_are_found_by_the_mark_they_inherit(start: Start, stack_id: str) -> None:
    """What a worker launches is found even after the worker died and the child left its group."""
    parent = start(
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print('ready'); time.sleep(60)"
    )
    parent.signal(signal.SIGKILL)
    assert end_all(lambda: [parent], 0.0) == []
    (orphan,) = marked(stack_id)
    assert orphan.pid != parent.pid
    assert end_all(lambda: marked(stack_id), 5.0) == []
    assert not orphan.alive


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    """A process that ignores SIGTERM is killed."""
    record = start("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)")
    assert end_all(lambda: [record], 0.3) == []
    assert not record.alive


def test_a_paused_process_ends_like_any_other(start: Start) -> None:
    """A frozen process is resumed so that SIGTERM reaches it."""
    record = start(SLEEP)
    record.signal(signal.SIGSTOP)
    assert wait_until(lambda: record.paused, 30, 0.01)
    begin = time.monotonic()
    assert end_all(lambda: [record], 25.0) == []
    assert time.monotonic() - begin < 24


def test_a_process_that_comes_up_while_others_end_is_ended_too(start: Start, stack_id: str) -> None:
    """A supervisor that restarts its child during the shutdown is ended too."""
    start(
        "import signal, subprocess, sys, time\n"
        "def again(*_):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, again); print('ready'); time.sleep(60)"
    )
    assert end_all(lambda: marked(stack_id), 5.0) == []
    assert marked(stack_id) == []


def test_the_asking_process_is_never_among_the_marked(monkeypatch: pytest.MonkeyPatch, stack_id: str) -> None:
    """`down` run from inside a marked environment does not kill itself."""
    monkeypatch.setenv(MARK, stack_id)
    assert os.getpid() not in [record.pid for record in marked(stack_id)]
