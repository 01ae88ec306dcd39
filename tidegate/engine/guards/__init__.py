"""The guards, in the order they are asked; the list documents what may change or stop a proposed size.

First what forbids acting at all, then what says "not now", then what limits the size, then what a change needs from
outside. A guard sees the size as the guards before it left it. Once that is the current size again, no more are asked.
"""

from __future__ import annotations

from tidegate.engine.guard import Guard
from tidegate.engine.guards.limits import Bounds, ExecutorCores, SourcePartitions, Steps
from tidegate.engine.guards.metrics import Complete, Fresh
from tidegate.engine.guards.mode import AdviseOnly, Interactive, Paused
from tidegate.engine.guards.parallel import SingleTask, Skew, StatePartitions
from tidegate.engine.guards.periods import ExcludedPeriods, Schedule
from tidegate.engine.guards.progress import Downstream, Ineffective, StuckConsumer
from tidegate.engine.guards.resources import PoolSlots, RedisAnswers, ReservationHeld
from tidegate.engine.guards.shrinking import ScaleDownGrace, ScaleDownWindow
from tidegate.engine.guards.silence import Silence
from tidegate.engine.guards.state import MemoryPressure, StateLimits, StateSize
from tidegate.engine.guards.timing import Backoff, CommandUnderWay, Cooldown, Stabilization
from tidegate.engine.guards.way import PossibleWay, StopDeadline
from tidegate.engine.guards.worth import Quota, RestartBudget, RestartWorth

GUARDS: tuple[type[Guard], ...] = (
    Fresh,
    Complete,
    Schedule,
    StateLimits,
    Silence,
    Paused,
    Interactive,
    ExcludedPeriods,
    CommandUnderWay,
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
    ExecutorCores,
    PossibleWay,
    RestartWorth,
    RestartBudget,
    Quota,
    Cooldown,
    Backoff,
    RedisAnswers,
    AdviseOnly,
    PoolSlots,
    ReservationHeld,
    StopDeadline,
)
