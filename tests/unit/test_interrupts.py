"""Interrupts that get lost are raised again, and only where they should be."""

import signal
import threading
from contextlib import suppress

import pytest

from tidegate.interrupts import check, deferred, handlers_kept, interruptible, uninterrupted

BOTH = (signal.SIGINT, signal.SIGTERM)


def lose(number: signal.Signals) -> None:
    """Receives a signal and loses the interrupt, as a `__del__` does."""
    with suppress(KeyboardInterrupt):
        signal.raise_signal(number)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", BOTH)
def test_an_interrupt_is_raised_immediately(number: signal.Signals) -> None:
    """Nothing after the signal runs, and the previous handlers are restored."""
    before = [signal.getsignal(each) for each in BOTH]
    with suppress(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
        pytest.fail("it went on")
    assert [signal.getsignal(each) for each in BOTH] == before


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", BOTH)
def test_a_lost_interrupt_is_raised_by_the_next_check(number: signal.Signals) -> None:
    """A waiting loop ends, and so does the block around it; afterwards the signal is forgotten."""
    with suppress(KeyboardInterrupt), interruptible():
        with interruptible():
            check()
            lose(number)
            check()
            pytest.fail("it went on")
        pytest.fail("it went on")
    check()


@pytest.mark.usefixtures("ctrl_c")
def test_a_lost_interrupt_is_raised_at_the_end() -> None:
    """Even without a check, the block ends with the interrupt."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        lose(signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_an_error_that_replaced_an_interrupt_is_an_interrupt() -> None:
    """An extension's error that replaced the interrupt becomes the interrupt; other errors stay as they are."""

    def extension() -> None:
        lose(signal.SIGINT)
        raise SystemError("returned a result with an exception set")

    with pytest.raises(KeyboardInterrupt), interruptible():
        extension()
    with pytest.raises(SystemError), interruptible():
        raise SystemError


@pytest.mark.usefixtures("ctrl_c")
def test_a_clean_up_is_not_interrupted() -> None:
    """Signals during a clean-up are ignored, and handled again afterwards."""
    with interruptible(), uninterrupted():
        for number in BOTH:
            signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_an_ignored_signal_stays_ignored() -> None:
    """Ctrl-C in a terminal does not end what a script runs in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(signal.SIGINT)
        check()


def test_another_thread_is_not_affected() -> None:
    """Only the main thread may set handlers, so in another thread the block has no effect."""
    done = threading.Event()

    def run() -> None:
        with interruptible(), uninterrupted():
            check()
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert done.is_set()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", BOTH)
def test_an_interrupt_waits_for_what_is_starting(number: signal.Signals) -> None:
    """What would be left behind half started is finished first; then the interrupt ends the rest."""
    done = []
    with suppress(KeyboardInterrupt), interruptible():
        with deferred():
            signal.raise_signal(number)
            done.append("started")
        pytest.fail("it went on")
    assert done == ["started"]
    check()


@pytest.mark.usefixtures("ctrl_c")
def test_a_library_that_starts_takes_no_signal_away() -> None:
    """PySpark installs a handler of its own, which knows nothing of a lost interrupt."""
    with suppress(KeyboardInterrupt), interruptible():
        with handlers_kept():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        lose(signal.SIGINT)
        check()
        pytest.fail("it went on")
