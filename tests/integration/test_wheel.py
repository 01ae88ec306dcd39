"""The wheel in somebody else's program: one import name, next to packages that have the names of our other folders."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from venv import EnvBuilder

import pydantic
import pytest

from tests.support.engine import step
from tests.support.events import job, observed, snapshot, steady
from tests.support.programs import captured
from tidegate.client import ClientSettings
from tidegate.engine.state import JobState
from tidegate.events.envelope import value_of
from tidegate.runtime.publisher import Publisher

ROOT = Path(__file__).parents[2]
THIRD_PARTY = Path(pydantic.__file__).parents[1]
"""Site-packages with the dependencies. On a path they come without the checkout: that needs its own .pth to be read."""
FOREIGN = ("schemas", "engine", "services", "runtime", "replay", "launcher", "twin", "demo")
POLICIES = (
    *("cost", "flip271", "forecast", "hpa", "keda", "learning"),
    *("numaflow", "pid", "queueing", "threshold", "tide", "varga"),
)


@dataclass(frozen=True)
class Program:
    """A program with packages of its own, in an environment that has the wheel."""

    folder: Path
    scripts: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the environment from the program's folder, which is first on the import path."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "PYTHONPATH": str(self.folder)}
        return captured(self.scripts / command[0], *command[1:], cwd=self.folder, env=environment, timeout=90)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without the network from a copy: a build folder in the tree could hold files long deleted."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=ignored, dirs_exist_ok=True)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(source))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program with eight packages named like ours, and the wheel in its virtual environment."""
    folder, environment = tmp_path_factory.mktemp("program"), tmp_path_factory.mktemp("environment")
    for name in FOREIGN:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('OWNER = "the program"\n', encoding="utf-8")
    EnvBuilder(symlinks=True).create(environment)
    pip("--python", str(environment / "bin/python"), "install", "--no-deps", "--no-index", str(wheel))
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    (site_packages / "third-party.pth").write_text(f"{THIRD_PARTY}\n", encoding="utf-8")
    return Program(folder, environment / "bin")


def pip(*arguments: str) -> None:
    """Run pip; fail with what it wrote."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    ran = captured(*command, timeout=90)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_wheel_adds_one_import_name(wheel: Path) -> None:
    """The wheel holds the package `tidegate`, its metadata, and nothing else."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    top = {name.partition("/")[0] for name in names}
    (metadata,) = {name for name in top if name.endswith(".dist-info")}
    assert top == {"tidegate", metadata}
    assert {"tidegate/launcher/programs/Gate.java", "tidegate/launcher/reports/EventLogShipper.java"} <= set(names)


def test_the_wheel_has_the_pages_of_the_console(wheel: Path) -> None:
    """Every template, style sheet, script and library of the console is in the wheel, with the licences."""
    folder = ROOT / "tidegate/console"
    files = {str(p.relative_to(ROOT)) for kind in ("templates", "static") for p in (folder / kind).rglob("*.*")}
    with zipfile.ZipFile(wheel) as packed:
        assert files - set(packed.namelist()) == set()
    assert {"uPlot.LICENSE", "idiomorph.LICENSE"} <= {Path(name).name for name in files}


def test_the_types_of_the_client_reach_a_user(program: Program) -> None:
    """In strict mode, mypy knows what the client returns, and finds a field that a decision does not have."""
    (program.folder / "typed.py").write_text(
        """
from tidegate import decisions

for decision in decisions("127.0.0.1:9092", job="rates", follow=True):
    print(decision.sentence.upper(), decision.final_parallelism + 1)
    print(decision.no_such_field)
""",
        encoding="utf-8",
    )
    checked = program.run("python", "-m", "mypy", "--strict", "typed.py")
    assert checked.stdout.splitlines() == [
        'typed.py:6: error: "Decision" has no attribute "no_such_field"  [attr-defined]',
        "Found 1 error in 1 file (checked 1 source file)",
    ], checked.stderr


def test_the_command_works_next_to_packages_of_the_same_names(program: Program) -> None:
    """`tidegate` says its version and its help, decides on a recording, and knows all twelve policies."""
    version = program.run("tidegate", "version")
    assert version.stdout.startswith("tidegate 0."), version.stderr
    assert "why" in program.run("tidegate", "--help").stdout

    (program.folder / "job.json").write_bytes(value_of(job()))
    recorded = steady(12, rate=3000, capacity=1000)
    (program.folder / "seen.ndjson").write_bytes(b"".join(value_of(one) + b"\n" for one in recorded))
    decided = program.run("tidegate", "decide", "--spec", "job.json", "--snapshots", "seen.ndjson")
    assert decided.returncode == 0, decided.stderr
    assert len([json.loads(line) for line in decided.stdout.splitlines()]) == len(recorded)

    refused = program.run("tidegate", "simulate", "--spec", "job.json", "--load", "x.csv", "--policy", "unheard-of")
    assert ", ".join(POLICIES) in refused.stderr


def test_the_client_subscribes_next_to_packages_of_the_same_names(program: Program, settings: ClientSettings) -> None:
    """`from tidegate import decisions` reads a real topic in a program that imports its own eight packages as well."""
    _, decision = step(JobState.new(), snapshot(0), job(), observed(snapshot(0)))
    Publisher(settings).publish(decision)
    (program.folder / "subscriber.py").write_text(
        f"""
import {", ".join(FOREIGN)}
import tidegate
from tidegate import decisions

owners = {{package.OWNER for package in ({", ".join(FOREIGN)})}}
(found,) = decisions({settings.bootstrap_servers!r}, topic_prefix={settings.topic_prefix!r})
print(tidegate.__file__, *owners, found.decision_id, sep="\\n")
""",
        encoding="utf-8",
    )
    ran = program.run("python", "subscriber.py")
    assert ran.returncode == 0, ran.stderr
    file, owner, decision_id = ran.stdout.splitlines()
    assert Path(file).is_relative_to(program.scripts.parent)
    assert (owner, decision_id) == ("the program", decision.decision_id)
