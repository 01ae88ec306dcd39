"""What the status of a StreamingJob says: the newest decision in the words of `tidegate why`, and conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from services.operator.resource import StreamingJob
from tidegate.events.decision import CHANGING, Status
from tidegate.fleet.changes import result_in_words
from tidegate.fleet.fleet import FleetJob, Trouble
from tidegate.launcher.control.config_map import JOB_LABEL
from tidegate.launcher.kubernetes.pods import ROLE_LABEL
from tidegate.words import size

KEEPS_UP = CHANGING | {Status.FINE}
"""Statuses of a job that nobody has to look at."""

LONGEST_MESSAGE = 32768
"""What Kubernetes takes in a condition: it would refuse the whole status for a longer one."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; `status` is None while it is not known."""

    kind: str
    status: bool | None
    reason: str
    message: str


def status_of(
    sj: StreamingJob, job: FleetJob | None, conditions: Iterable[Condition], now: datetime, **applied: Any
) -> dict[str, Any]:
    """Return the whole status; `applied` are fields that say what was taken over."""
    kept = {name: sj.status[name] for name in ("appliedSpec", "appliedSlots") if name in sj.status}
    return {
        "observedGeneration": sj.generation,
        "selector": f"{ROLE_LABEL}=executor,{JOB_LABEL}={sj.name}",
        **kept,
        **applied,
        **(_of_job(job) if job is not None else {}),
        "conditions": _conditions(sj, conditions, now),
    }


def _of_job(job: FleetJob) -> dict[str, Any]:
    """Return what the topics say of a job."""
    status: dict[str, Any] = {"version": job.spec.version}
    if job.state is not None:
        status["state"] = job.state.value
    if (decision := job.decision) is not None:
        if decision.size_is_known:
            status |= {"slots": decision.current_parallelism, "target": decision.final_parallelism}
        status |= {
            "status": decision.status.value,
            "why": decision.sentence,
            "lastDecision": {
                "id": decision.decision_id,
                "sequence": decision.sequence,
                "at": moment(decision.decided_at),
            },
        }
    if (result := job.last_result) is not None:
        words = result_in_words(result, size(result.parallelism))
        status["lastChange"] = {"phase": result.phase.value, "at": moment(result.at), "message": words}
    return status


def healthy(job: FleetJob | None, now: datetime) -> Condition:
    """Return whether decisions are fresh and the job keeps up."""
    if job is None or job.decision is None:
        text = "There is no decision on the job yet; collector and decider must run."
        return Condition("Healthy", status=None, reason="NoDecision", message=text)
    decision, trouble = job.decision, job.trouble(now)
    if trouble is Trouble.FAILED:
        return Condition("Healthy", status=False, reason="JobFailed", message=decision.sentence)
    if trouble is Trouble.SILENT:
        text = f"The newest decision is of {moment(decision.decided_at)}; look whether collector and decider run."
        return Condition("Healthy", status=None, reason="DecisionsStopped", message=text)
    keeps_up = None if decision.status is Status.UNKNOWN else decision.status in KEEPS_UP
    return Condition("Healthy", status=keeps_up, reason=camel(decision.status.value), message=decision.sentence)


def _conditions(sj: StreamingJob, conditions: Iterable[Condition], now: datetime) -> list[dict[str, Any]]:
    """Return conditions as Kubernetes keeps them; the time is that of the last change of the status."""
    before: dict[str, Mapping[str, Any]] = {one["type"]: one for one in sj.status.get("conditions", ())}
    made = []
    for condition in conditions:
        known = before.get(condition.kind, {})
        word = "Unknown" if condition.status is None else str(condition.status)
        message = condition.message
        if len(message) > LONGEST_MESSAGE:
            message = message[: LONGEST_MESSAGE - 1] + "…"
        made.append(
            {
                "type": condition.kind,
                "status": word,
                "observedGeneration": sj.generation,
                "lastTransitionTime": known["lastTransitionTime"] if known.get("status") == word else moment(now),
                "reason": condition.reason,
                "message": message,
            }
        )
    return made


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which a status differs from the one before; None for one that is gone."""
    different = {name: value for name, value in now.items() if before.get(name) != value}
    return different | dict.fromkeys(before.keys() - now.keys())


def moment(instant: datetime) -> str:
    """Return an instant as Kubernetes writes it, in seconds."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def camel(word: str) -> str:
    """Return `SOME_WORDS` as `SomeWords`, as the reasons of conditions are written."""
    return "".join(part.capitalize() for part in word.split("_"))
