"""A pool: a cluster's slots shared by jobs, first come, first served; the others wait until slots are returned."""

from __future__ import annotations

from tidegate.events.snapshot import Pool as PoolView
from tidegate.events.wire import MOST_SLOTS


class SlotPool:
    """Slots of one cluster, without the drivers' cores, as in the master's own count of free cores."""

    def __init__(self, pool_id: str, slots: int) -> None:
        self.pool_id = pool_id
        self.slots = min(slots, MOST_SLOTS)  # two of the largest size are more than a snapshot may tell of
        self._wanted: dict[str, int] = {}
        self._granted: dict[str, int] = {}
        self._core_seconds: dict[str, float] = {}
        self._at = 0.0

    def ask(self, job_id: str, slots: int, at: float) -> None:
        """Set a job's requested slots. It gets free slots at once and returns those it no longer needs."""
        self._account(at)
        if slots == 0:
            self._wanted.pop(job_id, None)
            self._granted.pop(job_id, None)
        else:
            self._wanted[job_id] = slots
            self._granted[job_id] = min(self._granted.get(job_id, 0), slots)
        for name, wanted in self._wanted.items():  # in the order of the requests
            more = min(wanted - self._granted[name], self.free)
            if more > 0:
                self._granted[name] += more

    def granted(self, job_id: str) -> int:
        """Return the slots granted to a job."""
        return self._granted.get(job_id, 0)

    @property
    def used(self) -> int:
        """Granted slots."""
        return sum(self._granted.values())

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return self.slots - self.used

    def core_seconds(self, job_id: str, at: float) -> float:
        """Return the slot-seconds that a job has held up to second `at`, including those during changes of size."""
        self._account(at)
        return self._core_seconds.get(job_id, 0.0)

    def view(self) -> PoolView:
        """Return the pool as the master reports it."""
        return PoolView(pool_id=self.pool_id, slots_total=self.slots, slots_used=self.used, workers_alive=1)

    def _account(self, at: float) -> None:
        if at > self._at:
            for job_id, slots in self._granted.items():
                self._core_seconds[job_id] = self._core_seconds.get(job_id, 0.0) + slots * (at - self._at)
            self._at = at
