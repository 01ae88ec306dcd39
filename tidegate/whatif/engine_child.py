"""Run as a program with a path: makes decisions with the engine there. It imports nothing from its own package.

A line in, a line out, as JSON. In: `state` (as in a keyframe), `snapshot`, `spec` and `observed` (as text). Out:
`state` and `decision`, or `error`. The first line out says which engine answers.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

GROUP = "tidegate.policies"


def engine_at(path: Path, make: Callable[[dict[str, Any]], Any]) -> tuple[Any, dict[str, str]]:
    """Return the engine with the policies of the checkout or wheel at a path and those of other packages that it takes.

    Of each one that it does not take, also say why.
    """
    project, ours, others = path / "pyproject.toml", {}, []
    for point in entry_points(group=GROUP):
        if point.dist and point.dist.name != "tidegate":
            others.append(point)
        elif not project.is_file():
            ours[point.name] = point.load()
    if project.is_file():
        named = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"][GROUP]
        for name, place in named.items():
            module, _, attribute = place.partition(":")
            ours[name] = getattr(importlib.import_module(module), attribute)
    engine, found, refused = make(ours), ours, dict[str, str]()
    for point in others:
        if point.name in {"tide", *ours}:
            continue  # the parent has warned of it, and ours is meant
        try:
            more = {**found, point.name: point.load()}
            engine, found = make(more), more
        except (Exception, SystemExit) as error:  # noqa: BLE001  (another package's code, which may raise anything)
            package = f"{point.dist.name} {point.dist.version}" if point.dist else "another package"
            refused[point.name] = f"policy {point.name!r} of {package} cannot be used: {type(error).__name__}: {error}"
    return engine, refused


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
        engine, refused = engine_at(path, importlib.import_module("tidegate.engine.engine").Engine)
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
            policy = specs[asked["spec"]].scaling.policy
            if policy in refused:
                answer(error=refused[policy])
                continue
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
