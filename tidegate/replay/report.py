"""The report of a recomputation: a line per job, the totals, and the first differences."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.replay.difference import Difference
from tidegate.replay.recompute import RecomputeResult
from tidegate.replay.recomputer import NotRecomputable
from tidegate.replay.verify import JobTally

SHOWN = 50
"""Most jobs in the table, and in each list after it; those with differences come first."""


def render(result: RecomputeResult) -> str:
    """Return the report of a recomputation."""
    ordered = sorted(result.jobs, key=lambda job: (-job.differing, -sum(job.not_recomputable.values()), job.job_id))
    width = max([3, *(len(job.job_id) for job in ordered[:SHOWN])])
    head = ("decisions", "identical", "differing", "not recomputable", "other version", "repeated", "undecided")
    lines = [f"{'job':{width}}  " + "  ".join(head)]
    for job in ordered[:SHOWN]:
        lost = sum(job.not_recomputable.values())
        cells = (job.decisions, job.identical, job.differing, lost, job.other_version, job.repeated, job.undecided)
        lines.append(
            f"{job.job_id:{width}}  " + "  ".join(f"{n:>{len(name)}}" for n, name in zip(cells, head, strict=True))
        )
    lines += _more(ordered)
    pace = f" ({result.decisions / result.seconds:,.0f} decisions/s)" if result.seconds > 0 else ""
    lines += ["", f"identical {result.identical}/{result.decisions} in {result.seconds:.1f} s{pace}"]
    reset = [job for job in ordered if job.state_resets]
    lines += [f"  {job.job_id} restarted from an empty state {job.state_resets} times" for job in reset[:SHOWN]]
    lines += _more(reset)
    for reason in NotRecomputable:
        if count := result.not_recomputable.get(reason.name):
            lines.append(f"  {count} not recomputable ({reason.name}): {reason.value}")
    if other := sum(job.other_version for job in ordered):
        lines.append(f"  {other} made by another engine version")
    if result.differing:
        lines.append(f"  {result.differing} DIFFERING; the first of each job:")
        differ = [job for job in ordered if job.first]
        lines += [f"    {line}" for job in differ[:SHOWN] if job.first for line in explain(job.first)]
        lines += _more(differ)
    lines += [f"  DAMAGED {line}" for line in result.damaged]
    return "\n".join(lines) + "\n"


def _more(jobs: Sequence[JobTally]) -> list[str]:
    """Return a line that counts the jobs that are not shown, if there are any."""
    return [f"… and {len(jobs) - SHOWN} more jobs"] if len(jobs) > SHOWN else []


def explain(difference: Difference) -> list[str]:
    """Return the lines that describe one difference."""
    lines = [
        f"{difference.job_id}, sequence {difference.sequence}, {difference.place}, decision {difference.decision_id}",
        f"  {difference.path}",
        f"    recorded   {difference.recorded}",
        f"    recomputed {difference.recomputed}",
    ]
    return [*lines, f"    note: {difference.note}"] if difference.note else lines
