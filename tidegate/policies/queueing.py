"""`queueing`: the fewest slots that keep the wait of a task within a target, by the M/M/c queue.

A micro-batch job does not serve records one by one: each slot gets a task with many records. So the customer of the
queue is a *task*, and the server is a slot:

    λ = (arrival rate + lag / `drain_seconds`) / r         μ = capacity per slot / r
    size = fewest c with  P(wait > t) = C(c, λ/μ) · exp(-(c·μ - λ)·t)  <=  1 - `percentile`

- λ: tasks that arrive, per s. μ: tasks that a slot serves, per s. c: slots. t: `target_wait_seconds`.
- r: records per task, `task_records`; if absent, what one slot got per batch.
- C(c, λ/μ): probability that a task has to wait at all (Erlang C, see the details).

The lag counts as load that arrives over the drain time. The job scales down only if the smaller size could carry
`shrink_margin` more load: the formula alone has no hysteresis.

When to choose it: Tasks are many and short, and you care how long a task waits for a slot.

Set first: `target_wait_seconds`, `percentile`.

Details: `queueing_rules`.

Source: L. Kleinrock, "Queueing Systems", vol. 1, 1975; as an autoscaler: T. Lorido-Botran et al., "A review of
auto-scaling techniques for elastic applications in cloud environments", 2014, section 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.memory import NoMemory
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies import queueing_rules as rules
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, IDLE, Workload, clamp, measure


@dataclass(frozen=True, slots=True)
class QueueingOptions:
    """Options of `queueing`."""

    window_seconds: float = option(120.0, "window of rates and capacity", unit="s", gt=0)
    target_wait_seconds: float = option(5.0, "longest time that a task may wait for a slot", unit="s", ge=0)
    percentile: float = option(0.95, "share of tasks that wait no longer than that", unit="share", gt=0, le=0.9999)
    drain_seconds: float = option(120.0, "time to work off the lag in", unit="s", gt=0)
    task_records: float | None = option(None, "records per task; absent: measured", unit="records", gt=0)
    shrink_margin: float = option(0.15, "how much more load a smaller size must be able to carry", unit="share", ge=0)
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)


class Queueing(Rule[QueueingOptions, NoMemory]):
    """The M/M/c queue: the fewest slots that keep the wait of tasks under a target."""

    name: ClassVar[str] = "queueing"
    Options: ClassVar[type] = QueueingOptions
    Memory: ClassVar[type] = NoMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "IDLE": IDLE,
        "QUEUE_TARGET": Reason(
            "{tasks:.2f} tasks/s arrive and a slot serves {served:.2f}/s, so a size of {wanted} keeps {percentile:.0%} "
            "of the waits under {target:.1f} s"
        ),
        "QUEUE_OVERLOAD": Reason(
            "{tasks:.2f} tasks/s arrive and a slot serves {served:.2f}/s, so even the largest size keeps fewer than "
            "{percentile:.0%} of the waits under {target:.1f} s"
        ),
        "QUEUE_MARGIN": Reason("a size of {wanted} would be just enough, and too small for a little more load"),
        "QUEUE_RIGHT": Reason("{current} slots keep {percentile:.0%} of the waits under {target:.1f} s"),
    }

    def propose(self, case: Case, memory: NoMemory) -> Proposal[NoMemory]:
        """Return the fewest slots that meet the target."""
        o, current = self.options, case.current
        found = measure(case, memory)
        if isinstance(found, Proposal):
            return found
        records = self._task_records(case, found)
        if records is None:
            return Proposal(current, "EVIDENCE_MISSING", {"missing": "records per task"})
        rate = (found.arrival + found.lag / o.drain_seconds) / records
        served = found.per_slot / records
        wanted = self._needed(case, rate, served)
        code, size = "QUEUE_TARGET", clamp(case, wanted or case.spec.scaling.max_parallelism)
        if wanted is None:
            code = "QUEUE_OVERLOAD"
        elif size < current:
            safe = self._needed(case, rate * (1 + o.shrink_margin), served)
            size = min(current, clamp(case, safe or current))
            code = "QUEUE_MARGIN" if size == current else code
        elif size == current:
            code = "QUEUE_RIGHT"
        numbers: dict[str, Figure] = {
            "tasks": rate,
            "served": served,
            "wanted": wanted if code == "QUEUE_MARGIN" else size,
            "current": current,
            "target": o.target_wait_seconds,
            "percentile": o.percentile,
        }
        return self._proposal(case, size, code, numbers)

    def _needed(self, case: Case, rate: float, served: float) -> int | None:
        if rate <= 0:
            return 1
        o, most = self.options, case.spec.scaling.max_parallelism
        return rules.servers_needed(rate, served, o.target_wait_seconds, 1 - o.percentile, most)

    def _task_records(self, case: Case, workload: Workload) -> float | None:
        """Return the records of one task: the mean batch divided by its slots, at least one record."""
        if self.options.task_records is not None:
            return self.options.task_records
        seconds = case.evidence.batch_seconds
        return None if seconds is None else max(1.0, seconds * workload.per_slot)
