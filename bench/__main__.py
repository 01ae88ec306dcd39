"""`python -m bench [NAME ...]`: run the benchmarks of this folder and print one table. Exits 1 if a bar is missed.

A benchmark is a module with `main() -> list[BenchRow]`; helper modules have no `main`. Each runs in a process of its
own: Spark's JVM stays with a process, and with it the jars that its first session asked for.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import ModuleType

import bench
from bench.apart import end_with_parent
from bench.table import BenchRow, render


def benchmarks() -> dict[str, ModuleType]:
    """Return the benchmarks by name, sorted."""
    names = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name != "__main__")
    modules = {name: importlib.import_module(f"bench.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "main")}


def main() -> int:
    """Run the named benchmarks, or all; return the exit status."""
    known = benchmarks()
    about = "\n".join(f"  {name:<10} {(module.__doc__ or '').splitlines()[0]}" for name, module in known.items())
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Measure Tidegate against a floor or a peer and print one table. Exits with 1 if a bar is missed.",
        epilog=f"benchmarks:\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="benchmark to run; all if none")
    names = parser.parse_args().name
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    rows: list[BenchRow] = []
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent, max_tasks_per_child=1) as alone:
            for name in names or known:
                sys.stderr.write(f"bench {name} …\n")
                rows += alone.submit(known[name].main).result()
    finally:  # one that fails, or Ctrl-C, does not cost what was measured in hours before
        if rows:
            print(render(rows), flush=True)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
