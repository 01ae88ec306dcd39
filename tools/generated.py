"""Files that are made from the code: writes them, or says which are not as the code would write them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(files: Mapping[Path, str], arguments: list[str], folder: Path | None = None) -> int:
    """Write files, or check them with `--check`; return the exit code. A `folder` is to hold nothing else."""
    extra = set(folder.glob("*")) - files.keys() if folder is not None else set()
    if "--check" in arguments:
        problems = dict.fromkeys(extra, "extra") | {
            path: "stale" if path.is_file() else "missing"
            for path, text in files.items()
            if not path.is_file() or path.read_text("utf-8") != text
        }
        for path, problem in sorted(problems.items()):
            print(f"{path.parent.name}/{path.name} is {problem}: run `make schemas`", file=sys.stderr)
        return 1 if problems else 0
    for path in extra:
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return 0
