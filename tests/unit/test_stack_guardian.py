"""The guardian of a stack whose owner has died, on stacks without servers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.unit.test_stack_info import sample
from tidegate.runtime.poll import wait_until
from tidegate.stack.guardian import Guardian
from tidegate.stack.info import info_path, locked
from tidegate.stack.processes import end_all, spawn


def guardian_of_a_dead_owner(folder: Path) -> Guardian:
    """Start the guardian of the stack `s`, whose pipe is closed as by its owner's death."""
    sample(folder).save()
    (folder / "logs").mkdir()
    guardian = Guardian(folder, "s")
    assert guardian._child.stdin is not None
    guardian._child.stdin.close()
    return guardian


def test_a_stack_that_is_started_while_the_guardian_waits_is_not_ended(tmp_path: Path) -> None:
    """Whoever starts again at once holds the lock first, and has ended the old stack by then."""
    lock = tmp_path / "up.lock"
    with locked(tmp_path, lock.name, wait_seconds=0):
        guardian = guardian_of_a_dead_owner(tmp_path)
        files = Path(f"/proc/{guardian._child.pid}/fd")
        assert wait_until(lambda: str(lock) in [os.path.realpath(file) for file in files.iterdir()], 30)
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        process = spawn(sleep, os.environ, tmp_path, tmp_path / "logs" / "new.log", "new")
        sample(tmp_path).model_copy(update={"stack_id": "new", "processes": {"kafka": process}}).save()
    try:
        assert guardian._child.wait(30) == 0
        assert process.alive
        assert info_path(tmp_path).exists()
    finally:
        guardian.end()
        end_all(lambda: [process], 0.0)


def test_files_of_the_user_do_not_hide_modules_from_the_guardian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts in the folder where `tidegate up` is run, and would end at once, with a traceback in its log only."""
    (tmp_path / "random.py").write_text("raise SystemExit('not the module that was meant')")
    monkeypatch.chdir(tmp_path)
    guardian = guardian_of_a_dead_owner(tmp_path)
    assert guardian._child.wait(30) == 0
    assert not info_path(tmp_path).exists()
