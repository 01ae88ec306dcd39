"""A changed application: the running job gets the script, the settings and the executors that its spec says now.

Results say which application runs, by its digest. When a changed spec says another one, the job is rescaled to the size
it has, by handover or restart, which brings the new application. If that fails, the application that works stays, until
the spec changes again: nothing is tried twice.
"""

from __future__ import annotations

from typing import Final

from tidegate.engine.case import Case
from tidegate.engine.state import JobState
from tidegate.engine.ways import open_ways
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way

UPGRADE: Final = "UPGRADE"


def compare(state: JobState, spec: JobSpec) -> JobState:
    """Return the state, which knows afterwards whether another application runs than the spec says."""
    other = state.application is not None and state.application != spec.application.digest
    return state._replace(outdated=True if other else None)


def take_application(state: JobState, result: ActionResult, spec: JobSpec) -> JobState:
    """Return the state after a command has ended: what runs now, and whether that is still to be changed."""
    if result.way is Way.IN_PLACE:
        return state
    if result.application is not None:
        state = state._replace(application=result.application)
    return compare(state, spec) if result.phase is Phase.VERIFIED else state._replace(outdated=None)


def is_due(case: Case) -> bool:
    """Whether the running job must be started again, and can be."""
    state = case.state
    if not state.outdated or state.in_flight is not None or case.current == 0:
        return False
    return case.spec.scaling.mode is Mode.ACTIVE and bool(open_ways(case))
