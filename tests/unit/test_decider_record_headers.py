"""Records whose headers have names that are not UTF-8, as aiokafka gives them to the decider."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Collection
from typing import Any

import pytest
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c_py
from aiokafka.structs import TopicPartition

from services.decider import record_headers

NAME = b"any name"
LENGTH, CRC, ATTRIBUTES, RECORDS = 8, 17, 21, 61
"""Where a batch has its length, its checksum, what that covers, and its records."""


def batch(first: int, count: int, odd: Collection[int], compression: int) -> bytes:
    """Return a batch of records, some of which have a header whose name is not UTF-8."""
    made = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1_000_000)
    for number in range(count):
        name = NAME.decode() if first + number in odd else "ce_type"
        made.append(number, 1000, b"key", b"value %d" % (first + number), [(name, b"x"), ("none", None)])
    raw = bytearray(made.build())
    struct.pack_into(">q", raw, 0, first)
    raw[:] = raw.replace(NAME, b"\xff" * len(NAME))
    if compression:
        raw[RECORDS:] = gzip.compress(raw[RECORDS:])
        struct.pack_into(">i", raw, LENGTH, len(raw) - LENGTH - 4)
        struct.pack_into(">h", raw, ATTRIBUTES, compression)
    struct.pack_into(">I", raw, CRC, calc_crc32c_py(bytes(raw[ATTRIBUTES:])))
    return bytes(raw)


@pytest.fixture
def read_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put aiokafka's own readers back in the end."""
    for name in ("MemoryRecords", "PartitionRecords"):
        monkeypatch.setattr(fetcher, name, getattr(fetcher, name))
    record_headers.read_any_names()


def read(raw: bytes, since: int) -> list[Any]:
    """Return the records of an answer from an offset on, as the fetcher reads them."""
    records = fetcher.MemoryRecords(raw)
    return list(fetcher.PartitionRecords(TopicPartition("t", 0), records, [], since, None, None, True, 0))


@pytest.mark.parametrize("since", [0, 2, 3])
@pytest.mark.parametrize("odd", [(), (0,), (2,), (4,), (7,), (2, 7), (11,)])
@pytest.mark.parametrize("compression", [0, 1])
def test_a_record_is_read_whatever_its_headers_are_called(
    read_any: None, odd: tuple[int, ...], since: int, compression: int
) -> None:
    """It ended the decider after each restart. Every record of an answer comes once, in order, with its bytes."""
    del read_any
    raw = b"".join(batch(first, 4, odd, compression) for first in (0, 4, 8))
    found = read(raw + raw[:20], since)  # the last batch of an answer may be cut off
    assert [(one.offset, one.value) for one in found] == [(n, b"value %d" % n) for n in range(since, 12)]
    for one in found:
        name = "\N{REPLACEMENT CHARACTER}" * len(NAME) if one.offset in odd else "ce_type"
        assert one.headers == ((name, b"x"), ("none", None))


@pytest.mark.parametrize("codec", range(5), ids=("none", "gzip", "snappy", "lz4", "zstd"))
def test_records_are_read_however_the_broker_compresses_them(read_any: None, codec: int) -> None:
    """A topic or a broker may compress by any codec (`compression.type`); aiokafka has three of them as extras."""
    made = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1_000_000)
    values = [b"a value of a record, %d" % number * 20 for number in range(8)]
    for number, value in enumerate(values):
        made.append(number, 1000, b"key", value, [("ce_type", b"x")])
    assert [record.value for record in read(bytes(made.build()), 0)] == values
