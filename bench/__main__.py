"""`python -m bench [NAME ...]`: run the benchmarks of this folder and print one table. Exits 1 if a bar is missed.

A benchmark is a module with `main() -> list[Row]`; helpers of benchmarks have no `main`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable

import bench
from bench.table import Row, render


def benchmarks() -> dict[str, Callable[[], list[Row]]]:
    """Return the benchmarks by name, in the order of their names."""
    found = {}
    for module in sorted(pkgutil.iter_modules(bench.__path__), key=lambda m: m.name):
        if module.name != "__main__":
            main = getattr(importlib.import_module(f"bench.{module.name}"), "main", None)
            if main is not None:
                found[module.name] = main
    return found


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return the exit status."""
    known = benchmarks()
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.stderr.write(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}\n")
        return 2
    rows: list[Row] = []
    for name in names or known:
        sys.stderr.write(f"bench {name} …\n")
        rows += known[name]()
    print(render(rows))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
