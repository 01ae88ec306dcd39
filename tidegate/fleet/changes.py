"""What a change of size has cost, in words. Pure."""

from __future__ import annotations

from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way

HOW = {Way.IN_PLACE: "in place", Way.HANDOVER: "by handover", Way.RESTART: "by restart"}
NOTICED_SECONDS = 0.05
"""A shorter outage is shown as none."""


def cost_in_words(result: ActionResult) -> str:
    """Return how the size was changed and what that cost; empty for a result that does not say."""
    said = []
    if result.delay_seconds is not None:
        until = "the job went on" if result.phase is Phase.ROLLED_BACK else "the new size worked"
        said.append(f"{result.delay_seconds:.1f} s until {until}")
    if result.outage_seconds is not None:
        said.append(
            f"outage {result.outage_seconds:.1f} s" if result.outage_seconds >= NOTICED_SECONDS else "no outage"
        )
    if result.downtime_seconds is not None and result.way is not Way.IN_PLACE:
        said.append(f"downtime {result.downtime_seconds:.1f} s")
    if not said:
        return ""
    how = f"{HOW[result.way]}: " if result.way is not None else ""
    return how + ", ".join(said)


def result_in_words(result: ActionResult, size: str) -> str:
    """Return a result's sentence, or its size where it has none, and what the change has cost."""
    cost = cost_in_words(result)
    return (result.sentence or size) + (f" ({cost})" if cost else "")
