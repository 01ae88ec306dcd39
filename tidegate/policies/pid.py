"""`pid`: control theory: a discrete PID controller for the load of the job.

    load    y  = (arrival rate + lag / `drain_seconds`) / capacity
    error   e  = y - `setpoint`                                               0 within the dead band
    output  Δu = n · ( Kp · (e - e1)  +  Ki · e · dt  +  Kd · (e - 2 e1 + e2) / dt )

- y, e: shares of the capacity; e1 and e2: the last error and the one before. dt: s since the last decision, one
  interval after a decision without evidence.
- u: output, slots, within the bounds of the spec. n: current size, slots; the change is in proportion to it.
- Kp, Ki, Kd: `proportional`, `integral` (1/s), `derivative` (s).

The size becomes u, rounded, as soon as u is at least half a slot plus `hysteresis` away from the current size. This is
the velocity form, which computes changes. While a guard holds back the size that u calls for, Ki · e · dt takes u no
further than n · y / `setpoint`, the size that would have the load at the setpoint (conditional integration). So the
integral cannot wind up. After each change of size the controller starts again.

When to choose it: The load drifts slowly, without jumps.

Set first: `setpoint`, `drain_seconds`, then `proportional` and `integral`.

Source: K. J. Åström, T. Hägglund, "PID Controllers", 2nd ed., section 3.5 (anti-windup, velocity form).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, IDLE, clamp, measure


def velocity(errors: tuple[float, float, float], dt: float, gains: tuple[float, float, float]) -> float:
    """Return the change of a PID controller's output from the newest, last and last but one error.

    `dt` in seconds; gains are (Kp, Ki in 1/s, Kd in s).
    """
    now, last, before = errors
    proportional, integral, derivative = gains
    return proportional * (now - last) + integral * now * dt + derivative * (now - 2 * last + before) / dt


@dataclass(frozen=True, slots=True)
class PidOptions:
    """Options of `pid`."""

    window_seconds: float = option(60.0, "window of rates and capacity", unit="s", gt=0)
    setpoint: float = option(0.7, "load to hold", unit="share", gt=0, le=1)
    drain_seconds: float = option(120.0, "time to work off the lag in", unit="s", gt=0)
    dead_band: float = option(0.1, "error up to which nothing changes", unit="share", ge=0)
    proportional: float = option(0.5, "Kp", ge=0)
    integral: float = option(0.01, "Ki", unit="1/s", ge=0)
    derivative: float = option(0.0, "Kd; it multiplies noise in the rates", unit="s", ge=0)
    hysteresis: float = option(
        0.1,
        "distance of the output from the size, beyond half a slot, that changes the size",
        unit="slots",
        ge=0,
        le=0.5,
    )
    error_limit: float = option(2.0, "largest error that counts, in either direction", unit="share", ge=0)
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)


class PidMemory(NamedTuple):
    """What `pid` remembers: the controller as it was at the last decision."""

    size: int | None = None
    """Size at which it was; None for a new controller."""
    last: float = 0.0
    """Last error."""
    before: float = 0.0
    """Last error but one."""
    at: float | None = None
    """When, epoch seconds."""
    output: float = 0.0
    """Slots."""


class Pid(Rule[PidOptions, PidMemory]):
    """A PID controller that holds the load at a setpoint."""

    name: ClassVar[str] = "pid"
    Options: ClassVar[type] = PidOptions
    Memory: ClassVar[type] = PidMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "IDLE": IDLE,
        "PID_IN_BAND": Reason("the load is {load:.0%} of the capacity, close enough to {setpoint:.0%}"),
        "PID_ADJUSTING": Reason(
            "the load is {load:.0%} of the capacity and should be {setpoint:.0%}, "
            "and the controller is at {output:.2f} slots"
        ),
    }

    def propose(self, case: Case, memory: PidMemory) -> Proposal[PidMemory]:
        """Return the controller's output, in whole slots."""
        o = self.options
        found = measure(case, memory._replace(at=None))
        if isinstance(found, Proposal):
            return found
        load = (found.arrival + found.lag / o.drain_seconds) / found.capacity
        raw = load - o.setpoint
        error = 0.0 if abs(raw) <= o.dead_band else min(o.error_limit, max(-o.error_limit, raw))
        if memory.size != case.current:  # another size than it was left at: a new controller
            memory = PidMemory(case.current, output=float(case.current))
        _, last, before, at, output = memory
        dt = (
            case.measured_at - at if at is not None and case.measured_at > at else float(case.snapshot.interval_seconds)
        )
        enough = case.current * load / o.setpoint
        beyond = output >= enough if error > 0 else output <= enough
        held = beyond and self._asks(case, output)
        gains = (o.proportional, 0.0 if held else o.integral, o.derivative)
        output += case.current * velocity((error, last, before), dt, gains)
        output = min(max(output, float(clamp(case, 1))), float(clamp(case, case.spec.scaling.max_parallelism)))
        size = self._size(case, output)
        code = "PID_IN_BAND" if error == 0.0 and size == case.current else "PID_ADJUSTING"
        numbers: dict[str, Figure] = {"load": load, "setpoint": o.setpoint, "error": error, "output": output}
        kept = PidMemory(case.current, error, last, case.measured_at, output)
        return self._proposal(case, size, code, numbers, kept)

    def _size(self, case: Case, output: float) -> int:
        """Return the size for an output, in slots."""
        far = abs(output - case.current) >= 0.5 + self.options.hysteresis
        return clamp(case, int(output + 0.5)) if far else case.current

    def _asks(self, case: Case, output: float) -> bool:
        """Whether an output calls for another size, in whole executors."""
        cores, size = case.spec.application.executor_cores, self._size(case, output)
        return size != case.current and -(-size // cores) * cores != case.current

    def ordered(self, case: Case, memory: PidMemory, proposal: Proposal[PidMemory], final: int) -> PidMemory:  # noqa: ARG002
        """Start again at the ordered size: errors at the old size say nothing about the new one."""
        return PidMemory()
