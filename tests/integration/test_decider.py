"""The decider as a process on real Kafka and Redis: snapshots in, decisions and commands out."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from services.decider.faust_app import prepare_topics
from services.decider.outbox import Kept, read_states
from tests.support.decider import Flow, ServiceProcess, number_now, overloaded_now, wait_for
from tests.support.events import job, result, snapshot
from tidegate.engine.state import JobState, to_wire
from tidegate.events.command import ScalingCommand
from tidegate.events.dead_letter import DeadLetter
from tidegate.events.decision import Decision
from tidegate.events.envelope import encode, value_of
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.snapshot import MetricSnapshot
from tidegate.runtime.consumer import TopicReader
from tidegate.runtime.poll import retry
from tidegate.stack.ports import free_ports


@pytest.fixture
def flow(kafka: str, redis_url: str) -> Iterator[Flow]:
    """A separate Tidegate on the shared servers, with room for the large snapshots of F38."""
    flow = Flow(f"it-{uuid.uuid4().hex[:8]}", kafka, redis_url, largest_snapshot=8_000_000)
    yield flow
    flow.close()


def last_line(decider: ServiceProcess) -> str:
    """Return the message of the last line of a decider's log."""
    return str(json.loads(decider.text().splitlines()[-1])["message"])


def test_snapshots_become_decisions_and_commands(flow: Flow, tmp_path: Path) -> None:
    """Each snapshot gets one decision, the overloaded job a command with the same trace; the state survives a stop."""
    flow.send(job("a"), job("b", pipeline_id="b"))
    shots = overloaded_now("a", count=7)
    flow.send(*shots, *overloaded_now("b", count=3))
    with ServiceProcess(flow.settings, tmp_path / "1.log") as decider:
        flow.wait_read(Decision, 10)
        (command,) = flow.wait_read(ScalingCommand, 1)
        wait_for("all offsets committed", flow.committed_to_the_end)
        assert decider.stop() == 0, decider.text()
        assert last_line(decider) == "stopped by a signal, exit code 0"
    decisions = flow.read(Decision)
    assert [d.snapshot_id for d in decisions if d.job_id == "a"] == [s.snapshot_id for s in shots]
    assert command.command_id == next(d.decision_id for d in decisions if d.snapshot_id == shots[-1].snapshot_id)
    (record,) = flow.messages(ScalingCommand)
    assert record.key() == b"a"
    assert dict(record.headers())["traceparent"].split(b"-")[1] == trace_of_record(flow, shots[-1])

    flow.send(result(command.command_id, Phase.ACCEPTED, number_now(), job_id="a"))
    with ServiceProcess(flow.settings, tmp_path / "2.log"):
        wait_for("the result taken", lambda: flow.committed_to_the_end(ActionResult))
        flow.send(*shots, snapshot(number_now() + 1, job_id="a", arrived=1, committed=1))
        decisions = flow.wait_read(Decision, 11)
    (last,) = (d for d in decisions if d.job_id == "a" and d.sequence > shots[-1].sequence)
    assert [r.phase for r in last.observed.results] == [Phase.ACCEPTED]
    assert len(flow.read(Decision)) == 11  # repeated snapshots were decided once


def test_the_state_of_a_removed_job_goes(flow: Flow, tmp_path: Path) -> None:
    """Whether the decider runs or not when it is removed; added again, the job starts from an empty state."""

    def states() -> set[bytes]:
        with closing(TopicReader(flow.settings, [flow.settings.changelog])) as reader:
            newest = {message.key(): message.value() for message in reader.read_to_end()}
        return {key for key, value in newest.items() if value is not None}

    def remove(job_id: str) -> None:
        flow.publisher.tombstone(flow.topic(JobSpec), job_id.encode())

    flow.send(job("a"), job("b"), job("c"))
    flow.send(*[each for job_id in "abc" for each in overloaded_now(job_id, count=2)])
    with ServiceProcess(flow.settings, tmp_path / "1.log") as decider:
        flow.wait_read(Decision, 6)
        wait_for("the states of three jobs", lambda: states() == {b"a/a", b"b/b", b"c/c"})
        remove("a")
        wait_for("the state of a gone", lambda: states() == {b"b/b", b"c/c"})
        assert decider.stop() == 0, decider.text()
    remove("b")
    with ServiceProcess(flow.settings, tmp_path / "2.log"):
        flow.send(snapshot(number_now() + 1, job_id="c", arrived=1, committed=1))
        wait_for("the state of b gone", lambda: states() == {b"c/c"}, 60)
        flow.send(job("a"))
        flow.send(snapshot(number_now() + 1, job_id="a", arrived=1, committed=1))
        decisions = flow.wait_read(Decision, 8)
    last = max((each for each in decisions if each.job_id == "a"), key=lambda each: each.sequence)
    assert last.keyframe is not None, "the audit sees that the state starts over"
    assert last.keyframe.state == to_wire(JobState.new())


def trace_of_record(flow: Flow, shot: MetricSnapshot) -> bytes:
    """Return the trace id in the headers of a snapshot's record."""
    for message in flow.messages(MetricSnapshot):
        if json.loads(message.value())["snapshot_id"] == shot.snapshot_id:
            traceparent: bytes = dict(message.headers())["traceparent"]
            return traceparent.split(b"-")[1]
    raise AssertionError(shot.snapshot_id)


def poison(good: bytes) -> dict[str, tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    """Return what F38 lists as (key, value, headers); all of it must go to the dead letters."""
    whole = json.loads(good)

    def with_field(name: str, raw: str) -> bytes:
        return json.dumps({**whole, name: "@"}).replace('"@"', raw).encode()

    return {
        "not JSON": (b"a", b'{"snapshot_id": ', []),
        "invalid UTF-8": (b"a", b'{"job_id": "\xff\xfe"}', []),
        "empty": (b"a", b"", []),
        "tombstone": (b"a", None, []),
        "null key, not JSON": (None, b"nonsense", []),
        "another's key": (b"b\xff", good, []),
        "5 MB": (b"a", b'{"x": "' + b"y" * 5_000_000 + b'"}', []),
        "deep nesting": (b"a", b"[" * 20_000 + b"]" * 20_000, []),
        "NaN": (b"a", with_field("gc_ratio", "NaN"), []),
        "Infinity": (b"a", with_field("gc_ratio", "Infinity"), []),
        "huge int": (b"a", with_field("sequence", "1" + "0" * 400), []),
        "number as string": (b"a", with_field("sequence", f'"{whole["sequence"]}"'), []),
        "wrong root": (b"a", b"[1, 2]", []),
        "unknown major": (b"a", good, [("ce_type", b"tidegate.snapshot.v9")]),
        "another event": (b"a", good, [("ce_type", b"tidegate.decision.v1")]),
        "missing field": (b"a", json.dumps({k: v for k, v in whole.items() if k != "state"}).encode(), []),
        "Faust's type hint": (b"a", b'{"__faust": {"ns": "os.system"}, "job_id": "a"}', []),
        "path as job": (b"a", with_field("job_id", '"../../etc"'), []),
    }


def test_poison_among_good_ones_harms_nobody(flow: Flow, tmp_path: Path) -> None:
    """F38, I1: good snapshots are decided in order, bad records become dead letters, every offset is committed."""
    flow.send(job("a"))
    bad = poison(value_of(snapshot(0, job_id="a")))
    shots = [snapshot(number_now() - len(bad) + n, job_id="a", arrived=n, committed=n) for n in range(len(bad))]
    records = []
    for shot, record in zip(shots, bad.values(), strict=True):
        value = json.loads(value_of(shot))
        odd = [("\x00garbage", b"\xff"), ("traceparent", b"not-one"), *encode(shot).headers]
        records += [(b"a", json.dumps({**value, "of_the_future": {"x": 1}}).encode(), odd), record]
    flow.send_raw(MetricSnapshot, records)
    with ServiceProcess(flow.settings, tmp_path / "1.log") as decider:
        decisions = flow.wait_read(Decision, len(shots))
        letters = flow.wait_read(DeadLetter, len(bad))
        wait_for("all offsets committed", flow.committed_to_the_end)
        assert decider.process.poll() is None, decider.text()
    assert [d.snapshot_id for d in decisions] == [s.snapshot_id for s in shots]
    assert len(letters) == len(bad)
    by_offset = {letter.offset: letter for letter in letters}
    for number, (name, (key, value, _)) in enumerate(bad.items()):
        letter = by_offset[2 * number + 1]
        assert letter.topic == flow.topic(MetricSnapshot), name
        if value is not None and len(value) < 1_000_000:
            assert (letter.key, letter.value) == (key or b"" if key else None, value), name
    assert {letter.code for letter in letters} >= {"NOT_JSON", "NO_VALUE", "TOO_LARGE", "INVALID", "UNKNOWN_MAJOR"}


@pytest.mark.parametrize(("pipelines", "at_once"), [(("a", "c"), 2), (("a", "a"), 1)])
def test_partitions_are_handled_in_parallel(
    flow: Flow, tmp_path: Path, pipelines: tuple[str, str], at_once: int
) -> None:
    """While a record of one partition waits, another partition continues; a pipeline's records stay in order."""
    for job_id, pipeline_id in zip("ac", pipelines, strict=True):
        flow.send(job(job_id, pipeline_id=pipeline_id))
        flow.send(*overloaded_now(job_id, count=7, pipeline_id=pipeline_id))
    partitions = {message.partition() for message in flow.messages(MetricSnapshot)}
    assert len(partitions) == at_once
    slow = ("-m", "tests.support.dying_decider", "after:Decision", "60")
    with ServiceProcess(flow.settings, tmp_path / "1.log", args=slow) as decider:
        wait_for("all in the middle", lambda: decider.text().count("AT after:Decision") == at_once, 50)
        flow.wait_read(Decision, 7 * at_once)
        time.sleep(0.5)
    assert len(flow.read(Decision)) == 7 * at_once


def test_specs_are_followed_and_bad_ones_refused(flow: Flow, tmp_path: Path) -> None:
    """A new job is known within moments; a spec with an unknown policy is refused and the previous version applies."""
    with ServiceProcess(flow.settings, tmp_path / "1.log"):
        flow.send(job("a"))
        flow.send(job("a", version=2, policy="no-such-policy"))
        (letter,) = flow.wait_read(DeadLetter, 1)
        assert letter.topic == flow.topic(JobSpec)
        assert "no-such-policy" in letter.error
        flow.send(snapshot(number_now(), job_id="a"))
        (decision,) = flow.wait_read(Decision, 1)
        assert decision.spec_version == 1
        flow.publisher.tombstone(flow.topic(JobSpec), b"a")
        flow.send(job("b"))
        flow.send(snapshot(number_now(), job_id="b"))
        flow.wait_read(Decision, 2)
        flow.send(snapshot(number_now() + 1, job_id="a"))
        codes = [found.code for found in flow.wait_read(DeadLetter, 2)]
        assert codes[1:] == ["NO_JOB"]


def test_health_and_metrics_are_served(flow: Flow, tmp_path: Path) -> None:
    """`/healthz` answers while the loop runs, `/metrics` counts decisions."""
    (port,) = free_ports(1)
    settings = flow.settings.model_copy(update={"health_port": port})
    flow.send(job("a"))
    flow.send(snapshot(number_now(), job_id="a"))

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return str(answer.read().decode())

    with ServiceProcess(settings, tmp_path / "1.log"):
        flow.wait_read(Decision, 1)
        assert page("healthz") == "ok\n"
        wait_for(
            "the decision counted",
            lambda: 'tidegate_decider_snapshots_total{outcome="decided"} 1.0' in page("metrics"),
        )


def test_topics_that_do_not_fit_are_refused(flow: Flow, tmp_path: Path) -> None:
    """F15: a changelog with another partition count would separate states from snapshots: exit code 2, and a reason."""
    admin = AdminClient(flow.settings.kafka())
    admin.create_topics([NewTopic(flow.settings.changelog, 3, 1)])[flow.settings.changelog].result(timeout=30)
    with ServiceProcess(flow.settings, tmp_path / "1.log") as decider:
        assert decider.wait(60) == 2
        assert f"topic {flow.settings.changelog} has 3 partitions, the pipeline topics have 4" in decider.text()


@pytest.mark.parametrize("kept", ["states", "specs"])
def test_old_states_and_specs_are_compacted_soon(flow: Flow, kept: str) -> None:
    """Kafka compacts no segment before it is full: with Kafka's own 1 GB, a start would read hours or days of them."""
    prepare_topics(flow.settings)
    admin = AdminClient(flow.settings.kafka())  # its answers come only while it lives
    asked = [ConfigResource(ResourceType.TOPIC, flow.settings.changelog if kept == "states" else flow.topic(JobSpec))]

    def config_of() -> Any:
        (answer,) = admin.describe_configs(asked).values()
        return answer.result(timeout=30)

    config = retry(config_of, KafkaException, every=0.1)  # the broker shows a new topic a moment later
    assert config["cleanup.policy"].value == "compact"
    assert int(config["segment.bytes"].value) <= 16 * 2**20


def test_a_state_on_another_partition_does_not_come_back(flow: Flow) -> None:
    """If partitions were added to all topics and the changelog, the states from before are on other partitions."""
    prepare_topics(flow.settings)
    hour_ago = int(1000 * (time.time() - 3600))
    producer = Producer(flow.settings.kafka())
    for old, new in ((0, 1), (1, 0)):
        for name, value in (("kept", b"new"), ("removed", None)):
            key = f"{name}-{old}".encode()
            producer.produce(flow.settings.changelog, b"old", key, partition=old, timestamp=hour_ago)
            producer.produce(flow.settings.changelog, value, key, partition=new)
    assert producer.flush(30) == 0
    assert read_states(flow.settings) == {b"kept-0": Kept(1, b"new"), b"kept-1": Kept(0, b"new")}


def test_a_flood_of_poison_stops_the_service(flow: Flow, tmp_path: Path) -> None:
    """F39: past the limit the decider exits with code 70 and commits nothing further."""
    flow.send_raw(MetricSnapshot, [(b"a", b"junk", [])] * 20)
    settings = flow.settings.model_copy(update={"dead_letter_limit": 5})
    with ServiceProcess(settings, tmp_path / "1.log") as decider:
        assert decider.wait(60) == 70
        assert "unreadable records in a row" in decider.text()
        assert last_line(decider) == "stopped by an error, exit code 70"
    assert len(flow.read(DeadLetter)) == 5
    assert not flow.committed_to_the_end()


def test_sigterm_with_a_backlog_ends_within_seconds(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop during a backlog is clean and quick; after the next start the rest is decided, once each."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    flow.send(job("a"))
    base = number_now() - 3000
    flow.send(*[snapshot(base + n, job_id="a", arrived=n, committed=n) for n in range(3000)])
    with ServiceProcess(flow.settings, tmp_path / "1.log") as decider:
        flow.wait_read(Decision, 50)
        decider.signal(signal.SIGTERM)
        assert decider.wait(15) == 0, decider.text()
        logged = [json.loads(line) for line in decider.text().splitlines()]  # every line is JSON
        assert logged[-1]["message"] == "stopped by a signal, exit code 0"
        assert not list(scratch.iterdir()), "files are left"
        done = len(flow.read(Decision))
        assert done < 3000
    with ServiceProcess(flow.settings, tmp_path / "2.log"):
        decisions = flow.wait_read(Decision, 3000, 100)
    assert [d.sequence for d in decisions] == sorted({d.sequence for d in decisions})
    assert len(decisions) == 3000
