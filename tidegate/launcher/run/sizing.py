"""Holds the executors of a running application at the ordered number. The queries go on all the time.

An order comes through the control directory and is for one run. The driver asks Spark for that many executors in all,
which also has those replaced that die later. If there are more, the ones that hold least leave, between two batches if
such a moment comes soon: an executor that leaves in the middle of a batch may hold shuffle files that the batch still
needs. New executors get their share of the state from the next batch on.

How far it has come is in the run's `sized` file:

    epoch, run, parallelism      the order
    slots                        slots of the executors that are there; those that leave count until they are gone
    executors                    by id: cores and finished tasks, of some; `worked`: how many of all have finished one
    registered_at                since when there are exactly as many as ordered; absent while there are not
    working_at                   when the new size worked first, which is as soon as one of these holds:
                                 each executor has finished a task; a batch started and ended with all of them (`unused`
                                 had none of its tasks); or the queries had nothing to do (`idle`)
    lost                         by id: why executors died since the order; told of the last ones alone, and in short
    tasks_failed, held_seconds   tasks that failed since the order; how long queries were held between two batches
    error                        why the order cannot be obeyed

Whatever fails is tried again at the next look; the launcher keeps it from the user's script.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidegate.launcher.control.files import Control, SizeOrder, Token, utc_now
from tidegate.launcher.reports.progress import is_idle, last_batch
from tidegate.launcher.spark.between_batches import between_batches
from tidegate.launcher.spark.executors import Executor, Executors

LOOK_SECONDS = 0.25
HELD_LOOK_SECONDS = 5.0
"""Between two looks once the ordered size works."""
BOUNDARY_SECONDS = 30.0
"""How long executors that are to leave wait for a moment between two batches."""
SPREAD_SECONDS = 5.0
"""How long one look waits for such a moment in order to spread the state; later looks try again."""
IDLE_SECONDS = 5.0
"""For how long queries must have had nothing to do."""
_LISTED = 100
"""How many executors are listed at most, as all files of a job share the 1 MiB of a ConfigMap."""
_REASONS, _REASON_CHARS = 3, 500
"""Of how many executors it is told why they died, and in how many characters: Spark keeps a hundred, Kubernetes says a
page about each."""


@dataclass
class SizeKeeper:
    """Obeys the orders for the size of the run that a driver carries out."""

    control: Control
    executors: Callable[[], Executors | None]
    """Returns None while the script has no Spark session."""
    queries: Callable[[], list[Any]]
    """Returns the queries that run."""
    stopping: threading.Event
    """Set when the run is being stopped, which must not wait for a change of size."""
    clock: Callable[[], float] = time.monotonic
    _change: _Change | None = field(init=False, default=None)
    _leaving: set[str] = field(init=False, default_factory=set)
    _look_at: float = field(init=False, default=0.0)

    def look(self, token: Token) -> None:
        """Begin with a new order for a run, or go on with the last one. A handover changes which run it is."""
        order = self.control.size_order()
        if order is None or order.for_run != token:
            return
        change = self._change
        known = change is not None and change.order.token >= order.token
        if known and self.clock() < self._look_at:
            return
        executors = self.executors()
        if executors is None:
            return
        if change is None or not known or change.application_id != executors.application_id:
            change = self._change = _Change(order, executors)
            self._leaving &= {executor.id for executor in executors.listed()}
        queries = self.queries()
        if change.error is None:
            self._go_on(change, executors, queries)
        change.report(self.control, token)
        if change.must_spread:
            self._spread(change, executors, queries)
        if change.ended:
            self._look_at = self.clock() + HELD_LOOK_SECONDS

    def _go_on(self, change: _Change, executors: Executors, queries: list[Any]) -> None:
        listed = executors.listed()
        surplus = sum(executor.alive and executor.id not in self._leaving for executor in listed) - change.count
        if surplus > 0:
            self._shrink(change, executors, queries)
            listed = executors.listed()
        change.see(listed, self._leaving, queries, self.clock())

    def _spread(self, change: _Change, executors: Executors, queries: list[Any]) -> None:
        """Give the new executors their share of the state, query by query."""
        change.must_spread = False
        for query in queries:
            if query.runId in change.spread or not (query.lastProgress or {}).get("stateOperators"):
                continue
            forget = partial(executors.forget_state_places, query.runId)
            held = between_batches([query], SPREAD_SECONDS, forget, self.stopping)
            if held is None:
                change.must_spread = True
            else:
                change.spread.add(query.runId)
                change.held_seconds += held

    def _shrink(self, change: _Change, executors: Executors, queries: list[Any]) -> None:
        """Let the executors leave that hold least: those with the fewest tasks, of these the newest."""

        def leave() -> None:
            stay = [one for one in executors.listed() if one.alive and one.id not in self._leaving]
            least = sorted(stay, key=lambda one: (one.running_tasks, -int(one.id)))
            self._leaving.update(executors.decommission([one.id for one in least[: len(stay) - change.count]]))

        held = between_batches(queries, BOUNDARY_SECONDS, leave, self.stopping)
        if held is None and not self.stopping.is_set():
            leave()
        change.held_seconds += held or 0.0


class _Change:
    """How far one order has come."""

    def __init__(self, order: SizeOrder, executors: Executors) -> None:
        self.order = order
        self.application_id = executors.application_id
        self.count, rest = divmod(order.parallelism, executors.cores)
        self.must_spread = False
        self.spread: set[str] = set()
        self.held_seconds = 0.0
        self.error: str | None = None
        if executors.limit is None:
            self.error = "this application was not started so that its executors can be changed"
        elif rest or not 1 <= self.count <= executors.limit:
            limit = executors.limit * executors.cores
            self.error = f"{order.parallelism} slots are not whole executors of {executors.cores} within {limit} slots"
        elif not executors.request(self.count):
            self.error = "Spark did not take the request for executors"
        before = executors.listed()
        self._gone = {executor.id for executor in before if not executor.alive}
        self._alive = sum(executor.alive for executor in before)
        self._failed = sum(executor.failed_tasks for executor in before)
        self._idle_since: float | None = None
        self._batches: dict[str, int] = {}
        self._written: dict[str, Any] = {}
        self._facts: dict[str, Any] = {
            **order.token._asdict(),
            "parallelism": order.parallelism,
            "obeyed_at": utc_now(),
        }

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do but to hold the size."""
        return self.error is not None or ("working_at" in self._facts and not self.must_spread)

    def see(self, listed: list[Executor], leaving: set[str], queries: list[Any], now: float) -> None:
        """Take in what Spark and the queries say."""
        alive = [executor for executor in listed if executor.alive]
        dead = [one for one in listed if not one.alive and one.id not in self._gone | leaving]
        lost = dict.fromkeys((one.id for one in dead), "")
        lost |= {one.id: one.reason[:_REASON_CHARS] for one in dead[-_REASONS:]}
        self._facts |= {
            "slots": sum(executor.cores for executor in alive),
            "executors": {one.id: {"cores": one.cores, "tasks": one.finished_tasks} for one in alive[:_LISTED]},
            "worked": sum(one.finished_tasks > 0 for one in alive),
            "lost": lost,
            "tasks_failed": sum(executor.failed_tasks for executor in listed) - self._failed,
        }
        if len(alive) != self.count:
            self._facts.pop("registered_at", None)
        elif "registered_at" not in self._facts:
            self._facts["registered_at"] = utc_now()
            self.must_spread = self.count > self._alive or bool(lost)
            self.spread.clear()
            self._batches = {query.runId: _ended(query) for query in queries}
            self._idle_since = None
        if "registered_at" in self._facts and "working_at" not in self._facts:
            self._see_work(alive, queries, now)

    def _see_work(self, alive: list[Executor], queries: list[Any], now: float) -> None:
        unused = [executor.id for executor in alive if not executor.finished_tasks]
        if not all(is_idle(query) for query in queries):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        idle = self._idle_since is not None and now - self._idle_since >= IDLE_SECONDS
        # the batch after the last one may have started before the executors came; the next one started with all of them
        used = any(_ended(query) >= self._batches.get(query.runId, -1) + 2 for query in queries)
        if not unused or used or idle:
            self._facts |= {"working_at": utc_now(), "unused": unused[:_LISTED], "idle": bool(unused) and not used}

    def report(self, control: Control, token: Token) -> None:
        """Write what has changed."""
        facts = self._facts | {"held_seconds": round(self.held_seconds, 3), "error": self.error}
        if facts != self._written:
            control.write_sized(token, facts)
            self._written = facts


def _ended(query: Any) -> int:
    batch = last_batch(query)
    return -1 if batch is None else batch
