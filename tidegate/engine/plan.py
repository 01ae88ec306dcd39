"""The plan of a job: its spec with the policy and the guards it names, their options parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.engine.case import Forcing, Guard, Policy
from tidegate.engine.guards import FORCING, GUARDS
from tidegate.engine.options import parse
from tidegate.events.job import JobSpec

Policies = Mapping[str, type[Policy[Any]]]
"""Policies by name."""


class UnknownPolicy(ValueError):
    """No policy of that name is installed; the text lists those that are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the snapshots of one job are handled."""

    spec: JobSpec
    policy: Policy[Any]
    guards: tuple[Guard, ...]
    forces: tuple[Forcing, ...]
    """Those of the guards that may ask for a change of their own."""


def plan_for(spec: JobSpec, policies: Policies) -> Plan:
    """Return the plan of a spec, or raise `BadOption` or `UnknownPolicy`."""
    guards = tuple(guard_of(guard, spec) for guard in GUARDS)
    return Plan(spec, policy_of(spec, policies), guards, tuple(guard for guard in guards if isinstance(guard, FORCING)))


def policy_of(spec: JobSpec, policies: Policies) -> Policy[Any]:
    """Return the policy a spec names, with its options, or raise `BadOption` or `UnknownPolicy`."""
    name = spec.scaling.policy
    policy: Any = policies.get(name)
    if policy is None:
        raise UnknownPolicy(f"unknown policy {name!r}, known are {', '.join(sorted(policies))}")
    made: Policy[Any] = policy(parse(policy.Options, spec.scaling.policy_options, "scaling.policy_options"))
    return made


def guard_of(guard: Any, spec: JobSpec) -> Guard:
    """Return a guard with the options a spec gives it, or raise `BadOption`."""
    raw = spec.scaling.guards.get(guard.name, {})
    made: Guard = guard(parse(guard.Options, raw, f"scaling.guards.{guard.name}"))
    return made
