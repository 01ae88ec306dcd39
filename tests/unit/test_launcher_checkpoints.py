"""Queries without a checkpoint of their own get one that the next run finds again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.fake_queries import FakeQuery, FakeWriter
from tidegate.launcher.queries.checkpoints import CheckpointPlaces
from tidegate.launcher.queries.query_start import QueryStart
from tidegate.launcher.spark.hadoop import place_of

START = DataStreamWriter.start


def _placed(writer: FakeWriter, places: CheckpointPlaces | None = None, *args: Any, **kwargs: Any) -> str | None:
    """Return the location that a query is given, or None."""
    (places or CheckpointPlaces()).place(QueryStart(START, writer, args, kwargs))
    found = writer.options.get("checkpointLocation")
    return found.get() if found.isDefined() else None


def test_queries_without_a_name_get_places_that_stay() -> None:
    """The first one has the location itself, the next ones a folder each; so it is again in the next run."""
    for _ in range(2):
        places = CheckpointPlaces()
        assert _placed(FakeWriter("file:///ck"), places) == "file:///ck"
        assert _placed(FakeWriter("file:///ck"), places) == "file:///ck/query-2"
        assert _placed(FakeWriter("file:///ck"), places) == "file:///ck/query-3"


@pytest.mark.parametrize(
    ("writer", "kwargs"),
    [
        (FakeWriter("/ck", options={"CheckpointLocation": "/mine"}), {}),
        (FakeWriter("/ck"), {"checkpointLocation": "/mine"}),
        (FakeWriter("/ck", options={"queryName": "counts"}), {}),
        (FakeWriter("/ck"), {"queryName": "counts"}),
        (FakeWriter(None), {}),
    ],
    ids=["own option", "own argument", "named", "named by argument", "no location"],
)
def test_other_queries_are_left_to_spark(writer: FakeWriter, kwargs: dict[str, str]) -> None:
    """A query's own location counts, and one with a name finds its folder by the name."""
    before = dict(writer.options)
    CheckpointPlaces().place(QueryStart(START, writer, (), kwargs))
    assert dict(writer.options) == before


def test_a_name_that_is_no_folder_gets_one(tmp_path: Path) -> None:
    """Spark fails on a colon, and puts a name with a slash too deep; what began there goes on there."""
    location = str(tmp_path)
    places = [_placed(FakeWriter(location, options={"queryName": name})) for name in ("a:b", "a/b", "a_b")]
    assert places == [f"{location}/a_b-3041a608", f"{location}/a_b-07f4401c", None]
    (tmp_path / "a" / "b" / "offsets").mkdir(parents=True)
    (tmp_path / "a" / "b" / "offsets" / "0").touch()
    assert _placed(FakeWriter(location, options={"queryName": "a/b"})) is None


def test_a_writer_that_is_started_twice_starts_two_queries() -> None:
    """The location given to the first query is not the second one's own."""
    places, writer = CheckpointPlaces(), FakeWriter("/ck")
    assert [_placed(writer, places), _placed(writer, places)] == ["/ck", "/ck/query-2"]


@pytest.mark.parametrize(
    ("fields", "kwargs", "temporary"),
    [
        ({"source": "memory"}, {}, True),
        ({}, {"format": "memory", "outputMode": "update"}, True),
        ({"source": "memory", "outputMode": "Complete"}, {}, False),
    ],
)
def test_a_query_that_cannot_be_restarted_keeps_a_temporary_place(
    fields: dict[str, str], kwargs: dict[str, str], temporary: bool
) -> None:
    """Spark refuses to start a memory sink from a checkpoint, unless it writes complete results."""
    places = CheckpointPlaces()
    found = _placed(FakeWriter("/ck", options={"queryName": "t"}, **fields), places, **kwargs)
    assert (found is not None) is temporary
    if found is not None:
        place = Path(found.removeprefix("file://"))
        assert place.name.startswith("temporary-")
        place.rmdir()
        assert places.describe(FakeQuery(checkpoint=f"file:{place}")) == [], "nothing is lost with it"


def test_a_query_says_where_its_checkpoint_is() -> None:
    """The report has what Spark made of the location, not what was asked for."""
    found = CheckpointPlaces().describe(FakeQuery("q-1", name="counts", checkpoint="file:/ck/counts"))
    assert found == [{"id": "q-1", "name": "counts", "checkpoint": "file:/ck/counts"}]


@pytest.mark.parametrize("begin", ["", "file:", "file://", "file://localhost"])
def test_a_name_of_a_checkpoint_is_taken_as_it_is(begin: str) -> None:
    """As Hadoop's Path of Spark 4.2 does, also of a URI."""
    assert place_of(f"{begin}/data/a b%20c#d") == Path("/data/a b%20c#d")
