"""The archive of Spark's classes: made once for each Java and its jars, and a failure says why."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.spark_submit import stand_in
from tidegate.stack import class_data
from tidegate.stack.errors import StackError
from tidegate.stack.java import Java

_SUBMIT = """#!/bin/sh
argument="$1"
eval "set -- $SPARK_SUBMIT_OPTS"
case "$1 $2 $argument" in
*ArchiveClassesAtExit=*/training.py) echo "classes of $JAVA_HOME" > "${1#*ArchiveClassesAtExit=}" ;;
*SharedArchiveFile=*" -Xshare:on --version") [ -f "${1#*SharedArchiveFile=}" ] && [ ! -e "$JAVA_HOME/refuses" ] ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for the installed Spark; return its `spark-submit`."""
    monkeypatch.setattr(class_data, "spark_home", lambda: tmp_path / "spark")
    monkeypatch.setenv("TIDEGATE_CACHE", str(tmp_path / "my cache"))
    return stand_in(tmp_path / "spark", _SUBMIT)


def test_an_archive_is_made_once_for_each_java(submit: Path, tmp_path: Path) -> None:
    """Another Java needs another archive; the options name it, wherever the cache is."""
    del submit
    told: list[str] = []
    first, second = Java(tmp_path / "a", "17.0.1"), Java(tmp_path / "b", "21.0.1")
    for java, made in ((first, 1), (first, 1), (second, 2)):
        archive = class_data.ensure_class_data(java, told.append)
        assert archive.read_text() == f"classes of {java.home}\n"
        assert len(told) == made
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(class_data.light_jvm())
    assert sorted(path.suffix for path in archive.parent.iterdir()) == [".jsa", ".made-for"]


def test_jars_that_were_installed_again_need_another_archive(submit: Path, tmp_path: Path) -> None:
    """A JVM refuses an archive whose jars have other times or sizes, even in the same place."""
    jar = submit.parent.parent / "jars" / "spark-core.jar"
    jar.parent.mkdir()
    jar.write_bytes(b"classes")
    told: list[str] = []
    java = Java(tmp_path / "a", "17.0.1")
    for size, seconds, made in ((7, 1000, 1), (7, 1000, 1), (7, 1001, 2), (8, 1001, 3)):
        jar.write_bytes(b"x" * size)
        os.utime(jar, (seconds, seconds))
        class_data.ensure_class_data(java, told.append)
        assert len(told) == made


def test_archives_of_installations_that_are_gone_are_removed(
    submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has 170 MB, and each checkout with an environment of its own makes one."""
    java, archives = Java(tmp_path / "a", "17.0.1"), []
    for name in ("kept", "gone", "new"):
        home = stand_in(tmp_path / name, submit.read_text()).parent.parent
        monkeypatch.setattr(class_data, "spark_home", lambda home=home: home)
        if name == "new":
            shutil.rmtree(tmp_path / "gone")
        archives.append(class_data.ensure_class_data(java, print))
    assert [archive.exists() for archive in archives] == [True, False, True]
    assert len(list(archives[0].parent.iterdir())) == 4


def test_it_is_made_without_the_settings_of_the_users_own_spark_and_java(
    submit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Jupyter would be started instead of the program, and a JVM with two garbage collectors does not start."""
    foreign = {"JAVA_TOOL_OPTIONS": "-XX:+UseG1GC", "PYSPARK_DRIVER_PYTHON": "jupyter", "HADOOP_CONF_DIR": "/etc"}
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    submit.write_text(submit.read_text().replace("\n", f"\nenv > {tmp_path}/environment\n", 1))
    class_data.ensure_class_data(Java(tmp_path, "17"), print)
    lines = (tmp_path / "environment").read_text().splitlines()
    assert f"PYSPARK_PYTHON={sys.executable}" in lines
    assert not foreign.keys() & {line.partition("=")[0] for line in lines}


def test_a_program_that_fails_is_told(submit: Path, tmp_path: Path) -> None:
    """The text has the end of its output, and nothing is left."""
    submit.write_text("#!/bin/sh\necho no memory is left >&2\nexit 1\n")
    with pytest.raises(StackError, match=r"(?s)no archive of Spark's classes.*no memory is left"):
        class_data.ensure_class_data(Java(tmp_path, "17"), print)
    assert not list(class_data.class_data().parent.iterdir())


def test_an_archive_that_its_java_refuses_is_not_kept_nor_made_again(submit: Path, tmp_path: Path) -> None:
    """As Java 21 does: JVMs would look through it at each start, for nothing."""
    del submit
    (tmp_path / "refuses").touch()
    told: list[str] = []
    for _ in range(2):
        with pytest.raises(StackError, match=r"^Java 21\.0\.1 refuses its archive of Spark's classes$"):
            class_data.ensure_class_data(Java(tmp_path, "21.0.1"), told.append)
    assert [path.suffix for path in class_data.class_data().parent.iterdir()] == [".made-for"]
    assert len(told) == 1
    (tmp_path / "refuses").unlink()
    assert class_data.ensure_class_data(Java(tmp_path, "21.0.2"), told.append).exists()
