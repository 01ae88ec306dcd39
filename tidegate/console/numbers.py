"""Whole numbers in addresses and forms. Pure."""

from __future__ import annotations

MOST_DIGITS = 18
"""Python itself refuses to read a number of thousands of digits."""


def whole_number(text: str) -> int | None:
    """Return the number that a text of digits is; None for another text, or a number that none of ours can be."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None
