"""The executors of one application on a simulated cluster, under the contract of the launcher's `SparkExecutors`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tidegate.launcher.spark.executors import Executor


@dataclass
class FakeSpark:
    """An application whose executors come 3 ticks after they were asked for, and then finish a task a tick."""

    application_id: str = "app-1"
    cores: int = 1
    limit: int | None = 8
    free: int = 100
    """How many executors the cluster can have at most."""
    takes_requests: bool = True
    dies_after: int | None = None
    """After how many ticks each executor that comes from now on dies."""
    busy: bool = True
    target: int = 2
    ages: dict[str, int] = field(default_factory=dict)
    """Ticks since each executor was launched; it registers at 3."""
    doomed: dict[str, int] = field(default_factory=dict)
    gone: dict[str, Executor] = field(default_factory=dict)
    decommissioned: set[str] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    spread: list[str] = field(default_factory=list)
    """Run ids of the queries whose state was spread."""
    launched: int = 0

    def __post_init__(self) -> None:
        self._launch()
        for _ in range(4):
            self.tick()

    @property
    def granted(self) -> int:
        """Slots that the cluster has granted: also those of executors that have not registered yet."""
        return len(self.ages) * self.cores

    def tick(self) -> None:
        """Let one interval pass."""
        for id_ in list(self.ages):
            self.ages[id_] += 1
            if self.doomed.get(id_) == self.ages[id_]:
                self.kill(id_, "Command exited with code 137")
            elif id_ in self.decommissioned:
                self._remove(id_, "Executor decommission finished")
        self._launch()

    def kill(self, id_: str, reason: str = "Command exited with code 137") -> None:
        """End an executor."""
        self._remove(id_, reason)
        self._launch()

    def listed(self) -> list[Executor]:
        """Return the executors that have registered, and those that are gone."""
        return [*self.gone.values(), *(self._executor(id_) for id_, age in self.ages.items() if age >= 3)]

    def request(self, count: int) -> bool:
        """Ask for a number of executors."""
        self.asked.append(count)
        if self.takes_requests:
            self.target = count
            self._launch()
        return self.takes_requests

    def decommission(self, ids: Iterable[str]) -> list[str]:
        """Let executors go at the next tick."""
        known = [id_ for id_ in ids if id_ in self.ages]
        self.decommissioned.update(known)
        return known

    def forget_state_places(self, run_id: str) -> None:
        """Remember that a query's state was spread."""
        self.spread.append(run_id)

    def _launch(self) -> None:
        while len(self.ages) < min(self.target, self.free):
            id_ = str(self.launched)
            self.launched += 1
            self.ages[id_] = 0
            if self.dies_after is not None:
                self.doomed[id_] = self.dies_after

    def _executor(self, id_: str) -> Executor:
        tasks = max(0, self.ages[id_] - 4) if self.busy else 0
        return Executor(id_, self.cores, alive=True, running_tasks=0, finished_tasks=tasks, failed_tasks=0)

    def _remove(self, id_: str, reason: str) -> None:
        if self.ages[id_] >= 3:  # the driver never hears of one that has not registered
            self.gone[id_] = replace(self._executor(id_), alive=False, reason=reason)
        del self.ages[id_]
