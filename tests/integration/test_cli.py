"""The command and the client against a real broker."""

from __future__ import annotations

import getpass
import json
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from typer.testing import CliRunner

import tidegate
from tests.support.engine import step
from tests.support.events import job, result, steady, with_application
from tidegate import changes
from tidegate.cli import app
from tidegate.cli.doctor.own_topics import STATES
from tidegate.client import BadRecord, ClientSettings, NoSuchTopic, Unreachable, current_specs, received, skip
from tidegate.engine.state import JobState
from tidegate.events.command import ScalingCommand
from tidegate.events.decision import Decision, Observed
from tidegate.events.envelope import encode, value_of
from tidegate.events.job import JobSpec, Mode
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot, SnapshotWarning, WarningCode
from tidegate.operate import SpecRefused
from tidegate.replay.rebase import moved_snapshot
from tidegate.runtime.consumer import TopicReader, newest_at
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.topics import create_topics

SPEC = job(min_parallelism=2, max_parallelism=8)


class Cli:
    """`tidegate` with one broker and a topic prefix of this test."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command that must end with `code`; return what it printed."""
        where = ["-b", self.settings.bootstrap_servers, "--topic-prefix", self.settings.topic_prefix]
        ran = CliRunner().invoke(app, [*words, *where])
        assert ran.exit_code == code, f"{words}: {ran.exit_code}\n{ran.stdout}{ran.stderr}"
        assert "Traceback" not in ran.stderr
        return ran.stdout if code == 0 else ran.stderr + ran.stdout

    def spec(self) -> JobSpec:
        """Return the job's spec on the topic."""
        return current_specs(self.settings)["rates"]

    def publish(self, *events: MetricSnapshot | Decision | ScalingCommand | ActionResult | JobSpec) -> None:
        """Publish events and wait for the acknowledgement."""
        publisher = Publisher(self.settings)
        for event in events:
            publisher.send(event)
        publisher.flush()


@pytest.fixture
def cli(settings: ClientSettings) -> Cli:
    """A fresh Tidegate on the broker."""
    return Cli(settings)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A spec file."""
    path = tmp_path / "job.json"
    path.write_bytes(value_of(SPEC))
    return path


def just_now(snapshots: list[MetricSnapshot]) -> list[MetricSnapshot]:
    """Return snapshots moved in time so that the last was taken this second."""
    shift = datetime.now(UTC).replace(microsecond=0) - snapshots[-1].observed_at
    return [moved_snapshot(one, int(shift.total_seconds())) for one in snapshots]


SNAPSHOTS = just_now(steady(12, rate=3000, capacity=1000))


def decided(spec: JobSpec = SPEC) -> list[Decision]:
    """Return the engine's decisions on the snapshots."""
    state, found = JobState.new(), []
    for one in SNAPSHOTS:
        state, decision = step(state, one, spec, Observed(at=one.observed_at))
        found.append(decision)
    return found


DECISIONS = decided()
ORDER = next(d for d in DECISIONS if d.command is not None)


def phase(of: Decision, what: Phase, after: float, size: int) -> ActionResult:
    """Return a phase of a decision's command."""
    return result(
        of.decision_id,
        what,
        kind=(of.command or ORDER.command).kind,  # type: ignore[union-attr]
        at=of.decided_at + timedelta(seconds=after),
        parallelism=size,
        downtime_seconds=21.5 if what is Phase.VERIFIED else None,
    )


def test_a_spec_is_applied_changed_and_left_alone(cli: Cli, file: Path) -> None:
    """Each change gets the next version and shows the differences; an unchanged spec is not published."""
    assert "rates: new, version 1" in cli("apply", str(file))
    first = cli.spec()
    assert first.model_copy(update={"change": None}) == SPEC
    assert first.change is not None
    assert (first.change.by, first.change.reason) == (getpass.getuser(), f"tidegate apply {file.name}")
    assert "unchanged, version 1" in cli("apply", str(file))
    changed = SPEC.model_copy(update={"scaling": SPEC.scaling.model_copy(update={"max_parallelism": 12})})
    file.write_bytes(value_of(changed))
    shown = cli("apply", str(file), "--dry-run")
    assert "version 1 -> 2" in shown
    assert "~ scaling.max_parallelism: 8 -> 12" in shown
    assert cli.spec().version == 1
    cli("apply", str(file), "--reason", "more load")
    second = cli.spec()
    assert (second.version, second.scaling.max_parallelism) == (2, 12)
    assert second.change is not None
    assert second.change.reason == "more load"


def test_several_files_are_applied_as_one(cli: Cli, file: Path, tmp_path: Path) -> None:
    """Each job may have a file of its own; a mistake in one of them, or a job in two, publishes nothing."""
    files = [file]
    for job_id in ("clicks", "orders"):
        files.append(tmp_path / f"{job_id}.json")
        files[-1].write_bytes(value_of(job(job_id)))
    words = [str(each) for each in files]
    assert "job_id 'clicks' appears more than once" in cli("apply", *words, words[1], code=2)
    files[-1].write_bytes(value_of(job("orders")).replace(b'"sources"', b'"sauces"'))
    cli("apply", *words, code=2)
    assert current_specs(cli.settings) == {}
    files[-1].write_bytes(value_of(job("orders")))
    assert cli("apply", *words).count("new, version 1") == 3
    change = current_specs(cli.settings)["orders"].change
    assert change is not None
    assert change.reason == "tidegate apply job.json and 2 more"


def test_a_job_does_not_change_its_cluster_while_it_runs(cli: Cli, file: Path, tmp_path: Path) -> None:
    """The file is refused as a whole, with field and values; once the job is to stop, it may name another cluster."""
    cli("apply", str(file))
    moved = tmp_path / "moved.json"
    moved.write_bytes(value_of(with_application(SPEC, master="spark://elsewhere:7077")))
    for dry in ([], ["--dry-run"]):
        said = cli("apply", str(moved), *dry, code=2)
        assert f"application.master: {SPEC.application.master} -> spark://elsewhere:7077" in " ".join(said.split())
    assert cli.spec().version == 1
    file.write_bytes(value_of(SPEC.model_copy(update={"running": False})))
    cli("apply", str(file))
    cli("apply", str(moved))
    assert (cli.spec().running, cli.spec().application.master) == (True, "spark://elsewhere:7077")


def test_a_job_is_paused_resumed_and_removed(cli: Cli, file: Path) -> None:
    """Pausing and resuming publish new versions; a removed job is gone from the jobs topic."""
    cli("apply", str(file))
    cli("pause", "rates")
    assert (cli.spec().scaling.mode, cli.spec().version) == (Mode.PAUSED, 2)
    assert "already paused" in cli("pause", "rates")
    cli("resume", "rates", "--advise")
    assert cli.spec().scaling.mode is Mode.ADVISE
    cli("resume", "rates")
    assert (cli.spec().scaling.mode, cli.spec().version) == (Mode.ACTIVE, 4)
    assert "rates" in cli("jobs")
    assert "--yes" in cli("remove", "rates", code=2)
    cli("remove", "rates", "--yes")
    assert current_specs(cli.settings) == {}
    assert "does not manage a job 'rates'" in cli("pause", "rates", code=2)


def test_a_spec_of_a_newer_version_keeps_its_fields(cli: Cli, file: Path) -> None:
    """Commands that would drop fields they do not know are refused; a file replaces the spec as a whole."""
    newer = json.loads(value_of(SPEC)) | {"added_in_v1_9": 1}
    producer = Producer({**cli.settings.kafka(), "partitioner": "murmur2_random"})
    producer.produce(f"{cli.settings.topic_prefix}jobs", json.dumps(newer).encode(), b"rates")
    assert producer.flush(30) == 0
    for words in (["pause", "rates"], ["resume", "rates"], ["scale", "rates", "4", "--reason", "test"]):
        assert "added_in_v1_9" in cli(*words, code=2)
    assert cli.spec().version == SPEC.version
    changed = SPEC.model_copy(update={"scaling": SPEC.scaling.model_copy(update={"max_parallelism": 12})})
    file.write_bytes(value_of(changed))
    cli("apply", str(file))
    cli("pause", "rates")
    assert (cli.spec().scaling.mode, cli.spec().scaling.max_parallelism) == (Mode.PAUSED, 12)


def test_a_request_for_a_size_is_written_into_the_spec(cli: Cli, file: Path) -> None:
    """`scale` writes a request with its reason, and a later `apply` of the file does not cancel it."""
    cli("apply", str(file))
    assert "to 2..8 slots" in cli("scale", "rates", "20", "--reason", "beyond the limit")
    request = cli.spec().manual
    assert request is not None
    assert (request.parallelism, request.reason, cli.spec().version) == (20, "beyond the limit", 2)
    assert "unchanged" in cli("apply", str(file))
    assert cli.spec().manual == request


def carried_out(cli: Cli, last: Phase) -> threading.Thread:
    """Act as decider and actuator for one manual request, in a thread."""

    def asked() -> JobSpec | None:
        spec = current_specs(cli.settings).get("rates")
        return spec if spec is not None and spec.manual is not None else None

    def play() -> None:
        spec = wait_until(asked, 30)
        assert spec is not None
        state = JobState.new()
        *earlier, newest = just_now(steady(12, rate=3000, capacity=1000))  # those of the module may be stale by now
        for one in earlier:
            state, _ = step(state, one, SPEC, Observed(at=one.observed_at))
        state = state._replace(in_flight=None, last_action_at=None)
        _, decision = step(state, newest, spec, Observed(at=datetime.now(UTC)))
        assert decision.command is not None
        assert decision.command.manual
        cli.publish(phase(decision, Phase.ACCEPTED, 0.1, 6), decision, phase(decision, last, 0.2, 6))

    thread = threading.Thread(target=play)
    thread.start()
    return thread


@pytest.mark.parametrize(("last", "code"), [(Phase.VERIFIED, 0), (Phase.ROLLED_BACK, 1)])
def test_waiting_follows_a_request_to_its_end(cli: Cli, file: Path, last: Phase, code: int) -> None:
    """`scale --wait` shows the decision and each phase, and its exit code says whether the size was reached."""
    cli("apply", str(file))
    thread = carried_out(cli, last)
    shown = cli("scale", "rates", "6", "--reason", "noon", "--wait", "--timeout", "60", code=code)
    thread.join(30)
    assert "noon" in shown
    assert "accepted" in shown
    assert last.value in shown


def test_a_reader_loses_no_record_written_while_it_opens(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record written after the broker was asked for the first one since an instant is read, on an empty topic too."""

    class SlowConsumer(Consumer):  # type: ignore[misc]
        def assign(self, partitions: list[TopicPartition]) -> None:
            cli.publish(DECISIONS[0])
            super().assign(partitions)

    monkeypatch.setattr("tidegate.runtime.consumer.Consumer", SlowConsumer)
    topic = cli.settings.topic_prefix + "decisions"
    with closing(TopicReader(cli.settings, [topic], since=datetime.now(UTC))) as reader:
        assert len(list(reader.read_to_end())) == 1


def test_a_reader_waits_for_leaders_that_are_still_being_made(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after a topic was made, its broker may refuse to tell offsets; the reader asks again."""
    refused = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]

    class EarlyConsumer(Consumer):  # type: ignore[misc]
        def get_watermark_offsets(self, partition: TopicPartition, **options: float) -> tuple[int, int]:
            if refused:
                raise KafkaException(KafkaError(refused.pop()))
            return cast("tuple[int, int]", super().get_watermark_offsets(partition, **options))

    monkeypatch.setattr("tidegate.runtime.consumer.Consumer", EarlyConsumer)
    cli.publish(DECISIONS[0])
    topic = cli.settings.topic_prefix + "decisions"
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with closing(TopicReader(cli.settings, [topic], since=hour_ago)) as reader:
        assert len(list(reader.read_to_end())) == 1
    assert refused == []


def test_a_reader_says_what_the_broker_refuses_for_good(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that asking again does not change is raised at once."""

    class RefusedConsumer(Consumer):  # type: ignore[misc]
        def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
            raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))

    monkeypatch.setattr("tidegate.runtime.consumer.Consumer", RefusedConsumer)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        TopicReader(cli.settings, [cli.settings.topic_prefix + "decisions"], since=datetime.now(UTC))


def test_waiting_ends_with_its_time(cli: Cli, file: Path) -> None:
    """Without services the wait ends after its timeout with exit code 1, and says so."""
    cli("apply", str(file))
    assert "not finished after 1 s" in cli("scale", "rates", "6", "--reason", "x", "--wait", "--timeout", "1", code=1)


def test_why_tells_the_newest_decision_or_the_one_asked_for(cli: Cli, file: Path) -> None:
    """`why` shows the newest decision, any by its sequence, the changes over a time, and all of it as JSON."""
    cli("apply", str(file))
    assert "no decision on rates yet" in cli("why", "rates", code=2)
    cli.publish(*DECISIONS, phase(ORDER, Phase.ACCEPTED, 1, 8), phase(ORDER, Phase.VERIFIED, 22, 8))
    assert DECISIONS[-1].sentence in cli("why", "rates")
    asked = cli("why", "rates", "--at", str(ORDER.sequence))
    assert ORDER.sentence in asked
    assert "downtime 21.5 s" in asked
    assert json.loads(cli("why", "rates", "--json")) == json.loads(value_of(DECISIONS[-1]))
    over_time = cli("why", "rates", "--since", "1h")
    assert ORDER.sentence in over_time
    assert len(over_time.splitlines()) < len(DECISIONS)
    warned = (SnapshotWarning(code=WarningCode.TOPIC_NOT_READ, topics=("in",)),)
    cli.publish(SNAPSHOTS[-1].model_copy(update={"warnings": warned}))
    assert "no query of the job reads in" in cli("why", "rates")
    assert "no decision on rates with sequence 5" in cli("why", "rates", "--at", "5", code=2)
    assert "does not manage a job 'other'" in cli("why", "other", code=2)


def test_a_newest_decision_is_looked_for_near_the_newest_of_all(cli: Cli, file: Path) -> None:
    """However long nothing was decided, it is found; but no month of the others' is read for a job that has none."""
    cli("apply", str(file))
    made = encode(DECISIONS[-1])
    hours_ago = int((time.time() - 5 * 3600) * 1000)
    producer = Producer(cli.settings.kafka())
    producer.produce(cli.settings.topic_prefix + "decisions", made.value, made.key, timestamp=hours_ago)
    producer.flush(20)
    assert DECISIONS[-1].sentence in cli("jobs")
    assert DECISIONS[-1].sentence in cli("why", "rates")
    cli.publish(*(each.model_copy(update={"job_id": "other", "pipeline_id": "other"}) for each in DECISIONS))
    assert "no decision since" in cli("jobs")
    assert "no decision on rates since" in cli("why", "rates", code=2)
    assert "known jobs: rates" in cli("pause", "other", code=2)


def test_an_old_broker_does_not_make_the_newest_record_the_oldest(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 3.0, Kafka takes a request for the newest timestamp as one for the first record since an early instant."""
    monkeypatch.setattr(OffsetSpec, "max_timestamp", lambda: OffsetSpec.for_timestamp(0))
    producer, topic = Producer(settings.kafka()), settings.topic_prefix + "decisions"
    for at in (1_790_000_000_000, 1_790_000_004_000, 1_790_000_001_000):
        producer.produce(topic, b"{}", partition=at // 1000 % 2, timestamp=at)
        producer.flush(20)
    assert newest_at(settings, topic) == datetime.fromtimestamp(1_790_000_004, UTC)


def test_records_of_other_jobs_are_passed_over_unread(cli: Cli) -> None:
    """A thousand jobs share a topic: asked about one, only what its headers do not tell of others is decoded."""
    cli.publish(*DECISIONS)
    made = encode(DECISIONS[-1].model_copy(update={"job_id": "other"}))
    producer = Producer(cli.settings.kafka())
    topic = cli.settings.topic_prefix + "decisions"
    producer.produce(topic, b"{", made.key, headers=made.headers)
    producer.produce(topic, b"[", made.key)
    producer.flush(20)
    bad: list[BadRecord] = []
    found = list(received(Decision, cli.settings, job="rates", on_error=bad.append))
    assert len(found) == len(DECISIONS)
    assert [each.value for each in bad] == [b"["]
    assert list(received(Decision, cli.settings, job={"other", "third"}, on_error=skip)) == []


def test_why_tells_what_would_change_a_decision(cli: Cli, file: Path) -> None:
    """The snapshots and decisions since the last keyframe are read; without them the answer says what is missing."""
    cli("apply", str(file))
    at = ("why", "rates", "--at", str(ORDER.sequence), "--change")
    cli.publish(*DECISIONS)
    assert "snapshot" in cli(*at, code=2)
    cli.publish(*SNAPSHOTS)
    told = cli(*at)
    assert "What it would take to change it, the nearest first:" in told
    assert "if max_parallelism were " in told
    nearest = json.loads(cli(*at, "--json"))["changed_by"]
    assert nearest[0]["sentence"] in told
    assert nearest[0]["final_parallelism"] != ORDER.final_parallelism


def test_what_if_reads_the_topics(cli: Cli, file: Path) -> None:
    """Without a recording, the last hour of a job's events on the topics is tried; a job must be named."""
    cli("apply", str(file))
    cli.publish(*SNAPSHOTS, *DECISIONS)
    told = cli("what-if", "rates", "--set", "scaling.max_parallelism=4")
    assert told.startswith("rates: 70 s, 7 of 12 decisions by engine ")
    assert "no twin can be fitted: " in told
    assert "scaling.max_parallelism: 8 → 4" in told
    assert "name the job" in cli("what-if", "--policy", "hpa", code=2)


def test_jobs_shows_each_job_with_its_last_decision(cli: Cli, file: Path) -> None:
    """Each job has a row with its last decision, or says that there is none; nothing is cut in a pipe."""
    assert "no jobs" in cli("jobs")
    cli("apply", str(file))
    assert "no decision yet" in cli("jobs")
    cli.publish(*DECISIONS)
    shown = cli("jobs")
    assert DECISIONS[-1].sentence in shown
    assert DECISIONS[-1].status.value in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("stream", ["snapshots", "decisions", "commands", "results"])
def test_tail_shows_events_as_a_table_or_as_lines(cli: Cli, stream: str) -> None:
    """Each topic is shown as a table or, with --json, as its values; limit and job filter work."""
    by_stream: dict[str, Sequence[MetricSnapshot | Decision | ScalingCommand | ActionResult]] = {
        "snapshots": SNAPSHOTS,
        "decisions": DECISIONS,
        "commands": [d.command for d in DECISIONS if d.command is not None],
        "results": [phase(ORDER, what, n, 8) for n, what in enumerate((Phase.ACCEPTED, Phase.STOPPING))],
    }
    events = by_stream[stream]
    cli.publish(*events)
    lines = cli("tail", stream, "--json", "--since", "1h").splitlines()
    assert [json.loads(line) for line in lines] == [json.loads(value_of(e)) for e in events]
    assert json.loads(cli("tail", stream, "--json", "-n", "1")) == json.loads(value_of(events[-1]))
    assert cli("tail", stream, "--job", "other") == ""
    table = cli("tail", stream, "--job", "rates")
    assert len(table.splitlines()) == len(events) + 1


def spoil(cli: Cli, topic: str, value: bytes) -> None:
    """Put an unreadable record on a topic."""
    producer = Producer(cli.settings.kafka())
    producer.produce(cli.settings.topic_prefix + topic, value, b"rates", partition=0)
    assert producer.flush(30) == 0


def test_an_unreadable_record_is_skipped_and_reported(cli: Cli) -> None:
    """The client skips an unreadable record with a warning or passes it to `on_error`, and reads the others."""
    spoil(cli, "decisions", b"not json")
    cli.publish(*DECISIONS)
    read = partial(tidegate.decisions, cli.settings.bootstrap_servers, topic_prefix=cli.settings.topic_prefix)
    with pytest.warns(UserWarning, match="NOT_JSON"):
        assert list(read(job="rates")) == DECISIONS
    bad: list[BadRecord] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(read(on_error=bad.append)) == DECISIONS
    assert [(one.error.code, one.value) for one in bad] == [("NOT_JSON", b"not json")]


def test_the_client_begins_at_an_instant(cli: Cli) -> None:
    """`since`, an age or an instant, leaves out earlier events."""
    read = partial(tidegate.decisions, cli.settings.bootstrap_servers, topic_prefix=cli.settings.topic_prefix)
    cli.publish(*DECISIONS[:3])
    time.sleep(1.2)
    border = datetime.now(UTC)
    cli.publish(*DECISIONS[3:])
    assert list(read(since=border)) == DECISIONS[3:]
    assert list(read(since=timedelta(hours=1))) == DECISIONS
    assert list(read(since=timedelta(seconds=0))) == []
    with pytest.raises(ValueError, match="time zone"):
        next(read(since=datetime(2026, 1, 1)))  # noqa: DTZ001


def follow(events: Iterator[MetricSnapshot], count: int, then: Callable[[], None]) -> list[MetricSnapshot]:
    """Return the first `count` events of a stream, doing `then` before waiting for the first."""
    threading.Timer(1.0, then).start()
    return [next(events) for _ in range(count)]


def test_following_gives_events_as_they_come_until_told_to_stop(cli: Cli) -> None:
    """Following waits for new events and ends when `stop` is true."""
    stop = threading.Event()
    read = partial(tidegate.snapshots, cli.settings.bootstrap_servers, topic_prefix=cli.settings.topic_prefix)
    events = read(follow=True, stop=stop.is_set)
    assert follow(events, 3, lambda: cli.publish(*SNAPSHOTS[:3])) == SNAPSHOTS[:3]
    stop.set()
    assert list(events) == []


def test_an_unreachable_broker_is_reported_at_once(cli: Cli) -> None:
    """A missing broker or topic is an error with its name, not an endless wait."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 "):
        next(tidegate.results("127.0.0.1:1"))
    with pytest.raises(NoSuchTopic, match=r"no-such-prefix\.results"):
        next(tidegate.results(cli.settings.bootstrap_servers, topic_prefix="no-such-prefix."))


def test_the_doctor_finds_and_creates_topics(kafka: str) -> None:
    """Missing topics fail with a remedy, and --create-topics creates them."""
    prefix = f"cli-{uuid.uuid4().hex[:8]}."
    words = ["doctor", "-b", kafka, "--topic-prefix", prefix, "--work-dir", "/nonexistent"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1
    assert f"topics {prefix}jobs" in ran.stdout
    made = CliRunner().invoke(app, [*words, "--create-topics"])
    assert f"6 topics with prefix '{prefix}', 8 partitions per pipeline topic; created 6" in made.stdout


def test_the_doctor_says_what_somebody_changed_about_the_topics(kafka: str, settings: ClientSettings) -> None:
    """A policy for all topics of a cluster: jobs vanish after an hour, and commands and results do as well."""
    words = ["doctor", "-b", kafka, "--topic-prefix", settings.topic_prefix, "--work-dir", "/nonexistent"]

    def said() -> list[str]:
        shown = CliRunner(env={"COLUMNS": "400"}).invoke(app, words).stdout
        return [line for line in shown.splitlines() if f" topic {settings.topic_prefix}" in line]

    assert said() == []
    changed = {"jobs": {"cleanup.policy": "delete"}, "results": {"retention.ms": "3600000"}}
    requests = [
        ConfigResource(
            ResourceType.TOPIC,
            settings.topic_prefix + suffix,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in given.items()
            ],
        )
        for suffix, given in changed.items()
    ]
    admin = AdminClient(settings.kafka())
    create_topics(admin, [NewTopic(settings.topic_prefix + STATES, 3, 1, config={"cleanup.policy": "compact"})])
    for future in admin.incremental_alter_configs(requests).values():
        future.result(timeout=30)
    assert wait_until(lambda: len(said()) == 4, 30), said()
    jobs, results, states, segments = said()
    assert "with cleanup.policy=delete, Kafka removes old specs" in jobs
    assert "with retention.ms=3600000, services that start again may not know" in results
    assert "it has 3 partitions, the pipeline topics have 2, so no decider starts" in states
    assert "up to 1024 MB of old records stay in each partition" in segments


def test_a_program_changes_specs_as_the_docs_show(settings: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the page publishes a job and then a size; run again, it only asks for the size again."""
    text = (Path(__file__).parents[2] / "docs/how-to/change.md").read_text("utf-8")
    program = text.partition('```python title="deploy.py"\n')[2].partition("```")[0]
    monkeypatch.setenv("TIDEGATE_BOOTSTRAP_SERVERS", settings.bootstrap_servers)
    monkeypatch.setenv("TIDEGATE_TOPIC_PREFIX", settings.topic_prefix)
    for version in (2, 3):
        exec(program, {})  # noqa: S102 - it is ours
        spec = current_specs(settings)["rates"]
        assert spec.version == version
        assert spec.manual is not None
        assert (spec.manual.parallelism, spec.manual.reason) == (6, "launch day")


def test_a_program_does_what_the_commands_do(settings: ClientSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function returns the version that is on the topic then; what must not be published is refused by name."""
    monkeypatch.setenv("TIDEGATE_BOOTSTRAP_SERVERS", settings.bootstrap_servers)
    monkeypatch.setenv("TIDEGATE_TOPIC_PREFIX", settings.topic_prefix)
    spec = job("rates", mode=Mode.ACTIVE)
    first = changes.apply(spec, reason="release 7")
    assert (first.version, first.change and first.change.reason) == (1, "release 7")
    assert changes.apply(spec, reason="again") == first
    made = [
        changes.pause("rates", reason="an inventory"),
        changes.resume("rates", reason="it is over", advise=True),
        changes.resume("rates", reason="it was right"),
        changes.scale("rates", 3, reason="launch day"),
    ]
    assert [each.scaling.mode for each in made] == [Mode.PAUSED, Mode.ADVISE, Mode.ACTIVE, Mode.ACTIVE]
    assert current_specs(settings)["rates"] == made[-1]
    assert made[-1].version == 5
    elsewhere = spec.application.model_copy(update={"master": "spark://elsewhere:7077"})
    with pytest.raises(SpecRefused, match=r"rates: application\.master: .* does not change its cluster while it runs"):
        changes.apply(spec.model_copy(update={"application": elsewhere}), reason="a larger cluster")
    with pytest.raises(SpecRefused, match=r"(?s)sources: .*scaling\.max_parallelism: .*"):
        changes.apply({"job_id": "rates", "scaling": {"max_parallelism": "many"}}, reason="a typo")
    with pytest.raises(SpecRefused, match="there is no job 'rate'"):
        changes.scale("rate", 3, reason="another typo")
    assert current_specs(settings)["rates"] == made[-1]
    changes.remove("rates")
    assert current_specs(settings) == {}
    with pytest.raises(SpecRefused, match="there is no job 'rates'"):
        changes.remove("rates")
