"""A script's own settings of its session, next to those that the actuator has set."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidegate.launcher.programs.session import keep_settings, refuse_connect

OURS = {
    "spark.master": "spark://cluster:7077",
    "spark.cores.max": "4",
    "spark.eventLog.enabled": "true",
    "spark.dynamicAllocation.enabled": "false",
    "spark.executor.memory": "512m",
}


class JavaConf(dict[str, str]):
    """The JVM's SparkConf."""

    def set(self, name: str, value: str) -> None:
        """Set one."""
        self[name] = value

    def getAll(self) -> list[Any]:  # noqa: N802 - the JVM's name
        """Return pairs of Scala."""
        return [types.SimpleNamespace(_1=lambda k=k: k, _2=lambda v=v: v) for k, v in self.items()]


def made_of(
    monkeypatch: pytest.MonkeyPatch,
    ours: dict[str, str],
    own: dict[str, str],
    say: Callable[[str], None],
    too_late: Callable[[str], None],
    *,
    defaults: bool = True,
) -> tuple[dict[str, str], str]:
    """Make a context with the settings of `spark-submit` and a script's own; return what it gets, and its master."""
    made: list[JavaConf] = []
    monkeypatch.setattr(SparkContext, "_initialize_context", lambda _context, settings: made.append(settings))
    keep_settings(say, too_late)
    context = types.SimpleNamespace(
        master="local[*]", _jvm=types.SimpleNamespace(SparkConf=lambda _load: JavaConf(ours))
    )
    SparkContext._initialize_context(context, JavaConf(ours | own if defaults else own))
    return made[0], context.master


def test_a_script_does_not_move_its_job_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Master, size and event log are the actuator's; other settings hold, and the log says which do not."""
    said: list[str] = []
    own = {"spark.master": "local[*]", "spark.eventLog.enabled": "false", "spark.dynamicAllocation.enabled": "true"}
    own |= {"spark.executor.memory": "4g", "spark.sql.shuffle.partitions": "8"}
    made, master = made_of(monkeypatch, OURS, own, said.append, pytest.fail)
    assert made == OURS | {"spark.executor.memory": "4g", "spark.sql.shuffle.partitions": "8"}
    assert master == OURS["spark.master"]
    assert len(said) == 3
    assert said[0] == (
        "the program sets spark.master to local[*], but Tidegate has set it to spark://cluster:7077, which holds"
    )


def test_a_script_without_the_settings_of_spark_submit_gets_those_that_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """`SparkConf(loadDefaults=False)` leaves out all of them once there is a JVM, as for a script's second session."""
    made, master = made_of(monkeypatch, OURS, {"spark.app.name": "mine"}, pytest.fail, pytest.fail, defaults=False)
    assert made == {name: value for name, value in OURS.items() if "memory" not in name} | {"spark.app.name": "mine"}
    assert master == OURS["spark.master"]


def test_a_script_is_told_that_it_asks_for_jars_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages in the script's builder are never fetched: its JVM runs already. The job file is where they belong."""
    told: list[str] = []
    made_of(monkeypatch, OURS, {"spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.1.0"}, print, told.append)
    (sentence,) = told
    assert sentence == (
        "The program itself sets spark.jars.packages to io.delta:delta-spark_4.1_2.13:4.1.0, which is too late for its"
        " class path: say so in application.conf of the job file."
    )


def test_a_script_that_repeats_its_job_file_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `spark-submit` has put on the class path is there."""
    same = {"spark.jars.packages": "io.delta:delta-spark_4.1_2.13:4.1.0", "spark.jars": "file:/lib/a.jar"}
    made_of(monkeypatch, OURS | same, same, print, pytest.fail)


@pytest.mark.parametrize("name", ["getOrCreate", "create"])
def test_a_session_of_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its queries would start unseen, also next to those of a newer run; the reason says what to leave out."""
    classic = object.__new__(SparkSession)
    sessions = [classic, object()]
    for each in ("getOrCreate", "create"):
        monkeypatch.setattr(SparkSession.Builder, each, lambda _builder: sessions.pop(0))
    refuse_connect()
    builder = SparkSession.Builder()
    assert getattr(builder, name)() is classic
    with pytest.raises(TypeError, match=r"Spark Connect.*spark\.api\.mode"):
        getattr(builder, name)()
