"""The event log of a real driver under the launcher: tasks appear in it when they end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from services.actuator.backends import Submission
from services.actuator.backends.local import Local
from tests.support.local_job import local_job
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import RunningBatch
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until
from tidegate.sparklog.application_run import Interval
from tidegate.sparklog.log_directory import LogDirectory
from tidegate.stack.java import find_java

pytestmark = pytest.mark.spark

SCRIPT = """
import sys, time
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id, udf

spark = SparkSession.builder.appName("job").getOrCreate()

@udf("int", useArrow=False)
def work(partition):
    time.sleep(300 if partition else 0)
    return partition

rates = spark.readStream.format("rate").option("rowsPerSecond", 30).option("numPartitions", 3).load()
works = rates.select(work(spark_partition_id()))
works.writeStream.format("noop").option("checkpointLocation", sys.argv[1]).start().awaitTermination()
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobSpec]:
    """A job with one slot, whose batches have one stage of three tasks; all but the first task last 300 s."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    (tmp_path / "script.py").write_text(SCRIPT)
    spec = local_job(tmp_path, args=(str(tmp_path / "ck"),))
    backend = Local(tmp_path)
    driver = backend.submit(Submission(spec, Token(1), 1))
    yield spec
    backend.kill(spec, driver)
    assert wait_until(lambda: not backend.state(spec, driver).alive, 20)


def test_a_task_is_seen_before_its_stage_ends(spec: JobSpec) -> None:
    """Spark alone would hold the first task back for five minutes, until the stage has ended."""
    logs = LogDirectory(Path(spec.application.event_log_dir), limit_bytes=10_000_000)

    def running() -> tuple[RunningBatch, ...]:
        now = datetime.now(UTC)
        readings = logs.read({"job": Interval(now - timedelta(seconds=10), now)})
        return readings["job"].runs[-1].running if "job" in readings and readings["job"].runs else ()

    # the first batch has no rows, and one task
    assert wait_until(lambda: any(batch.tasks == 3 and batch.tasks_finished for batch in running()), 150)
    (batch,) = running()
    assert batch.tasks_finished == 1
