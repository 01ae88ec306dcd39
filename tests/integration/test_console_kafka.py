"""The console and `tidegate top` on a real broker: from the topics to the page, and from a form to the topic."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.support.fleets import simulated_events
from tests.support.programs import captured
from tidegate.client import ClientSettings, current_specs
from tidegate.events.decision import Decision
from tidegate.events.job import JobSpec, Mode
from tidegate.fleet.feed import Feed, decision_on, results_of
from tidegate.lab.simulate import JobRecording
from tidegate.runtime.poll import wait_until
from tidegate.runtime.publisher import Publisher
from tidegate.whatif.topics import received_job

ADA = "ada-operates-this-fleet"
END = datetime.now(UTC).replace(microsecond=0)
"""The recordings end now, and are published at their own times: the console reads the last hours only."""


@pytest.fixture(scope="module")
def simulated() -> tuple[list[JobSpec], dict[str, JobRecording]]:
    """Twenty minutes of five jobs."""
    return simulated_events(END, hours=0.33)


@pytest.fixture
def filled(settings: ClientSettings, simulated: tuple[list[JobSpec], dict[str, JobRecording]]) -> ClientSettings:
    """The topics hold all events of the simulated jobs."""
    publisher = Publisher(settings)
    specs, recordings = simulated
    for spec in specs:
        publisher.send(spec)
        recording = recordings[spec.job_id]
        for event in (*recording.snapshots, *recording.decisions, *recording.commands, *recording.results):
            publisher.send(event)
    publisher.flush()
    return settings


@pytest.fixture
def console(filled: ClientSettings, tmp_path: Path) -> Iterator[str]:
    """The address of `tidegate console`, as a process of its own."""
    environment = os.environ | {"TIDEGATE_CONSOLE_OPERATORS": f'{{"ada": "{ADA}"}}', "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "console.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "console", "--port", "0", *where(filled)],
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        assert wait_until(lambda: "http://" in log.read_text("utf-8") or process.poll() is not None, 60)
        address = re.search(r"http://127\.0\.0\.1:\d+", log.read_text("utf-8"))
        assert address is not None, log.read_text("utf-8")
        assert wait_until(lambda: get(f"{address[0]}/healthz") == '{"state":"live"}', 60)
        yield address[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in {0, 130}, log.read_text("utf-8")
        assert "Traceback" not in log.read_text("utf-8")
        assert ADA not in log.read_text("utf-8")
    finally:
        process.kill()
        process.wait(10)


def where(settings: ClientSettings) -> list[str]:
    """Return the options that lead to the topics."""
    return ["-b", settings.bootstrap_servers, "--topic-prefix", settings.topic_prefix]


def get(address: str) -> str:
    """Return a page; empty if nobody answers."""
    try:
        return httpx.get(address, timeout=30).text
    except httpx.TransportError:
        return ""


def test_the_console_shows_the_topics_and_writes_to_them(
    console: str, filled: ClientSettings, simulated: tuple[list[JobSpec], dict[str, JobRecording]]
) -> None:
    """Jobs, decisions and what-if come from the topics; a pause arrives there with its name; a wrong token does not."""
    decisions = simulated[1]["rates"].decisions
    fleet = get(console)
    for recording in simulated[1].values():
        assert recording.decisions[-1].sentence.split(":")[0] in fleet
    some = decisions[len(decisions) // 2]
    page = get(f"{console}/jobs/rates/decisions/{some.sequence}")
    assert some.decision_id in page
    assert " compared</h2>" in get(f"{console}/jobs/rates/what-if?policy=hpa&hours=1")

    for token, status in ((f"not-{ADA}", 401), (ADA, 200)):
        answer = httpx.post(
            f"{console}/jobs/rates/change",
            data={"action": "pause", "reason": "repairs"},
            headers={"authorization": f"Bearer {token}"},
            timeout=30,
        )
        assert answer.status_code == status
    spec = current_specs(filled)["rates"]
    assert (spec.version, spec.scaling.mode) == (2, Mode.PAUSED)
    assert spec.change is not None
    assert (spec.change.by, spec.change.reason) == ("ada", "repairs")
    assert wait_until(lambda: "repairs" in get(f"{console}/jobs/rates"), 20)

    taken = [sys.executable, "-m", "tidegate", "console", "--port", console.rpartition(":")[2], *where(filled)]
    second = captured(*taken)
    assert (second.returncode, "cannot listen on 127.0.0.1" in second.stderr) == (2, True), second.stderr


def test_an_event_reaches_the_fleet_and_can_be_read_again(
    filled: ClientSettings, simulated: tuple[list[JobSpec], dict[str, JobRecording]]
) -> None:
    """A feed folds what is there and what comes; single decisions, results and snapshots are read from their topics."""
    recording = simulated[1]["orders"]
    with closing(Feed(filled, timedelta(hours=1))) as feed:
        feed.start()
        assert wait_until(lambda: feed.state == "live", 30)
        newest = newest_of(feed, "orders")
        assert newest is not None
        assert newest.decision_id == recording.decisions[-1].decision_id
        publisher, later, took = Publisher(filled), list[Decision](), list[float]()
        while min(took, default=60.0) >= 5 and len(took) < 5:  # the machine may have stood still, but not each time
            sent = recording.decisions[-1].model_copy(update={"sequence": newest.sequence + 10 * (len(took) + 1)})
            later.append(sent)
            began = time.monotonic()
            publisher.publish(sent)
            known = sent.model_copy(update={"keyframe": None})
            assert wait_until(lambda known=known: newest_of(feed, "orders") == known, 30, 0.01)  # type: ignore[misc]
            took.append(time.monotonic() - began)
        assert min(took) < 5, took

    ordered = next(one for one in recording.decisions if one.command is not None)
    found = decision_on(filled, "orders", ordered.sequence)
    assert found == ordered
    assert [one.phase for one in results_of(filled, ordered)][-1].terminal
    for wrong in (ordered.sequence + 1, 1, 10**15):
        assert decision_on(filled, "orders", wrong) is None
    recorded = received_job(filled, "orders", recording.snapshots[0].observed_at - timedelta(hours=1))
    assert recorded.snapshots == recording.snapshots
    assert recorded.decisions == [*recording.decisions, *later]


def newest_of(feed: Feed, job_id: str) -> Decision | None:
    """Return the newest decision that the fleet knows of a job."""
    with feed.reading() as fleet:
        job = fleet.get(job_id)
        return job.decision if job is not None else None


def test_top_runs_in_a_real_terminal_and_ends_with_q(filled: ClientSettings) -> None:
    """On a pseudo-terminal `tidegate top` shows the jobs without colour, Enter shows reasons, and q ends it with 0."""
    master, worker = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "top", *where(filled)],
        env=environment,
        stdin=worker,
        stdout=worker,
        stderr=worker,
    )
    os.close(worker)
    os.set_blocking(master, False)
    seen = bytearray()

    def shows(text: str) -> bool:
        with suppress(BlockingIOError, OSError):
            seen.extend(os.read(master, 100_000))
        return text in re.sub(rb"\x1b\[[0-9;?]*[ -/]*[@-~]", b"", bytes(seen)).decode(errors="replace")

    try:
        for job_id in ("clicks", "orders", "payments", "rates", "sessions"):
            assert wait_until(lambda name=job_id: shows(name), 60), bytes(seen)[-2000:]  # type: ignore[misc]
        os.write(master, b"\r")
        assert wait_until(lambda: shows("Measured over"), 20)
        os.write(master, b"q")
        assert wait_until(lambda: shows("\0") or process.poll() is not None, 20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait(10)
        os.close(master)
