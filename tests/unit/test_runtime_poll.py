from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.runtime.poll import poll_until


class PolledClock:
    """A clock that moves only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> datetime:
        """Return the instant that belongs to `seconds`."""
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self.seconds

    def wait(self, seconds: float) -> None:
        """Let the time pass."""
        self.seconds += seconds


def test_the_first_true_value_is_returned() -> None:
    """Polling ends as soon as the condition is true, and returns what the condition returned."""
    clock = PolledClock()
    answers = iter([[], [], ["driver-1"], ["driver-2"]])
    assert poll_until(lambda: next(answers), 110.0, 2.0, clock, wait=clock.wait) == ["driver-1"]
    assert clock.seconds == 104.0


def test_polling_gives_up_after_the_deadline() -> None:
    """A condition that never becomes true returns its last, false value once the deadline has passed."""
    clock = PolledClock()
    assert poll_until(lambda: None, 110.0, 2.0, clock, wait=clock.wait) is None
    assert clock.seconds == 112.0


def test_the_condition_is_evaluated_even_after_the_deadline() -> None:
    """A deadline in the past still allows one look, and no waiting."""
    clock = PolledClock()
    assert poll_until(lambda: "there", 0.0, 2.0, clock, wait=clock.wait) == "there"
    assert poll_until(lambda: "", 0.0, 2.0, clock, wait=clock.wait) == ""
    assert clock.seconds == 100.0


def test_named_exceptions_are_retried_until_the_deadline() -> None:
    """An exception listed in `retry_on` means "not yet"; the last one is raised when the time is up."""
    clock = PolledClock()

    def fail_for(seconds: float) -> str:
        if clock.seconds < 100.0 + seconds:
            raise ConnectionError(f"down at {clock.seconds:g}")
        return "up"

    assert poll_until(lambda: fail_for(5), 110.0, 2.0, clock, wait=clock.wait, retry_on=(OSError,)) == "up"
    assert clock.seconds == 106.0
    with pytest.raises(ConnectionError, match="down at 112"):
        poll_until(lambda: fail_for(60), 110.0, 2.0, clock, wait=clock.wait, retry_on=(OSError,))


def test_other_exceptions_end_the_polling() -> None:
    """An exception that is not listed is raised at once."""
    clock = PolledClock()

    def broken() -> bool:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        poll_until(broken, 110.0, 2.0, clock, wait=clock.wait, retry_on=(OSError,))
    assert clock.seconds == 100.0
