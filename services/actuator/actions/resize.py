"""RESIZE: order executors of the running driver, and wait until they work. The queries go on all the time.

The order is a claim on the job: it goes to the driver through the control directory, with a token of the command. Done
twice it has the same effect, so a successor simply orders again. The size is reached when the driver has that many
executors and they have worked, and the cluster says that it has granted as many.

If the cluster grants fewer, the job keeps what it got, and the order is lowered to that: executors must not come later,
unannounced. Where a node autoscaler adds nodes for executors that wait (`pool_max_slots`), it gets the time for that
first. If executors die as they come, or nothing happens for as long as a start may take without progress, the size does
not work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from services.actuator.actions.pair import order_obstacle
from services.actuator.actions.waits import ASK_SECONDS, GRANT_SECONDS, LOOK_SECONDS, OBEY_SECONDS, answer
from services.actuator.backends import DriverState
from services.actuator.drivers import NO_ANSWER, JobDrivers, LiveDriver
from services.actuator.machine import ActionEvent, CommandState
from services.actuator.task import ActionOutcome, Task
from tidegate.events.result import GRANTED_FEWER, ActionResult
from tidegate.events.way import Way
from tidegate.events.wire import Scalar
from tidegate.launcher.control.files import Token

MANY_LOST = 3
"""As many executors may die at least; more of them if more were ordered."""


def resize(task: Task, drivers: JobDrivers, state: CommandState, *, accepted: ActionResult) -> ActionOutcome:
    """Bring the running driver to the attempt's size; `accepted` is the command's first result."""
    try:
        live = answer(task, drivers.live)
    except NO_ANSWER as error:  # nor could a restart tell, and it would stop the job first
        sentence = f"Cannot tell what runs: {error}. The job is left as it is."
        return ActionOutcome(ActionEvent.CANNOT_GO_ON, sentence, "NO_ANSWER")
    if order_obstacle(live) is not None:
        return _leave(task, "The driver whose executors were to be changed has ended.", "DRIVER_ENDED")
    change = _SizeChange(task, drivers, live[0], state, accepted.at)
    change.order(state.parallelism)
    return task.follow(change.look, LOOK_SECONDS)


def _leave(task: Task, sentence: str, code: str) -> ActionOutcome:
    """Return that this way leads nowhere: a restart is next, if the spec allows it."""
    if Way.RESTART in task.spec.application.ways:
        return ActionOutcome(ActionEvent.FALLS_BACK, f"{sentence} The job is restarted.", code)
    advice = "The spec allows no restart: stop the job and start it, or add restart to application.rescale."
    return ActionOutcome(ActionEvent.CANNOT_GO_ON, f"{sentence} {advice}", code)


@dataclass
class _SizeChange:
    """One order, and what came of it."""

    task: Task
    drivers: JobDrivers
    driver: LiveDriver
    state: CommandState
    accepted_at: datetime
    ordered: int = field(init=False, default=0)
    wanted: int = field(init=False, default=0)
    """What was ordered at first; `ordered` is less if the cluster granted fewer."""
    _token: Token = field(init=False, default=Token(0, 0))
    _registered_seconds: float | None = field(init=False, default=None)
    _ended: bool = field(init=False, default=False)
    _granted: int | None = field(init=False, default=None)
    _ask_at: float = field(init=False, default=0.0)
    _grant: tuple[int | None, int] = field(init=False, default=(None, 0))
    """What the cluster has granted and how many slots the driver has of it."""
    _grant_at: float = field(init=False, default=0.0)
    """Since when that is so."""
    _progress: tuple[int, int] = field(init=False, default=(-1, -1))
    """How near the number of slots has come to the order, and how many executors have worked, at best."""
    _progress_at: float = field(init=False, default=0.0)

    @property
    def _run(self) -> Token:
        return Token(self.driver.facts["epoch"], self.driver.facts["run"])

    @property
    def _silent_seconds(self) -> float:
        return self.task.clock.monotonic() - self._progress_at

    def order(self, parallelism: int) -> None:
        """Order a size; the wait begins again."""
        self.wanted = self.wanted or parallelism
        self.ordered = parallelism
        self._token = self.task.fence.order(self._run, parallelism, self.task.command.command_id)
        self._progress = (-1, -1)
        self._progress_at = self._grant_at = self.task.clock.monotonic()

    def look(self) -> ActionOutcome | None:
        """Return how it ended, or None."""
        self._ask_cluster()
        if self._ended:
            return _leave(self.task, "The driver ended while its executors were being changed.", "DRIVER_ENDED")
        facts = self.drivers.control.sized(self._run) or {}
        if (facts.get("epoch"), facts.get("run")) != self._token:
            late = self._silent_seconds > OBEY_SECONDS
            return self._withdraw(f"The driver did not answer within {OBEY_SECONDS:g} s.") if late else None
        if facts["error"] is not None:
            return self._withdraw(f"The driver cannot change its executors: {facts['error']}.")
        slots = facts["slots"]
        if slots == self.ordered and self._granted in (None, slots):
            self._registered_seconds = self._registered_seconds or self.task.seconds_since(self.accepted_at)
            if "working_at" in facts:
                return self._resized(facts)
        missing = (self.ordered - slots) // self.task.spec.application.executor_cores
        if (lost := facts["lost"]) and len(lost) >= max(MANY_LOST, missing):
            id_, reason = next(reversed(lost.items()))
            sentence = f"{len(lost)} executors died while {self.ordered} slots were ordered; {id_}: {reason.strip()}."
            return ActionOutcome(ActionEvent.NOT_RESIZED, sentence, "EXECUTORS_DIED", details=_figures(facts))
        return self._judge(facts, slots)

    def _judge(self, facts: dict[str, Any], slots: int) -> ActionOutcome | None:
        now = self.task.clock.monotonic()
        if (grant := (self._granted, slots)) != self._grant:
            self._grant, self._grant_at = grant, now
        worked = facts["worked"]
        progress = (-abs(self.ordered - slots), worked)
        if self._progress == (-1, -1) or progress > self._progress:
            self._progress, self._progress_at = progress, now
        limit = self.task.spec.application.start_deadline_seconds
        lasts = GRANT_SECONDS if self.task.spec.pool_max_slots is None else limit
        if self._granted == slots and 0 < slots < self.ordered and now - self._grant_at >= lasts:
            self.order(slots)
            return None
        if self._silent_seconds < limit:
            return None
        if self._granted is None and 0 < slots < self.ordered and not facts["lost"]:
            self.order(slots)
            return None
        granted = "" if self._granted is None else f" of {self._granted} granted"
        sentence = (
            f"For {limit:g} s, the driver has had {slots} slots{granted}, and {self.ordered} were ordered;"
            f" {worked} executors have finished tasks. Look into the logs of the executors."
        )
        return ActionOutcome(ActionEvent.NOT_RESIZED, sentence, "NOT_WORKING", details=_figures(facts))

    def _resized(self, facts: dict[str, Any]) -> ActionOutcome:
        what = f"The job runs with {self.ordered} slot{'s' if self.ordered > 1 else ''}"
        if facts["idle"]:
            what += "; its queries have no data to process"
        code, seconds = "OK", self.task.seconds_since(self.accepted_at)
        if self.ordered < self.wanted:
            code = GRANTED_FEWER
            what += f": the cluster granted no more of the {self.wanted} that were ordered"
        return ActionOutcome(
            ActionEvent.RESIZED,
            f"{what}.",
            code,
            details=_figures(facts)
            | {"registered_seconds": self._registered_seconds or seconds, "working_seconds": seconds},
            submission_id=self.driver.submission_id,
            incarnation=self.driver.facts["application_id"],
            parallelism=self.ordered,
            outage_seconds=facts["held_seconds"],
            delay_seconds=seconds,
        )

    def _withdraw(self, sentence: str) -> ActionOutcome:
        """Give up; a driver that answers after all is to stay as it is."""
        outcome = _leave(self.task, sentence, "NO_ANSWER")
        if outcome.event is ActionEvent.CANNOT_GO_ON and self.state.last_good is not None:
            self.order(self.state.last_good)
        return outcome

    def _ask_cluster(self) -> None:
        """Ask now and then whether the driver runs, and what was granted; no answer changes nothing."""
        now = self.task.clock.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + ASK_SECONDS
        try:
            self._ended = self.drivers.state(self.driver.submission_id) is DriverState.ENDED
            self._granted = self.drivers.granted(self.driver.facts["application_id"])
        except NO_ANSWER:
            return


def _figures(facts: dict[str, Any]) -> dict[str, Scalar]:
    return {"executors_lost": len(facts["lost"]), "tasks_failed": facts["tasks_failed"], "slots": facts["slots"]}
