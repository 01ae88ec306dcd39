"""What the spec lets Tidegate do: nothing (paused), keep one size (interactive), or only advise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.engine.case import Case
from tidegate.engine.guard import STARTS_AND_RESCALES, Guard, Verdict
from tidegate.engine.reasons import Reason
from tidegate.events.job import Mode


@dataclass(frozen=True, slots=True)
class Paused(Guard):
    """Stops every change of a paused job, starts included, except for an operator's request."""

    name: ClassVar = "paused"
    covers: ClassVar = STARTS_AND_RESCALES
    reasons: ClassVar[Mapping[str, Reason]] = {
        "PAUSED": Reason("the job is paused", "run `tidegate resume JOB` when it may be scaled again"),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check the spec's mode."""
        return Verdict(case.current, "PAUSED") if case.spec.scaling.mode is Mode.PAUSED else None


@dataclass(frozen=True, slots=True)
class Interactive(Guard):
    """Keeps a job with `scaling.interactive: true` at its size."""

    name: ClassVar = "interactive"
    reasons: ClassVar[Mapping[str, Reason]] = {
        "INTERACTIVE": Reason(
            "the job is interactive, so it keeps its {pinned} slots", "set `interactive: false` to have it scaled"
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check the spec."""
        return Verdict(case.current, "INTERACTIVE", {"pinned": case.current}) if case.spec.scaling.interactive else None


@dataclass(frozen=True, slots=True)
class AdviseOnly(Guard):
    """In mode `advise`, shows the change and orders nothing."""

    name: ClassVar = "advise"
    covers: ClassVar = STARTS_AND_RESCALES
    waits: ClassVar = True
    reasons: ClassVar[Mapping[str, Reason]] = {
        "ADVISE_ONLY": Reason(
            "the job is in advise mode, so the change is only shown",
            "set `mode: active` to let Tidegate make the change",
        ),
    }

    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Check the spec's mode."""
        return Verdict(size, "ADVISE_ONLY", withhold=True) if case.spec.scaling.mode is Mode.ADVISE else None
