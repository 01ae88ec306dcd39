"""What other versions wrote is read: what 0.1.0 left in Kafka, and the state of a newer decider next to this one."""

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
from tidegate.engine.batch_sums import BatchSums
from tidegate.engine.costs import ChangeMemory, ClosedWay, MeasuredCost, Shortfall
from tidegate.engine.history import Growth, History
from tidegate.engine.state import InFlight, JobState, Slice, ZeroMemory, from_wire, to_wire
from tidegate.events.envelope import decode, value_of
from tidegate.events.result import ActionResult, CheckpointMark, Phase, QueryCommit
from tidegate.events.topics import TOPICS
from tidegate.events.way import Way

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


STATE = JobState(
    decisions=7,
    last_sequence=1772366460,
    engine_version="99",
    manual_done="by hand",
    window=(Slice(10.0, 800, 400, 10.0, 9.5, BatchSums(1, 400, 10.0, 160_000, 4000.0), 300),),
    in_flight=InFlight("c", "rescale", 8, 10.0, 130.0, "ordered", Way.IN_PLACE),
    changes=ChangeMemory(
        costs=(MeasuredCost(Way.RESTART, 5, 12.5, 20.0),),
        closed=(ClosedWay(Way.HANDOVER, "FELL_BACK", 6, "app-1", 3),),
        shortfall=Shortfall(7.0, 6, 2),
        resized_at=8.0,
    ),
    history=History(
        ordered_at=(3,), growth=Growth(3.0, 4, 8, 400.0, worked=True), shrink=(9.0, 2), halt="STOPPED", failed=(True, 1)
    ),
    zero=ZeroMemory(gaps=(60, 70)),
)
"""A state in which every record is set that is written as a row."""
ROWS = (
    *(("window", 0), ("in_flight",), ("changes", "costs", 0), ("changes", "closed", 0), ("changes", "shortfall")),
    ("history", "growth"),
)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_a_newer_decider_adds_to_a_state_is_read_past(row: tuple[str | int, ...]) -> None:
    """A decider that takes over from a newer one reads all that it knows, although a record has one more value."""
    wire = json.loads(json.dumps(to_wire(STATE)))
    place: Any = wire
    for step in row:
        place = place[step]
    place.append("new")
    assert from_wire(wire | {"new": 1})._replace(memory=STATE.memory) == STATE


def test_a_way_that_only_a_newer_decider_knows_costs_nothing_else() -> None:
    """What it remembers of that way is dropped, and a command under way has none, like one of 0.1.0."""
    wire = json.loads(json.dumps(to_wire(STATE)).replace('"in_place"', '"new"').replace('"restart"', '"new"'))
    state = from_wire(wire)
    assert STATE.in_flight is not None
    assert state.in_flight == STATE.in_flight._replace(way=None)
    assert state.changes == STATE.changes._replace(costs=())
