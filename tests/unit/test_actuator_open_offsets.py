"""The offset that may be committed while commands of a partition end in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.actuator.open_offsets import OpenOffsets


def test_an_offset_waits_for_those_before_it() -> None:
    """What ended is committed only once all before it have ended; offsets may have gaps."""
    offsets = OpenOffsets()
    for offset in (3, 4, 9):
        offsets.read(offset)
    assert offsets.end(4) is None
    assert len(offsets) == 3, "it will be read again after a crash"
    assert offsets.end(3) == 5
    assert len(offsets) == 1
    assert offsets.end(9) == 10
    assert len(offsets) == 0


@given(st.data())
def test_a_commit_never_skips_an_open_offset(data: st.DataObject) -> None:
    """Whatever the order, no commit goes past an offset that is open, and the last one is past all."""
    given_offsets = sorted(data.draw(st.sets(st.integers(0, 10_000), min_size=1, max_size=30)))
    order = data.draw(st.permutations(given_offsets))
    offsets, open_ones, committed = OpenOffsets(), set(given_offsets), -1
    for offset in given_offsets:
        offsets.read(offset)
    for offset in order:
        commit = offsets.end(offset)
        open_ones.discard(offset)
        if commit is not None:
            assert commit > committed
            assert all(commit <= each for each in open_ones)
            committed = commit
    assert committed == given_offsets[-1] + 1
