"""Where checkpoints are, and how a job comes to have its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.actuator.backends import Submission
from services.actuator.checkpoint import CheckpointError, committed_since, holds, read_checkpoints, read_mark
from tests.support.events import job, with_application
from tidegate.events.result import CheckpointMark, QueryCommit
from tidegate.launcher.control.files import Token


def _commits(folder: Path, *times: float) -> None:
    """Make a checkpoint with commits at these seconds."""
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "metadata").write_text('{"id":"q"}')
    for batch, at in enumerate(times):
        for name in ("offsets", "commits"):
            (folder / name / str(batch)).write_text("v1")
            os.utime(folder / name / str(batch), (at, at))


def test_metadata_that_is_nested_too_deeply_is_no_metadata(tmp_path: Path) -> None:
    """What is wrong is said as of any other text that is no metadata."""
    _commits(tmp_path, 1.0)
    (tmp_path / "metadata").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="expected a JSON object with `id`, found 100000 other characters"):
        read_mark(str(tmp_path))


def test_checkpoints_at_the_location_and_below_are_found(tmp_path: Path) -> None:
    """The first query may have the location itself, and the second a folder in it; their names differ."""
    root = tmp_path / "ck"
    for folder in (root, root / "query-2", root / "ck"):
        _commits(folder, 1000)
    assert [c.name for c in read_checkpoints(str(root))] == ["ck", "ck/ck", "ck/query-2"]
    mark, clean = read_mark(str(root))
    assert set(mark.queries) == {"ck", "ck/ck", "ck/query-2"}
    assert clean


def test_a_folder_of_checkpoints_is_none_itself(tmp_path: Path) -> None:
    """Not even if a query has the name of a file of theirs. One that has only its id, or has lost it, is found, too."""
    for name in ("counts", "lost", "metadata"):
        _commits(tmp_path / name, 1000)
    (tmp_path / "lost" / "metadata").unlink()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "offsets").touch()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metadata").write_text('{"id":"q"}')
    found = read_checkpoints(str(tmp_path))
    assert [(c.name, c.query_id, c.newest_commit) for c in found] == [
        ("counts", "q", 0),
        ("lost", None, 0),
        ("metadata", "q", 0),
        ("new", "q", None),
    ]


def test_one_query_inside_a_batch_makes_the_job_unclean(tmp_path: Path) -> None:
    """Its batch will run again, however clean the others are; what Spark is writing just now is no batch."""
    for name, newest in (("counts", 1010), ("sums", 1005)):
        _commits(tmp_path / name, 1000, newest)
        for folder in ("offsets", "commits"):
            (tmp_path / name / folder / ".2.8a1b.tmp").write_text("v1")
            (tmp_path / name / folder / ".1.crc").write_text("v1")
    (tmp_path / "new" / "offsets").mkdir(parents=True)
    mark, clean = read_mark(str(tmp_path))
    assert clean
    assert mark.last_commit_at is not None
    assert mark.last_commit_at.timestamp() == 1010
    (tmp_path / "sums" / "offsets" / "2").write_text("v1")
    assert not read_mark(str(tmp_path))[1]


@pytest.mark.parametrize(
    ("location", "reported", "held"),
    [
        ("/ck/job", "file:/ck/job", True),
        ("file:///ck/job", "/ck/job/counts", True),
        ("/ck/job/", "file:///ck/job/a b%20c", True),
        ("file:/ck/a%20job", "file:/ck/a%20job/counts", True),
        ("/ck/job", "file:/ck/job/deep/counts", False),
        ("/ck/job", "file:/ck/job-2", False),
        ("/ck/job", "file:/ck", False),
        ("/ck/job", "s3a://bucket/ck/job", False),
        ("/ck/job", "hdfs://name/ck/job", False),
        ("/ck/job", "None", False),
        ("/ck/job", "ck/job", False),
        ("hdfs://nn:8020/ck/job/", "hdfs://nn:8020/ck/job/a b", True),
        ("hdfs:///ck/job", "hdfs://nn:8020/ck/job", True),
        ("hdfs://nn:8020/ck/job", "hdfs://other:8020/ck/job", False),
        ("hdfs://nn:8020/ck/job", "hdfs://nn:8020/ck", False),
        ("hdfs://nn:8020/ck/job", "hdfs:///ck/job", True),
        ("hdfs://nn:8020/ck/job", "s3a://nn:8020/ck/job", False),
        ("hdfs://nn:8020/ck/job", "file:/ck/job", False),
    ],
)
def test_a_reported_checkpoint_is_in_its_place_or_not(location: str, reported: str, held: bool) -> None:
    """In its place is what the actuator would find: the location itself and the folders in it."""
    assert holds(location, reported) is held


def test_a_link_leads_to_the_same_place(tmp_path: Path) -> None:
    """The spec and the script may name one folder in two ways."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert holds(str(tmp_path / "link"), f"file:{tmp_path}/real/counts")
    assert holds(str(tmp_path / "real"), f"file:{tmp_path}/link")


def test_the_pace_is_the_median_time_between_commits(tmp_path: Path) -> None:
    """A pause does not count, and one commit has no pace."""
    _commits(tmp_path / "ck", 1000, 1002, 1004, 1100, 1102)
    (checkpoint,) = read_checkpoints(str(tmp_path / "ck"))
    assert (checkpoint.pace(), checkpoint.pace(3), checkpoint.pace(1)) == (2, 2, 0)
    _commits(tmp_path / "new", 1000)
    assert read_checkpoints(str(tmp_path / "new"))[0].pace() == 0


@pytest.mark.parametrize(
    ("query_id", "batch_id", "found"), [("q", 7, 7), ("q", 6, None), ("q", None, None), ("other", 9, None)]
)
def test_a_commit_between_two_marks(query_id: str, batch_id: int | None, found: int | None) -> None:
    """Only a newer batch of the same query counts."""
    before = CheckpointMark(queries={"ck": QueryCommit(query_id="q", batch_id=6)})
    now = CheckpointMark(queries={"ck": QueryCommit(query_id=query_id, batch_id=batch_id)})
    assert committed_since(before, now) == found
    assert committed_since(CheckpointMark(), now) == batch_id


def test_a_run_has_the_specs_checkpoint_by_default() -> None:
    """Queries without a location get the spec's; a location among the user's own settings wins."""
    name = "spark.sql.streaming.checkpointLocation"
    spec = job()
    assert Submission(spec, Token(1), 2).spark_conf()[name] == "file:///checkpoints/rates"
    own = with_application(spec, conf={name: "s3a://mine"})
    assert Submission(own, Token(1), 2).spark_conf()[name] == "s3a://mine"
