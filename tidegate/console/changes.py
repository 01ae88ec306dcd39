"""What an operator's form asks for, as the next version of a spec. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from tidegate.console.access import Person
from tidegate.console.numbers import whole_number
from tidegate.events.job import JobSpec, Mode, SpecChange
from tidegate.operate import with_mode, with_size
from tidegate.words import size

MODES = {"pause": Mode.PAUSED, "resume": Mode.ACTIVE, "advise": Mode.ADVISE}
IN_WORDS = {
    "pause": "is paused and keeps its size",
    "resume": "is scaled again",
    "advise": "is only advised: Tidegate decides, but changes nothing",
}


class SpecMoved(ValueError):
    """Somebody else changed the spec after the operator had seen it."""


def asked_version(spec: JobSpec, form: Mapping[str, str], person: Person, at: datetime) -> tuple[JobSpec, str]:
    """Return the next version of a spec, and a sentence about it.

    Raises `ValueError` with what is wrong with the form; pydantic's error for a field that no event may hold.
    """
    action, reason = form.get("action", ""), form.get("reason", "").strip()
    if form.get("version", str(spec.version)) != str(spec.version):
        raise SpecMoved(f"{spec.job_id} has changed since you loaded the page. Look at it again, then decide.")
    if not reason:
        raise ValueError("Give a reason: it is recorded with the change.")
    change = SpecChange(by=person.name, reason=reason, at=at)
    if action in MODES:
        return with_mode(spec, MODES[action], change), f"{spec.job_id} {IN_WORDS[action]}."
    if action != "scale":
        raise ValueError(f"{action!r} is not something to do with a job.")
    given = form.get("slots", "").strip()
    slots = whole_number(given)
    if slots is None:
        raise ValueError(f"{given!r:.40} is not a number of slots.")
    lowest, highest = spec.scaling.min_parallelism, spec.scaling.max_parallelism
    done = f"Asked for {size(slots)}. The guards still apply: the next decisions say what comes of it."
    if not lowest <= slots <= highest:
        done += f" The spec limits {spec.job_id} to {lowest} to {highest} slots."
    return with_size(spec, slots, reason, at, change), done
