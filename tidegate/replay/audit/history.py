"""What happened to each job, for the report: its size over time, its commands, and what operators asked for.

Who ordered a command: the policy, or the operator who asked for the spec version with the request.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

JOBS = 50
"""Most jobs with a history in the report; those with findings come first."""
EACH = 200
"""Most commands, requests and changes of size that are shown of a job: the newest."""


@dataclass(frozen=True, slots=True)
class CommandTaken:
    """One command, and what became of it."""

    at: datetime
    ended_at: datetime | None
    kind: str
    before: int
    after: int
    way: str
    who: str
    why: str
    outcome: str
    evidence: str
    """Places of its decision, its own and its results'."""


@dataclass(frozen=True, slots=True)
class SpecAsked:
    """One version of a spec."""

    at: datetime
    version: int
    who: str
    why: str
    what: str
    evidence: str


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What happened to one job."""

    job: str
    first_at: datetime
    last_at: datetime
    decisions: int
    sizes: tuple[tuple[datetime, int], ...]
    """When the decisions saw another size, and which."""
    commands: tuple[CommandTaken, ...]
    specs: tuple[SpecAsked, ...]
    left_out: int
    """Older commands that are not shown."""


SPANS = """
SELECT job_id, unix_micros(min(decided_at)), unix_micros(max(decided_at)), count(*) FROM decisions GROUP BY job_id
ORDER BY job_id
"""
SIZES = """
SELECT job_id, unix_micros(decided_at), current_parallelism FROM (
  SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY sequence DESC) AS number FROM (
    SELECT *, lag(current_parallelism) OVER (PARTITION BY job_id ORDER BY sequence, offset) AS before
    FROM decisions WHERE job_id IN ({jobs})
  ) WHERE before IS NULL OR before <> current_parallelism
) WHERE number <= {each} ORDER BY job_id, decided_at
"""
COMMANDS = """
SELECT command.job_id, unix_micros(issued_at), unix_micros(ended_at), kind, from_parallelism, to_parallelism,
  coalesce(done.way, command.way, ''),
  CASE WHEN manual THEN coalesce(spec.changed_by, 'an operator') ELSE concat('Tidegate, policy ', decision.policy) END,
  CASE WHEN manual THEN concat(coalesce(concat(spec.changed_reason, '. '), ''), reason) ELSE reason END,
  coalesce(concat(done.phase, CASE WHEN code <> 'OK' THEN concat(' (', code, '): ', sentence) ELSE '' END),
    'no result'),
  concat_ws('; ', concat('decisions ', decision.partition, '/', decision.offset),
    concat('commands ', command.partition, '/', command.offset),
    concat('results ', done.partition, '/', done.first_offset, '-', done.last_offset)),
  command.times
FROM (
  SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY issued_at DESC) AS number,
    count(*) OVER (PARTITION BY job_id) AS times
  FROM commands WHERE job_id IN ({jobs})
) AS command
LEFT JOIN (
  SELECT decision_id, any_value(policy) AS policy, min(partition) AS partition, min(offset) AS offset
  FROM decisions WHERE command IS NOT NULL GROUP BY decision_id
) AS decision ON decision.decision_id = command.command_id
LEFT JOIN (
  SELECT command_id, max_by(phase, offset) AS phase, max_by(code, offset) AS code, max_by(sentence, offset) AS sentence,
    max_by(way, offset) AS way, max(done_at) AS ended_at, min(partition) AS partition, min(offset) AS first_offset,
    max(offset) AS last_offset
  FROM results GROUP BY command_id
) AS done ON done.command_id = command.command_id
LEFT JOIN spec_versions AS spec ON spec.job_id = command.job_id AND spec.version = command.spec_version
  AND issued_at >= spec.since AND issued_at < spec.until
WHERE command.number <= {each} ORDER BY command.job_id, issued_at
"""
ASKED = """
SELECT job_id, unix_micros(at), version, coalesce(changed_by, 'not named'), coalesce(changed_reason, ''), control,
  concat(topic, ' ', partition, '/', offset)
FROM (SELECT *, row_number() OVER (PARTITION BY job_id ORDER BY at DESC, version DESC) AS number FROM spec_versions
  WHERE job_id IN ({jobs}))
WHERE number <= {each} ORDER BY job_id, at, version
"""


def histories(spark: SparkSession, first: Collection[str]) -> list[JobHistory]:
    """Return what happened to each job, from the tables of the audit; the jobs in `first` come first."""
    spans = {job: rest for job, *rest in spark.sql(SPANS).collect()}
    jobs = sorted(spans, key=lambda job: (job not in first, job))[:JOBS]
    if not jobs:
        return []
    names = ", ".join(f"'{job}'" for job in jobs)
    sizes, commands, asked = (
        _by_job(spark.sql(query.format(jobs=names, each=EACH)).collect()) for query in (SIZES, COMMANDS, ASKED)
    )
    made = []
    for job in jobs:
        began, ended, decisions = spans[job]
        rows = commands.get(job, [])
        made.append(
            JobHistory(
                job,
                _instant(began),
                _instant(ended),
                decisions,
                tuple((_instant(at), int(size)) for _, at, size in sizes.get(job, [])),
                tuple(_command(row) for row in rows),
                tuple(SpecAsked(_instant(at), *rest) for _, at, *rest in asked.get(job, [])),
                max(0, rows[0][-1] - len(rows)) if rows else 0,
            )
        )
    return made


def _by_job(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def _command(row: Row) -> CommandTaken:
    _, at, ended, *rest, _ = row
    return CommandTaken(_instant(at), None if ended is None else _instant(ended), *rest)


def _instant(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)
