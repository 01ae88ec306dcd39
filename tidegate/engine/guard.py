"""What a guard is: a rule that may change or stop a proposed size, and says why.

A guard is a frozen dataclass. Its fields are its options, declared with `option` and validated by pydantic when a job's
plan is made (`tidegate.engine.options`). Its name, what it covers and its reasons stand next to them in the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case
from tidegate.engine.reasons import Reason
from tidegate.events.command import CommandKind
from tidegate.events.decision import Figure, Status

RESCALES = frozenset({CommandKind.RESCALE})
STARTS_AND_RESCALES = frozenset({CommandKind.START, CommandKind.RESCALE})
ALL_CHANGES = frozenset(CommandKind)


class Verdict(NamedTuple):
    """What a guard makes of a proposed size: another size (the current one stops the change), and why."""

    size: int
    code: str
    values: Mapping[str, Figure] = MappingProxyType({})
    status: Status | None = None
    """Set where the finding is a status of its own, such as POOL_EXHAUSTED."""
    withhold: bool = False
    """The size stands, but no command goes out (advise mode)."""


@dataclass(frozen=True, slots=True)
class Guard(ABC):
    """The base of every guard."""

    name: ClassVar[str]
    reasons: ClassVar[Mapping[str, Reason]]
    """The codes its verdicts use."""
    covers: ClassVar[frozenset[CommandKind]] = RESCALES
    """Which kinds of change it is asked about."""
    waits: ClassVar[bool] = False
    """Whether a change that it stops is only put off; the job's status then stays pending."""
    binds_manual: ClassVar[bool] = False
    """Whether it also applies to an operator's request, and to a new application."""
    judges_worth: ClassVar[bool] = False
    """Whether it only judges what a change is worth. As far as the bounds or the state call for one, it must be."""

    @abstractmethod
    def dispose(self, size: int, case: Case) -> Verdict | None:
        """Return what becomes of a proposed size that differs from the current one; None is no objection."""


@dataclass(frozen=True, slots=True)
class ForcingGuard(Guard):
    """A guard that may also ask for a change when the policy does not. All guards then judge that size too."""

    @abstractmethod
    def force(self, size: int, case: Case) -> Verdict | None:
        """Return the size to ask for instead of the policy's, or the same size to only warn, and why; or None."""
