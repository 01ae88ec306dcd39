"""`pid`: control theory: a discrete PID controller of the load of the job.

    load    y  = (arrival rate + lag / `drain_seconds`) / capacity
    error   e  = y - `setpoint`                                               0 inside the dead band
    output  Δu = n · ( Kp · (e - e1)  +  Ki · e · dt  +  Kd · (e - 2 e1 + e2) / dt )

- y, e: shares of the capacity; e1 and e2: the last error and the one before. dt: s since the last decision.
- u: output, slots, within the spec's bounds. n: present size, slots: one slot of ten changes less than one of two.
- Kp, Ki, Kd: `proportional`, `integral` (1/s), `derivative` (s).

The size is u rounded, once u is `hysteresis` beyond half a slot away. This is the velocity form: it gives changes, so
the integral cannot wind up. After each change of size the controller begins anew.

Source: K. J. Åström, T. Hägglund, "PID Controllers", 2nd ed., section 3.5 (anti-windup, velocity form).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.shared import EVIDENCE_MISSING, IDLE, clamp, expect, measure, restart_seconds


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
    drain_seconds: float = option(120.0, "time in which lag is to be worked off", unit="s", gt=0)
    dead_band: float = option(0.1, "error up to which nothing is changed", unit="share", ge=0)
    proportional: float = option(0.5, "Kp", ge=0)
    integral: float = option(0.01, "Ki", unit="1/s", ge=0)
    derivative: float = option(0.0, "Kd; noise in the rates is multiplied by it", unit="s", ge=0)
    hysteresis: float = option(
        0.1, "how far beyond half a slot the output must be from the size", unit="slots", ge=0, le=0.5
    )
    error_limit: float = option(2.0, "largest error that counts, either way", unit="share", ge=0)
    assumed_restart_seconds: float = option(
        30.0, "restart time in the decision's expectation until one was measured", unit="s", ge=0
    )


class Pid:
    """A PID controller that holds the load at a setpoint."""

    name: ClassVar[str] = "pid"
    Options: ClassVar[type] = PidOptions
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "IDLE": IDLE,
        "PID_IN_BAND": Reason("the load is {load:.2f} of the capacity, near enough to {setpoint:.2f}"),
        "PID_ADJUSTING": Reason(
            "the load is {load:.2f} of the capacity and is to be {setpoint:.2f}; "
            "the controller stands at {output:.2f} slots"
        ),
    }

    def __init__(self, options: PidOptions) -> None:
        self.options = options

    @property
    def window_seconds(self) -> float:
        """The window of rates."""
        return self.options.window_seconds

    def propose(self, case: Case) -> Proposal:
        """Return the controller's output, in whole slots."""
        o, memory = self.options, case.state.memory
        found = measure(case)
        if isinstance(found, Proposal):
            return found
        load = (found.arrival + found.lag / o.drain_seconds) / found.capacity
        raw = load - o.setpoint
        error = 0.0 if abs(raw) <= o.dead_band else min(o.error_limit, max(-o.error_limit, raw))
        last, before, at, output = _recall(memory, case)
        dt = (
            case.measured_at - at if at is not None and case.measured_at > at else float(case.snapshot.interval_seconds)
        )
        gains = (o.proportional, o.integral, o.derivative)
        output += case.current * velocity((error, last, before), dt, gains)
        output = min(max(output, float(clamp(case, 1))), float(clamp(case, case.spec.scaling.max_parallelism)))
        size = case.current
        if abs(output - case.current) >= 0.5 + o.hysteresis:
            size = clamp(case, int(output + 0.5))
        code = "PID_IN_BAND" if error == 0.0 and size == case.current else "PID_ADJUSTING"
        numbers: dict[str, Figure] = {"load": load, "setpoint": o.setpoint, "error": error, "output": output}
        kept: dict[str, JsonValue] = {
            "errors": [error, last],
            "at": case.measured_at,
            "output": output,
            "size": case.current,
        }
        restart = restart_seconds(case, o.assumed_restart_seconds)
        return Proposal(size, code, numbers, expect(case, size, restart), kept)

    def ordered(self, case: Case, proposal: Proposal, final: int) -> dict[str, JsonValue]:  # noqa: ARG002
        """Begin anew at the ordered size: errors of the old size say nothing of the new one."""
        return {}


def _recall(memory: Mapping[str, Any], case: Case) -> tuple[float, float, float | None, float]:
    """Return (last error, last but one, when, output); a size that came about otherwise begins anew."""
    if memory.get("size") != case.current:
        return 0.0, 0.0, None, float(case.current)
    last, before = memory["errors"]
    return last, before, memory["at"], memory["output"]
