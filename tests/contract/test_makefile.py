"""The Makefile, on a copy of it with stand-ins for the programs that it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_target_works_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """The checkout may be anywhere: a target that needs its path runs the programs of its environment all the same."""
    checkout = tmp_path / "my checkout"
    shutil.copytree(ROOT / "deploy" / "requirements", checkout / "deploy" / "requirements")
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "prometheus", "promtool"):
        (programs / name).write_text('#!/bin/sh\necho "$PYTHONPATH|$*"\n', "utf-8")
        (programs / name).chmod(0o755)
    for made in (".venv/.installed", ".tidegate/spark-3.5/.installed", ".tidegate/compiled/setup.py"):
        (checkout / made).parent.mkdir(parents=True, exist_ok=True)
        (checkout / made).touch()
    command = ["make", "--silent", "demo", "faults", "spark", "test-spark", "compiled", "bench", "lab"]
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    ran = subprocess.run(command, cwd=checkout, env=path, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    assert f"{checkout}/.tidegate/spark-3.5|-m tidegate.stack.setup" in ran.stdout
