"""What 0.1.0 wrote is read: records that its services left in Kafka when this version took their place."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from services.decider.job_memory import JobMemory
from tests.support import recordings
from tests.support.command_log import command_log
from tidegate.events.envelope import decode, value_of
from tidegate.events.result import ActionResult, CheckpointMark, Phase, QueryCommit
from tidegate.events.topics import TOPICS

STATES = "decider-state-changelog"


@pytest.fixture(scope="module")
def written() -> dict[str, list[dict[str, Any]]]:
    """The records by topic: a restart of the job `rates` by `tide`, still open, and what led to it."""
    found = defaultdict(list)
    text = gzip.decompress((Path(recordings.__file__).parent / "release_0_1_0.ndjson.gz").read_bytes()).decode()
    for line in text.splitlines():
        record = json.loads(line)
        found[record["topic"]].append(record)
    return found


def test_events_of_0_1_0_are_read(written: dict[str, list[dict[str, Any]]]) -> None:
    """Spec, snapshot, decisions, command and results, with their headers, to the bytes that were written."""
    for topic in TOPICS:
        for record in written[topic.suffix]:
            headers = [(name, value.encode()) for name, value in record["headers"]]
            event = decode(topic.model, record["value"].encode(), headers, record["key"].encode())
            assert value_of(event) == record["value"].encode()
    assert {topic for topic, records in written.items() if records} == {
        *("jobs", "snapshots", "decisions", "commands", "results", STATES)
    }


def test_a_restart_that_0_1_0_left_open_is_known_up_to_its_last_phase(
    written: dict[str, list[dict[str, Any]]],
) -> None:
    """So is what to verify it against: that was text in `details`."""
    results = [decode(ActionResult, record["value"].encode()) for record in written["results"]]
    assert [result.phase for result in results] == [
        *(Phase.ACCEPTED, Phase.STOPPING, Phase.STOPPED, Phase.STARTING, Phase.RUNNING)
    ]
    log, restart = command_log(results), results[0].command_id
    assert log.newest(restart, Phase.STOPPED).checkpoint == CheckpointMark(
        queries={"rates": QueryCommit(query_id="102d7d50-86b8-42a4-91fb-6c3977ff59b3", batch_id=4)},
        last_commit_at=datetime.fromtimestamp(1795956290.876603, UTC),
    )
    assert log.newest(restart, Phase.RUNNING).run == 1


def test_what_a_decider_of_0_1_0_remembered_is_read(written: dict[str, list[dict[str, Any]]]) -> None:
    """The state of a job that has been scaled, and of one that never ran."""
    rates, idle = (JobMemory.from_bytes(record["value"].encode()) for record in written[STATES])
    assert rates.state.last_action_at is not None
    assert (rates.state.engine_version, idle.state.engine_version) == ("4", "4")
