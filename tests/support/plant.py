"""A job in one process, scaled by `tide`: what arrives, what its slots do, and the engine."""

from __future__ import annotations

from typing import Any

from tests.support.engine import step
from tests.support.events import batch, job, observed, result, snapshot
from tidegate.engine.state import JobState
from tidegate.engine.tide.capacity import NO_PLACE, Shape, work_of
from tidegate.events.decision import Decision, Neighbour
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way


def even(tasks: int) -> Shape:
    """Return the shape of one stage of equal tasks."""
    return ((tasks, 1.0, 1.0, NO_PLACE),)


class Plant:
    """A job that processes 100 records/s per useful slot of eight partitions; a restart takes 20 s, else nothing."""

    def __init__(self, slots: int = 2, way: Way = Way.RESTART, **options: Any) -> None:
        self.spec = job(policy="tide", policy_options=options, rescale=(way,))
        self.slots, self.state, self.number = slots, JobState.new(), 0
        self.arrived = self.committed = 1_000_000.0
        self.incarnation = 1
        self.decisions: list[Decision] = []
        self.results: tuple[ActionResult, ...] = ()
        self.neighbours: tuple[Neighbour, ...] = ()

    def run(self, rates: list[float], capacity: float = 100.0) -> list[int]:
        """Return the sizes ordered while `rates` arrive, one per ten seconds."""
        ordered = []
        for rate in rates:
            self.number += 1
            self.arrived += 10 * rate
            rate_limit = capacity * work_of(even(8)).slots(self.slots)
            done = min(self.arrived - self.committed, 10 * rate_limit)
            self.committed += done
            took = (batch(self.number, self.number, int(done), 0.1 + 0.98 * done / rate_limit),) if done else ()
            shot = snapshot(
                self.number,
                arrived=int(self.arrived),
                committed=int(self.committed),
                slots=self.slots,
                batches=took,
                incarnation=f"app-{self.incarnation}",
            )
            seen = observed(shot, results=self.results, neighbours=self.neighbours)
            self.state, decision = step(self.state, shot, self.spec, seen)
            self.decisions.append(decision)
            self.results = ()
            if decision.command is not None:
                self.slots = decision.final_parallelism
                ordered.append(self.slots)
                self.results = (self.changed(decision, rate),)
        return ordered

    def changed(self, decision: Decision, rate: float) -> ActionResult:
        """Carry out a command; return its result."""
        assert decision.command is not None
        way = decision.command.way
        outage = 20.0 if way is Way.RESTART else 0.0
        if outage:
            self.incarnation, self.number, self.arrived = (
                self.incarnation + 1,
                self.number + 2,
                self.arrived + 20 * rate,
            )
        return result(
            decision.decision_id,
            Phase.VERIFIED,
            self.number,
            parallelism=self.slots,
            incarnation=f"app-{self.incarnation}",
            way=way,
            outage_seconds=outage,
            delay_seconds=outage or 5.0,
        )
