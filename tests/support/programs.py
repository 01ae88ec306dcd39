"""Programs of this checkout that end by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tidegate.stack.processes import inherited

ROOT = Path(__file__).parents[2]


def ended(*program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program with these settings; return how it ended."""
    ours = {f"TIDEGATE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env={**inherited(), **ours, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
