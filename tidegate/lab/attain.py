"""What is attainable on a pair: the cheapest plan that the oracle found, kept in a file so that it is found only once.

A file's name holds a digest of all code and data that its figures depend on, so a change of the twin, the pairs, the
prices or the oracle finds new plans.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from tidegate.events.way import Way
from tidegate.lab.oracle import oracle
from tidegate.lab.pairs import Pair
from tidegate.lab.score import Parts

CACHE = Path(".tidegate/lab-cache")
PACKAGE = Path(__file__).parents[1]
_OF_LAB = ("jobs", "kinds", "loads", "oracle", "pairs", "program", "score", "simulate", "traces")
CODE = ("twin/*.py", "lab/data/*.csv", *(f"lab/{name}.py" for name in _OF_LAB))


@dataclass(frozen=True, slots=True)
class Attainable:
    """The cheapest plan found for a pair."""

    moves: tuple[tuple[float, int], ...]
    parts: Parts
    late_seconds: float
    changes: int


def attainable(pair: Pair, ways: tuple[Way, ...], folder: Path = CACHE) -> Attainable:
    """Return the cheapest plan of a pair, from the folder if it is there."""
    path = folder / digest() / f"{pair.key}-{'-'.join(ways)}.json"
    if path.is_file():
        raw = json.loads(path.read_text(encoding="utf-8"))
        moves = tuple((float(at), int(size)) for at, size in raw["moves"])
        return Attainable(moves, Parts(**raw["parts"]), raw["late_seconds"], raw["changes"])
    best = oracle(pair.scenario(ways))
    found = Attainable(best.moves, best.score.parts, best.score.violated_seconds, best.score.rescales)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{pair.seed}.tmp")
    partial.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
    partial.replace(path)
    return found


@cache
def digest() -> str:
    """Return a digest of everything that the plans depend on."""
    found = hashlib.sha256()
    for pattern in CODE:
        for path in sorted(PACKAGE.glob(pattern)):
            found.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
