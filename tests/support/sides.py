"""What actuator and driver do to the same files, for tests of each file system."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidegate.launcher.control.store import Store
from tidegate.launcher.handover.repeat import repeat_newest_batch
from tidegate.launcher.spark.hadoop import HadoopPath


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
