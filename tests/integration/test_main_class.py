"""A job in Scala on real servers: started, resized, stopped and continued as a script is, without a change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.orders import JobOperator
from services.actuator.backends.local import Local
from services.actuator.checkpoint import read_checkpoints
from tests.support.actuator import ActuatorRig
from tests.support.control import stopped
from tests.support.jvm_job import MAIN_CLASS, make_jar
from tests.support.local_job import local_job
from tests.support.provider import ProcessProvider, StackProvider
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until
from tidegate.stack.jars import spark_version
from tidegate.stack.java import find_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(spark_version().startswith("3."), reason="jobs in Scala or Java need Spark 4.0 or later"),
]


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's jar."""
    return make_jar(tmp_path_factory.mktemp("jar"))


@pytest.fixture
def rig(stack: StackProvider, tmp_path: Path, jar: Path) -> Iterator[ActuatorRig]:
    """The job on a standalone cluster, with an actuator."""
    if not isinstance(stack, ProcessProvider):
        pytest.skip("the job's jar and checkpoint are files of this machine, which containers do not see")
    info = stack.need(kafka=True, redis=True, spark=True)
    with closing(ActuatorRig(info, tmp_path, script=str(jar), main_class=MAIN_CLASS)) as rig:
        rig.start_actuator()
        yield rig


@pytest.mark.timeout(400)
def test_a_job_in_scala_is_resized_in_place_stopped_and_continued(rig: ActuatorRig) -> None:
    """Two queries in two sessions, one without a checkpoint: each ends at its boundary, and no record comes twice."""
    rig.load()
    started = rig.wait_for_end(rig.command(CommandKind.START, 2))
    assert started.phase is Phase.VERIFIED, started
    resized = rig.wait_for_end(rig.command(CommandKind.RESCALE, 4, before=2))
    assert (resized.phase, resized.way, resized.parallelism) == (Phase.VERIFIED, Way.IN_PLACE, 4), resized
    assert resized.incarnation == started.incarnation
    (run,) = rig.control.runs()
    queries = (rig.control.running(run) or {})["queries"]
    place = rig.spec.application.checkpoint_location
    assert {q["name"]: q["checkpoint"] for q in queries} == {None: f"file:{place}", "beat": f"file:{place}/beat"}

    end = rig.wait_for_end(rig.command(CommandKind.STOP, 0, before=4))
    assert end.phase is Phase.VERIFIED, end
    told = stopped(rig.control, run)
    assert told is not None
    assert (told["clean"], len(told["queries"])) == (True, 2), told
    assert all(checkpoint.clean for checkpoint in read_checkpoints(place))

    again = rig.wait_for_end(rig.command(CommandKind.START, 2))
    assert again.phase is Phase.VERIFIED, again
    rig.stop_load()
    assert wait_until(lambda: len(rig.outputs()) == rig.records, 60, 1.0)
    assert rig.wait_for_end(rig.command(CommandKind.STOP, 0, before=2)).phase is Phase.VERIFIED
    assert set(rig.outputs().values()) == {1}


def test_a_main_class_that_fails_says_why(tmp_path: Path, jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the failed start has what the program threw and its cause, without secrets."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with closing(JobOperator(local_job(tmp_path, script=str(jar), main_class=MAIN_CLASS), Local(tmp_path))) as operator:
        end = operator.carry_out(CommandKind.START, 1)
    assert (end.phase, end.code) == (Phase.FAILED, "NOT_VERIFIED"), end
    assert "java.lang.IllegalStateException: no topic to copy" in end.sentence
    assert "java.lang.RuntimeException: password=*****" in end.sentence
    error = (operator.control.running(Token(1)) or {}).get("error", "")
    assert error, "the driver itself said why"
