"""The engine: `tide`, the guards, and the policies it was given, ready to decide for any spec."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from tidegate.engine.case import Policy
from tidegate.engine.decide import step
from tidegate.engine.guards import GUARDS
from tidegate.engine.memory import memory_readers
from tidegate.engine.options import option_model
from tidegate.engine.plan import Plan, Policies, UnknownPolicy, plan_for, problems_of
from tidegate.engine.reasons import Reason, merge
from tidegate.engine.round import Round, decision_round
from tidegate.engine.state import JobState
from tidegate.engine.supervisor import SUPERVISOR_REASONS
from tidegate.engine.tide.policy import Tide
from tidegate.events.decision import Decision, Observed
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot

PLANS_KEPT: Final = 20_000
"""Plans kept; with more jobs than this, some plans are made more than once."""


class Engine:
    """Decides on snapshots with a fixed set of policies. Deterministic: the same arguments give the same bytes."""

    def __init__(self, policies: Policies, unusable: Mapping[str, str] = MappingProxyType({})) -> None:
        """Take the policies besides `tide`, by name; and of each one that cannot be used, why.

        Raises `ValueError` for a reason code with two meanings, `TypeError` for a memory without a JSON form, or for
        options that are none.
        """
        self.policies: Policies = {Tide.name: Tide, **policies}
        self._unusable = unusable
        guards = (guard.reasons for guard in GUARDS)
        ours = (policy.reasons for policy in self.policies.values())
        self.reasons: Mapping[str, Reason] = merge((SUPERVISOR_REASONS, *guards, *ours))
        for policy in self.policies.values():
            memory_readers(policy.Memory)
            option_model(policy.Options)
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
        plan = plan_for(spec, self.policy_type, self.reasons)
        if len(self._plans) >= PLANS_KEPT:
            self._plans.pop(next(iter(self._plans)))
        self._plans[id(spec)] = plan
        return plan

    def keep(self, specs: Collection[JobSpec]) -> None:
        """Forget the plans of other specs, such as former versions, once there are more plans than `specs`.

        Whoever decides for months would keep `PLANS_KEPT` versions otherwise, each with its spec.
        """
        if len(self._plans) > len(specs):
            self._plans = {id(spec): plan for spec in specs if (plan := self._plans.get(id(spec))) is not None}

    def policy_type(self, name: str) -> type[Policy[Any]]:
        """Return the policy of a name, or raise `UnknownPolicy`, which says why there is none and names the others."""
        policy = self.policies.get(name)
        if policy is None:
            known = ", ".join(sorted(self.policies))
            if name in self._unusable:
                raise UnknownPolicy(f"{self._unusable[name]}. Until that is corrected, choose from {known}")
            raise UnknownPolicy(f"unknown policy {name!r}, known are {known}")
        return policy

    def check(self, spec: JobSpec) -> list[str]:
        """Return every problem of a spec's policy and guards, each with field and value; empty when all is well."""
        return problems_of(spec, self.policy_type)
