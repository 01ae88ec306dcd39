"""Event logs on an object store, without a JVM: what Spark is told before it starts."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark import SparkContext

from tidegate.launcher.reports import shipping
from tidegate.launcher.reports.shipping import ship_event_logs


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a JVM that notes its properties in `properties`, how the shipper was started, and what was loaded."""
    jvm: Any = types.SimpleNamespace(properties={}, loaded=[], shipped=[])
    system = types.SimpleNamespace(setProperty=jvm.properties.__setitem__)
    jvm.java = types.SimpleNamespace(lang=types.SimpleNamespace(System=system))
    jvm.tidegate = types.SimpleNamespace(
        EventLogShipper=types.SimpleNamespace(start=lambda *args: jvm.shipped.append(args))
    )
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda: monkeypatch.setattr(SparkContext, "_jvm", jvm))
    monkeypatch.setattr(shipping, "load_java", lambda into, source: into.loaded.append(source))
    monkeypatch.setattr(shipping, "hadoop_conf", lambda _jvm: "conf")
    return jvm


def test_spark_logs_to_a_folder_of_its_own_from_which_its_log_is_shipped(jvm: Any) -> None:
    """Lines can only be told apart in a log that is not compressed, and only a rolling log leaves room on the disk."""
    ship_event_logs("s3a://bucket/events")
    told = jvm.properties
    folder = Path(urlsplit(told.pop("spark.eventLog.dir")).path)
    try:
        assert list(folder.iterdir()) == []
    finally:
        folder.rmdir()
    assert told == {
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": "10m",
    }
    assert jvm.shipped == [(str(folder), "s3a://bucket/events", "conf", 5000, 512 * 1024 * 1024)]
    assert jvm.loaded == [Path(shipping.__file__).with_name("EventLogShipper.java")]


def test_without_a_file_system_for_the_place_spark_is_told_nothing(
    jvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher says why, and ends the driver; nobody would ship what Spark logs."""

    def fails(*_: Any) -> None:
        raise RuntimeError("No FileSystem for scheme s9a")

    jvm.tidegate.EventLogShipper.start = fails
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="s9a"):
        ship_event_logs("s9a://bucket/events")
    assert jvm.properties == {}
