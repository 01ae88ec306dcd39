"""What tests against real servers share."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate.cli.backtest
import tidegate.cli.spark
import tidegate.replay.recompute
from demo.environment import LIGHT_JVM
from tidegate.client import ClientSettings
from tidegate.replay.source import start_session
from tidegate.runtime.topics import ensure_topics
from tidegate.stack.jars import ensure_jars, spark_kafka
from tidegate.stack.java import ensure_java


def new_topics(kafka: str) -> ClientSettings:
    """Create the topics under a prefix of their own."""
    made = ClientSettings(bootstrap_servers=kafka, topic_prefix=f"test-{uuid.uuid4().hex[:8]}.")
    ensure_topics(made, partitions=2)
    return made


@pytest.fixture
def settings(kafka: str) -> ClientSettings:
    """Topics of the test's own."""
    return new_topics(kafka)


@pytest.fixture(scope="session")
def session() -> Iterator[Any]:
    """The one Spark of this process. It has the Kafka connector: the jars of a JVM's first session are those of all."""
    java = ensure_java(print)
    os.environ["JAVA_HOME"] = str(java.home)
    # most of the time Spark plans small queries, each only once
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", LIGHT_JVM)
        made = start_session("local[2]", ensure_jars(spark_kafka(), java, print))
    made.conf.set("spark.sql.shuffle.partitions", "2")
    yield made
    gateway = made.sparkContext._gateway
    made.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM waits for that, and this process for the JVM
    gateway.proc.wait(60)


@pytest.fixture
def commands_share(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line uses this process's Spark, and leaves it running."""
    for module in (tidegate.cli.spark, tidegate.cli.backtest, tidegate.replay.recompute):
        monkeypatch.setattr(module, "start_session", lambda *_: session)
    monkeypatch.setattr(session, "stop", lambda: None)
