"""Which offset of a partition may be committed, if its commands end in another order than they came. Pure."""

from __future__ import annotations


class OpenOffsets:
    """The offsets of one partition that were read, from the first one that has not ended."""

    def __init__(self) -> None:
        self._ended: dict[int, bool] = {}
        """By offset, rising; the first has not ended."""

    def __len__(self) -> int:
        """Return how many are kept: they are read again after a crash."""
        return len(self._ended)

    def read(self, offset: int) -> None:
        """Note that a record was read; offsets come in rising order."""
        self._ended[offset] = False

    def end(self, offset: int) -> int | None:
        """Note that a record has ended; return the offset to commit, None while an earlier one is still open."""
        self._ended[offset] = True
        commit = None
        for first in list(self._ended):
            if not self._ended[first]:
                break
            del self._ended[first]
            commit = first + 1
        return commit
