"""Which jobs of a pipeline a job sees, and how far downstream they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import decide
from tests.support.events import START, job, steady
from tidegate.engine.links import NO_OUTLOOK, Link, Outlook, ceiling_of, find_links, upstream_first
from tidegate.events.command import CommandKind
from tidegate.events.decision import (
    Decision,
    Emission,
    EmissionStep,
    Evidence,
    Expectation,
    Neighbour,
    Observed,
    Status,
)
from tidegate.events.job import JobSpec


def linked(job_id: str, sources: tuple[str, ...], sinks: tuple[str, ...]) -> JobSpec:
    """Return a job of the pipeline `shop` that reads and writes some topics."""
    return job(job_id, pipeline_id="shop").model_copy(update={"sources": sources, "sinks": sinks})


def test_a_job_sees_all_jobs_downstream_with_their_distance() -> None:
    """Clean reads raw's topic, report reads clean's, mail reads report's: raw sees all three, nearest first."""
    chain = [
        linked("raw", ("in",), ("a",)),
        linked("clean", ("a",), ("b",)),
        linked("report", ("b",), ("c",)),
        linked("mail", ("c",), ()),
    ]
    links = find_links(chain)
    assert links["raw"] == (
        Link("clean", False, ("a",)),
        Link("report", False, ("b",), 2),
        Link("mail", False, ("c",), 3),
    )
    assert links["report"] == (Link("clean", True, ("b",), only_reader=True), Link("mail", False, ("c",)))
    assert links["raw"][1].neighbour(NO_OUTLOOK).distance == 2


def test_the_shortest_way_counts() -> None:
    """A job that reads our topic and another reader's is a direct link, once."""
    links = find_links([linked("raw", ("in",), ("a",)), linked("mid", ("a",), ("b",)), linked("end", ("a", "b"), ())])
    assert links["raw"] == (Link("end", False, ("a",)), Link("mid", False, ("a",)))


def test_a_circle_ends() -> None:
    """Jobs that feed each other see each other once per direction, and never themselves."""
    links = find_links([linked("x", ("c",), ("a",)), linked("y", ("a",), ("b",)), linked("z", ("b",), ("c",))])
    assert links["x"] == (
        Link("y", False, ("a",)),
        Link("z", True, ("c",), only_reader=True),
        Link("z", False, ("b",), 2),
    )


def ids(specs: tuple[JobSpec, ...]) -> list[str]:
    """Return the ids of jobs, in their order."""
    return [spec.job_id for spec in specs]


def test_jobs_are_decided_upstream_first() -> None:
    """A diamond given the wrong way round: the reader of both branches comes last, the writer of both first."""
    end = linked("end", ("b", "c"), ())
    one, two = linked("one", ("a",), ("b",)), linked("two", ("a",), ("c",))
    start = linked("start", ("in",), ("a",))
    assert ids(upstream_first([end, two, one, start])) == ["start", "one", "two", "end"]


def test_a_topic_of_the_same_name_on_another_kafka_cluster_is_no_link() -> None:
    """A mirror, for example, has the same names as the cluster that it copies."""
    raw, report = linked("raw", ("in",), ("a",)), linked("report", ("a",), ())
    elsewhere = report.model_copy(update={"kafka_cluster": "mirror"})
    assert "report" in {link.job_id for link in find_links([raw, report])["raw"]}
    assert find_links([raw, elsewhere]) == {}
    assert ids(upstream_first([report, raw])) == ["raw", "report"]
    assert ids(upstream_first([elsewhere, raw])) == ["report", "raw"]


def test_jobs_without_a_link_keep_their_order() -> None:
    """So nothing changes for them; a topic of another pipeline is no link."""
    other = job("other", pipeline_id="elsewhere").model_copy(update={"sources": ("in",), "sinks": ("a",)})
    specs = [linked("z", ("a",), ()), other, linked("b", ("x",), ())]
    assert ids(upstream_first(specs)) == ["z", "other", "b"]


def test_jobs_in_a_circle_all_have_a_place() -> None:
    """There is no first one, so the order given decides."""
    circle = [linked("x", ("c",), ("a",)), linked("y", ("a",), ("b",)), linked("z", ("b",), ("c",))]
    assert sorted(ids(upstream_first(circle))) == ["x", "y", "z"]


def test_only_the_one_reader_of_a_job_is_its_only_reader() -> None:
    """Two jobs read what raw writes; mid alone reads what other writes."""
    links = find_links(
        [
            linked("raw", ("in",), ("a",)),
            linked("other", ("in",), ("b",)),
            linked("mid", ("a", "b"), ()),
            linked("end", ("a",), ()),
        ]
    )
    assert [(link.job_id, link.only_reader) for link in links["mid"]] == [("other", True), ("raw", None)]


def decision(**changes: Any) -> Decision:
    """Return a decision on a job of 4 slots that can process 400 records/s."""
    _, made = decide(job(max_parallelism=16), steady(7, rate=300, capacity=400))
    expectation = Expectation(processing_rate=400.0)
    return made.model_copy(update={"policy": "tide", "expectation": expectation, "final_parallelism": 4} | changes)


def followed(*readers: Neighbour, expected: float | None = 400.0, ratio: float | None = 2.0) -> Decision:
    """Return a decision on such a job that writes two records for each it reads."""
    return decision(
        expectation=Expectation(processing_rate=expected),
        evidence=Evidence(output_ratio=ratio),
        observed=Observed(at=START, neighbours=readers),
    )


def test_a_ceiling_is_never_more_than_the_readers_could_take() -> None:
    """600/s of output are 300/s of input. One reader that can take more, or is not known, lifts the limit."""
    stored, audit = Neighbour("stored", False, ("out",), ceiling=600.0), Neighbour("audit", False, ("out",))
    up = Neighbour("stored", True, ("in",))
    assert ceiling_of(followed(stored), job()) == 300.0
    assert ceiling_of(followed(stored, expected=None), job()) == 300.0
    assert ceiling_of(followed(stored, replace(audit, ceiling=1000.0)), job()) == 500.0
    for unlimited in (followed(stored, audit), followed(stored, up), followed(stored, ratio=None), followed()):
        assert ceiling_of(unlimited, job()) == 1600.0


def test_a_ceiling_lasts_while_the_capacity_is_not_known() -> None:
    """After a change the job learns its capacity again; its largest size is as fast as before."""
    unknown = decision(expectation=None, evidence=Evidence())
    assert Outlook(ceiling=900.0).after(unknown, job()).ceiling == 900.0


def test_a_ceiling_ends_once_the_job_keeps_up() -> None:
    """A job of another policy than `tide` that was full, and now is not, has shown only what arrives: no limit."""
    assert Outlook(ceiling=900.0).after(decision(policy="hpa"), job()).ceiling is None


PLAN = Emission((EmissionStep(START, 100.0),), "out", 90.0)


def test_a_plan_lasts_until_the_next_one() -> None:
    """A decision that knows no plan, during a change for example, leaves the last one; one without steps its steps."""
    spec, seen = job(), Outlook(emits=PLAN)
    assert seen.after(decision(), spec).emits == PLAN
    assert seen.after(decision(emits=Emission(target_rate=95.0)), spec).emits == replace(PLAN, target_rate=95.0)
    other = Emission((EmissionStep(START, 7.0),))
    assert seen.after(decision(emits=other), spec).emits == other


def test_a_stopped_job_has_no_plan() -> None:
    """It emits nothing any more."""
    _, grown = decide(job(), steady(7, rate=800, capacity=400))
    assert grown.command is not None
    assert Outlook(emits=PLAN).after(grown, job()).emits == PLAN
    stop = grown.model_copy(update={"command": grown.command.model_copy(update={"kind": CommandKind.STOP})})
    assert Outlook(emits=PLAN).after(stop, job()).emits is None


@pytest.mark.parametrize(
    ("status", "kept"),
    [(Status.LATE, None), (Status.FINE, None), (Status.PENDING_SCALE_UP, PLAN), (Status.PENDING_SCALE_DOWN, PLAN)],
)
def test_a_job_that_stays_down_has_no_plan(status: Status, kept: Emission | None) -> None:
    """It failed too often, or its spec was stopped while it was down. During a restart the plan goes on."""
    down = decision(status=status, final_parallelism=0, current_parallelism=0, command=None, emits=None)
    assert Outlook(emits=PLAN).after(down, job()).emits == kept


SATURATED = Evidence(utilization=0.95, true_processing_rate=300.0, lag_seconds=60.0)


@pytest.mark.parametrize(
    ("changes", "ceiling"),
    [
        ({}, 1600.0),
        ({"status": Status.POOL_EXHAUSTED}, 400.0),
        ({"expectation": None}, None),
        ({"expectation": None, "evidence": SATURATED}, 1200.0),
        ({"expectation": None, "evidence": replace(SATURATED, lag_seconds=20.0)}, None),
        ({"policy": "hpa"}, None),
        ({"policy": "hpa", "evidence": SATURATED}, 1200.0),
        ({"expectation": None, "evidence": Evidence(utilization=0.95)}, None),
        ({"final_parallelism": 0, "current_parallelism": 0}, None),
    ],
)
def test_a_ceiling_is_the_capacity_of_the_largest_size(changes: dict[str, Any], ceiling: float | None) -> None:
    """16 slots at most, or the 4 it has if it cannot get more. Only a busy job that is behind shows it by itself.

    The batches of one that keeps up may be small and mostly overhead: it could process far more than it does.
    """
    assert ceiling_of(decision(**changes), job(max_parallelism=16)) == ceiling
