"""Run as a program with a path: makes decisions with the engine there. It imports nothing from its own package.

A line in, a line out, as JSON. In: `state` (as in a keyframe), `snapshot`, `spec` and `observed` (as text). Out:
`state` and `decision`, or `error`. The first line out says which engine answers.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

GROUP = "tidegate.policies"


def policies_at(path: Path) -> dict[str, Any]:
    """Return the policies that the checkout at a path names, or those installed, and those of other packages."""
    project, installed = path / "pyproject.toml", entry_points(group=GROUP)
    if not project.is_file():
        return {point.name: point.load() for point in installed}
    found = {}
    for point in installed:
        if point.dist and point.dist.name != "tidegate":
            with suppress(Exception, SystemExit):  # the parent has warned of one that does not import
                found[point.name] = point.load()
    named = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"][GROUP]
    for name, place in named.items():
        module, _, attribute = place.partition(":")
        found[name] = getattr(importlib.import_module(module), attribute)
    return found


def main() -> None:
    """Answer until standard input ends."""
    path = Path(sys.argv[1])
    sys.path.insert(0, str(path))
    out, sys.stdout = sys.stdout, sys.stderr

    def answer(**fields: object) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    try:
        package = importlib.import_module("tidegate")
        if not str(package.__file__).startswith(str(path)):
            answer(error=f"Python takes the package at {package.__file__} instead")
            return
        decide = importlib.import_module("tidegate.engine.decide")
        wire = importlib.import_module("tidegate.engine.state")
        events = importlib.import_module("tidegate.events.envelope")
        decision = importlib.import_module("tidegate.events.decision")
        job = importlib.import_module("tidegate.events.job")
        snapshot = importlib.import_module("tidegate.events.snapshot")
        adapter = importlib.import_module("pydantic").TypeAdapter(decision.Observed)
        engine = importlib.import_module("tidegate.engine.engine").Engine(policies_at(path))
    except Exception as error:  # noqa: BLE001  (whatever it is, the parent must learn it)
        answer(error=f"it cannot be loaded: {error!r}")
        return
    answer(engine_version=decide.ENGINE_VERSION)
    specs: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["spec"] not in specs:
                specs[asked["spec"]] = events.decode(job.JobSpec, asked["spec"].encode())
            state, made = engine.step(
                wire.from_wire(asked["state"]),
                events.decode(snapshot.MetricSnapshot, asked["snapshot"].encode()),
                specs[asked["spec"]],
                adapter.validate_json(asked["observed"], extra="ignore"),
            )
            answer(state=wire.to_wire(state), decision=events.value_of(made).decode())
        except Exception as error:  # noqa: BLE001
            answer(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
