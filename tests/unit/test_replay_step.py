"""Stepping through a recording: every event in its order, the engine deciding along, at keys or without."""

from __future__ import annotations

import gc
import json
import os
import pty
import select
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.events import snapshot
from tests.support.history import ENDS, GROWS, decided_twice, write_events, write_history
from tidegate.cli import app
from tidegate.engine.decide import ENGINE_VERSION
from tidegate.events.decision import Decision
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import MetricSnapshot
from tidegate.events.topics import TOPICS
from tidegate.events.wire import Wire
from tidegate.installed import engine
from tidegate.replay.files import KafkaRecord, RecordingManifest, read, read_manifest, sha256, write_manifest
from tidegate.replay.record import write_recording
from tidegate.replay.schedule import schedule
from tidegate.replay.walk import Walk, details


@pytest.fixture
def rec(tmp_path: Path) -> Path:
    """A recording."""
    write_history(tmp_path / "rec")
    return tmp_path / "rec"


def run(rec: Path, *options: str, keys: str = "", code: int = 0) -> str:
    """Return what `replay step` prints, keys from a pipe."""
    ran = CliRunner().invoke(app, ["replay", "step", "--from", str(rec), *options], input=keys)
    assert ran.exit_code == code, ran.output
    return ran.stdout if code == 0 else ran.stderr


def shown(text: str) -> list[int]:
    """Return the numbers of the events shown."""
    return [int(line[1:].partition("/")[0]) for line in text.splitlines() if line.startswith("[")]


def test_the_engine_makes_every_recorded_decision_again(rec: Path) -> None:
    """Going through the recording gives the recorded decisions, byte for byte, and the state after each."""
    with closing(Walk(rec, engine())) as walk:
        walked = [walk.take(departure) for departure in schedule(rec, whole=True)]
    decided = [one for one in walked if one.decision is not None]
    assert len(decided) == ENDS
    assert all(one.difference is None for one in decided)
    assert [one.state.decisions for one in decided if one.state] == list(range(1, ENDS + 1))
    assert any("under way" in line for one in decided for line in details(one))


def test_a_keyframe_whose_state_is_none_is_told(rec: Path) -> None:
    """Whoever looks into a damaged recording sees where, and all other events."""
    lines = (rec / "decisions.ndjson").read_text("utf-8").splitlines(keepends=True)
    fields = json.loads(lines[0])
    value = json.loads(fields["value"])
    value["keyframe"]["state"] = {"window": [[1]]}
    lines[0] = json.dumps({**fields, "value": json.dumps(value)}) + "\n"
    (rec / "decisions.ndjson").write_text("".join(lines), "utf-8")
    with closing(Walk(rec, engine())) as walk:
        walked = [walk.take(departure) for departure in schedule(rec, whole=True)]
    told = [one.undecided for one in walked if one.undecided]
    assert "its state cannot be used" in told[0]
    assert sum(one.decision is not None for one in walked) == ENDS - len(told) > 0


@pytest.mark.parametrize("repeat_first", [True, False])
def test_the_decider_may_have_gone_on_from_either_of_two_decisions(tmp_path: Path, repeat_first: bool) -> None:
    """It died between publishing a decision and saving its state, and decided on the snapshot again, later."""
    steps, at, other = decided_twice()
    written: list[tuple[datetime, Wire]] = [(steps[0].snapshot.observed_at, steps[0].spec)]
    for number, each in enumerate(steps):
        twice = [other] * (number == at)
        decisions = [*twice, each.decision] if repeat_first else [each.decision, *twice]
        written.append((each.snapshot.observed_at, each.snapshot))
        written += [(each.decision.decided_at, decision) for decision in decisions]
    write_events(tmp_path / "rec", written)
    with closing(Walk(tmp_path / "rec", engine())) as walk:
        walked = [walk.take(departure) for departure in schedule(tmp_path / "rec", whole=True)]
    assert [one.difference for one in walked if one.decision is not None] == [None] * ENDS


def test_a_recording_need_not_fit_into_memory(rec: Path) -> None:
    """Only the places of events are kept: each is read when its turn comes."""

    def held() -> int:
        gc.collect()
        return sum(type(each) in {MetricSnapshot, ActionResult, Decision, KafkaRecord} for each in gc.get_objects())

    before = held()
    departures = schedule(rec, whole=True)
    with closing(Walk(rec, engine())):
        assert len(departures) > ENDS
        assert held() == before


def test_a_compressed_recording_is_gone_through_as_well(rec: Path, tmp_path: Path) -> None:
    """Its events come in the same order, with the same decisions."""
    records = ((topic, read(rec, topic.suffix)) for topic in TOPICS)
    now = datetime.now(UTC)
    write_recording(
        tmp_path / "gz",
        records,
        lambda files: RecordingManifest(topic_prefix="tidegate.", recorded_at=now, files=files),
        compress=True,
    )
    assert {file.suffix for file in (tmp_path / "gz").iterdir()} == {".gz", ".json"}
    assert run(tmp_path / "gz", "--speed", "max") == run(rec, "--speed", "max")


def test_without_keys_every_event_is_shown_in_its_order(rec: Path) -> None:
    """Specs, results and snapshots are numbered; each snapshot shows its decision, reasons and that it is the same."""
    text = run(rec, "--speed", "max")
    total = len(schedule(rec, whole=True))
    assert shown(text) == list(range(1, total + 1))
    assert text.count("as recorded, byte for byte") == ENDS
    assert "spec, version 2: flip271, active, 1 to 16 slots" in text
    assert "result, verified" in text
    assert "[COMMAND_IN_FLIGHT]" in text or "Scale up" in text


def test_a_changed_decision_is_shown_with_its_first_difference(rec: Path) -> None:
    """The field, what was recorded, and what the engine makes of it."""
    file = rec / "decisions.ndjson"
    lines = file.read_text().splitlines()
    forged = json.loads(lines[GROWS])
    decision = json.loads(forged["value"])
    decision["final_parallelism"] += 1
    lines[GROWS] = json.dumps({**forged, "value": json.dumps(decision)})
    file.write_text("\n".join(lines) + "\n")
    manifest = read_manifest(rec)
    files = tuple(
        f.model_copy(update={"sha256": sha256(rec / f.file), "bytes": (rec / f.file).stat().st_size})
        for f in manifest.files
    )
    write_manifest(rec, manifest.model_copy(update={"files": files}))
    text = run(rec, "--speed", "max")
    was = decision["final_parallelism"]
    assert f"DIFFERS from the recorded decision: final_parallelism is {was - 1}, recorded {was}" in text
    assert text.count("as recorded, byte for byte") == ENDS - 1


def test_decisions_of_another_engine_are_shown_as_they_were(rec: Path) -> None:
    """Around an upgrade nothing looks changed: the older engine's decisions are named, those after it made again.

    The older one has also decided on the first snapshot that the newer one decided on, and then died.
    """
    file = rec / "decisions.ndjson"
    lines = file.read_text("utf-8").splitlines()
    ours = f'\\"engine_version\\":\\"{ENGINE_VERSION}\\"'
    other = [line.replace(ours, '\\"engine_version\\":\\"1\\"', 1) for line in lines[: GROWS + 1]]
    file.write_text("\n".join([*other, *lines[GROWS:]]) + "\n", "utf-8")
    text = run(rec, "--speed", "max")
    assert "DIFFERS" not in text
    assert text.count(f"as engine 1 decided; engine {ENGINE_VERSION} cannot") == GROWS
    assert text.count("as recorded, byte for byte") == ENDS - GROWS


def test_keys_choose_the_next_event_decision_or_event_of_the_job(rec: Path) -> None:
    """Enter and space go one on, n to a decision, j to the job's next event, q ends; so does the end of the input."""
    results = [n for n, d in enumerate(schedule(rec, whole=True), 1) if isinstance(d.event, ActionResult)]
    assert shown(run(rec, keys="\n \nq")) == [1, 2, 3]
    assert shown(run(rec, keys="")) == [1]
    decisions = shown(run(rec, keys="n" * 40))
    assert len(decisions) == ENDS + 1  # the first event is a spec
    assert not set(decisions) & set(results)
    assert shown(run(rec, keys="jj\n")) == [1, 2, 3]
    assert "is no key" in run(rec, keys="x", code=2)


def test_a_key_leads_past_the_events_of_other_jobs(tmp_path: Path) -> None:
    """From an event of one job, j leads to its next one, wherever that is."""
    events = [snapshot(n, job_id=name) for n, name in enumerate(["rates", "orders", "orders", "rates"])]
    write_events(tmp_path / "rec", [(each.observed_at, each) for each in events])
    assert shown(run(tmp_path / "rec", keys="j\n")) == [1, 4]
    assert "no decision on it was recorded" in run(tmp_path / "rec", keys="q")


def test_only_one_job_is_gone_through(rec: Path) -> None:
    """`--job` leaves out all others; one that was not recorded is an error."""
    assert shown(run(rec, "--job", "rates", "--speed", "max"))
    assert "nothing to step through of job 'other'" in run(rec, "--job", "other", code=2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--speed", "fast"], "neither a factor above 0 nor max"),
        (["--speed", "1e-300"], "neither a factor above 0 nor max"),
        (["--to", "127.0.0.1:1"], "--topic-prefix is required"),
        (["--topic-prefix", "try."], "name the broker with --to"),
    ],
)
def test_options_that_do_not_fit_are_refused(rec: Path, options: list[str], says: str) -> None:
    """With what to do instead."""
    assert says in run(rec, *options, code=2).replace("\n", " ")


@pytest.mark.parametrize(("given", "code", "said"), [("<&-", 0, ""), ("", 2, "is no key")])
def test_input_that_is_closed_or_no_text_leaves_no_traceback(rec: Path, given: str, code: int, said: str) -> None:
    """Without standard input the first event is shown, as with an empty one."""
    ran = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m tidegate replay step --from "$1" {given}', sys.executable, str(rec)],
        input=b"\xff\n",
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert (ran.returncode, b"Traceback" in ran.stderr) == (code, False)
    assert said in ran.stderr.decode()
    assert shown(ran.stdout.decode()) == [1]


def test_at_a_pace_it_takes_its_time(rec: Path) -> None:
    """At 200 times the recorded pace, 160 recorded seconds take 0.8 s."""
    began = time.monotonic()
    run(rec, "--speed", "200")
    assert time.monotonic() - began >= (ENDS - 1) * 10 / 200


def test_on_a_terminal_each_key_counts_at_once(rec: Path) -> None:
    """No Enter is needed after n or q, and the terminal is left as it was."""
    ours, theirs = pty.openpty()
    program = "import sys; from tidegate.cli import app; app(sys.argv[1:])"
    words = [sys.executable, "-c", program, "replay", "step", "--from", str(rec)]
    child = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.close(theirs)
    assert child.stdout is not None
    try:
        wait_for(child.stdout.fileno(), b"[1/")
        os.write(ours, b"n")
        wait_for(child.stdout.fileno(), b"[2/")
        os.write(ours, b"q")
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait(5)
        child.stdout.close()
        os.close(ours)


def wait_for(pipe: int, text: bytes) -> None:
    """Read until a text has come."""
    seen, deadline = b"", time.monotonic() + 60
    while text not in seen:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{text!r} did not come, only {seen!r}"
        seen += os.read(pipe, 65536)


def test_a_record_with_a_forged_time_is_shown(rec: Path) -> None:
    """The time of a Kafka record is its writer's: one after the year 9999 is shown as the number that it is."""
    file = rec / "snapshots.ndjson"
    first, *others = file.read_text("utf-8").splitlines(keepends=True)
    fields = json.loads(first) | {"timestamp": 10**18}
    file.write_text(json.dumps(fields) + "\n" + "".join(others), "utf-8")
    assert "timestamp 1000000000000000000  " in run(rec, "--speed", "max")
