"""The guards, in the order they are asked; the list reads as the documentation of what may bend or stop a change.

First what forbids acting at all, then what says "not now", then what bounds the size, then what must be had from
outside. A guard sees the wish as the guards before it left it; a wish back at the present size is asked no further.
"""

from __future__ import annotations

from tidegate.engine.case import Guard
from tidegate.engine.guards.limits import Bounds, ExecutorCores, SourcePartitions, Steps
from tidegate.engine.guards.metrics import Complete, Fresh
from tidegate.engine.guards.mode import AdviseOnly, Interactive, Paused
from tidegate.engine.guards.parallel import SingleTask, Skew, StatePartitions
from tidegate.engine.guards.periods import ExcludedPeriods
from tidegate.engine.guards.progress import Downstream, Ineffective, StuckConsumer
from tidegate.engine.guards.resources import PoolSlots, RedisAnswers, ReservationHeld
from tidegate.engine.guards.shrinking import ScaleDownGrace, ScaleDownWindow
from tidegate.engine.guards.state import MemoryPressure, StateLimits, StateSize
from tidegate.engine.guards.timing import Cooldown, InFlightGuard, Stabilization
from tidegate.engine.guards.worth import Quota, RestartBudget, RestartWorth

GUARDS: tuple[type[Guard], ...] = (
    Fresh,
    Complete,
    StateLimits,
    Paused,
    Interactive,
    ExcludedPeriods,
    InFlightGuard,
    Stabilization,
    ScaleDownGrace,
    ScaleDownWindow,
    Steps,
    Bounds,
    SourcePartitions,
    StatePartitions,
    SingleTask,
    Skew,
    StuckConsumer,
    Ineffective,
    Downstream,
    MemoryPressure,
    StateSize,
    RestartWorth,
    RestartBudget,
    ExecutorCores,
    Quota,
    Cooldown,
    RedisAnswers,
    AdviseOnly,
    PoolSlots,
    ReservationHeld,
)

FORCING = (StateLimits, StateSize)
"""Those that may ask for a change of their own, in the order they are asked; their wish then goes through all."""

BY_NAME: dict[str, type[Guard]] = {guard.name: guard for guard in GUARDS}
