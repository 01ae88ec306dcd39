"""Packages with a policy of their own, as pip leaves them in a folder."""

from __future__ import annotations

from pathlib import Path

from tidegate.installed import GROUP

POLICY = '''
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.engine.case import Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason

{before}

@dataclass(frozen=True, slots=True)
class Options:
    """The options."""

    step: int = option(1, "slots more", ge=1, le=9)
    window_seconds: float = {window}
    {option}

    def __post_init__(self) -> None:
        {post_init}


class Memory(NamedTuple):
    seen: int = 0


class Mine:
    """One more."""

    name = {name!r}
    Options = Options
    Memory = Memory
    reasons = {{"MINE_MORE": Reason("{{step}} more, by {{seen}} proposals")}}
    reasons |= {reasons}

    def __init__(self, options: Options) -> None:
        self.options, self.window_seconds = options, options.window_seconds

    def propose(self, case: Any, memory: Memory) -> Any:
        seen = Memory(memory.seen + 1)
        good = Proposal(case.current + self.options.step, "MINE_MORE", {{"step": 1, "seen": seen.seen}}, memory=seen)
        return {returns}

    def ordered(self, case: Any, memory: Memory, proposal: Any, final: int) -> Memory:
        return {ordered}
'''
GOOD = {
    "before": "",
    "window": 'option(60.0, "the window", unit="s", gt=0)',
    "option": "",
    "post_init": "pass",
    "name": "mine",
    "reasons": "{}",
    "returns": "good",
    "ordered": "memory",
}


def put_package(site: Path, name: str, version: str, point: str, module: str, source: str) -> None:
    """Write a package as pip leaves it: what it says of itself, with an entry point, and one module."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{point}\n", "utf-8")
    (site / f"{module}.py").write_text(source, "utf-8")


def put_policy(site: Path, package: str, point: str = "", **parts: str) -> None:
    """Write a package with the policy `mine`, with other parts than `GOOD` has, and perhaps another entry point."""
    module = f"{package}_policy"
    put_package(site, package, "1.5", point or f"mine = {module}:Mine", module, POLICY.format(**(GOOD | parts)))
