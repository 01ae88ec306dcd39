"""What an error of Spark's says, in one line, and what happens while Spark starts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bench.streams import write_recording
from tidegate.replay import recompute as recomputing
from tidegate.replay.files import read_manifest
from tidegate.replay.source import NoSpark, spark_said

WORKER = """An error occurred while calling o141.javaToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/pyspark/worker.py", line 3592, in main
ModuleNotFoundError: No module named 'zstandard'
"""


def test_a_module_that_workers_lack_is_named_with_what_to_do() -> None:
    """On a cluster the workers' Python is another one, whose packages are its own."""
    said = spark_said(RuntimeError(WORKER))
    assert "a Python without zstandard" in said
    assert "PYSPARK_PYTHON" in said
    assert "\n" not in said


def test_the_first_line_that_says_something_is_told() -> None:
    """How PySpark called the JVM is no reason; an error without a text is told by its type."""
    told = spark_said(
        RuntimeError("An error occurred while calling o1.load.\n: java.io.IOException: no space left\n\tat x")
    )
    assert told == "java.io.IOException: no space left"
    assert spark_said(KeyError()) == "KeyError()"


def test_the_files_of_a_recording_are_checked_while_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take seconds, and the first needs one core only."""
    write_recording(tmp_path / "noon", jobs=1, per_job=1)
    checked = threading.Event()

    def check(directory: Path, manifest: object) -> list[str]:
        assert (directory, manifest) == (tmp_path / "noon", read_manifest(tmp_path / "noon"))
        checked.set()
        return []

    def start(*_: object) -> None:
        raise NoSpark("checked" if checked.wait(30) else "not checked")

    monkeypatch.setattr(recomputing, "damaged", check, raising=False)
    monkeypatch.setattr(recomputing, "start_session", start)
    with pytest.raises(NoSpark, match=r"^checked"):
        recomputing.recompute(directory=tmp_path / "noon")
