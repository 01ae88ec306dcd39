"""What the programs of single benchmarks take on their command lines."""

from __future__ import annotations


def count(text: str) -> int:
    """Return a whole number of at least 1; raise `ValueError`, which argparse tells with the option and the value.

    With none, a benchmark would start its servers, measure nothing, and meet its bars.
    """
    if (number := int(text)) < 1:
        raise ValueError
    return number
