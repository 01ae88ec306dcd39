"""Finding and installing a Java, tried on scripts that answer like one."""

import os
import subprocess
from pathlib import Path

import pytest

from tidegate.stack import java
from tidegate.stack.errors import StackError
from tidegate.stack.java import ensure_java, find_java


def fake_java(home: Path, version: str, *, modules: str = "jdk.incubator.vector@17") -> Path:
    """Create a program `home`/bin/java that reports Java `version` as the real one does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --list-modules ]; then echo "java.base\n{modules}"; exit; fi\n'
        f'echo "    java.home = {home}" >&2; echo "    java.version = {version}" >&2\n'
    )
    program.chmod(0o755)
    return program


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    """A user who sets JAVA_HOME gets that Java, whatever is on PATH."""
    chosen = fake_java(tmp_path / "chosen", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.9")
    found = find_java({"JAVA_HOME": str(tmp_path / "chosen"), "PATH": str(other.parent)})
    assert (found.executable, found.version) == (chosen, "21.0.2")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """An old JAVA_HOME does not hide a usable Java on PATH."""
    fake_java(tmp_path / "old", "1.8.0_402")
    good = fake_java(tmp_path / "good", "17.0.9")
    assert find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(good.parent)}).executable == good


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ("11.0.1", "jdk.incubator.vector", "is Java 11.0.1, but 17 or later is needed"),
        ("17.0.9", "java.sql", "lacks the module jdk.incubator.vector"),
    ],
)
def test_the_refusal_names_the_java_and_the_reason(tmp_path: Path, version: str, modules: str, reason: str) -> None:
    """The error names each Java that was checked and what is wrong with it."""
    program = fake_java(tmp_path / "java", version, modules=modules)
    with pytest.raises(StackError) as refusal:
        find_java({"PATH": str(program.parent)})
    assert f"{program} {reason}" in str(refusal.value)


def test_a_java_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the questions it does not answer, the next Java is asked."""
    run = java._run

    def hanging(command: list[Path | str]) -> subprocess.CompletedProcess[str]:
        if command == [hangs, "--list-modules"]:
            raise subprocess.TimeoutExpired([str(word) for word in command], 60)
        return run(command)

    monkeypatch.setattr(java, "_run", hanging)
    hangs = fake_java(tmp_path / "hangs", "17.0.1")
    good = fake_java(tmp_path / "good", "17.0.9")
    assert find_java({"JAVA_HOME": str(tmp_path / "hangs"), "PATH": str(good.parent)}).executable == good


def test_without_java_an_ordinary_user_gets_one_line_of_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may not install packages is told what to do."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(StackError) as refusal:
        ensure_java(lambda _text: None, {"PATH": str(tmp_path)})
    assert "point JAVA_HOME at it" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_root_on_debian_gets_the_package_that_this_release_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a release no longer has Java 17, the next package is tried, after `apt-get update`."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program = fake_java(tmp_path / "java21", "21.0.2")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "apt-get").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in\n*update*) exit 0;;\n'
        f'*openjdk-21*) /bin/ln -s {program} {tools}/java;;\n*) echo "no such package" >&2; exit 100;;\nesac\n'
    )
    (tools / "apt-get").chmod(0o755)
    assert ensure_java(lambda _text: None, {"PATH": str(tools)}).version == "21.0.2"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["update", "install", "install"]
    assert calls[-1].endswith("--no-install-recommends openjdk-21-jre-headless")
