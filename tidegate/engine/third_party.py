"""Policies from other packages: what is wrong with one is found where it happens, and said with the package's name.

A decision is bytes that everybody reads for years, so a size that is no number, or a memory that JSON cannot hold,
must not get into one. Our own policies are tested for that; those of others are checked here, at each proposal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from tidegate.engine.case import Case, Policy, Proposal
from tidegate.engine.memory import read_memory, write_memory
from tidegate.engine.options import BadOption
from tidegate.engine.reasons import explained
from tidegate.events.decision import Expectation

MEMBERS = ("name", "Options", "Memory", "reasons", "propose", "ordered")
"""What a policy declares in its class; `window_seconds` may follow from its options."""
LARGEST = 2**63 - 1
"""What a decision can hold; the guard for the bounds of the spec makes less of it."""
RATES = ("capacity", "arrival_rate", "catch_up_rate", "target_rate")


class PolicyFailed(Exception):
    """A policy from another package raised an error, or returned what no decision can hold."""


class NoPolicy(TypeError):
    """What an entry point names is no policy; the text says what it lacks."""


def checked(policy: Any, name: str, package: str) -> type[Policy[Any]]:
    """Return a policy with its proposals checked, or raise `NoPolicy`.

    Its errors become `PolicyFailed`, and those of its constructor `BadOption`, which is a problem of the job's spec.
    """
    if lacking := [member for member in MEMBERS if not hasattr(policy, member)]:
        raise NoPolicy(f"{policy!r} has no {', no '.join(lacking)}")
    if policy.name != name:
        raise NoPolicy(f"its entry point is called {name!r}, and its class has the name {policy.name!r}")
    who = f"policy {name!r} of {package}"

    class Checked(policy):  # type: ignore[misc]  # of any type
        __doc__ = policy.__doc__

        def __init__(self, options: Any) -> None:
            try:
                super().__init__(options)
                if not _is_finite(self.window_seconds):
                    _wrong(f"window_seconds must be a number, found {self.window_seconds!r}")
            except (Exception, SystemExit) as error:
                raise BadOption(f"scaling.policy: {who} refuses its options: {_said(error)}") from error

        def propose(self, case: Case, memory: Any) -> Proposal[Any]:
            with _blamed(who, "propose"):
                return _whole(self, super().propose(case, memory))

        def ordered(self, case: Case, memory: Any, proposal: Proposal[Any], final: int) -> Any:
            with _blamed(who, "ordered"):
                return _kept(self, super().ordered(case, memory, proposal, final))

        if hasattr(policy, "wake"):

            def wake(self, case: Case, memory: Any) -> Proposal[Any]:
                with _blamed(who, "wake"):
                    return _whole(self, super().wake(case, memory))

    return Checked


@contextmanager
def _blamed(who: str, method: str) -> Iterator[None]:
    """Raise what a method raises, even what would end the process, as the failure of a policy."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise PolicyFailed(f"{who} failed in {method}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Return an error with the line that raised it: without that line, only the log would help its author."""
    if isinstance(error, _Wrong):
        return str(error)
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


class _Wrong(ValueError):
    """What a policy returned; the text says what is wrong with it."""


def _wrong(what: str) -> NoReturn:
    raise _Wrong(what)


def _whole(policy: Policy[Any], proposal: object) -> Proposal[Any]:
    """Return a proposal that a decision can hold."""
    if not isinstance(proposal, Proposal):
        _wrong(f"it must return a Proposal, found {proposal!r:.80}")
    if type(proposal.size) is not int or not 0 <= proposal.size <= LARGEST:
        _wrong(f"the size must be an int, and at least 0, found {proposal.size!r:.80}")
    _explained(policy, proposal)
    if not isinstance(proposal.expectation, Expectation | None):
        _wrong(f"the expectation must be an Expectation, found {proposal.expectation!r:.80}")
    for name in RATES:
        rate = getattr(proposal, name)
        if rate is not None and not _is_finite(rate):
            _wrong(f"{name} must be a finite number, found {rate!r:.80}")
    if proposal.memory is not None:
        _kept(policy, proposal.memory)
    return proposal


def _explained(policy: Policy[Any], proposal: Proposal[Any]) -> None:
    """Raise `_Wrong` for a reason that has no sentence."""
    code, numbers = proposal.code, proposal.numbers
    if code not in policy.reasons:
        _wrong(f"the code {code!r} is not in its reasons, which are {', '.join(sorted(policy.reasons))}")
    for name, value in numbers.items():
        if value is not None and type(value) not in (str, bool) and not _is_finite(value):
            _wrong(f"the value {name!r} must be a text or a finite number, found {value!r:.80}")
    try:
        explained(policy.reasons, policy.name, code, 0, proposal.size, numbers)
    except KeyError as error:
        _wrong(f"the sentence of {code} needs the value {error}, which is not in numbers")
    except (TypeError, ValueError) as error:
        _wrong(f"the values do not fit the sentence of {code}: {error}")


def _kept(policy: Policy[Any], memory: object) -> object:
    """Return a memory that is the same after a restart of the decider."""
    kind: Any = policy.Memory
    if type(memory) is not kind:
        _wrong(f"the memory must be a {kind.__name__}, found {memory!r:.80}")
    try:
        same = read_memory(kind, json.loads(json.dumps(write_memory(memory), allow_nan=False))) == memory
    except (TypeError, ValueError, RecursionError) as error:
        _wrong(f"the memory has no form in JSON: {error}")
    if not same:
        _wrong(f"the memory is another one when it has been written as JSON and read again: {memory!r:.80}")
    return memory


def _is_finite(value: object) -> bool:
    """Return whether a value is a plain number that JSON can hold. One of numpy, for example, is not."""
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)  # type: ignore[arg-type]
