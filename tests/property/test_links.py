"""Links between jobs: those of every pair of jobs, found without looking at every pair."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.support.counted import CountedList
from tests.support.events import job
from tidegate.engine.links import Link, find_links
from tidegate.events.job import JobSpec

topics = st.lists(st.sampled_from("abcdef"), max_size=3, unique=True).map(tuple)


@st.composite
def pipelines(draw: st.DrawFn) -> list[JobSpec]:
    """Draw jobs of two pipelines that read and write a few topics."""
    names = draw(st.lists(st.sampled_from([f"job-{number}" for number in range(9)]), unique=True))
    return [
        job(name, pipeline_id=draw(st.sampled_from(["shop", "bank"]))).model_copy(
            update={"sources": draw(topics), "sinks": draw(topics)}
        )
        for name in names
    ]


def of_every_pair(specs: Sequence[JobSpec]) -> dict[str, list[Link]]:
    """Return the direct links of each job, by looking at it and each other job of its pipeline."""
    found: dict[str, list[Link]] = {}
    for spec in specs:
        for other in sorted(specs, key=lambda each: each.job_id):
            if other is spec or other.pipeline_id != spec.pipeline_id:
                continue
            for upstream, writer, reader in ((True, other, spec), (False, spec, other)):
                shared = tuple(sorted(set(writer.sinks) & set(reader.sources)))
                all_readers = {
                    each.job_id
                    for each in specs
                    if each.pipeline_id == spec.pipeline_id and set(each.sources) & set(writer.sinks)
                }
                only = upstream and all_readers == {reader.job_id}
                if shared:
                    link = Link(other.job_id, upstream, shared, only_reader=only or None)
                    found.setdefault(spec.job_id, []).append(link)
    return found


@given(pipelines())
def test_direct_links_are_those_of_every_pair_of_jobs(specs: list[JobSpec]) -> None:
    """In the same order, with the same topics, and with the only reader."""
    links = {name: [each for each in found if each.distance is None] for name, found in find_links(specs).items()}
    assert links == of_every_pair(specs)


def test_jobs_without_a_link_cost_nothing() -> None:
    """Of 1,000 jobs in a pipeline, whoever looked at every pair would take seconds after every change of a spec."""
    specs = []
    for number in range(100):
        ends = {"sources": (f"in-{number // 2}",), "sinks": ()}
        if number % 2:
            ends = {"sources": (f"topic-{number // 2}",), "sinks": (f"in-{number // 2}",)}
        sinks = CountedList(ends["sinks"])
        specs.append(job(f"job-{number}", pipeline_id="shop").model_copy(update={**ends, "sinks": sinks}))
    assert len(find_links(specs)) == len(specs)
    assert max(spec.sinks.passes for spec in specs) < 10  # type: ignore[attr-defined]
