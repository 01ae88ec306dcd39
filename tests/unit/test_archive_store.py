"""The archive's manifest and folder: every offset once, gaps by name, and nothing half done."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from bench.streams import write_recording
from tidegate.archive import store
from tidegate.archive.manifest import KEPT_FOR_READERS, ArchivedAlready, DataFile, Manifest, Span, Why
from tidegate.archive.read import read_files
from tidegate.archive.summary import summary
from tidegate.archive.upkeep import expiries
from tidegate.cli import app
from tidegate.events.topics import TOPICS
from tidegate.replay import export as exporting
from tidegate.replay.audit.records import of_recording

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EMPTY = Manifest(topic_prefix="t.", created_at=NOW)


def staged(folder: Path, day: str, offsets: list[int]) -> store.Staged:
    """Write a file as Spark does, and return it."""
    path = folder / "staging" / "topic=decisions" / f"day={day}" / f"part-{offsets[0]}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"partition": pa.array([0] * len(offsets), pa.int32()), "offset": pa.array(offsets, pa.int64())}
    pq.write_table(pa.table(columns), path)
    return next(file for file in store.staged_files(folder / "staging") if file.path == path)


def file(day: str, spans: dict[int, Span], topic: str = "decisions") -> DataFile:
    """A file as the manifest lists it."""
    records = sum(span.records for span in spans.values())
    return DataFile(
        topic=topic, day=date.fromisoformat(day), path=f"{topic}/{day}", records=records, bytes=9, spans=spans
    )


def test_offsets_that_are_missing_are_gaps_by_name() -> None:
    """Before the first record, in the middle of a batch and between two batches; with the reason and the place."""
    first = EMPTY.extended((), {("decisions", 2): [(5, 9), (12, 12)]}, NOW)
    second = first.extended((), {("decisions", 2): [(13, 20)]}, NOW).extended((), {("decisions", 2): [(31, 40)]}, NOW)
    assert [(gap.first, gap.last, gap.why) for gap in second.gaps] == [
        (0, 4, Why.BEFORE),
        (10, 11, Why.GONE),
        (21, 30, Why.GONE),
    ]
    assert str(second.gaps[0]) == "decisions, partition 2, offsets 0 to 4: dropped by the broker before archiving began"
    assert second.position("decisions", 2) == 41


def test_what_the_broker_has_dropped_is_a_gap_even_if_nothing_follows() -> None:
    """The position goes past what is gone; what is archived already is no gap."""
    archived = EMPTY.extended((), {("results", 0): [(0, 9)]}, NOW)
    assert archived.without_records_before("results", 0, 7, NOW) == archived
    after = archived.without_records_before("results", 0, 15, NOW)
    assert [(gap.first, gap.last, gap.why) for gap in after.gaps] == [(10, 14, Why.GONE)]
    assert after.position("results", 0) == 15


def test_an_offset_is_never_archived_twice(tmp_path: Path) -> None:
    """A batch that begins before the position is refused, and so is a batch that repeats an offset."""
    archived = EMPTY.extended((), {("results", 0): [(0, 9)]}, NOW)
    with pytest.raises(ArchivedAlready, match="results, partition 0: offset 9 comes again"):
        archived.extended((), {("results", 0): [(9, 12)]}, NOW)
    with pytest.raises(ArchivedAlready, match="decisions, partition 0: offset 4 came twice"):
        store.runs([staged(tmp_path, "2026-03-01", [3, 4]), staged(tmp_path, "2026-03-02", [4, 5])])


def test_late_records_are_no_gaps(tmp_path: Path) -> None:
    """The runs of a batch are over all its days."""
    some = [staged(tmp_path, "2026-03-01", [1, 3, 8]), staged(tmp_path, "2026-03-02", [0, 2, 4, 5])]
    assert store.runs(some) == {("decisions", 0): [(0, 5), (8, 8)]}
    assert some[0].spans == {0: Span(1, 8, 3)}


def test_an_archive_is_made_only_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """A folder with other files, and the archive of another prefix, are refused; no archive is named as such."""
    with pytest.raises(store.BadArchive, match="is not an archive"):
        store.load(tmp_path / "a")
    assert store.load_or_create(tmp_path / "a", "t.").topic_prefix == "t."
    assert store.load_or_create(tmp_path / "a", "t.") == store.load(tmp_path / "a")
    with pytest.raises(store.BadArchive, match=r"is the archive of the topics t\.\*, not u\.\*"):
        store.load_or_create(tmp_path / "a", "u.")
    with pytest.raises(store.BadArchive, match="neither an archive nor empty"):
        store.load_or_create(tmp_path, "t.")
    (tmp_path / "a" / "archive.json").write_text("{}")
    with pytest.raises(store.BadArchive, match="topic_prefix"):
        store.load(tmp_path / "a")


def test_an_archive_whose_making_was_interrupted_is_made_by_the_next(tmp_path: Path) -> None:
    """A full disk or a kill between making the folder and the manifest in it leaves nothing that is in the way."""
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "archive.json.tmp").write_text("{")
    assert store.load_or_create(folder, "t.").topic_prefix == "t."


def test_an_archive_may_have_a_volume_of_its_own(tmp_path: Path) -> None:
    """A new ext4 has a folder `lost+found`."""
    (tmp_path / "lost+found").mkdir(mode=0o700)
    assert store.load_or_create(tmp_path, "t.").topic_prefix == "t."


def test_an_archive_that_another_process_makes_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are started at once: the second one does not put an empty manifest in the place of the first one's."""
    locked = store._locked

    def first_the_other(path: Path, wait_seconds: float) -> AbstractContextManager[None]:
        monkeypatch.setattr(store, "_locked", locked)
        store.load_or_create(path.parent, "t.")
        store.change(path.parent, lambda m: m.extended((), {("results", 0): [(0, 9)]}, NOW), NOW)
        return locked(path, wait_seconds)

    monkeypatch.setattr(store, "_locked", first_the_other)
    assert store.load_or_create(tmp_path / "a", "t.").position("results", 0) == 10


def test_a_change_that_fails_changes_nothing_a_reader_sees(tmp_path: Path) -> None:
    """Files moved in by a change that failed are not listed; the same change made again, and a sweep, clear them."""
    folder = tmp_path / "a"
    store.load_or_create(folder, "t.")
    one = staged(tmp_path, "2026-03-01", [0, 1])

    def fails(manifest: Manifest) -> Manifest:
        store.adopt(folder, manifest.version, [one])
        raise OSError("killed here")

    with pytest.raises(OSError, match="killed here"):
        store.change(folder, fails, NOW)
    assert store.load(folder).files == ()
    assert len(list((folder / "records").rglob("*.parquet"))) == 1
    store.sweep(folder, NOW)
    assert list((folder / "records").rglob("*.parquet")) == []


def test_what_the_manifest_lists_is_on_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut, a listed file is there: its name too, so the folders above it were synchronized."""
    folder, synced = tmp_path / "a", list[str]()
    store.load_or_create(folder, "t.")
    one = staged(tmp_path, "2026-03-01", [0, 1])
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    store.change(folder, lambda m: m.model_copy(update={"files": tuple(store.adopt(folder, m.version, [one]))}), NOW)
    assert synced == [one.path.name, "day=2026-03-01", "topic=decisions", "records", "a", store.SCRATCH, "a"]


def test_a_replaced_file_stays_for_readers_and_goes_later(tmp_path: Path) -> None:
    """A file that was replaced is not listed at once, is deleted after some hours, and a sweep leaves it until then."""
    folder = tmp_path / "a"
    store.load_or_create(folder, "t.")
    some = [staged(tmp_path, "2026-03-01", [0, 1]), staged(tmp_path, "2026-03-01", [2])]
    store.change(folder, lambda m: m.model_copy(update={"files": tuple(store.adopt(folder, m.version, some))}), NOW)
    old = store.load(folder).files[0].path
    store.change(folder, lambda m: m.replaced({old}, (), NOW), NOW)
    assert [each.path for each in store.load(folder).files] != [old]
    store.sweep(folder, NOW + KEPT_FOR_READERS - timedelta(seconds=1))
    assert (folder / old).exists()
    store.sweep(folder, NOW + KEPT_FOR_READERS)
    assert not (folder / old).exists()
    assert store.load(folder).retired == ()


@pytest.mark.parametrize("path", ["../kept.txt", "{}/kept.txt", "records/../../kept.txt"])
def test_an_archive_deletes_only_its_own_files(tmp_path: Path, path: str) -> None:
    """An archive that somebody else has made may name any file as one that nobody needs any more: it is refused."""
    kept = tmp_path / "kept.txt"
    kept.write_text("not the archive's")
    folder = tmp_path / "archive"
    made = store.load_or_create(folder, "t.").model_dump(mode="json")
    made["retired"] = [{"path": path.format(tmp_path), "at": "2026-01-01T00:00:00Z"}]
    (folder / store.MANIFEST).write_text(json.dumps(made))
    with pytest.raises(store.BadArchive, match="outside of the archive"):
        store.change(folder, lambda manifest: manifest, NOW)
    assert kept.exists()


def test_only_one_process_does_the_same_in_an_archive(tmp_path: Path) -> None:
    """A second archiver is refused while the first runs; a compaction is not."""
    with store.alone(tmp_path, "run"):
        with pytest.raises(store.InUse, match=r"run\.lock"), store.alone(tmp_path, "run"):
            pass
        with store.alone(tmp_path, "compact"):
            pass


OLD, EDGE, NEW = "2026-01-01", "2026-01-02", "2026-01-03"


def history() -> Manifest:
    """Three days; offsets 8 and 9 of partition 0 are late: of the first day, but after one of the second."""
    files = (
        file(OLD, {0: Span(0, 9, 9), 1: Span(0, 4, 5)}),
        file(EDGE, {0: Span(7, 12, 4)}),
        file(NEW, {0: Span(13, 20, 8)}),
        file(OLD, {0: Span(0, 3, 4)}, "jobs"),
    )
    return EMPTY.model_copy(update={"files": files, "positions": {"decisions": {0: 21, 1: 5}, "jobs": {0: 4}}})


def test_days_expire_up_to_the_first_record_that_stays() -> None:
    """A file with a record behind one that stays is cut, not dropped; topics without a policy stay."""
    (step,) = expiries(history(), {"decisions": date.fromisoformat(EDGE)}, None)
    assert (step.dropped, [f.day.isoformat() for f in step.trimmed]) == ((), [OLD])
    assert step.boundaries == {0: 7, 1: 5}
    (step,) = expiries(history(), {"decisions": date.fromisoformat(NEW)}, None)
    assert [f.day.isoformat() for f in step.dropped] == [OLD, EDGE]
    assert expiries(history(), {"decisions": date.fromisoformat(OLD)}, None) == []


def test_what_expires_of_many_files_is_found_without_comparing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day that was not compacted has 1,440 files of a topic: to compare each with all took a minute for four days."""
    small = [file(OLD, {0: Span(offset, offset, 1)}) for offset in range(200)]
    manifest = EMPTY.model_copy(update={"files": tuple(small), "positions": {"decisions": {0: 200}}})
    monkeypatch.setattr(DataFile, "__eq__", MagicMock(side_effect=AssertionError("compared")))
    (step,) = expiries(manifest, {"decisions": date.fromisoformat(NEW)}, None)
    assert (len(step.dropped), step.trimmed) == (200, ())


def test_only_whole_signed_blocks_expire() -> None:
    """What is left begins behind a mark, so that it can be verified; what is not signed stays."""
    signed = {("decisions", 0): [3, 6, 10, 20], ("decisions", 1): [4]}
    (step,) = expiries(history(), {"decisions": date.fromisoformat(NEW)}, signed)
    assert step.boundaries == {0: 11, 1: 5}
    assert [f.day.isoformat() for f in step.trimmed] == [EDGE]
    (step,) = expiries(history(), {"decisions": date.fromisoformat(NEW)}, {("decisions", 1): [4]})
    assert step.boundaries == {0: 0, 1: 5}


def test_show_names_days_offsets_and_gaps(tmp_path: Path) -> None:
    """One row per topic with what is there, and a line for each gap."""
    manifest = history().model_copy(update={"expired": {"jobs": {0: 2}}})
    manifest = manifest.without_records_before("decisions", 0, 25, NOW)
    decisions, jobs = summary(manifest)
    assert (decisions.files, decisions.records, decisions.offsets) == (3, 26, ((0, 0, 20), (1, 0, 4)))
    assert (jobs.first_day, jobs.expired) == (date.fromisoformat(OLD), ((0, 2),))
    (tmp_path / "archive.json").write_text(manifest.model_dump_json())
    ran = CliRunner().invoke(app, ["archive", "show", str(tmp_path)])
    assert ran.exit_code == 0
    assert "2026-01-01 to 2026-01-03" in ran.output
    assert "gap: decisions, partition 0, offsets 21 to 24: dropped by the broker" in ran.output


def test_show_says_when_files_of_past_days_are_not_put_together(tmp_path: Path) -> None:
    """With a file a minute, every batch takes longer from day to day. Files of today, or later, are not meant."""
    days = (OLD, OLD, OLD, NEW, "2999-01-01", "2999-01-01")
    files = [file(day, {0: Span(at, at, 1)}) for at, day in enumerate(days)]
    for held, said in ((files, "3 files of past days could be 1: run `tidegate archive compact`"), (files[2:], "")):
        (tmp_path / "archive.json").write_text(
            EMPTY.model_copy(update={"files": tuple(held), "positions": {"decisions": {0: 6}}}).model_dump_json()
        )
        ran = CliRunner().invoke(app, ["archive", "show", str(tmp_path)])
        assert said in ran.output
        assert ("past days" in ran.output) == bool(said)


@pytest.mark.parametrize(
    ("keep", "said"), [("400", "is no time to keep"), ("0d", "is no time"), ("x=3d", "there is no topic 'x'")]
)
def test_a_policy_that_cannot_be_read_is_refused(tmp_path: Path, keep: str, said: str) -> None:
    """The value is named, and how to write it."""
    (tmp_path / "archive.json").write_text(EMPTY.model_dump_json())
    ran = CliRunner().invoke(app, ["archive", "expire", str(tmp_path), "--keep", keep])
    assert ran.exit_code == 2
    assert said in ran.output


def test_a_dry_run_says_what_would_go(tmp_path: Path) -> None:
    """Topics, days, files and bytes are listed; specs stay unless they are named; nothing is removed."""
    (tmp_path / "archive.json").write_text(history().model_dump_json())
    ran = CliRunner().invoke(app, ["archive", "expire", str(tmp_path), "--keep", "1d", "--dry-run"])
    assert ran.exit_code == 0, ran.output
    assert "decisions" in ran.output
    assert "jobs" not in ran.output
    ran = CliRunner().invoke(app, ["archive", "expire", str(tmp_path), "--keep", "jobs=1d", "--dry-run"])
    assert "jobs" in ran.output
    assert store.load(tmp_path) == history()


def test_an_export_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is archived while the first topics are exported is in none of the later ones: it would have no cause."""
    archive, asked = tmp_path / "a", list[list[str]]()
    store.load_or_create(archive, "t.")

    def added(manifest: Manifest) -> Manifest:
        return manifest.extended([file("2026-03-01", {0: Span(0, 9, 10)})], {}, NOW)

    def read(_spark: object, _folder: Path, files: Sequence[DataFile]) -> MagicMock:
        asked.append([each.path for each in files])
        store.change(archive, added, NOW)
        return MagicMock()

    monkeypatch.setattr(exporting, "read_files", read)
    exporting.export(MagicMock(), archive, tmp_path / "out")
    assert asked == [[]] * len(TOPICS)


def test_spark_reads_from_folders_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes `[`, `{`, `*` and the like for patterns, unless a backslash precedes them, and decodes no `%20`."""
    monkeypatch.setattr("pyspark.sql.functions", MagicMock())  # the real ones need a JVM
    name, escaped = "1 März [50%] {a,b}*?", r"1 März \[50%\] \{a,b\}\*\?"
    spark, read = MagicMock(), tmp_path / name
    write_recording(read, jobs=1, per_job=1, partitions=1)
    of_recording(spark, read)
    asked = [call.args[0] for call in spark.read.schema.return_value.json.call_args_list]
    assert f"file://{tmp_path}/{escaped}/decisions.ndjson" in asked
    read_files(spark, read, [file("2026-03-01", {})])
    reader = spark.read.schema.return_value.option
    reader.assert_called_with("basePath", f"file://{tmp_path}/{name}/records")
    parquet = reader.return_value.option.return_value.parquet
    parquet.assert_called_with(f"file://{tmp_path}/{escaped}/decisions/2026-03-01")


def test_a_topic_has_the_id_that_it_was_archived_with() -> None:
    """A broker before 2.8 tells no ids, and an archive of an older Tidegate has none: both are taken as before."""
    archived = EMPTY.model_copy(update={"positions": {"results": {0: 7}}})
    known = archived.of_topics({}).of_topics({"results": "a", "jobs": "b"})
    assert known.topic_ids == {"results": "a", "jobs": "b"}
    assert known.of_topics({}) == known
    assert known.of_topics({"jobs": "c"}).topic_ids == {"results": "a", "jobs": "c"}  # nothing of it is archived
    with pytest.raises(ArchivedAlready, match="results was deleted and created again"):
        known.of_topics({"results": "c"})
