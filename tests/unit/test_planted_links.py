"""A job's driver writes to folders that the services read. A link there to a file of theirs shows nothing of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.actuator.checkpoint import CheckpointError, read_checkpoints
from tests.support.eventlogs import recorded, rolling
from tidegate.launcher.control.files import Control
from tidegate.launcher.control.json_files import ControlError
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.log_directory import LogDirectory

SECRET = "the-password-of-the-broker"
WHOLE = Interval(datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC), first=True)


@pytest.fixture(params=["", '["{}"]'], ids=["text", "JSON"])
def secret(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file that the service may read, and the job may not."""
    file = tmp_path / "run-secrets-password"
    file.write_text((request.param or "{}").format(SECRET) + "\n")
    return file


def test_an_event_log_quotes_no_other_file(tmp_path: Path, secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The collector's log is read by more people than its passwords."""
    (tmp_path / "events").mkdir()
    first = rolling(tmp_path / "events", recorded(), index=1)
    (first.parent / first.name.replace("_1_", "_2_")).symlink_to(secret)
    LogDirectory(tmp_path / "events", limit_bytes=10_000_000).read({"recorded": WHOLE})
    assert "skipped broken line 1: not an event" in caplog.text
    assert SECRET not in caplog.text


def test_a_checkpoint_quotes_no_other_file(tmp_path: Path, secret: Path) -> None:
    """What is wrong with it comes to the results topic, which everybody may read."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/metadata").symlink_to(secret)
    with pytest.raises(CheckpointError, match="expected a JSON object with `id`") as refused:
        read_checkpoints(str(tmp_path / "checkpoint"))
    assert SECRET not in str(refused.value)


def test_a_control_file_quotes_no_other_file(tmp_path: Path, secret: Path) -> None:
    """So does what is wrong with a control file."""
    (tmp_path / "rates").mkdir()
    (tmp_path / "rates/fence").symlink_to(secret)
    with pytest.raises(ControlError, match="JSON") as refused:
        Control.at(tmp_path, "rates").fence()
    assert SECRET not in str(refused.value)
