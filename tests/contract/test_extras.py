"""Each extra of the distribution has what its part imports: nobody else's packages are there on a fresh machine."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.packages import modules_without, normal

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PARTS = {
    "": ("tidegate.client", "tidegate.engine", "tidegate.policies"),
    "cli": ("tidegate.cli", "tidegate.fleet", "tidegate.lab", "tidegate.whatif"),
    "cli,replay": ("tidegate.archive", "tidegate.backtest", "tidegate.replay"),
    "console-service": ("tidegate.console", "services.console"),
    "collector": ("services.collector",),
    "decider": ("services.decider",),
    "actuator": ("services.actuator",),
    "operator": ("services.operator",),
    "keda": ("services.keda",),
}
"""What the docs install, and what it is for."""

IMPORT_ALL = """
import importlib, pkgutil, sys
hidden, *parts = sys.argv[1:]

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in hidden.split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
for part in parts:
    found = importlib.import_module(part)
    for module in pkgutil.walk_packages(getattr(found, "__path__", ()), f"{part}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def installed_with(extras: str) -> set[str]:
    """Return the names of the distributions that `pip install tidegate[extras]` installs."""
    optional = PROJECT["optional-dependencies"]
    waiting = [*PROJECT["dependencies"], *(line for extra in extras.split(",") if extra for line in optional[extra])]
    found: set[tuple[str, str]] = set()
    while waiting:
        need = Requirement(waiting.pop())
        name = normal(need.name)
        for extra in ("", *need.extras):
            if (name, extra) not in found and (need.marker is None or need.marker.evaluate()):
                found.add((name, extra))
                lines = optional.get(extra, ()) if name == "tidegate" else requires(name) or ()
                waiting += [line for line in lines if _applies(line, extra)]
    return {name for name, _ in found}


def _applies(line: str, extra: str) -> bool:
    need = Requirement(line)
    return need.marker is None or need.marker.evaluate({"extra": extra})


@pytest.mark.parametrize("extras", PARTS)
def test_an_extra_has_all_that_its_part_imports(extras: str) -> None:
    """With the packages of the extra alone, every module of its part can be imported."""
    hidden = modules_without(installed_with(extras)) - {"tidegate", "services"}
    command = [sys.executable, "-c", IMPORT_ALL, ",".join(hidden), *PARTS[extras]]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
