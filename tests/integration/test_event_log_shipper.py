"""Event logs on an object store: what a driver logs to its own disk grows there, as Spark would write it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tidegate.launcher.reports.shipping import SHIPPER
from tidegate.launcher.spark.hadoop import hadoop_conf
from tidegate.launcher.spark.java import load_java
from tidegate.sparklog.event_log import ApplicationLog

pytestmark = pytest.mark.spark

NEVER_MILLIS = 1_000_000_000


class Driver:
    """The log of a driver, and its shipper; a folder is the store."""

    def __init__(self, jvm: Any, folder: Path, backlog_bytes: int = 10_000_000) -> None:
        self.own = folder / "own" / "eventlog_v2_app-1"
        self.store = folder / "store" / "eventlog_v2_app-1"
        self.own.mkdir(parents=True)
        (self.own / "appstatus_app-1.inprogress").touch()
        self._shipper = jvm.tidegate.EventLogShipper.start(
            str(self.own.parent), self.store.parent.as_uri(), hadoop_conf(jvm), NEVER_MILLIS, backlog_bytes
        )

    def logs(self, number: int, text: bytes) -> None:
        """Add to a file of the log."""
        with (self.own / f"events_{number}_app-1").open("ab") as file:
            file.write(text)

    def ends(self) -> None:
        """Mark the log as complete."""
        (self.own / "appstatus_app-1.inprogress").rename(self.own / "appstatus_app-1")

    def ship(self) -> None:
        """Ship now."""
        self._shipper.ship()

    def complaint(self) -> str:
        """Return what the shipper says is wrong."""
        return str(self._shipper.complaint())

    def stored(self) -> list[str]:
        """Return the names in the store."""
        return sorted(path.name for path in self.store.iterdir() if not path.name.startswith("."))


@pytest.fixture(scope="module")
def jvm(session: Any) -> Any:
    """A JVM with the shipper."""
    load_java(session._jvm, SHIPPER)
    return session._jvm


def _events(numbers: Iterable[int], padding: int = 0) -> bytes:
    return b"".join(
        json.dumps({"Event": n, "padding": random.randbytes(padding).hex()}).encode() + b"\n" for n in numbers
    )


def _read(log: ApplicationLog) -> list[int]:
    return [json.loads(line)["Event"] for line in log.lines(100_000_000)]


def test_a_log_grows_in_the_store(jvm: Any, tmp_path: Path) -> None:
    """Readers see whole lines, each once; the driver's files go; the end is marked when all is there."""
    driver = Driver(jvm, tmp_path)
    driver.logs(1, _events([1]) + b'{"Event"')
    driver.ship()
    log = ApplicationLog(driver.store)
    assert _read(log) == [1]
    driver.ship()
    assert _read(log) == []
    driver.logs(1, b": 2}\n")
    driver.logs(2, _events([3]))
    driver.ship()
    assert _read(log) == [2, 3]
    assert [path.name for path in driver.own.glob("events_*")] == ["events_2_app-1"]
    assert driver.stored() == ["appstatus_app-1.inprogress", "events_1_app-1.zstd"]
    driver.logs(2, _events([4]))
    driver.ends()
    driver.ship()
    assert _read(log) == [4]
    assert driver.stored() == ["appstatus_app-1", "events_1_app-1.zstd"]
    assert not driver.own.exists()


def test_parts_are_few_and_spark_reads_them(jvm: Any, tmp_path: Path) -> None:
    """A part is put again until it has a megabyte. Spark's own reader finds the same lines in the same order."""
    driver = Driver(jvm, tmp_path)
    log, read = ApplicationLog(tmp_path), list[int]()
    for step in range(10):
        driver.logs(1 + step // 3, _events(range(step * 100, step * 100 + 100), padding=3000))
        driver.ship()
        log = log if step else ApplicationLog(driver.store)
        read += _read(log)
    driver.ends()
    driver.ship()
    assert read == list(range(1000))
    parts = [path.stat().st_size for path in sorted(driver.store.glob("events_*"))]
    assert len(parts) == 3
    assert all(size >= 1 << 20 for size in parts[:-1])
    place = jvm.org.apache.hadoop.fs.Path(driver.store.as_uri())
    system = place.getFileSystem(hadoop_conf(jvm))
    reader = jvm.org.apache.spark.deploy.history.EventLogFileReader.apply(system, system.getFileStatus(place)).get()
    assert reader.completed()
    files = reader.listEventLogFiles()
    lines: list[bytes] = []
    for number in range(files.size()):
        opened = reader.openEventLog(files.apply(number).getPath(), system)
        lines += bytes(opened.readAllBytes()).splitlines()
        opened.close()
    assert [json.loads(line)["Event"] for line in lines] == read


def test_a_store_that_is_away_costs_nothing_but_time(jvm: Any, tmp_path: Path) -> None:
    """What could not be shipped is shipped later, once; the driver says what is wrong, and where."""
    driver = Driver(jvm, tmp_path)
    (tmp_path / "store").write_text("a file where a folder should be")
    for step in range(3):
        driver.logs(1 + step, _events([step]))
        driver.ship()
    assert "cannot ship the event log to file:" in driver.complaint()
    assert "is not a directory" in driver.complaint()
    (tmp_path / "store").unlink()
    driver.logs(3, _events([3]))
    driver.ship()
    assert driver.complaint() == ""
    assert _read(ApplicationLog(driver.store)) == [0, 1, 2, 3]


def test_the_driver_s_disk_is_bounded(jvm: Any, tmp_path: Path) -> None:
    """If the store stays away, the oldest events that wait are given up; then the log goes on."""
    driver = Driver(jvm, tmp_path, backlog_bytes=2_000_000)
    (tmp_path / "store").write_text("a file where a folder should be")
    for number in range(1, 16):
        driver.logs(number, _events([number], padding=300_000))
        driver.ship()
    assert sum(path.stat().st_size for path in driver.own.iterdir()) < 3_300_000
    (tmp_path / "store").unlink()
    driver.ship()
    read = _read(ApplicationLog(driver.store))
    assert read[:4] == [1, 2, 3, 4]
    assert read[-3:] == [13, 14, 15]
    assert 6 < len(read) < 12
