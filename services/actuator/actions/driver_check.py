"""Does a new driver still run? The cluster may not know it yet, or not answer for a while."""

from __future__ import annotations

from services.actuator.actions.waits import ASK_SECONDS, NO_ANSWER_SECONDS, UNKNOWN_SECONDS
from services.actuator.backends import DriverState
from services.actuator.drivers import NO_ANSWER, JobDrivers
from tidegate.runtime.clock import Clock


class DriverCheck:
    """Asks the cluster now and then whether the new driver still runs."""

    def __init__(self, drivers: JobDrivers, clock: Clock) -> None:
        self._drivers = drivers
        self._clock = clock
        self._ask_at = clock.monotonic()
        self._silent_since: float | None = None
        self._unknown_since: float | None = None

    def failure(self, submission_id: str | None, *, arrived: bool) -> str | None:
        """Return why waiting any longer is pointless, or None."""
        now = self._clock.monotonic()
        if submission_id is None or now < self._ask_at:
            return None
        self._ask_at = now + ASK_SECONDS
        try:
            state = self._drivers.state(submission_id)
        except NO_ANSWER:
            self._silent_since = now if self._silent_since is None else self._silent_since
            # one that has arrived tells itself how far it is, and runs on without its master
            silent = not arrived and now - self._silent_since > NO_ANSWER_SECONDS
            return f"The cluster has not answered for {NO_ANSWER_SECONDS:g} s." if silent else None
        self._silent_since = None
        if state is DriverState.ENDED:
            return "The new driver ended before its first batch."
        if state is not DriverState.ABSENT or arrived:
            self._unknown_since = None
            return None
        # a master that has lost its state may learn of the driver again from its worker
        self._unknown_since = now if self._unknown_since is None else self._unknown_since
        unknown = now - self._unknown_since > UNKNOWN_SECONDS
        return f"The cluster has not known driver {submission_id} for {UNKNOWN_SECONDS:g} s." if unknown else None
