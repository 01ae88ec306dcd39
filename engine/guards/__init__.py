"""The guards, in the order they are asked; the list reads as the documentation of what may bend or stop a change.

First what forbids acting at all, then what says "not now", then what bounds the size, then what must be had from
outside. A guard sees the wish as the guards before it left it; a wish back at the present size is asked no further.
"""

from __future__ import annotations

from engine.case import Guard
from engine.guards.limits import Bounds, ExecutorCores, SourcePartitions, Steps
from engine.guards.metrics import Complete, Fresh
from engine.guards.mode import AdviseOnly, Interactive, Paused
from engine.guards.resources import PoolSlots, RedisAnswers, ReservationHeld
from engine.guards.timing import Cooldown, InFlightGuard, Stabilization

GUARDS: tuple[type[Guard], ...] = (
    Fresh,
    Complete,
    Paused,
    Interactive,
    InFlightGuard,
    Stabilization,
    Steps,
    Bounds,
    SourcePartitions,
    ExecutorCores,
    Cooldown,
    RedisAnswers,
    AdviseOnly,
    PoolSlots,
    ReservationHeld,
)

BY_NAME: dict[str, type[Guard]] = {guard.name: guard for guard in GUARDS}
