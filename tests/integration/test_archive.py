"""The archive against a real broker and real Spark: every offset once with its bytes, whatever is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from bench.streams import decided, spec_of
from tests.integration.conftest import new_topics
from tests.support.provider import StackProvider
from tidegate.archive import chain, keys, store, stream, upkeep
from tidegate.archive.damage import Kind
from tidegate.archive.manifest import ArchivedAlready, Manifest, Why
from tidegate.archive.prove import content_column, prove, sign_heads
from tidegate.archive.read import location, read_archive
from tidegate.archive.statements import signed_blocks
from tidegate.cli import app
from tidegate.events.topics import DECISIONS, JOBS, RESULTS, SNAPSHOTS, TOPICS
from tidegate.replay.export import export
from tidegate.replay.files import KafkaRecord, read
from tidegate.replay.recompute import recompute
from tidegate.replay.record import record
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import create_topics, partition_counts

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
DAY = 86_400_000
# Fixed when the tests begin, and never close to the end of a day: midnight may pass while they run.
NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
TODAY = NOW.date()
Place = tuple[str, int, int]


def fill(settings: ServiceSettings, count: int, *, days_ago: int = 0, seed: int = 0) -> None:
    """Publish records of any bytes, with a Kafka timestamp of some days ago."""
    dice = random.Random(seed)
    publisher = Publisher(settings)
    at = int(NOW.timestamp() * 1000) - days_ago * DAY
    for number in range(count):
        topic = dice.choice(TOPICS)
        key = f"key-{dice.randrange(20)}".encode()
        value = None if dice.random() < 0.02 else dice.randbytes(dice.randrange(200))
        headers = [("ce_type", b"x"), ("raw", dice.randbytes(3)), ("none", None)][: dice.randrange(4)]
        publisher.send_raw(topic.named(settings.topic_prefix), key, value, headers, timestamp_ms=at + number)
    publisher.flush()


def in_topics(settings: ServiceSettings, folder: Path) -> dict[Place, KafkaRecord]:
    """Return what the topics hold, as Tidegate's recorder reads it."""
    made = folder / uuid.uuid4().hex
    record(settings, made)
    return {(topic.suffix, one.partition, one.offset): one for topic in TOPICS for one in read(made, topic.suffix)}


def in_archive(session: Any, folder: Path, **days: Any) -> dict[Place, KafkaRecord]:
    """Return what an archive holds; fail if an offset is there twice."""
    found: dict[Place, KafkaRecord] = {}
    for row in read_archive(session, folder, **days).collect():
        place = row["topic"], row["partition"], row["offset"]
        assert place not in found
        headers = tuple((h["key"], None if h["value"] is None else bytes(h["value"])) for h in row["headers"])
        key, value = (None if raw is None else bytes(raw) for raw in (row["key"], row["value"]))
        found[place] = KafkaRecord(row["partition"], row["offset"], row["timestamp_ms"], key, value, headers)
    return found


def day_of(one: KafkaRecord) -> date:
    """Return the UTC day of a record's timestamp."""
    return datetime.fromtimestamp(one.timestamp_ms / 1000, UTC).date()


def archive_once(session: Any, settings: ServiceSettings, folder: Path, **options: Any) -> None:
    """Archive up to the end of the topics."""
    stream.archive(session, settings, folder, once=True, **options)


def test_every_record_is_archived_once_with_its_bytes(session: Any, settings: ServiceSettings, tmp_path: Path) -> None:
    """Bytes and timestamps are the topics'; another run adds what is new; Spark hashes it as the chain is defined."""
    folder = tmp_path / "archive"
    fill(settings, 200, seed=1)
    archive_once(session, settings, folder, batch_records=120)
    assert in_archive(session, folder) == in_topics(settings, tmp_path)
    fill(settings, 50, seed=3)
    archive_once(session, settings, folder)
    archive_once(session, settings, folder)
    everything = in_topics(settings, tmp_path)
    assert in_archive(session, folder) == everything
    assert len(everything) == 250
    assert store.load(folder).gaps == ()
    rows = read_archive(session, folder).withColumn("content", content_column()).collect()
    assert {(row["topic"], row["partition"], row["offset"]): bytes(row["content"]) for row in rows} == {
        place: chain.content(one.timestamp_ms, one.key, one.value, one.headers) for place, one in everything.items()
    }


def test_a_day_is_read_without_the_files_of_other_days(session: Any, settings: ServiceSettings, tmp_path: Path) -> None:
    """Late records are under the day of their time, and a day in the middle is read when all other files are gone."""
    folder = tmp_path / "archive"
    for days_ago in (0, 4, 3):
        fill(settings, 30, days_ago=days_ago, seed=days_ago)
    archive_once(session, settings, folder)
    middle = TODAY - timedelta(days=3)
    for file in store.load(folder).files:
        if file.day != middle:
            (folder / file.path).unlink()
    found = in_archive(session, folder, first_day=middle, last_day=middle)
    assert found == {place: one for place, one in in_topics(settings, tmp_path).items() if day_of(one) == middle}
    assert len(found) == 30
    long_ago = date(2000, 1, 1)
    assert read_archive(session, folder, ["decisions"], first_day=long_ago, last_day=long_ago).count() == 0


def test_a_record_that_no_calendar_has_is_archived(session: Any, tmp_path: Path) -> None:
    """Kafka stores any timestamp: a day beyond the year 9999 is filed under the last one, and counts as well filed."""
    folder, key = tmp_path / "archive", keys.new_key(tmp_path / "a.key", "archive")
    beyond = 253_402_300_800_000
    times = {0: 1_790_000_000_000, 1: beyond - 1, 2: beyond, 3: 30 * beyond, 4: -1}
    rows = [(f"t.{DECISIONS.suffix}", 0, offset, at, b"k", b"v", None) for offset, at in times.items()]
    columns = "topic string, partition int, offset long, ms long, key binary, value binary, headers binary"
    read = session.createDataFrame(rows, columns).selectExpr(
        *("topic", "partition", "offset", "key", "value"),
        "timestamp_millis(ms) AS timestamp",
        "CAST(NULL AS array<struct<key: string, value: binary>>) AS headers",
    )
    store.load_or_create(folder, "t.")
    stream._Sink(folder, "t.", lambda _: None).take(read, 0)
    assert {place[2]: one.timestamp_ms for place, one in in_archive(session, folder).items()} == times
    days = {file.day for file in store.load(folder).files}
    assert days == {date(2026, 9, 21), date.max, date(1969, 12, 31)}
    sign_heads(session, folder, key, [key.public])
    assert prove(session, folder, [key.public]).damages == []


def test_what_the_broker_dropped_is_a_gap(session: Any, settings: ServiceSettings, tmp_path: Path) -> None:
    """Offsets removed before archiving began, and between two runs, are named; what is left is archived."""
    folder, name = tmp_path / "archive", RESULTS.named(settings.topic_prefix)

    def send(count: int) -> None:
        publisher = Publisher(settings)
        for number in range(count):
            publisher.send_raw(name, b"same key", b"%d" % number, [])
        publisher.flush()

    def drop(before: int) -> None:
        admin = AdminClient(settings.kafka())
        for done in admin.delete_records([TopicPartition(name, partition, before)]).values():
            done.result(timeout=30)

    send(30)
    partition = next(place[1] for place in in_topics(settings, tmp_path))
    drop(10)
    archive_once(session, settings, folder)
    send(30)
    drop(45)
    archive_once(session, settings, folder)
    drop(60)
    send(5)
    archive_once(session, settings, folder)
    manifest = store.load(folder)
    assert [(gap.topic, gap.partition, gap.first, gap.last, gap.why) for gap in manifest.gaps] == [
        ("results", partition, 0, 9, Why.BEFORE),
        ("results", partition, 30, 44, Why.GONE),
    ]
    assert sorted(offset for _, _, offset in in_archive(session, folder)) == [*range(10, 30), *range(45, 65)]


def test_a_topic_that_was_created_again_is_not_taken_for_the_one_before(
    session: Any, settings: ServiceSettings, tmp_path: Path
) -> None:
    """Offsets alone do not show it once the new topic is longer than what is archived; its id does."""
    folder, name, admin = tmp_path / "archive", RESULTS.named(settings.topic_prefix), AdminClient(settings.kafka())
    fill(settings, 30)
    archive_once(session, settings, folder)
    archive_once(session, settings, folder)
    admin.delete_topics([name])[name].result(timeout=30)
    made = wait_until(lambda: create_topics(admin, [NewTopic(name, 2)]), 30, 0.1)
    assert made
    wait_until(lambda: name in partition_counts(settings), 30, 0.1)
    fill(settings, 300)
    with pytest.raises(ArchivedAlready, match="results was deleted and created again"):
        stream.waiting(settings, folder)
    with pytest.raises(ArchivedAlready, match="results was deleted and created again"):
        archive_once(session, settings, folder)


ARCHIVER = """
import sys
from pathlib import Path
from tidegate.archive import stream
from tidegate.replay.source import start_session
from tidegate.runtime.settings import ServiceSettings

servers, prefix, folder, *jars = sys.argv[1:]
settings = ServiceSettings(bootstrap_servers=servers, topic_prefix=prefix)
spark = start_session("local[1]", jars)
print("ready", flush=True)
stream.archive(spark, settings, Path(folder), every_seconds=0.0, batch_records=40,
               on_batch=lambda batch: print(batch.records, flush=True))
"""


def test_a_killed_archiver_loses_and_repeats_nothing(
    session: Any, settings: ServiceSettings, stack: StackProvider, tmp_path: Path
) -> None:
    """Kill -9 in the middle, twice, at any instant: the next run goes on, and each offset is there once."""
    folder = tmp_path / "archive"
    fill(settings, 1500, seed=5)
    jars = [str(jar) for jar in stack.need(kafka=True).connector_jars]
    command = [sys.executable, "-c", ARCHIVER, settings.bootstrap_servers, settings.topic_prefix, str(folder), *jars]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, b"")
        assert next(lines) == b"ready\n"
        for _ in range(2):
            assert int(next(lines)) > 0
        time.sleep(random.Random().uniform(0.0, 1.0))  # somewhere within the following batches
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        process.stdout.close()
    held = in_archive(session, folder)
    everything = in_topics(settings, tmp_path)
    assert 0 < len(held) < len(everything)
    assert held.items() <= everything.items()
    archive_once(session, settings, folder)
    assert in_archive(session, folder) == everything
    assert store.load(folder).gaps == ()


def test_a_run_that_ends_at_any_point_of_a_batch_is_made_good(
    session: Any, settings: ServiceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a batch was written, moved or listed when the run ended: the next completes it, and nothing is twice."""
    folder = tmp_path / "archive"
    fill(settings, 60, seed=6)
    listing = store._write

    class Ended(Exception):
        """Stands for a kill: nothing that follows is done."""

    def ended(*_: object) -> Any:
        raise Ended

    def before_listing(where: Path, manifest: Manifest) -> None:
        (ended if manifest.files else listing)(where, manifest)

    def after_listing(where: Path, manifest: Manifest) -> None:
        listing(where, manifest)
        if manifest.files:
            raise Ended

    for name, instead in (("adopt", ended), ("_write", before_listing), ("_write", after_listing)):
        assert store.load_or_create(folder, settings.topic_prefix).files == ()
        with monkeypatch.context() as patched:
            patched.setattr(store, name, instead)
            with pytest.raises(Ended):
                archive_once(session, settings, folder)
    assert in_archive(session, folder) == in_topics(settings, tmp_path)
    archive_once(session, settings, folder)
    assert in_archive(session, folder) == in_topics(settings, tmp_path)
    listed = {folder / file.path for file in store.load(folder).files}
    assert set((folder / "records").rglob("*.parquet")) == listed


def test_an_archive_is_compacted_while_it_is_read(session: Any, settings: ServiceSettings, tmp_path: Path) -> None:
    """Each topic and past day becomes one file; a reader that began before, and one that begins after, see the same."""
    folder = tmp_path / "archive"
    for seed in range(2):
        fill(settings, 60, days_ago=2, seed=seed)
        fill(settings, 10, seed=10 + seed)
        archive_once(session, settings, folder)
    began_before = read_archive(session, folder)
    before = in_archive(session, folder)
    many = Counter((file.topic, file.day) for file in store.load(folder).files)
    became = upkeep.compact(session, folder, before=TODAY)
    after = Counter((file.topic, file.day) for file in store.load(folder).files)
    past = [place for place in many if place[1] < TODAY]
    assert became == (sum(many[place] for place in past), len(past))
    assert all(after[place] == 1 for place in past)
    assert all(after[place] == many[place] for place in many if place[1] == TODAY)
    assert began_before.count() == len(before)
    assert in_archive(session, folder) == before
    assert upkeep.compact(session, folder, before=TODAY) == (0, 0)


@pytest.mark.usefixtures("commands_share")
def test_the_archiver_puts_past_days_together(session: Any, settings: ServiceSettings, tmp_path: Path) -> None:
    """It does so by itself, or `archive.json` would grow for ever. A damaged file keeps nothing from being archived."""
    folder = tmp_path / "archive"
    words = ["archive", "run", str(folder), "--once", "-b", settings.bootstrap_servers]
    said = ""
    for seed in (1, 2, None):
        if seed is not None:
            fill(settings, 60, days_ago=3, seed=seed)
        ran = CliRunner().invoke(app, [*words, "--topic-prefix", settings.topic_prefix])
        assert ran.exit_code == 0, ran.output
        said += ran.output
    assert "files of past days became" in said
    files = store.load(folder).files
    assert len({(file.topic, file.day) for file in files}) == len(files)
    assert in_archive(session, folder) == in_topics(settings, tmp_path)

    (folder / files[0].path).write_bytes(b"no Parquet")
    fill(settings, 60, days_ago=3, seed=3)
    for archived in ("archived 60 records", "archived 0 records"):
        ran = CliRunner().invoke(app, [*words, "--topic-prefix", settings.topic_prefix])
        assert (ran.exit_code, archived in ran.output) == (0, True), ran.output
    assert f"these files stay as they are: {files[0].topic} of {files[0].day}: " in " ".join(ran.output.split())
    scattered = Counter((file.topic, file.day) for file in store.load(folder).files)
    assert {place for place, count in scattered.items() if count > 1} == {(files[0].topic, files[0].day)}


def test_an_export_is_a_recording_with_the_same_bytes(session: Any, settings: ServiceSettings, tmp_path: Path) -> None:
    """Decisions recompute from it bit for bit, and each record is the topic's."""
    publisher = Publisher(settings)
    publisher.send(spec_of("orders", 1))
    for measured, decision in decided("orders", 40, partitions=4, seed=6):
        publisher.send(measured)
        publisher.send(decision)
    publisher.send_raw(SNAPSHOTS.named(settings.topic_prefix), b"\xff", b"\xfe", [("h", b"\xfd"), ("n", None)])
    publisher.flush()
    archive_once(session, settings, tmp_path / "archive")
    export(session, tmp_path / "archive", tmp_path / "rec")
    for topic in (JOBS, SNAPSHOTS, DECISIONS):
        exported = {(one.partition, one.offset): one for one in read(tmp_path / "rec", topic.suffix)}
        assert exported == {
            place[1:]: one for place, one in in_topics(settings, tmp_path).items() if place[0] == topic.suffix
        }
    result = recompute(directory=tmp_path / "rec", spark=session)
    assert (result.identical, result.ok) == (40, True)


@pytest.fixture(scope="module")
def signed_once(session: Any, stack: StackProvider, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key and an archive of two days, signed in two runs."""
    folder = tmp_path_factory.mktemp("signed")
    settings = new_topics(stack.need(kafka=True).bootstrap_servers)
    key = keys.new_key(folder / "a.key", "archive")
    for seed, days_ago in ((1, 2), (2, 1)):
        fill(settings, 150, days_ago=days_ago, seed=seed)
        archive_once(session, settings, folder / "archive")
        assert sign_heads(session, folder / "archive", key, [key.public])
    fill(settings, 20, seed=3)
    archive_once(session, settings, folder / "archive")
    return folder


@pytest.fixture
def sealed(signed_once: Path, tmp_path: Path) -> tuple[Path, keys.SigningKey]:
    """A copy of an archive of two days, signed in two runs, with 20 records that are not signed; and the key."""
    shutil.copytree(signed_once, tmp_path / "signed")
    return tmp_path / "signed" / "archive", keys.read_key(tmp_path / "signed" / "a.key")


def test_what_is_as_it_was_signed_is_proved(session: Any, sealed: tuple[Path, keys.SigningKey]) -> None:
    """Also after compaction and after the first day has expired; what came later counts as not signed."""
    folder, key = sealed
    proof = prove(session, folder, [key.public])
    assert proof.ok
    assert sum(each.proved for each in proof.partitions) == 300
    assert sum(each.unsigned for each in proof.partitions) == 20
    before = in_archive(session, folder)
    upkeep.compact(session, folder, before=TODAY)
    first_kept = dict.fromkeys((topic.suffix for topic in TOPICS), TODAY - timedelta(days=1))
    upkeep.expire(session, folder, upkeep.expiries(store.load(folder), first_kept, signed_blocks(folder / "chain")))
    after = in_archive(session, folder)
    assert len(after) == 170
    assert after.items() <= before.items()
    proof = prove(session, folder, [key.public])
    assert proof.ok
    assert sum(each.proved for each in proof.partitions) == 150
    assert any(each.expired_before for each in proof.partitions)


def test_damage_to_the_files_is_found_and_placed(
    session: Any, sealed: tuple[Path, keys.SigningKey], tmp_path: Path
) -> None:
    """An altered value, a removed record, a file cut off the manifest and a broken file: each with its offsets."""
    folder, key = sealed
    files = [file for file in store.load(folder).files if file.topic == "decisions"]
    altered, broken = files[0], files[1]
    assert altered.day != broken.day
    rows = session.read.parquet(location(folder / altered.path)).collect()
    forged = [row.asDict(recursive=True) for row in rows]
    forged[0]["value"] = b"forged"
    place = forged[0]["partition"], forged[0]["offset"]
    schema = session.read.parquet(location(folder / altered.path)).schema
    session.createDataFrame(forged, schema).coalesce(1).write.parquet(location(tmp_path / "forged"))
    next((tmp_path / "forged").glob("*.parquet")).replace(folder / altered.path)
    damages = prove(session, folder, [key.public]).damages
    assert [(d.kind, d.topic, d.partition, d.first_offset, d.last_offset) for d in damages] == [
        (Kind.ALTERED, "decisions", *place, place[1])
    ]

    raw = bytearray((folder / broken.path).read_bytes())
    raw[len(raw) // 2 :] = b"\0" * (len(raw) - len(raw) // 2)
    (folder / broken.path).write_bytes(raw)
    gone = next(file for file in store.load(folder).files if file.topic == "snapshots")
    listed = tuple(file for file in store.load(folder).files if file != gone)
    store.change(folder, lambda m: m.model_copy(update={"files": listed}), datetime.now(UTC))
    proof = prove(session, folder, [key.public])
    assert not proof.ok
    removed = {(d.topic, d.partition, d.first_offset, d.last_offset) for d in proof.damages if d.kind is Kind.REMOVED}
    for file in (broken, gone):
        for partition, span in file.spans.items():
            assert (file.topic, partition, span.first, span.last) in removed


@pytest.mark.usefixtures("commands_share")
def test_the_commands_archive_sign_and_verify(settings: ServiceSettings, tmp_path: Path) -> None:
    """From `archive run` to `chain verify`: 0 if all is as it was signed, 1 with the place if not, 2 without heads."""
    folder, key = str(tmp_path / "archive"), str(tmp_path / "a.key")
    broker = ["-b", settings.bootstrap_servers, "--topic-prefix", settings.topic_prefix]

    def ran(code: int, *words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == code, done.output
        return done.output

    fill(settings, 100, days_ago=1, seed=4)
    assert "archived 100 records" in ran(0, "archive", "run", folder, "--once", *broker)
    assert "archived 0 records" in ran(0, "archive", "run", folder, "--once", *broker)
    assert str(TODAY - timedelta(days=1)) in ran(0, "archive", "show", folder)
    ran(0, "chain", "new-key", key)
    assert "nothing is signed" in ran(2, "chain", "verify", folder, "--trust", f"{key}.pub")
    assert "signed with key" in ran(0, "chain", "head", folder, "--key", key)
    assert "everything is signed already" in ran(0, "chain", "head", folder, "--key", key)
    ran(0, "chain", "new-key", f"{key}2")
    ran(0, "chain", "rotate", folder, "--key", key, "--new-key", f"{key}2")
    assert "is not trusted" in ran(2, "chain", "head", folder, "--key", f"{key}2")
    ran(0, "chain", "head", folder, "--key", f"{key}2", "--trust", f"{key}.pub")
    assert "nothing to compact" in ran(0, "archive", "compact", folder)
    assert "all as it was signed" in ran(0, "chain", "verify", folder, "--trust", f"{key}.pub")
    assert "decisions" in ran(0, "archive", "export", folder, str(tmp_path / "rec"), "--topic", "decisions")
    gone = next(file for file in store.load(tmp_path / "archive").files if file.topic == "commands")
    (tmp_path / "archive" / gone.path).unlink()
    partition, span = next(iter(gone.spans.items()))
    place = f"DAMAGED commands, partition {partition}, offsets {span.first} to {span.last} ({gone.day}): removed"
    assert place in ran(1, "chain", "verify", folder, "--trust", f"{key}.pub")
