"""A simulated cluster: drivers that are submitted and killed, in simulated time. It passes the contract of backends."""

# ruff: noqa: ARG002 - it implements a port

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.actuator.backends import BackendRefused, BackendUnreachable, DriverState, Submission
from tests.support.fake_executors import FakeSpark
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import Control, Token


@dataclass
class FakeCluster:
    """A cluster for the job `rates`, whose drivers arrive when their control directory says so."""

    folder: Path
    seconds: float = 0.0
    """The time."""
    drivers: dict[str, DriverState] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    asked_at: dict[str, float] = field(default_factory=dict)
    refuses: bool = False
    down_until: float = 0.0
    foreign: dict[str, str] = field(default_factory=dict)
    """Names, by id, of applications that Tidegate did not start."""
    leave_at: float | None = None
    """When the foreign applications disappear."""
    most_alive: int = 0
    cluster: FakeSpark = field(default_factory=FakeSpark)
    """The executors of the driver that runs."""

    @property
    def control(self) -> Control:
        """The control directory of the job."""
        return Control.at(self.folder / "control", "rates")

    def submit(self, run: Submission) -> str:
        """Start a driver, return its id."""
        self._answer()
        if self.refuses:
            raise BackendRefused("no")
        driver = f"driver-1-{len(self.drivers)}"
        self.drivers[driver] = DriverState.RUNNING
        self.submissions[driver] = run
        self.tokens[driver] = run.token
        self.sizes[driver] = run.parallelism
        self.asked_at[driver] = self.seconds
        self.most_alive = max(self.most_alive, len(self.alive()))
        return driver

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the cluster says about a driver."""
        self._answer()
        return self.drivers.get(submission_id, DriverState.ABSENT)

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return nothing: a simulated cluster does not say so."""
        return ""

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """End a driver."""
        self._answer()
        if submission_id in self.drivers:
            self.drivers[submission_id] = DriverState.ENDED

    def applications(self, spec: JobSpec) -> Mapping[str, str]:
        """Return the names, by id, of all live applications."""
        self._answer()
        here = self.leave_at is None or self.seconds < self.leave_at
        ours = {f"app-{driver}": "rates" for driver in self.alive() if not self.is_new(driver)}
        return ours | (self.foreign if here else {})

    def granted(self, spec: JobSpec, application_id: str) -> int | None:
        """Return the slots of the application; there is one at a time."""
        self._answer()
        return self.cluster.granted if application_id in self.applications(spec) else None

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the drivers that are alive."""
        self._answer()
        return frozenset(self.alive())

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return nothing: a simulated driver prints nothing."""
        self._answer()
        return ""

    def alive(self) -> list[str]:
        """Return the drivers that are alive, whether the cluster answers or not."""
        return sorted(driver for driver, state in self.drivers.items() if state.alive)

    def is_new(self, driver: str) -> bool:
        """Whether a driver has not arrived yet."""
        return self.control.running(self.tokens[driver]) is None

    def _answer(self) -> None:
        if self.seconds < self.down_until:
            raise BackendUnreachable("no answer")
