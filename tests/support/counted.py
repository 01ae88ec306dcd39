"""A list that counts how often somebody goes through it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override


class CountedList(list[Any]):
    """`passes` says how often it was iterated over."""

    passes = 0

    @override
    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return super().__iter__()
