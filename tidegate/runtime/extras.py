"""What a program says that was installed without its packages. It needs none itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

IN_THE_CHECKOUT = 'in the checkout, pip install ".[{extra}]"'
"""How to install a service; the wheel has none."""
FROM_THE_WHEEL = "pip install 'tidegate[{extra}]'"
WRONG_SET_UP = 2
"""Exit code for settings, topics or packages that are wrong: starting again does not help."""


@contextmanager
def needs(name: str, extra: str, install: str = IN_THE_CHECKOUT) -> Iterator[None]:
    """End the process with one sentence if what a program imports here is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in {"tidegate", "services"}:
            raise
        sys.stderr.write(f"{name}: the package {package} is not installed: {install.format(extra=extra)}\n")
        raise SystemExit(WRONG_SET_UP) from None
