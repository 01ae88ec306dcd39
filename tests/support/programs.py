"""Programs that end by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tidegate.stack.processes import inherited

ROOT = Path(__file__).parents[2]


def captured(*command: str | Path, timeout: float = 120, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; return its exit code and what it wrote."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **more)


def ended(*program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this checkout with these settings; return how it ended."""
    ours = {f"TIDEGATE_{name.upper()}": value for name, value in settings.items()}
    environment = {**inherited(), **ours, "PYTHONPATH": str(ROOT)}
    return captured(sys.executable, *program, timeout=180, cwd=ROOT, env=environment)
