"""Checking what only the engine knows of a spec: whether policy and guards exist, and whether their options fit."""

from __future__ import annotations

from engine.guards import BY_NAME, GUARDS
from engine.options import BadOption
from engine.plan import guard_of, policy_of
from engine.policies import UnknownPolicy
from schemas.job import JobSpec


def check_spec(spec: JobSpec) -> list[str]:
    """Return the problems of a spec's policy and guards, each with field and value; empty when all is well."""
    problems = []
    try:
        policy_of(spec)
    except BadOption as error:
        problems.append(str(error))
    except UnknownPolicy as error:
        problems.append(f"scaling.policy: {error}")
    problems += [
        f"scaling.guards.{name}: unknown guard, known are {', '.join(sorted(BY_NAME))}"
        for name in spec.scaling.guards
        if name not in BY_NAME
    ]
    for guard in GUARDS:
        try:
            guard_of(guard, spec)
        except BadOption as error:
            problems.append(str(error))
    return problems
