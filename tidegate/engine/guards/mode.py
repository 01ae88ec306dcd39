"""What the spec lets Tidegate do: paused, pinned to a size, or advise only."""

from __future__ import annotations

from typing import ClassVar

from tidegate.engine.case import Case, Verdict
from tidegate.engine.options import NoOptions
from tidegate.events.job import Mode


class Paused:
    """Stops every change of a paused job, a start included, but for an operator's size."""

    name: ClassVar[str] = "paused"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask the spec's mode."""
        return Verdict(case.current, "PAUSED") if case.spec.scaling.mode is Mode.PAUSED else None


class Interactive:
    """Keeps a job with `scaling.interactive: true` at its size."""

    name: ClassVar[str] = "interactive"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = False
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask the spec."""
        return Verdict(case.current, "INTERACTIVE", {"pinned": case.current}) if case.spec.scaling.interactive else None


class AdviseOnly:
    """In mode `advise`, shows the change and orders nothing."""

    name: ClassVar[str] = "advise"
    Options: ClassVar[type] = NoOptions
    waits: ClassVar[bool] = True
    binds_manual: ClassVar[bool] = False
    covers: ClassVar[frozenset[str]] = frozenset({"start", "rescale"})

    def __init__(self, options: NoOptions) -> None:
        self.options = options

    def dispose(self, wish: int, case: Case) -> Verdict | None:
        """Ask the spec's mode."""
        return Verdict(wish, "ADVISE_ONLY", withhold=True) if case.spec.scaling.mode is Mode.ADVISE else None
