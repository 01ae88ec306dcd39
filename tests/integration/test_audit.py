"""The audit on recordings: what fits together passes, and whatever was damaged is found, named and placed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.audited import END, AuditedJob, audited_job, forged_restart, specs, write_audited
from tests.support.recordings import RATES
from tidegate.cli import app
from tidegate.cli.audit import ends_now
from tidegate.client import ClientSettings
from tidegate.events.job import ManualScale, SpecChange
from tidegate.events.topics import TOPICS
from tidegate.replay.audit import run as program
from tidegate.replay.audit.checks import AuditCheck, all_checks
from tidegate.replay.audit.ledger import RedisContents
from tidegate.replay.audit.page import render_page
from tidegate.replay.audit.records import of_broker, of_recording
from tidegate.replay.audit.report import as_json, details
from tidegate.replay.audit.run import AuditFinding, AuditResult, CannotAudit, CheckStatus, audit
from tidegate.runtime.publisher import Publisher

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("seconds", [0.5, 3.0], ids=["while Spark starts", "while it runs"])
def test_ctrl_c_in_the_middle_is_one_word(seconds: float) -> None:
    """PySpark would ask the JVM within another question to it, and py4j print the stacks of both."""
    command = [sys.executable, "-m", "tidegate", "audit", "--from", str(RATES)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        assert any("Setting default log level" in line for line in process.stderr)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        lines = [line for line in process.stderr.read().splitlines() if "WARN" not in line]
    said = [line for line in lines if not line.startswith("To adjust")]
    assert (process.returncode, said) == (130, ["interrupted"])


def number_changed(job: AuditedJob) -> None:
    """Write another figure into a decision."""
    job.edit("decisions", 20, proposed_parallelism=99)


def command_removed(job: AuditedJob) -> None:
    """Remove the second command, and hide the gap."""
    del job.records["commands"][1]
    job.renumber("commands")


def result_duplicated(job: AuditedJob) -> None:
    """Repeat a result in the middle of a restart, and hide it."""
    job.records["results"].insert(3, job.records["results"][2])
    job.renumber("results")


def snapshots_reordered(job: AuditedJob) -> None:
    """Exchange two snapshots."""
    held = job.records["snapshots"]
    held[15], held[16] = held[16], held[15]
    job.renumber("snapshots")


def offsets_missing(job: AuditedJob) -> None:
    """Remove two snapshots."""
    del job.records["snapshots"][30:32]


def spec_forged(job: AuditedJob) -> None:
    """Raise the bounds of the job in nobody's name."""
    last = specs(job.job_id)[-1]
    wider = last.scaling.model_copy(update={"max_parallelism": 64})
    job.add(last.model_copy(update={"version": 4, "scaling": wider, "change": None}), END - timedelta(seconds=30))


def log_edited(job: AuditedJob) -> None:
    """Write another number of records into the event log."""
    lines = job.logs["app-14"]
    number = next(n for n, line in enumerate(lines) if b'"batchId":17,' in line)
    lines[number] = lines[number].replace(b'"numInputRows":', b'"numInputRows":1')


def letter_lost(job: AuditedJob) -> None:
    """Leave an unreadable record without its dead letter, long before the end."""
    job.add_unreadable(END - timedelta(minutes=3), letter=False)


def letter_kept(job: AuditedJob) -> None:
    """Leave an unreadable record with its dead letter, as the decider does."""
    job.add_unreadable(END - timedelta(minutes=3), letter=True)


def clock_forged(job: AuditedJob) -> None:
    """Give records a timestamp that no calendar has."""
    job.add_unreadable(END - timedelta(minutes=3), letter=True)
    held = job.records["snapshots"]
    for number, millis in ((20, -(2**62)), (21, 2**62), (len(held) - 1, 2**62)):
        held[number] = replace(held[number], timestamp_ms=millis)


def command_altered(job: AuditedJob) -> None:
    """Write an old epoch, a size beyond the bounds, and that somebody asked for it, into a command."""
    job.edit("commands", 1, epoch=1, to_parallelism=99, manual=True)


def published_twice(job: AuditedJob) -> None:
    """Publish a command twice, and make a decision twice, as after the death of a decider."""
    for topic, number in (("commands", 1), ("decisions", 37)):
        job.records[topic].insert(number, job.records[topic][number])
        job.renumber(topic)


def result_altered(job: AuditedJob) -> None:
    """Let a command be accepted when it has expired, with an old epoch and a made-up id; let another run be good."""
    expired = job.events("commands")[1]["expires_at"]
    job.edit("results", 6, epoch=1, at=expired, result_id="00000000-0000-5000-8000-000000000000")
    job.edit("results", 5, incarnation="another")


def result_removed(job: AuditedJob) -> None:
    """Remove the end of a command, and hide the gap."""
    del job.records["results"][5]
    job.renumber("results")


def result_repeated(job: AuditedJob) -> None:
    """Let a command go on after its end."""
    job.records["results"].insert(6, job.records["results"][4])
    job.renumber("results")


def results_mixed(job: AuditedJob) -> None:
    """Let a command end after the next one has started."""
    held = job.records["results"]
    held[5], held[6] = held[6], held[5]
    job.renumber("results")


def decision_altered(job: AuditedJob) -> None:
    """Let a command be decided long after its snapshot, and without Redis."""
    observed = job.events("decisions")[13]["observed"]
    job.edit("decisions", 13, decided_at=END.isoformat(), observed=observed | {"redis": "unreachable"})


def decision_removed(job: AuditedJob) -> None:
    """Remove a decision, and hide the gap."""
    del job.records["decisions"][37]
    job.renumber("decisions")


def decisions_reordered(job: AuditedJob) -> None:
    """Exchange two decisions."""
    held = job.records["decisions"]
    held[15], held[16] = held[16], held[15]
    job.renumber("decisions")


def snapshots_altered(job: AuditedJob) -> None:
    """Write into snapshots: figures that were missing, a lower committed offset, and a run that had been replaced."""
    held = job.events("snapshots")
    job.edit("snapshots", 13, missing=["progress"])
    (source,) = held[20]["sources"]
    job.edit("snapshots", 20, sources=[source | {"committed_offsets": [1, *source["committed_offsets"][1:]]}])
    job.edit("snapshots", 21, incarnation=held[0]["incarnation"])


def offset_twice(job: AuditedJob) -> None:
    """Put a second record at the offset of another one."""
    job.records["snapshots"].insert(20, job.records["snapshots"][20])


def two_writers(job: AuditedJob) -> None:
    """Let the first application go on with a batch of the next one."""
    job.logs["app-0"].append(next(line for line in job.logs["app-14"] if b'"batchId":17,' in line))


def letter_altered(job: AuditedJob) -> None:
    """Write other bytes into a dead letter."""
    letter_kept(job)
    job.edit("dead-letters", 0, value="AAAA")


def specs_rewritten(job: AuditedJob) -> None:
    """Write another version than the one that was decided with, and an old one again."""
    job.edit("jobs", 1, change=job.events("jobs")[1]["change"] | {"reason": "another"})
    job.add(specs(job.job_id)[0], END - timedelta(seconds=30))


def commands_forged(job: AuditedJob) -> None:
    """Give a command another epoch than its decision has, and let the stop leave a slot."""
    job.edit("commands", 1, epoch=job.events("commands")[1]["epoch"] + 1)
    job.edit("commands", -1, to_parallelism=1)


def result_of_another_size(job: AuditedJob) -> None:
    """Let a command be accepted with another size than it orders."""
    job.edit("results", 0, parallelism=9)


def spec_written_again(job: AuditedJob) -> None:
    """Write a version again, with other contents."""
    last = specs(job.job_id)[-1]
    assert last.change is not None
    other = last.change.model_copy(update={"reason": "another"})
    job.add(last.model_copy(update={"change": other}), END - timedelta(seconds=30))


def change_of_tomorrow(job: AuditedJob) -> None:
    """Publish a change before it was asked for."""
    narrower(job, END + timedelta(days=1))


def change_of_yesterday(job: AuditedJob) -> None:
    """Publish a change that was asked for before the version that it changes."""
    narrower(job, END - timedelta(days=1))


def size_of_yesterday(job: AuditedJob) -> None:
    """Publish a size by hand that was asked for long before its change."""
    asked = ManualScale(parallelism=3, request_id="r", requested_at=END - timedelta(days=1), reason="test")
    narrower(job, END - timedelta(seconds=30), manual=asked)


def narrower(job: AuditedJob, at: datetime, **more: object) -> None:
    """Publish a version with narrower bounds, that says it was asked for at some time."""
    last = specs(job.job_id)[-1]
    scaling = last.scaling.model_copy(update={"max_parallelism": 8})
    change = SpecChange(by="eve", reason="test", at=at)
    job.add(
        last.model_copy(update={"version": 4, "scaling": scaling, "change": change, **more}),
        END - timedelta(seconds=30),
    )


def untouched(job: AuditedJob) -> None:
    """Leave everything as it is."""


DAMAGE: dict[Callable[[AuditedJob], None], dict[str, str]] = {
    number_changed: {"decisions-recompute": "decisions, partition {p}, offset 20"},
    command_removed: {
        "ordered-commands-are-published": "decisions, partition {p}, offset 13",
        "results-have-commands": "results, partition {p}, offset 6",
    },
    result_duplicated: {
        "results-occur-once": "results, partition {p}, offset 3",
        "results-follow-the-protocol": "results, partition {p}, offset 3",
    },
    snapshots_reordered: {"snapshots-rise": "snapshots, partition {p}, offset 16"},
    offsets_missing: {
        "offsets-have-no-gaps": "snapshots, partition {p}, offset 32",
        "decisions-have-snapshots": "decisions, partition {p}, offset 30",
        "snapshots-miss-no-interval": "snapshots, partition {p}, offset 32",
    },
    forged_restart: {
        "commands-have-decisions": "commands, partition {p}, offset 1",
        "changes-wait-for-the-cooldown": "commands, partition {p}, offset 1",
    },
    spec_forged: {
        "changes-are-not-forged": "jobs, partition {p}, offset 3",
        "changes-name-who-and-why": "jobs, partition {p}, offset 3",
    },
    log_edited: {"snapshots-follow-from-event-logs": "snapshots, partition {p}, offset 17"},
    letter_lost: {"unreadable-records-are-dead-letters": "snapshots, partition {p}, offset 43"},
    letter_kept: {},
    clock_forged: {},
    command_altered: {
        "command-epochs-rise": "commands, partition {p}, offset 1",
        "commands-are-their-decisions": "commands, partition {p}, offset 1",
        "commands-stay-in-bounds": "commands, partition {p}, offset 1",
        "manual-commands-were-asked-for": "commands, partition {p}, offset 1",
        "results-match-commands": "results, partition {p}, offset 6",
    },
    published_twice: {
        "commands-are-published-once": "commands, partition {p}, offset 2",
        "decisions-are-made-once": "decisions, partition {p}, offset 38",
    },
    result_altered: {
        "accepted-epochs-rise": "results, partition {p}, offset 6",
        "commands-start-before-they-expire": "results, partition {p}, offset 6",
        "decisions-saw-real-results": "decisions, partition {p}, offset 14",
        "ids-follow-from-contents": "results, partition {p}, offset 6",
        "results-match-commands": "results, partition {p}, offset 6",
        "runs-come-from-commands": "snapshots, partition {p}, offset 7",
    },
    result_removed: {
        "commands-end-once": "commands, partition {p}, offset 0",
        "decisions-saw-real-results": "decisions, partition {p}, offset 7",
    },
    result_repeated: {
        "commands-end-once": "commands, partition {p}, offset 0",
        "results-follow-the-protocol": "results, partition {p}, offset 6",
        "results-occur-once": "results, partition {p}, offset 6",
    },
    results_mixed: {"commands-run-one-at-a-time": "results, partition {p}, offset 6"},
    decision_altered: {
        "commands-are-reserved": "decisions, partition {p}, offset 13",
        "commands-use-fresh-snapshots": "decisions, partition {p}, offset 13",
        "decisions-recompute": "decisions, partition {p}, offset 13",
    },
    decision_removed: {
        "decisions-recompute": "decisions, partition {p}, offset 37",
        "snapshots-are-decided": "snapshots, partition {p}, offset 37",
    },
    decisions_reordered: {"decisions-rise": "decisions, partition {p}, offset 16"},
    snapshots_altered: {
        "commands-know-their-figures": "decisions, partition {p}, offset 13",
        "committed-offsets-never-fall": "snapshots, partition {p}, offset 20",
        "decisions-recompute": "decisions, partition {p}, offset 13",
        "one-run-at-a-time": "snapshots, partition {p}, offset 21",
        "snapshots-follow-from-event-logs": "snapshots, partition {p}, offset 20",
    },
    offset_twice: {"offsets-occur-once": "snapshots, partition {p}, offset 20"},
    two_writers: {"one-writer-at-a-time": "two-writers-app-14, offset 17"},
    letter_altered: {"dead-letters-are-true": "dead-letters, partition {p}, offset 0"},
    specs_rewritten: {
        "spec-versions-rise": "jobs, partition {p}, offset 3",
        "specs-are-those-decided-with": "decisions, partition {p}, offset 2",
    },
    commands_forged: {
        "command-epochs-rise": "commands, partition {p}, offset 1",
        "commands-are-their-decisions": "commands, partition {p}, offset 1",
        "commands-stay-in-bounds": "commands, partition {p}, offset 4",
        "results-match-commands": "results, partition {p}, offset 6",
    },
    result_of_another_size: {
        "decisions-saw-real-results": "decisions, partition {p}, offset 7",
        "results-match-commands": "results, partition {p}, offset 0",
    },
    spec_written_again: {"spec-versions-rise": "jobs, partition {p}, offset 3"},
    change_of_tomorrow: {"changes-are-not-forged": "jobs, partition {p}, offset 3"},
    change_of_yesterday: {"changes-are-not-forged": "jobs, partition {p}, offset 3"},
    size_of_yesterday: {"changes-are-not-forged": "jobs, partition {p}, offset 3"},
    untouched: {},
}
"""By what was done: the checks that find it, each with the first place it names. Nothing else may be found."""


@pytest.fixture(scope="module")
def damaged(session: Any, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """The audit of a recording in which each kind of damage was done to a job of its own."""
    jobs = []
    for partition, damage in enumerate(DAMAGE):
        job = audited_job(damage.__name__.replace("_", "-"), partition)
        damage(job)
        jobs.append(job)
    recording, logs = write_audited(tmp_path_factory.mktemp("damaged"), jobs)
    return audit(session, of_recording(session, recording), event_logs=logs, redis=_redis(jobs))


@pytest.mark.parametrize("damage", list(DAMAGE), ids=lambda each: each.__name__)
def test_damage_is_found_named_and_placed(damaged: AuditResult, damage: Callable[[AuditedJob], None]) -> None:
    """Exactly the checks that concern one kind of damage find it, at its place, and nothing else is found."""
    partition = list(DAMAGE).index(damage)
    job = damage.__name__.replace("_", "-")
    found: dict[str, str] = {}
    for outcome in damaged.outcomes:
        for each in outcome.named:
            mine = each.job == job or (each.job is None and f"partition {partition}," in each.place)
            if each.provable and mine and outcome.check.name != "events-are-readable":
                found.setdefault(outcome.check.name, each.place)
    assert found == {name: place.format(p=partition) for name, place in DAMAGE[damage].items()}


def test_every_other_check_passes(damaged: AuditResult) -> None:
    """Checks that concern none of the damage pass or have nothing to look at, and the page and the JSON say it all."""
    told = {name for found in DAMAGE.values() for name in found} | {"events-are-readable"}
    wrong = damaged.with_status(
        CheckStatus.FAILED, CheckStatus.WARNED, CheckStatus.NOT_PROVABLE, CheckStatus.NOT_CHECKED
    )
    assert {outcome.check.name for outcome in wrong} == told
    idle = {outcome.check.name for outcome in damaged.with_status(CheckStatus.NOTHING)}
    assert idle == {"redis-holds-the-slots"}
    passed = {outcome.check.name for outcome in damaged.with_status(CheckStatus.PASSED)}
    others = {"files-are-unchanged", "history-is-whole", "redis-holds-the-cooldowns", "redis-holds-the-fences"}
    assert passed == others, "what every other check finds is among the damage"
    assert damaged.records["decisions"] == 43 * len(DAMAGE)
    assert {history.job for history in damaged.jobs} == {damage.__name__.replace("_", "-") for damage in DAMAGE}
    page = render_page(damaged)
    assert "<script" not in page
    assert "http" not in page
    assert not json.loads(as_json(damaged))["ok"]


def test_redis_that_differs_from_the_topics_is_found(session: Any, tmp_path: Path) -> None:
    """A cooldown that was lost, slots that nobody ordered, and a fence from the future are found, each with its key."""
    job = audited_job("orders", 0)
    recording, _ = write_audited(tmp_path, [job])
    right = _redis([job])
    wrong = replace(
        right,
        cooldowns={},
        slots={("default", "orders"): ("somebody's", right.at + 100, 3)},
        fences={"orders": right.fences["orders"] + 1_000_000},
    )
    result = audit(session, of_recording(session, recording), redis=wrong, checks=only("redis-holds-"))
    places = {outcome.check.name: outcome.named[0].place for outcome in result.with_status(CheckStatus.FAILED)}
    assert places == {
        "redis-holds-the-cooldowns": "tidegate:cooldown:orders",
        "redis-holds-the-slots": "tidegate:pool:default",
        "redis-holds-the-fences": "tidegate:fence:orders",
    }


def test_what_cannot_be_proved_is_named_and_never_passes(session: Any, tmp_path: Path) -> None:
    """Logs and Redis that are not given, a log that is gone, records that retention has removed: named, and open."""
    job = audited_job("orders", 0)
    for topic in ("snapshots", "decisions", "commands", "results"):
        held = job.records[topic]
        held[:] = held[len(held) // 2 :]
    recording, logs = write_audited(tmp_path, [job])
    (logs / "orders-app-36").unlink()
    result = audit(session, of_recording(session, recording), event_logs=logs)
    assert result.ok()
    assert not result.ok(strict=True)
    assert {outcome.check.name for outcome in result.with_status(CheckStatus.NOT_CHECKED)} == {
        "redis-holds-the-cooldowns",
        "redis-holds-the-slots",
        "redis-holds-the-fences",
    }
    assert {outcome.check.name for outcome in result.with_status(CheckStatus.NOT_PROVABLE)} == {
        "history-is-whole",
        "snapshots-follow-from-event-logs",
        "decisions-recompute",
        "decisions-saw-real-results",
        "results-follow-the-protocol",
    }
    text = "\n".join(details(result))
    assert "begins at offset 21" in text
    assert "no Redis was given" in text
    assert "there is no event log of app-36" in text


def decided_again(job: AuditedJob, *, newer: bool) -> None:
    """Let the decider die between a decision and its command; when it decides again, the snapshot is too old."""
    lost = job.events("commands")[1]["command_id"]
    command_removed(job)
    held = job.records["decisions"]
    number = next(n for n, each in enumerate(job.events("decisions")) if each["decision_id"] == lost)
    again = job.events("decisions")[number] | {"decided_at": "2026-03-01T12:09:00Z"}
    del again["command"]
    if newer:
        again["decision_id"] = "0" * len(lost)
    held.insert(number + 1, replace(held[number], value=json.dumps(again).encode()))
    job.renumber("decisions")


def snapshots_expired(job: AuditedJob) -> None:
    """Let retention remove the snapshots, which are kept for 14 days; decisions are kept for 30."""
    job.records["snapshots"].clear()


def removed_and_added(job: AuditedJob, *, compacted: bool) -> None:
    """Remove the job and add it again, with narrower bounds, after its end; its specs count from 1 again."""
    first, second, _ = specs(job.job_id)
    narrow = first.scaling.model_copy(update={"max_parallelism": 2})
    began = len(job.records["jobs"])
    for number, spec in enumerate((first, second), 1):
        at = END + timedelta(minutes=number)
        change = SpecChange(by="anna", reason="again, but smaller", at=at)
        job.add(spec.model_copy(update={"scaling": narrow, "change": change}), at)
    held = job.records["jobs"]
    held.insert(began, replace(held[began], timestamp_ms=held[began].timestamp_ms - 1000, value=None, headers=()))
    job.renumber("jobs")
    if compacted:
        del held[:began]


def interval_shortened(job: AuditedJob) -> None:
    """Let a spec shorten the interval: the snapshot before was the last one for as long as the old interval."""
    job.edit("snapshots", 29, interval_seconds=30)
    del job.records["snapshots"][30:32]
    job.renumber("snapshots")


def not_measured(job: AuditedJob, *, added: bool, compacted: bool) -> None:
    """Leave out two snapshots; the job was removed meanwhile if it was `added` again."""
    before, after = (datetime.fromisoformat(job.events("snapshots")[at]["observed_at"]) for at in (29, 32))
    del job.records["snapshots"][30:32]
    job.renumber("snapshots")
    if added:
        again = specs(job.job_id)[0]
        job.add(again, after - timedelta(seconds=8))
        held = job.records["jobs"]
        removed_at = int((before + timedelta(seconds=5)).timestamp() * 1000)
        held.insert(-1, replace(held[-1], timestamp_ms=removed_at, value=None, headers=()))
        job.renumber("jobs")
        if compacted:
            del held[:-1]


SPECIAL: dict[str, Callable[[AuditedJob], None]] = {
    "decided-again-same": partial(decided_again, newer=False),
    "decided-again-newer": partial(decided_again, newer=True),
    "snapshots-expired": snapshots_expired,
    "removed-and-added": partial(removed_and_added, compacted=False),
    "removed-and-added-compacted": partial(removed_and_added, compacted=True),
    "interval-shortened": interval_shortened,
    "not-measured": partial(not_measured, added=False, compacted=False),
    "not-measured-while-removed": partial(not_measured, added=True, compacted=False),
    "not-measured-while-removed-compacted": partial(not_measured, added=True, compacted=True),
}
"""By job: what happened to it. The records differ from the usual ones, and most of them are as they should be."""


@pytest.fixture(scope="module")
def special(session: Any, tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """The audit of a recording with these jobs."""
    jobs = []
    for partition, (job_id, happens) in enumerate(SPECIAL.items()):
        job = audited_job(job_id, partition)
        happens(job)
        jobs.append(job)
    recording, _ = write_audited(tmp_path_factory.mktemp("special"), jobs)
    with (recording / "results.ndjson").open("a") as changed:
        changed.write("\n")
    some = only("files-are-unchanged", "ordered-commands", "decisions-have-snapshots", "snapshots-miss-no-interval")
    some += only("changes-", "commands-stay", "commands-use", "spec", "manual")
    result = audit(session, of_recording(session, recording), checks=some)
    idle = {outcome.check.name for outcome in result.outcomes if not outcome.passed}
    assert idle == {"manual-commands-were-asked-for"}, "every other check has something to look at"
    return result


def named_in(result: AuditResult, job: str, *checks: str) -> list[AuditFinding]:
    """Return what the checks whose names begin so name of a job, or of none."""
    outcomes = [outcome for outcome in result.outcomes if outcome.check.name.startswith(checks)]
    return [each for outcome in outcomes for each in outcome.named if each.job in (job, None)]


@pytest.mark.parametrize("engine", ["same", "newer"])
def test_a_decision_that_is_made_again_may_order_nothing(special: AuditResult, engine: str) -> None:
    """A decider died between a decision and its command. When it decides again, the snapshot is too old to act on."""
    assert named_in(special, f"decided-again-{engine}", "ordered-commands") == []


def test_a_file_that_was_changed_since_the_recording_is_found(special: AuditResult) -> None:
    """Even where all its records can still be read: its SHA-256 is in the manifest."""
    (named,) = named_in(special, "none", "files-are-unchanged")
    assert (named.provable, named.place) == (True, "results")


def test_snapshots_that_retention_has_removed_are_not_missed(special: AuditResult) -> None:
    """Snapshots are kept for 14 days and decisions for 30: an old job may have only these, next to a new one."""
    named = named_in(special, "snapshots-expired", "decisions-have-snapshots")
    assert [each.provable for each in named] == [False] * 43


@pytest.mark.parametrize("job", ["removed-and-added", "removed-and-added-compacted"])
def test_a_job_that_was_removed_may_begin_again(special: AuditResult, job: str) -> None:
    """Its specs count from 1 again: a command is held against the version that was in force when it was ordered."""
    named = named_in(special, job, "changes-", "commands-stay", "commands-use", "spec", "manual")
    assert [each for each in named if each.provable] == []
    (history,) = (history for history in special.jobs if history.job == job)
    assert {command.who for command in history.commands} == {"Tidegate, policy flip271"}
    assert len(history.commands) == len(audited_job(job, 0).records["commands"])


def test_a_shorter_interval_is_no_missing_snapshot(special: AuditResult) -> None:
    """When a spec shortens the interval, the snapshot before was the last one for as long as the old interval."""
    assert named_in(special, "interval-shortened", "snapshots-miss-no-interval") == []


@pytest.mark.parametrize(
    ("job", "found"),
    [("not-measured-while-removed", 0), ("not-measured-while-removed-compacted", 0), ("not-measured", 1)],
)
def test_the_time_between_two_lives_of_a_job_is_no_missing_snapshot(special: AuditResult, job: str, found: int) -> None:
    """Nothing is measured from the removal of a job until it is added again; a gap of a job that is there is found."""
    named = named_in(special, job, "snapshots-miss-no-interval")
    assert [each.provable for each in named] == [True] * found
    (outcome,) = (each for each in special.outcomes if each.check.name == "snapshots-miss-no-interval")
    assert outcome.status is CheckStatus.WARNED


def test_an_audit_of_topics_that_grow_sees_them_at_one_instant(
    session: Any, kafka: str, settings: ClientSettings
) -> None:
    """Each partition is read at another time; what comes after the audit began has no cause among what was read."""
    publisher = Publisher(settings)
    job = audited_job("orders", 0)

    def go_on() -> None:
        for topic in ("snapshots", "decisions", "commands"):
            name, record = f"{settings.topic_prefix}{topic}", job.records[topic].pop(0)
            publisher.send_raw(name, record.key, record.value, list(record.headers))
        publisher.flush()

    go_on()
    ends = ends_now(settings)
    go_on()
    frame = of_broker(session, kafka, settings.topic_prefix, {"endingOffsets": ends}).frame
    assert {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()} == {
        "snapshots": 1,
        "decisions": 1,
        "commands": 1,
    }


def test_an_audit_of_nothing_is_refused(session: Any, tmp_path: Path) -> None:
    """A recording without records is an error, not a pass."""
    recording, _ = write_audited(tmp_path, [AuditedJob("none", 0)])
    with pytest.raises(CannotAudit, match="no records"):
        audit(session, of_recording(session, recording))


def test_an_audit_of_a_job_without_events_is_refused(session: Any, tmp_path: Path) -> None:
    """A job whose name is wrong is an error, not a pass."""
    recording, _ = write_audited(tmp_path, [audited_job("one", 2)])
    with pytest.raises(CannotAudit, match="no events of job 'other'"):
        audit(session, of_recording(session, recording), job="other")


def only(*names: str) -> list[AuditCheck]:
    """Return the checks whose names begin so."""
    return [check for check in all_checks() if check.name.startswith(names)]


def _redis(jobs: list[AuditedJob]) -> RedisContents:
    """Return what Redis holds at the end of the jobs' histories: the last cooldown, and the fence of the last start."""
    at = END.timestamp() - 40  # within the cooldown of the last change of size
    cooldowns, fences = {}, {}
    for job in jobs:
        last = [command for command in job.events("commands") if command["kind"] == "rescale"][-1]
        issued = job.records["decisions"][35].timestamp_ms / 1000
        cooldowns[job.job_id] = last["command_id"], issued + 60
        fences[job.job_id] = last["epoch"]
    return RedisContents("tidegate:", at, True, cooldowns, {}, fences)


@pytest.mark.usefixtures("commands_share")
def test_the_command_audits_the_topics_of_a_broker(
    kafka: str, settings: ClientSettings, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tidegate audit` on real topics and a real Redis names a change, exits with 1, and writes JSON and a page."""
    some = only("offsets-have-no-gaps", "decisions-recompute", "commands-are-their", "redis-holds-", "snapshots-follow")
    monkeypatch.setattr(program, "all_checks", lambda: some)
    job = audited_job("orders", 0)
    number_changed(job)
    _, logs = write_audited(tmp_path, [job])
    publisher = Publisher(settings)
    for topic in TOPICS:
        for record in job.records[topic.suffix]:
            # With their own timestamps, retention would remove the records.
            publisher.send_raw(topic.named(settings.topic_prefix), record.key, record.value, list(record.headers))
    publisher.flush()
    words = ["audit", "-b", kafka, "--topic-prefix", settings.topic_prefix, "--event-logs", str(logs)]
    words += ["--redis", redis_url, "--json", str(tmp_path / "audit.json"), "--html", str(tmp_path / "audit.html")]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1, ran.output
    assert "FAILED: 1 finding of 1 check." in ran.stdout
    told = json.loads((tmp_path / "audit.json").read_text("utf-8"))
    failed = [check for check in told["checks"] if check["status"] == "FAILED"]
    assert [(check["check"], check["named"][0]["place"][-9:]) for check in failed] == [
        ("decisions-recompute", "offset 20")
    ]
    assert told["records"]["decisions"] == 43
    assert "proposed_parallelism is 99" in (tmp_path / "audit.html").read_text("utf-8")

    folder = str(tmp_path / "archive")
    archived = CliRunner().invoke(app, ["archive", "run", folder, "--once", *words[1:5]])
    assert archived.exit_code == 0, archived.output
    ran = CliRunner().invoke(app, ["audit", "--from", folder, "--event-logs", str(logs)])
    assert ran.exit_code == 1, ran.output
    assert "FAILED: 1 finding of 1 check." in ran.stdout
