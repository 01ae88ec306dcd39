"""The plan of a job: its spec with the policy and the guards, their options validated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

from tidegate.engine.case import Case, Policy, Proposal
from tidegate.engine.guard import ForcingGuard, Guard
from tidegate.engine.guards import GUARDS
from tidegate.engine.guards.silence import Silence
from tidegate.engine.memory import M
from tidegate.engine.options import BadOption, parse
from tidegate.engine.reasons import Reason
from tidegate.engine.tariff import priced_options
from tidegate.events.job import JobSpec
from tidegate.events.wire import Scalar

Policies = Mapping[str, type[Policy[Any]]]
"""Policies by name."""

PolicyType = Callable[[str], type[Policy[Any]]]
"""Returns the policy of a name, or raises `UnknownPolicy`."""

G = TypeVar("G", bound=Guard)


class UnknownPolicy(ValueError):
    """No policy of that name is installed, or it cannot be used; the text lists those that can."""


@runtime_checkable
class ZeroPolicy(Protocol[M]):
    """What a policy also has that has a rule of its own for jobs that may have no slot: when to start one again.

    It stops a job by proposing 0. For any other policy, the guard `silence` and `tidegate.engine.zero` do both.
    """

    name: ClassVar[str]

    def wake(self, case: Case, memory: M) -> Proposal[M]:
        """Return the size with which a job that was scaled to zero starts; 0 if it stays stopped."""
        ...


@runtime_checkable
class OwnGuardDefaults(Protocol):
    """What a policy also has that does itself what a guard would do for it: other defaults of that guard's options."""

    guard_defaults: ClassVar[Mapping[str, Mapping[str, Scalar]]]
    """By guard, then by option; a spec's own options come first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the snapshots of one job are handled."""

    spec: JobSpec
    policy: Policy[Any]
    guards: tuple[Guard, ...]
    forcing: tuple[ForcingGuard, ...]
    """Those of the guards that may ask for a change of their own."""
    reasons: Mapping[str, Reason]
    """The engine's table of all reason codes."""
    wakes: ZeroPolicy[Any] | None = None
    """The policy, if it says itself when a job is stopped for want of records, and when it starts again."""
    spec_digest: str = ""
    """The checksum of the spec."""


def plan_for(spec: JobSpec, policy_type: PolicyType, reasons: Mapping[str, Reason]) -> Plan:
    """Return the plan of a spec, or raise `BadOption` or `UnknownPolicy`."""
    policy = policy_of(spec, policy_type)
    wakes = policy if isinstance(policy, ZeroPolicy) else None
    asked = [guard for guard in GUARDS if wakes is None or guard is not Silence]
    guards = tuple([guard_of(guard, spec, own_defaults(policy, guard)) for guard in asked])
    forcing = tuple(guard for guard in guards if isinstance(guard, ForcingGuard))
    return Plan(spec, policy, guards, forcing, reasons, wakes, spec.digest)


def policy_of(spec: JobSpec, policy_type: PolicyType) -> Policy[Any]:
    """Return the policy a spec names, with its options, or raise `BadOption` or `UnknownPolicy`."""
    policy: Any = policy_type(spec.scaling.policy)
    given = priced_options(policy.Options, spec.scaling)
    made: Policy[Any] = policy(parse(policy.Options, given, "scaling.policy_options"))
    return made


def own_defaults(policy: object, guard: type[Guard]) -> Mapping[str, Scalar]:
    """Return the defaults of a policy's own for the options of a guard."""
    return policy.guard_defaults.get(guard.name, {}) if isinstance(policy, OwnGuardDefaults) else {}


def guard_of(guard: type[G], spec: JobSpec, defaults: Mapping[str, Scalar] = MappingProxyType({})) -> G:
    """Return a guard with the options that a spec gives it, else those of `defaults`, or raise `BadOption`."""
    return parse(guard, {**defaults, **spec.scaling.guards.get(guard.name, {})}, f"scaling.guards.{guard.name}")


def problems_of(spec: JobSpec, policy_type: PolicyType) -> list[str]:
    """Return every problem of a spec's policy and guards, each with field and value; empty when all is well."""
    problems = []
    policy: Policy[Any] | None = None
    try:
        policy = policy_of(spec, policy_type)
    except BadOption as error:
        problems.append(str(error))
    except UnknownPolicy as error:
        problems.append(f"scaling.policy: {error}")
    known = {guard.name for guard in GUARDS}
    problems += [
        f"scaling.guards.{name}: unknown guard, known are {', '.join(sorted(known))}"
        for name in spec.scaling.guards
        if name not in known
    ]
    for guard in GUARDS:
        try:
            guard_of(guard, spec, own_defaults(policy, guard))
        except BadOption as error:
            problems.append(str(error))
    return problems
