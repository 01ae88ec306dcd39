"""What the published rules have in common apart from their formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from tidegate.engine.case import Case, Proposal
from tidegate.engine.memory import M
from tidegate.events.decision import Figure
from tidegate.policies.sizing import change_to, expect


class RuleOptions(Protocol):
    """What the options of every rule say."""

    @property
    def window_seconds(self) -> float:
        """How much of the past the rule wants to see."""
        ...

    @property
    def assumed_restart_seconds(self) -> float:
        """The restart time to expect until one is measured."""
        ...


R = TypeVar("R", bound=RuleOptions)


class Rule(Generic[R, M]):
    """A rule with its options; it implements all of `Policy` but its declarations and `propose`."""

    def __init__(self, options: R) -> None:
        self.options = options
        self.window_seconds = options.window_seconds

    def ordered(self, case: Case, memory: M, proposal: Proposal[M], final: int) -> M:  # noqa: ARG002
        """Keep the memory: a command changes nothing in it."""
        return memory

    def _proposal(
        self, case: Case, size: int, code: str, numbers: Mapping[str, Figure], memory: M | None = None
    ) -> Proposal[M]:
        """Return a proposal that expects a capacity linear in the size."""
        change = change_to(case, size, self.options.assumed_restart_seconds)
        return Proposal(size, code, numbers, expect(case, size, change), memory)
