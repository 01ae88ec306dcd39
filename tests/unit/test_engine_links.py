"""Which jobs of a pipeline a job sees, and how far downstream they are."""

from __future__ import annotations

from tests.support.events import job
from tidegate.engine.links import Link, find_links
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
    assert links["report"] == (Link("clean", True, ("b",)), Link("mail", False, ("c",)))
    assert links["raw"][1].neighbour(4, None).distance == 2


def test_the_shortest_way_counts() -> None:
    """A job that reads our topic and another reader's is a direct link, once."""
    links = find_links([linked("raw", ("in",), ("a",)), linked("mid", ("a",), ("b",)), linked("end", ("a", "b"), ())])
    assert links["raw"] == (Link("end", False, ("a",)), Link("mid", False, ("a",)))


def test_a_circle_ends() -> None:
    """Jobs that feed each other see each other once per direction, and never themselves."""
    links = find_links([linked("x", ("c",), ("a",)), linked("y", ("a",), ("b",)), linked("z", ("b",), ("c",))])
    assert links["x"] == (Link("y", False, ("a",)), Link("z", True, ("c",)), Link("z", False, ("b",), 2))
