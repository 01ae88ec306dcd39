"""Event logs on an object store: Spark logs to a folder of the driver's own, and what it logs is shipped.

On an object store a file appears when it is closed, and Spark keeps its event log open for as long as it can. Nobody
could see how a job does. So Spark is told, before it starts, to log to a folder on the driver's disk, and a thread of
its JVM ships what has been added every `SHIP_SECONDS` (`EventLogShipper.java`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark import SparkContext

from tidegate.launcher.spark.hadoop import hadoop_conf
from tidegate.launcher.spark.java import load_java

SHIPPER = Path(__file__).with_name("EventLogShipper.java")
SHIP_SECONDS = 5.0
"""Each time costs one request, if something was added."""
BACKLOG_BYTES = 512 * 1024 * 1024
"""How much waits on the driver's disk while the store is away; then the oldest is lost."""
_SPARK_FILE = "10m"
"""Spark's smallest file of a rolling log: what is shipped is deleted file by file."""


def ship_event_logs(place: str) -> None:
    """Make applications that start in the driver's JVM log to a folder of its own, and ship their logs to `place`.

    Raises the JVM's error if there is no Hadoop file system for the place.
    """
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    folder = Path(tempfile.mkdtemp(prefix="tidegate-events-"))
    load_java(jvm, SHIPPER)
    millis = int(SHIP_SECONDS * 1000)
    jvm.tidegate.EventLogShipper.start(str(folder), place, hadoop_conf(jvm), millis, BACKLOG_BYTES)
    settings = {
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",  # so that lines can be told apart
        "spark.eventLog.rolling.enabled": "true",
        "spark.eventLog.rolling.maxFileSize": _SPARK_FILE,
    }
    for name, value in settings.items():
        jvm.java.lang.System.setProperty(name, value)
