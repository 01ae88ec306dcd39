"""Has aiokafka read records whose headers' names are not UTF-8, as some clients can write them.

aiokafka raises an error on the first such record of an answer, and again each time it reads it: the decider would end
after each restart, and all jobs stand still for one record. Here the rest of that answer is read again in Python, with
U+FFFD for each byte that is none of UTF-8. Whatever else is wrong with the record is for the handler to find.
"""

from __future__ import annotations

from typing import Any

import aiokafka.consumer.fetcher
from aiokafka.consumer.fetcher import PartitionRecords
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords, _MemoryRecordsPy
from typing_extensions import override

MAGIC = 16
"""Where a batch says its version; only from the second on there are headers."""


def read_any_names() -> None:
    """Have every consumer of aiokafka in this process read such records."""
    aiokafka.consumer.fetcher.MemoryRecords = AnswerRecords
    aiokafka.consumer.fetcher.PartitionRecords = AnyRecords


class AnswerRecords(MemoryRecords):  # type: ignore[misc]
    """The records of one partition in an answer, and their bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.raw = raw


class AnyRecords(PartitionRecords):  # type: ignore[misc]
    """Yields the records of one partition in an answer, whatever their headers are called."""

    def __init__(self, tp: Any, records: AnswerRecords, *rest: Any) -> None:
        super().__init__(tp, records, *rest)
        self._raw = records.raw

    @override
    def __next__(self) -> Any:
        try:
            return super().__next__()
        except UnicodeDecodeError:
            self._records = _SlowRecords(self._raw, self.next_fetch_offset)
            self._records_iterator = self._unpack_records()
            return super().__next__()


class _SlowRecords(_MemoryRecordsPy):  # type: ignore[misc]
    """The batches of an answer that have not been read in full up to an offset."""

    def __init__(self, raw: bytes, since: int) -> None:
        super().__init__(raw)
        while (batch := self._next_slice) is not None and batch[MAGIC] >= 2 and _SlowBatch(batch).next_offset <= since:
            self._cache_next()

    @override
    def next_batch(self) -> Any:
        batch = self._next_slice
        if batch is None or batch[MAGIC] < 2:
            return super().next_batch()
        self._cache_next()
        return _SlowBatch(batch)


class _SlowBatch(_DefaultRecordBatchPy):  # type: ignore[misc]
    @override
    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Bytes(self._buffer)  # type: ignore[has-type]


class _Bytes(bytes):
    """Bytes of which each part can be decoded."""

    @override
    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return _Bytes(found) if isinstance(found, bytes) else found

    @override
    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)
