"""The hash chain: whatever is done to signed records is found, and placed."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tidegate.archive.chain import GENESIS, Head, Seen, content, head
from tidegate.archive.damage import Checker, Damage, Kind

BLOCK = 8
raw = st.none() | st.binary(max_size=4)
headers = st.lists(st.tuples(st.text(max_size=3), raw), max_size=3)
parts = st.tuples(st.integers(-1, 2**50), raw, raw, headers)


@st.composite
def records(draw: st.DrawFn, least: int = 2) -> list[Seen]:
    """Records in the order of offsets, some of which may be missing; every content is different."""
    offsets = sorted(draw(st.sets(st.integers(0, 60), min_size=least, max_size=40)))
    return [Seen(offset, content(offset, b"k", b"value %d" % offset, ()), 1000 + offset) for offset in offsets]


def signed(some: Sequence[Seen], cuts: Sequence[int]) -> list[Head]:
    """Sign records in several runs, which end before the offsets `cuts`."""
    heads: list[Head] = []
    after, before = -1, GENESIS
    for cut in [*sorted(cuts), 1000]:
        made = head("t", 0, [r for r in some if after < r.offset < cut], after=after, before=before, block=BLOCK)
        if made is not None:
            heads.append(made)
            after, before = made.last_offset, made.link
    return heads


def found(some: Sequence[Seen], heads: Sequence[Head], expired_before: int = 0) -> list[Damage]:
    """Return the damage to records."""
    return list(Checker("t", 0, heads, expired_before).check(sorted(some)))


cuts = st.lists(st.integers(0, 60), max_size=3)


@given(records(), cuts)
def test_what_was_not_changed_is_proved(some: list[Seen], at: list[int]) -> None:
    """However often it was signed, every record is proved, and none counts as damaged or unsigned."""
    checker = Checker("t", 0, signed(some, at))
    assert list(checker.check(some)) == []
    assert (checker.proved, checker.unsigned) == (len(some), 0)


@given(records(), cuts, st.data())
def test_records_that_came_after_the_last_signature_are_counted_as_unsigned(
    some: list[Seen], at: list[int], data: st.DataObject
) -> None:
    """They are no damage: the next run signs them."""
    until = data.draw(st.integers(0, len(some)))
    checker = Checker("t", 0, signed(some[:until], at))
    assert list(checker.check(some)) == []
    assert (checker.proved, checker.unsigned) == (until, len(some) - until)


@given(records(), cuts, st.data())
def test_one_altered_record_is_found_at_its_offset(some: list[Seen], at: list[int], data: st.DataObject) -> None:
    """Another content of one record is found as altered, at exactly its offset."""
    number = data.draw(st.integers(0, len(some) - 1))
    changed = [*some]
    changed[number] = some[number]._replace(content=content(0, b"forged", None, ()))
    assert placed(found(changed, signed(some, at))) == [(Kind.ALTERED, some[number].offset, some[number].offset)]


@given(records(), cuts, st.data())
def test_one_removed_record_is_found_at_its_offset(some: list[Seen], at: list[int], data: st.DataObject) -> None:
    """A record that is gone is found as removed, at exactly its offset, also where other offsets never existed."""
    number = data.draw(st.integers(0, len(some) - 1))
    (damage,) = found([*some[:number], *some[number + 1 :]], signed(some, at))
    assert damage.kind is Kind.REMOVED
    assert damage.first_offset <= some[number].offset <= damage.last_offset
    if damage.found:  # otherwise the whole block is gone, and these are its ends
        assert damage.first_offset == damage.last_offset


@given(records(), cuts, st.integers(0, 60))
def test_one_inserted_record_is_found_at_its_offset(some: list[Seen], at: list[int], offset: int) -> None:
    """A forged record is found as inserted, at its offset, whether the offset was free or taken; or is not signed."""
    forged = Seen(offset, content(7, b"forged", b"value", ()), 7)
    damages = found([*some, forged], signed(some, at))
    if offset > some[-1].offset:
        assert damages == []
    else:
        assert placed(damages) == [(Kind.INSERTED, offset, offset)]


@given(records(), cuts, st.data())
def test_reordered_records_are_found_between_two_marks(some: list[Seen], at: list[int], data: st.DataObject) -> None:
    """Records that have changed places are found: in one block as reordered, otherwise each where it was altered."""
    one = data.draw(st.integers(0, len(some) - 2))
    two = data.draw(st.integers(one + 1, len(some) - 1))
    changed = [*some]
    changed[one] = some[one]._replace(content=some[two].content)
    changed[two] = some[two]._replace(content=some[one].content)
    damages = found(changed, signed(some, at))
    first, last = some[one].offset, some[two].offset
    if len(damages) == 1:
        assert damages[0].kind is Kind.REORDERED
        assert damages[0].first_offset <= first < last <= damages[0].last_offset
    else:
        assert placed(damages) == [(Kind.ALTERED, first, first), (Kind.ALTERED, last, last)]


@given(records(), cuts, st.data())
def test_exactly_the_damaged_blocks_are_found(some: list[Seen], at: list[int], data: st.DataObject) -> None:
    """Exactly the blocks with altered or removed records are called damaged, and each place named has one of them."""
    fates = data.draw(st.lists(st.sampled_from(["keep", "alter", "remove"]), min_size=len(some), max_size=len(some)))
    forged = content(0, b"forged", None, ())
    changed = [
        record._replace(content=forged) if fate == "alter" else record
        for record, fate in zip(some, fates, strict=True)
        if fate != "remove"
    ]
    heads = signed(some, at)
    hurt = [record.offset for record, fate in zip(some, fates, strict=True) if fate != "keep"]
    damages = found(changed, heads)
    ends = sorted(mark.offset for each in heads for mark in each.marks)
    damaged = {block(ends, damage.first_offset) for damage in damages}
    assert damaged == {block(ends, offset) for offset in hurt}
    for damage in damages:
        assert any(damage.first_offset <= offset <= damage.last_offset for offset in hurt)


@given(records(least=10), cuts, st.data())
def test_verification_starts_where_expired_blocks_ended(some: list[Seen], at: list[int], data: st.DataObject) -> None:
    """Without the first blocks, the rest is proved; but a record less than that, and it is found."""
    heads = signed(some, at)
    ends = [mark.offset for each in heads for mark in each.marks]
    boundary = data.draw(st.sampled_from(ends)) + 1
    rest = [record for record in some if record.offset >= boundary]
    checker = Checker("t", 0, heads, boundary)
    assert list(checker.check(rest)) == []
    assert checker.proved == len(rest)
    for number, record in enumerate(rest):
        (damage,) = found([*rest[:number], *rest[number + 1 :]], heads, boundary)
        assert damage.first_offset <= record.offset <= damage.last_offset


@given(records(), cuts, st.booleans())
def test_a_record_among_those_that_have_expired_is_found(some: list[Seen], at: list[int], signs: bool) -> None:
    """Also where all that was signed has expired, or nothing was: nobody archives an offset again."""
    damages = found(some[-1:], signed(some, at) if signs else [], some[-1].offset + 1)
    assert [(damage.kind, damage.first_offset) for damage in damages] == [(Kind.INSERTED, some[-1].offset)]


@given(records(), cuts)
def test_a_head_that_is_missing_is_found(some: list[Seen], at: list[int]) -> None:
    """Without one of the heads in the middle, the others do not connect."""
    heads = signed(some, at)
    for number in range(1, len(heads) - 1):
        kinds = [damage.kind for damage in found(some, [*heads[:number], *heads[number + 1 :]])]
        assert kinds == [Kind.DISCONNECTED]


@given(parts, parts)
def test_different_records_have_different_contents(one: tuple, two: tuple) -> None:  # type: ignore[type-arg]
    """Two records have the same content exactly if key, value, headers and timestamp are the same."""
    assert (content(*one) == content(*two)) == (one == two)


def placed(damages: Sequence[Damage]) -> list[tuple[Kind, int, int]]:
    """Return what was found, and between which offsets."""
    return [(damage.kind, damage.first_offset, damage.last_offset) for damage in damages]


def block(ends: Sequence[int], offset: int) -> int:
    """Return the end of the block that an offset is in."""
    return min(end for end in ends if end >= offset)
