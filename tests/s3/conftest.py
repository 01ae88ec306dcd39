"""A real S3 server on this machine, and what Spark needs to use it.

`make test-s3` runs these tests; nothing else does, because the jars have 25 MB. The server is S3Proxy over a folder,
which writes conditionally: two that create a key at once are told apart, while `If-Match` is looked at just before the
write. Of the AWS SDK, the modules that S3A uses take the place of the bundle of 600 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidegate.remote.s3 import open_s3
from tidegate.runtime.poll import wait_until
from tidegate.stack.component import port_open
from tidegate.stack.fetch import Artifact
from tidegate.stack.jars import JarSet, class_path, ensure_jars, spark_home
from tidegate.stack.java import ensure_java
from tidegate.stack.ports import free_ports

ASKED = "TIDEGATE_TEST_S3"
BUCKET = "tidegate"
_JACKSON, _OPENTELEMETRY = "3.2.1", "1.64.0"
S3PROXY = JarSet(
    "s3proxy-4.0.0",
    (
        Artifact("org.gaul", "s3proxy", "4.0.0"),
        Artifact("args4j", "args4j", "2.37"),
        Artifact("com.google.guava", "guava", "33.6.0-jre"),
        Artifact("com.google.guava", "failureaccess", "1.0.3"),
        Artifact("com.fasterxml.jackson.core", "jackson-annotations", "2.21"),
        Artifact("tools.jackson.core", "jackson-core", _JACKSON),
        Artifact("tools.jackson.core", "jackson-databind", _JACKSON),
        Artifact("tools.jackson.dataformat", "jackson-dataformat-xml", _JACKSON),
        Artifact("com.fasterxml.woodstox", "woodstox-core", "7.0.0"),
        Artifact("org.codehaus.woodstox", "stax2-api", "4.2.2"),
        Artifact("jakarta.servlet", "jakarta.servlet-api", "6.0.0"),
        Artifact("io.opentelemetry", "opentelemetry-api", _OPENTELEMETRY),
        Artifact("io.opentelemetry", "opentelemetry-context", _OPENTELEMETRY),
        Artifact("io.opentelemetry", "opentelemetry-sdk", _OPENTELEMETRY),
        Artifact("io.opentelemetry", "opentelemetry-sdk-common", _OPENTELEMETRY),
        Artifact("io.opentelemetry", "opentelemetry-common", "1.62.0"),
        Artifact("io.opentelemetry.semconv", "opentelemetry-semconv", "1.43.0"),
        Artifact("org.slf4j", "slf4j-api", "2.0.18"),
    ),
    transitive=False,
)
_SDK = (
    *("annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol"),
    *("checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws"),
    *("http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi"),
    *("netty-nio-client", "profiles", "protocol-core", "regions", "retries", "retries-spi", "s3"),
    *("s3-transfer-manager", "sdk-core", "sts", "third-party-jackson-core", "utils", "utils-lite"),
)
S3A = JarSet(
    "s3a-3.5.0",
    (
        Artifact("org.apache.hadoop", "hadoop-aws", "3.5.0"),  # pyspark 4.2 has Hadoop 3.5.0
        Artifact("org.apache.spark", "spark-hadoop-cloud_2.13", "4.1.1"),  # 4.2.0 is not in every mirror
        *(Artifact("software.amazon.awssdk", module, "2.35.4") for module in _SDK),
        Artifact("software.amazon.eventstream", "eventstream", "1.0.1"),
        Artifact("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        Artifact("org.reactivestreams", "reactive-streams", "1.0.4"),
    ),
    transitive=False,
)
"""What pyspark 4.2 lacks for S3A; netty and Apache's HTTP client are among its jars."""
LOCK = Path(__file__).with_name("jars.lock")
_START_SECONDS = 30.0

collect_ignore_glob = [] if ASKED in os.environ else ["test_*.py"]


@dataclass
class S3Server:
    """A running server with one bucket, and how to reach it."""

    endpoint: str
    process: subprocess.Popen[bytes]
    spark_jars: list[Path]

    @property
    def root(self) -> str:
        """The bucket, as Spark calls it."""
        return f"s3a://{BUCKET}"

    @property
    def hadoop_conf(self) -> dict[str, str]:
        """What S3A needs of a server without a domain."""
        return {"spark.hadoop.fs.s3a.path.style.access": "true"}

    @property
    def spark_conf(self) -> dict[str, str]:
        """What a job's Spark needs; endpoint and credentials are in the environment."""
        jars = class_path(self.spark_jars)
        return {
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            **self.hadoop_conf,
            "spark.sql.streaming.checkpointFileManagerClass": (
                "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
            ),
        }

    def pause(self, seconds: float) -> None:
        """Let the server answer nothing for a while."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Yield the server. This process, and all that it starts, find it by the usual AWS variables."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "data" / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    credentials = {"AWS_ACCESS_KEY_ID": "tidegate-test", "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anybody"}
    settings = {
        "s3proxy.endpoint": endpoint,
        "s3proxy.authorization": "aws-v4",
        "s3proxy.identity": credentials["AWS_ACCESS_KEY_ID"],
        "s3proxy.credential": credentials["AWS_SECRET_ACCESS_KEY"],
        "jclouds.provider": "filesystem-nio2",
        "jclouds.identity": "none",
        "jclouds.credential": "none",
        "jclouds.filesystem.basedir": str(folder / "data"),
    }
    (folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")
    java = ensure_java(print)
    jars = ensure_jars(S3PROXY, java, print, lock=LOCK)
    spark_jars = ensure_jars(S3A, java, print, lock=LOCK)
    command = [str(java.executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path(jars)]
    command += ["org.gaul.s3proxy.Main", "--properties", str(folder / "s3proxy.conf")]
    with (folder / "s3proxy.log").open("wb") as log, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {**credentials, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        # the JVM of this process, with which tests do what a driver does
        options = f"--driver-class-path {class_path(spark_jars)} --conf spark.hadoop.fs.s3a.path.style.access=true"
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"{options} pyspark-shell")
        patch.setenv("JAVA_HOME", str(java.home))
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        try:
            assert wait_until(lambda: port_open(port), _START_SECONDS), (folder / "s3proxy.log").read_text("utf-8")
            open_s3().replace_file(f"{BUCKET}/ready", b"")
            yield S3Server(endpoint, process, spark_jars)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@contextmanager
def history_server(s3: S3Server, logs: str) -> Iterator[str]:
    """Run Spark's history server on a folder of logs; yield its URL."""
    (port,) = free_ports(1)
    conf = {
        **s3.hadoop_conf,
        "spark.history.fs.logDirectory": logs,
        "spark.history.ui.port": str(port),
        "spark.history.fs.update.interval": "2s",
    }
    settings = {
        "JAVA_HOME": str(ensure_java(print).home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "400m",
        "SPARK_DIST_CLASSPATH": class_path(s3.spark_jars),
        "SPARK_HISTORY_OPTS": " ".join(f"-D{name}={value}" for name, value in conf.items()),
    }
    process = subprocess.Popen(
        [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.history.HistoryServer"],
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: port_open(port), _START_SECONDS), "no history server"
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
