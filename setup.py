"""Builds the wheel: pure Python, or, with `TIDEGATE_COMPILE=1`, with the engine compiled by mypyc from the same source.

    TIDEGATE_COMPILE=1 pip install --no-build-isolation .       needs mypy, which brings mypyc, and a C compiler

Both make the same decisions, byte for byte: `make compiled` runs the tests on a compiled copy of this checkout.
"""

from __future__ import annotations

import ast
import os
import shutil
from contextlib import chdir
from fnmatch import fnmatch
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
ENGINE = "tidegate/engine"
INTERPRETED = (
    *("*__init__", "guard", "guards/*", "options", "*/options", "plan", "round", "cron", "reservations"),
    "third_party",
)
"""Modules that stay Python: guards and options are read by their annotations, the classes of other packages are not
compiled, and the others take no time."""


def extensions() -> list[Extension]:
    """Return the extension modules of the engine, as C made by mypyc."""
    from mypyc.build import mypycify  # noqa: PLC0415  (only mypy's users have it)

    tree = ROOT / "build" / "mypyc"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "tidegate", tree / "tidegate")
    shutil.copy(ROOT / "pyproject.toml", tree)
    engine = tree / ENGINE
    modules = [path for path in sorted(engine.rglob("*.py")) if not is_interpreted(path.relative_to(engine))]
    for path in modules:
        path.write_text(with_text_annotations(path.read_text()))
    sources = [str(path.relative_to(tree)) for path in modules]
    with chdir(tree):
        made = mypycify(sources, opt_level="3", target_dir=str(tree / "c"), group_name="tidegate.engine")
    for extension in made:
        extension.extra_compile_args.append("-ffp-contract=off")  # a fused multiply-add rounds once, Python twice
        extension.sources = [str(tree / source) for source in extension.sources]
    return made


def is_interpreted(module: Path) -> bool:
    """Whether a module, given by its path in the engine, stays Python."""
    return any(fnmatch(module.with_suffix("").as_posix(), each) for each in INTERPRETED)


def with_text_annotations(source: str) -> str:
    """Return the source of a module with the fields of named tuples annotated by text, every line where it was.

    The engine reads a policy's memory by its annotations, and mypyc keeps only those that are text, and no `A | B`.
    """
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(" import ", " import Union, ")
        elif isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    old = str(ast.get_source_segment(source, field.annotation))
                    text = ast.unparse(_Unions().visit(field.annotation))
                    lines[field.lineno - 1] = lines[field.lineno - 1].replace(f": {old}", f': "{text}"', 1)
    return "".join(lines)


class _Unions(ast.NodeTransformer):
    """Writes `A | B` as `Union[A, B]`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Return the union of both sides."""
        sides = ast.Tuple([self.visit(node.left), self.visit(node.right)])
        return ast.Subscript(ast.Name("Union"), sides)


setup(ext_modules=extensions() if os.environ.get("TIDEGATE_COMPILE") == "1" else [])
