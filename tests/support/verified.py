"""Records of one job, verified as `replay recompute` does it, but without Spark."""

from __future__ import annotations

from tidegate.installed import engine
from tidegate.replay.verify import JobTally, JobVerifier

Rows = list[tuple[int, int, int, bytes]]
"""(sequence, 0 for a snapshot and 1 for a decision, offset, value)."""


def verified(records: Rows, job: str) -> JobTally:
    """Verify records after sorting them as Spark does."""
    verifier = JobVerifier(job, engine())
    for sequence, kind, offset, value in sorted(records):
        if kind:
            verifier.decision(value, f"partition 0, offset {offset}")
        else:
            verifier.snapshot(sequence, value)
    return verifier.tally()
