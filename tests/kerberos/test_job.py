"""A stateful job on YARN, its checkpoint, event log and control files in HDFS: both let nobody in without a ticket."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kerberos.conftest import TOKEN_SECONDS, Cluster
from tests.support.counting import change, stop
from tests.support.realm import NAME
from tests.support.yarn_job import YarnJob, environment, spark_conf
from tidegate.events.command import CommandKind
from tidegate.events.way import Way
from tidegate.runtime.poll import wait_until

pytestmark = pytest.mark.timeout(1200)


class KerberosJob(YarnJob):
    """The job; spark-submit logs in with a keytab, and so does its driver. Only its output is on this machine."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.uri = f"{cluster.hdfs.uri}/{uuid.uuid4().hex[:8]}"
        files = cluster.hdfs.files()
        (files.remote(self.uri) / "events" / ".made").replace(b"")
        self.keytab = cluster.realm.keytab("etl")
        conf = spark_conf(folder) | {
            "spark.yarn.stagingDir": f"{self.uri}/staging",
            "spark.kerberos.principal": f"etl@{NAME}",
            "spark.kerberos.keytab": str(self.keytab),
        }
        super().__init__(
            cluster,
            folder,
            files,
            checkpoint_location=f"{self.uri}/ck",
            event_log_dir=f"{self.uri}/events",
            control_dir=None,
            conf=conf,
            env=environment(cluster) | {"JAVA_TOOL_OPTIONS": cluster.realm.java_option},
        )


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[KerberosJob]:
    """A job that has not started."""
    with closing(KerberosJob(cluster, tmp_path)) as job:
        yield job


def test_a_job_outlives_its_tokens(job: KerberosJob, caplog: pytest.LogCaptureFixture) -> None:
    """It starts, grows in place, restarts and stops by tickets; every row is counted once; no keytab is told."""
    caplog.set_level(logging.DEBUG)
    job.order(CommandKind.START, 2)
    assert job.wait_for_batches(2, 300)
    change(job, 4, Way.IN_PLACE)
    change(job, 2, Way.RESTART, 300)
    started = time.monotonic()
    assert job.seen().slots_used == 2
    while time.monotonic() < started + 1.5 * TOKEN_SECONDS:
        assert job.wait_for_batches(3, 90)
    change(job, 3, Way.IN_PLACE)
    stop(job)
    assert wait_until(lambda: not job.seen().active, 60)
    told = "\n".join([*map(str, job.results), *(record.getMessage() for record in caplog.records)])
    assert str(job.keytab) not in told
