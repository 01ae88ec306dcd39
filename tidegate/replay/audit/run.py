"""Runs the checks over one source and counts what each of them found."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.remote.files import Place
from tidegate.replay.audit import facts
from tidegate.replay.audit.checks import AuditCheck, Need, Severity, all_checks
from tidegate.replay.audit.history import JobHistory, histories
from tidegate.replay.audit.ledger import RedisContents, create_ledger
from tidegate.replay.audit.records import AuditRecords
from tidegate.replay.audit.views import EVENTS, computed_once, create_views
from tidegate.replay.cut import logged_runs
from tidegate.replay.source import spark_said

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMED = 100
"""Most findings of a check that are named, and most unprovable things; the others are counted."""

OLDEST_SPARK = 4
"""The first version of Spark on which SQL can define functions, as `views` does."""


class CannotAudit(RuntimeError):
    """The audit cannot run; the text says why."""


class CheckStatus(StrEnum):
    """What came of a check."""

    FAILED = "FAILED"
    WARNED = "warned"
    NOT_PROVABLE = "not provable"
    """Nothing was found, but some of it cannot be proved."""
    NOT_CHECKED = "not checked"
    """What it needs was not given."""
    NOTHING = "nothing to check"
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that a check found, or could not prove."""

    provable: bool
    job: str | None
    place: str
    """Topic, partition and offset, or another place such as a key in Redis."""
    at: datetime | None
    found: str
    expected: str
    count: int = 1
    """How many things of the same kind this stands for."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What came of one check."""

    check: AuditCheck
    status: CheckStatus
    passed: int = 0
    """How many things were as they should be."""
    found: int = 0
    unproved: int = 0
    named: tuple[AuditFinding, ...] = ()
    """What was found, then what could not be proved, the first of each."""
    why: str = ""
    """Why it was not checked."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The outcome of an audit."""

    source: str
    made_at: datetime
    seconds: float
    outcomes: tuple[CheckOutcome, ...]
    records: Mapping[str, int]
    """Number of records by topic."""
    first_at: datetime | None
    last_at: datetime | None
    """Times of the oldest and the newest record."""
    given: tuple[str, ...] = ()
    """What else was given, such as event logs."""
    jobs: tuple[JobHistory, ...] = field(default=())

    def with_status(self, *wanted: CheckStatus) -> list[CheckOutcome]:
        """Return the outcomes with one of these."""
        return [outcome for outcome in self.outcomes if outcome.status in wanted]

    def ok(self, *, strict: bool = False) -> bool:
        """Whether no error was found; strictly, whether everything was checked, proved, and without a warning."""
        if strict:
            return not self.with_status(
                CheckStatus.FAILED, CheckStatus.WARNED, CheckStatus.NOT_PROVABLE, CheckStatus.NOT_CHECKED
            )
        return not self.with_status(CheckStatus.FAILED)


OnProgress = Callable[[str, int, int], None]
"""Called with what is done next, how many steps are done, and how many there are."""


def audit(
    spark: SparkSession,
    records: AuditRecords,
    *,
    event_logs: Place | None = None,
    redis: RedisContents | None = None,
    job: str | None = None,
    checks: Sequence[AuditCheck] | None = None,
    on_progress: OnProgress = lambda _what, _done, _total: None,
) -> AuditResult:
    """Run the checks over records; return what they found.

    Args:
        spark: a session in whose catalog the tables are created.
        records: see `tidegate.replay.audit.records`.
        event_logs: the folder of the jobs' event logs, which Spark's workers read at the same place.
        redis: what is in Redis, read before the records.
        job: only this job's events; the places of all records are checked all the same.
        checks: which checks; all by default.
        on_progress: see `OnProgress`.

    Raises:
        CannotAudit: there are no records, or none of the job, or Spark cannot read them, or is older than 4.0.
    """
    if int(spark.version.split(".")[0]) < OLDEST_SPARK:
        raise CannotAudit(
            f"an audit needs Spark {OLDEST_SPARK}.0 or later, and pyspark is {spark.version} here: "
            f"pip install 'pyspark>={OLDEST_SPARK}.0,<4.3'"
        )
    started = time.monotonic()
    wanted = [
        check
        for check in (all_checks() if checks is None else checks)
        if check.needs is not Need.RECORDING or records.files is not None
    ]
    before = {name: spark.conf.get(name) for name in SETTINGS}
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        running = _Audit(spark, wanted, event_logs, redis, on_progress)
        given = running.prepare(records, job)
        outcomes = running.outcomes()
        found = {name.job for outcome in outcomes for name in outcome.named if name.provable and name.job}
        jobs = histories(spark, first=found)
        counts = {row[0]: row[1] for row in spark.sql("SELECT topic, records FROM kept ORDER BY topic").collect()}
        first, last = spark.sql("SELECT unix_micros(min(at)), unix_micros(max(at)) FROM places").collect()[0]
    except CannotAudit:
        raise
    except Exception as error:
        raise CannotAudit(spark_said(error)) from error
    finally:
        spark.catalog.clearCache()
        records.frame.unpersist()
        for name, value in before.items():
            spark.conf.set(name, value)
    return AuditResult(
        records.name,
        datetime.now(UTC),
        time.monotonic() - started,
        tuple(outcomes),
        counts,
        _instant(first),
        _instant(last),
        given,
        tuple(jobs),
    )


STEPS = 4
"""Steps before the first check."""
PARTITIONS_PER_CORE = 16
"""Most partitions of a shuffle per core."""
RECORDS_PER_PARTITION = 50_000
FEW_RECORDS = 200_000
COPIED_RECORDS = 50_000
"""Up to so many, the audit holds the records in memory, in two copies."""
AT_ONCE = 3
"""Checks that run at the same time."""
SETTINGS = (
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.codegen.wholeStage",
    "spark.sql.codegen.factoryMode",
    "spark.sql.adaptive.enabled",
)
"""What an audit sets in its session, and sets back."""


class _Audit:
    """An audit that is running: what it was given, and how far it is."""

    def __init__(
        self,
        spark: SparkSession,
        checks: Sequence[AuditCheck],
        event_logs: Place | None,
        redis: RedisContents | None,
        on_progress: OnProgress,
    ) -> None:
        self.spark, self.checks, self.event_logs, self.redis = spark, checks, event_logs, redis
        self._on_progress = on_progress

    def _tell(self, what: str, done: int) -> None:
        self._on_progress(what, done, STEPS + len(self.checks))

    def prepare(self, records: AuditRecords, job: str | None) -> tuple[str, ...]:
        """Create the tables; return what was given besides the records."""
        self._tell("reading the records", 0)
        count = records.frame.count()
        if not count:
            raise CannotAudit(f"{records.name}: there are no records to audit")
        cores = self.spark.sparkContext.defaultParallelism
        partitions = min(PARTITIONS_PER_CORE * cores, max(cores, count // RECORDS_PER_PARTITION))
        self.spark.conf.set("spark.sql.shuffle.partitions", partitions)
        # On a short history, compiling each query and planning it again takes longer than running it.
        is_long = count > FEW_RECORDS
        self.spark.conf.set("spark.sql.codegen.wholeStage", is_long)
        self.spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if is_long else "NO_CODEGEN")
        self.spark.conf.set("spark.sql.adaptive.enabled", is_long)
        copied = count <= COPIED_RECORDS
        if copied:  # a plan of one step and a few tasks, for all queries of the records
            records = replace(records, frame=computed_once(records.frame.coalesce(partitions)))
        create_views(self.spark, records, facts.unreadable(self.spark, records.frame), job, copied=copied)
        if job is not None and all(self.spark.table(view).isEmpty() for view in EVENTS):
            raise CannotAudit(f"{records.name}: there are no events of job {job!r} to audit")
        facts.create_specs(self.spark, job)
        facts.create_files(self.spark, records)
        given = []
        self._tell("recomputing every decision", 1)
        facts.create_recomputed(self.spark, records.frame, job)
        self._tell("cutting snapshots from event logs", 2)
        if self.event_logs is not None:
            facts.create_cuts(self.spark, records.frame, logged_runs(self.event_logs), job)
            given.append(f"event logs in {self.event_logs}")
        self._tell("comparing Redis", 3)
        if self.redis is not None:
            create_ledger(self.spark, self.redis, job)
            given.append("Redis")
        return tuple(given)

    def outcomes(self) -> list[CheckOutcome]:
        """Run the checks, a few at a time: while one is planned, others are computed."""
        found: dict[AuditCheck, CheckOutcome] = {}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="check") as pool:
            running = {pool.submit(_run, self.spark, check, self._missing(check)): check for check in self.checks}
            try:
                for done, future in enumerate(as_completed(running), STEPS + 1):
                    found[running[future]] = future.result()
                    self._tell(running[future].title, done)
            finally:
                pool.shutdown(cancel_futures=True)
        return [found[check] for check in self.checks]

    def _missing(self, check: AuditCheck) -> str | None:
        """Return why a check cannot run, or None."""
        if check.needs is Need.EVENT_LOGS and self.event_logs is None:
            return "no event logs were given (--event-logs DIR)"
        if check.needs is Need.REDIS and self.redis is None:
            return "no Redis was given (--redis URL)"
        return None


def _run(spark: SparkSession, check: AuditCheck, missing: str | None) -> CheckOutcome:
    if missing is not None:
        return CheckOutcome(check, CheckStatus.NOT_CHECKED, why=missing)
    rows = spark.sql(check.sql)
    by_verdict = rows.groupBy("verdict")
    counted = by_verdict.agg({"n": "sum"}) if "n" in rows.columns else by_verdict.count()
    counts = {verdict: int(count or 0) for verdict, count in counted.collect()}
    if unknown := counts.keys() - {"ok", "finding", "not provable"}:
        raise CannotAudit(f"{check.name}.sql: unknown verdict {', '.join(map(str, unknown))}")
    passed, found, unproved = (counts.get(verdict, 0) for verdict in ("ok", "finding", "not provable"))
    named = [each for verdict in ("finding", "not provable") if counts.get(verdict) for each in _named(rows, verdict)]
    if found:
        status = CheckStatus.FAILED if check.severity is Severity.ERROR else CheckStatus.WARNED
    elif unproved:
        status = CheckStatus.NOT_PROVABLE
    else:
        status = CheckStatus.PASSED if passed else CheckStatus.NOTHING
    return CheckOutcome(check, status, passed, found, unproved, tuple(named))


def _named(rows: DataFrame, verdict: str) -> list[AuditFinding]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    count = f.col("n") if "n" in rows.columns else f.lit(1)
    some = (
        rows.where(f.col("verdict") == verdict)
        .orderBy("at", "topic", "partition", "offset", "found")
        .limit(NAMED)
        .select("job", "topic", "partition", "offset", f.unix_micros("at"), "found", "expected", count)
    )
    return [
        AuditFinding(
            verdict == "finding", job, place_of(topic, partition, offset), _instant(at), found or "", expected or "", n
        )
        for job, topic, partition, offset, at, found, expected, n in some.collect()
    ]


def place_of(topic: str | None, partition: int | None, offset: int | None) -> str:
    """Return a place as text, such as `decisions, partition 3, offset 17`."""
    where = [topic] if topic else []
    where += [f"{name} {at}" for name, at in (("partition", partition), ("offset", offset)) if at is not None]
    return ", ".join(where)


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)
