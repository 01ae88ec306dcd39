"""The plan of a job: its policy and guards with their options parsed, made once per spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.case import Forcing, Guard, Policy
from engine.guards import FORCING, GUARDS
from engine.options import parse
from engine.policies import find
from schemas.job import JobSpec

KEPT = 20_000
"""Plans kept; more jobs than this only cost a parse now and then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a job's cases are handled."""

    policy: Policy
    guards: tuple[Guard, ...]
    forces: tuple[Forcing, ...]
    """Those of the guards that may ask for a change of their own."""


_plans: dict[int, tuple[JobSpec, Plan]] = {}


def plan_for(spec: JobSpec) -> Plan:
    """Return the plan of a spec, or raise `BadOption` or `UnknownPolicy`. Only a cache: same spec, same plan."""
    kept = _plans.get(id(spec))
    if kept is not None and kept[0] is spec:
        return kept[1]
    guards = tuple(guard_of(guard, spec) for guard in GUARDS)
    plan = Plan(policy_of(spec), guards, tuple(guard for guard in guards if isinstance(guard, FORCING)))
    if len(_plans) >= KEPT:
        _plans.pop(next(iter(_plans)))
    _plans[id(spec)] = (spec, plan)
    return plan


def policy_of(spec: JobSpec) -> Policy:
    """Return the policy a spec names, with its options, or raise `BadOption` or `UnknownPolicy`."""
    policy: Any = find(spec.scaling.policy)
    made: Policy = policy(parse(policy.Options, spec.scaling.policy_options, "scaling.policy_options"))
    return made


def guard_of(guard: Any, spec: JobSpec) -> Guard:
    """Return a guard with the options a spec gives it, or raise `BadOption`."""
    raw = spec.scaling.guards.get(guard.name, {})
    made: Guard = guard(parse(guard.Options, raw, f"scaling.guards.{guard.name}"))
    return made
