"""What actuator and driver do to the same files, for tests of each file system."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tidegate.launcher.control.remote_folder import SharedPlace
from tidegate.launcher.control.store import Store, store_at
from tidegate.launcher.handover.repeat import repeat_newest_batch
from tidegate.launcher.spark.hadoop import HadoopPath
from tidegate.runtime.poll import wait_until


def create_at_once(stores: Sequence[Store], name: str) -> list[str]:
    """Let each store create a text, its number, at the same instant; return the numbers of those that succeeded."""
    start, won = threading.Barrier(len(stores)), list[str]()

    def create(number: int) -> None:
        start.wait(10)
        if stores[number].swap({name: None}, name, str(number)):
            won.append(str(number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return won


def check_that_a_checkpoint_is_repeated(place: HadoopPath) -> None:
    """Write a checkpoint of three batches; a rehearsal's checkpoint repeats the last one in four parts."""
    for batch in range(3):
        text = f'v1\n{{"batchWatermarkMs":5}}\n{{"in":{{"0":{1000 * (batch + 1)}}}}}'
        (place / "ck" / "offsets" / str(batch)).write_bytes(text.encode())
    offsets = repeat_newest_batch(f"{place}/ck", place / "warm")
    assert [text.splitlines()[2] for text in offsets] == [
        f'{{"in": {{"0": {end}}}}}' for end in (2850, 2900, 2950, 3000)
    ]
    assert (place / "warm" / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"in": {"0": 2800}}'


Openers = tuple[Callable[[str], SharedPlace], Callable[[str], SharedPlace]]
"""How an actuator opens a folder, and how a driver does."""


class StoresOfBothSides:
    """The control files of an actuator and of a driver, in one `folder`, which the `openers` open."""

    view_seconds: float
    """After how long a side sees at the latest what the other has written."""

    @pytest.fixture
    def sides(self, folder: str, openers: Openers) -> tuple[Store, Store]:
        """An actuator's store, and a driver's."""
        ours, theirs = (store_at(folder, "rates", open_folder=opener) for opener in openers)
        return ours, theirs

    def test_each_reads_what_the_other_writes(self, sides: tuple[Store, Store]) -> None:
        """A name that nobody wrote is absent; the last text wins; what is removed is absent."""
        for ours, theirs in (sides, sides[::-1]):
            assert theirs.read("fence") is None
            for text in ("1", "2", "äöü"):
                ours.write("fence", text)
                assert theirs.read("fence", newest=True) == text
                assert wait_until(partial(_reads, theirs, text), self.view_seconds)
            assert ours.names() == theirs.names() == ["fence"]
            theirs.remove(["fence", "stop"])
            assert ours.read("fence", newest=True) is None
            assert wait_until(partial(_reads, ours, None), self.view_seconds)

    def test_a_swap_needs_what_was_seen(self, sides: tuple[Store, Store]) -> None:
        """It writes only if the texts that were seen are still there."""
        ours, theirs = sides
        assert ours.swap({"fence": None}, "fence", "1")
        assert not theirs.swap({"fence": None}, "fence", "x")
        assert theirs.swap({"fence": "1", "size": None}, "fence", "2")
        assert not ours.swap({"fence": "1"}, "fence", "x")
        assert ours.swap({"fence": "2"}, "fence", "3")
        assert theirs.read("fence", newest=True) == "3"

    def test_only_one_creates(self, folder: str, openers: Openers) -> None:
        """Of many on both sides that create a text at once, one succeeds, and nothing is left over."""
        stores = [store_at(folder, "rates", open_folder=opener) for opener in openers * 4]
        for store in stores:
            store.names()  # the first look opens the client
        turns = [f"turn-{turn}" for turn in range(10)]
        for turn in turns:
            won = create_at_once(stores, turn)
            assert won == [stores[0].read(turn, newest=True)]
        assert sorted(stores[0].names()) == turns


def _reads(store: Store, text: str | None) -> bool:
    return store.read("fence") == text
