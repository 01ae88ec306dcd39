"""Redis as it is, compared with what the topics say should be in it.

Redis is read before the topics, so whatever it holds is on the topics by then. What was ordered shortly before or after
that moment may be on its way in either direction, and is not provable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.engine.reservations import Hold, holds_in_force
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.runtime.ledger import COOLDOWN, FENCE, POOL, fence_key, view_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = "kind STRING, job_id STRING, key STRING, verdict STRING, live STRING, rebuilt STRING"
UNDER_WAY_SECONDS = 10.0
"""How long before Redis was read a command may have been ordered whose reservation is still on its way."""
SAME_SECONDS = 0.001

YOUNG = """
SELECT command.command_id FROM commands AS command
LEFT JOIN spec_versions AS spec ON spec.job_id = command.job_id AND spec.version = command.spec_version
WHERE unix_seconds(command.issued_at) > {at} - coalesce(spec.holds_seconds, 86400) - 60
"""
"""The commands that may still hold something."""
VALUES = """
SELECT CAST(value AS STRING) AS value FROM records AS record JOIN {view} AS event USING (topic, partition, offset)
WHERE event.command_id IN (SELECT command_id FROM young) ORDER BY partition, offset
"""

LedgerRow = tuple[str, str, str, str, str, str]
"""Kind, job, key, verdict, as in Redis, as the topics give it."""


class ReadsRedis(Protocol):
    """What is needed of a Redis client that decodes its answers."""

    def scan_iter(self, match: str) -> Iterable[Any]:
        """Return the keys that match."""

    def get(self, name: str) -> Any:
        """Return a string."""

    def hgetall(self, name: str) -> Any:
        """Return a hash."""

    def exists(self, name: str) -> Any:
        """Return whether a key exists."""


@dataclass(frozen=True, slots=True)
class RedisContents:
    """All that Tidegate keeps in Redis under one prefix, at one moment."""

    prefix: str
    at: float
    """Epoch seconds."""
    complete: bool
    """Whether cooldowns and slots are complete; they are not while they are being rebuilt."""
    cooldowns: Mapping[str, tuple[str, float]]
    """By job: decision, until."""
    slots: Mapping[tuple[str, str], tuple[str, float, int]]
    """By pool and job: decision, until, slots."""
    fences: Mapping[str, int]
    """By job: epoch."""
    tag: str = ""
    """How the names of cooldowns and slots end."""


def read_redis(client: ReadsRedis, prefix: str, now: datetime) -> RedisContents:
    """Return what is in Redis; raises redis' errors, and `ValueError` or `KeyError` for a key that is damaged."""
    cooldowns, slots, fences = {}, {}, {}
    marker = client.get(view_key(prefix))
    tag = str(dict(json.loads(marker)).get("tag", "")) if marker else ""
    for key, job in _named(client, prefix + COOLDOWN, tag):
        if raw := client.get(key):
            entry = json.loads(raw)
            cooldowns[job] = str(entry["decision_id"]), float(entry["until"])
    for key, pool in _named(client, prefix + POOL, tag):
        for job, raw in client.hgetall(key).items():
            entry = json.loads(raw)
            slots[pool, job] = str(entry["decision_id"]), float(entry["until"]), int(entry["slots"])
    for key, job in _named(client, prefix + FENCE, ""):
        if held := client.hgetall(key):
            fences[job] = int(held["epoch"])
    complete = bool(marker and client.exists(view_key(prefix)))
    return RedisContents(prefix, now.timestamp(), complete, cooldowns, slots, fences, tag)


def _named(client: ReadsRedis, start: str, tag: str) -> Iterator[tuple[str, str]]:
    """Return the keys that begin so and end with the tag, each with what is between, which has no braces."""
    for key in client.scan_iter(match=f"{start}*"):
        name = key.removeprefix(start)
        if name.endswith(tag) and "{" not in name.removesuffix(tag):
            yield key, name.removesuffix(tag)


def create_ledger(spark: SparkSession, contents: RedisContents, job: str | None) -> None:
    """Create `ledger` from Redis and the tables of commands, results and specs."""
    commands, results = _under_way(spark, contents.at)
    specs = specs_of(spark, commands)
    rows = [*compare_holds(contents, commands, results, specs), *compare_fences(contents, _epochs(spark))]
    rows = [row for row in rows if job in (None, row[1])]
    spark.createDataFrame(rows, LEDGER).createOrReplaceTempView("ledger")


def compare_holds(
    contents: RedisContents,
    commands: Iterable[ScalingCommand],
    results: Iterable[ActionResult],
    spec_of: Callable[[ScalingCommand], JobSpec | None],
) -> Iterator[LedgerRow]:
    """Compare cooldowns and slots with those that commands and results give."""
    ordered = [command for command in commands if command.issued_at.timestamp() <= contents.at]
    newest = {command.job_id: command for command in ordered}
    now = datetime.fromtimestamp(contents.at, UTC)
    holds = {hold.job_id: hold for hold in holds_in_force(ordered, results, lambda job: spec_of(newest[job]), now)}
    young = {job for job, command in newest.items() if contents.at - command.issued_at.timestamp() < UNDER_WAY_SECONDS}
    for kind, live, rebuilt in (
        ("cooldown", _live_cooldowns(contents), _cooldowns(holds.values(), contents.at)),
        ("pool", _live_slots(contents), _slots(holds.values(), contents.at)),
    ):
        for key in sorted(live.keys() | rebuilt.keys()):
            job = key[-1]
            there, given = live.get(key), rebuilt.get(key)
            verdict = "ok" if _same(there, given) else "finding"
            if verdict != "ok" and (job in young or not contents.complete):
                verdict = "not provable"
            name = contents.prefix + (COOLDOWN + job if kind == "cooldown" else POOL + key[0]) + contents.tag
            yield kind, job, name, verdict, _told(there), _told(given)


_Held = tuple[str, float]
"""Decision, and until when."""


def _live_cooldowns(contents: RedisContents) -> dict[tuple[str, ...], _Held]:
    return {(job,): held for job, held in contents.cooldowns.items() if held[1] > contents.at}


def _live_slots(contents: RedisContents) -> dict[tuple[str, ...], _Held]:
    return {key: held[:2] for key, held in contents.slots.items() if held[1] > contents.at and held[2] > 0}


def _cooldowns(holds: Iterable[Hold], at: float) -> dict[tuple[str, ...], _Held]:
    return {(hold.job_id,): (hold.decision_id, hold.cooldown_until) for hold in holds if hold.cooldown_until > at}


def _slots(holds: Iterable[Hold], at: float) -> dict[tuple[str, ...], _Held]:
    return {
        (hold.pool_id, hold.job_id): (hold.decision_id, hold.slots_until)
        for hold in holds
        if hold.slots_until > at and hold.slots > 0
    }


def _same(there: _Held | None, given: _Held | None) -> bool:
    return there is not None and given is not None and there[0] == given[0] and abs(there[1] - given[1]) <= SAME_SECONDS


def _told(held: _Held | None) -> str:
    if held is None:
        return "nothing"
    return f"decision {held[0]} until {datetime.fromtimestamp(held[1], UTC):%Y-%m-%d %H:%M:%S.%f}"


def compare_fences(contents: RedisContents, epochs: Mapping[str, tuple[int | None, int | None]]) -> Iterator[LedgerRow]:
    """Compare fences with `epochs`: by job, the highest that surely took the fence, and the highest accepted."""
    for job in sorted(contents.fences.keys() | epochs.keys()):
        fence, (taken, accepted) = contents.fences.get(job), epochs.get(job, (None, None))
        if fence is None:
            verdict = "ok" if taken is None else "not provable"
        else:
            verdict = "ok" if accepted is not None and (taken or 0) <= fence <= accepted else "finding"
        rebuilt = "no fence" if accepted is None else f"epoch {accepted if taken is None else taken} to {accepted}"
        live = "nothing" if fence is None else f"epoch {fence}"
        yield "fence", job, fence_key(contents.prefix, job), verdict, live, rebuilt


def _under_way(spark: SparkSession, at: float) -> tuple[list[ScalingCommand], list[ActionResult]]:
    """Return the commands that may still hold something, oldest first, and their results."""
    spark.sql(YOUNG.format(at=at)).createOrReplaceTempView("young")
    commands = [_event(ScalingCommand, row[0]) for row in spark.sql(VALUES.format(view="commands")).collect()]
    results = [_event(ActionResult, row[0]) for row in spark.sql(VALUES.format(view="results")).collect()]
    ordered = sorted((each for each in commands if each), key=lambda command: command.issued_at)
    return ordered, [each for each in results if each]


def _event(model: Any, text: str) -> Any:
    try:
        return decode(model, text.encode())
    except Unreadable:
        return None


def specs_of(spark: SparkSession, commands: Iterable[ScalingCommand]) -> Callable[[ScalingCommand], JobSpec | None]:
    """Return the spec of the version that a command was decided on, as Redis was written with it.

    A version may have several texts, each for a time: of a job that was removed and added again.
    """
    wanted = {(command.job_id, command.spec_version) for command in commands}
    jobs = ", ".join(sorted({repr(job) for job, _ in wanted})) or "NULL"
    columns = "job_id, version, text, unix_micros(since), unix_micros(until)"
    rows = spark.sql(f"SELECT {columns} FROM spec_versions WHERE job_id IN ({jobs})").collect()  # noqa: S608
    found = [tuple(row) for row in rows if (row[0], row[1]) in wanted]

    def of(command: ScalingCommand) -> JobSpec | None:
        decided_on, at = (command.job_id, command.spec_version), command.issued_at.timestamp() * 1e6
        for job, version, text, since, until in found:
            if (job, version) == decided_on and since <= at < until:
                return JobSpec.model_validate_json(text, extra="ignore")
        return None

    return of


def _epochs(spark: SparkSession) -> dict[str, tuple[int | None, int | None]]:
    rows = spark.sql(
        "SELECT job_id, max(CASE WHEN phase IN ('starting', 'running') THEN epoch END),"
        " max(CASE WHEN phase = 'accepted' THEN epoch END) FROM results GROUP BY job_id"
    ).collect()
    return {job: (taken, accepted) for job, taken, accepted in rows}
