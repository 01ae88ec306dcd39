"""The engine: `tide`, the guards, and the policies it was given, ready to decide for any spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.engine.case import Policy
from tidegate.engine.decide import step
from tidegate.engine.guards import BY_NAME, GUARDS
from tidegate.engine.memory import memory_readers
from tidegate.engine.options import BadOption
from tidegate.engine.plan import Plan, Policies, UnknownPolicy, guard_of, plan_for, policy_of
from tidegate.engine.reasons import register
from tidegate.engine.round import Round, decision_round
from tidegate.engine.state import JobState
from tidegate.engine.tide.policy import Tide
from tidegate.events.decision import Decision, Observed
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot

PLANS_KEPT = 20_000
"""Plans kept; with more jobs than this, a plan is sometimes made again."""


class Engine:
    """Decides on snapshots with a fixed set of policies. Deterministic: the same arguments give the same bytes."""

    def __init__(self, policies: Mapping[str, type[Policy[Any]]]) -> None:
        """Take the policies besides `tide`, by name.

        Raises `ValueError` if two give one reason code two meanings, `TypeError` for a memory without a JSON form.
        """
        self.policies: Policies = {Tide.name: Tide, **policies}
        for policy in self.policies.values():
            register(policy.reasons)
            memory_readers(policy.Memory)
        self._plans: dict[int, Plan] = {}

    def step(
        self, state: JobState, snapshot: MetricSnapshot, spec: JobSpec, observed: Observed
    ) -> tuple[JobState, Decision]:
        """Decide on one snapshot; see `tidegate.engine.decide.step`."""
        return step(state, snapshot, self.plan(spec), observed)

    def round(self, state: JobState, snapshot: MetricSnapshot, spec: JobSpec, known: Observed) -> Round:
        """Start a decision round on one snapshot; see `tidegate.engine.round.decision_round`."""
        return decision_round(state, snapshot, self.plan(spec), known)

    def plan(self, spec: JobSpec) -> Plan:
        """Return the plan of a spec, made once, or raise `BadOption` or `UnknownPolicy`."""
        kept = self._plans.get(id(spec))
        if kept is not None and kept.spec is spec:
            return kept
        plan = plan_for(spec, self.policies)
        if len(self._plans) >= PLANS_KEPT:
            self._plans.pop(next(iter(self._plans)))
        self._plans[id(spec)] = plan
        return plan

    def check(self, spec: JobSpec) -> list[str]:
        """Return the problems of a spec's policy and guards, each with field and value; empty when all is well."""
        problems = []
        try:
            policy_of(spec, self.policies)
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
