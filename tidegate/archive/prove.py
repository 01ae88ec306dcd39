"""The hash chain of an archive, computed by Spark: new heads, and the check of what was signed.

Spark hashes what each record holds, in parallel, and sorts each partition of a topic by offset. One task then follows
the chain of a partition, record by record, so memory does not grow with the archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive.chain import GENESIS, Head, Seen, head
from tidegate.archive.damage import Checker, Damage, Kind
from tidegate.archive.keys import PublicKey, SigningKey
from tidegate.archive.manifest import DataFile, Manifest
from tidegate.archive.read import day_of, read_files
from tidegate.archive.statements import Trusted, read_trusted_statements, state_heads
from tidegate.archive.store import CHAIN, load

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

Place = tuple[str, int]
"""Topic (without prefix) and partition."""
MOST_DAMAGES = 1000
"""Most damages that are named for one partition."""


class NotTrusted(RuntimeError):
    """The archive's statements cannot be continued; the text says why."""


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """What the check of one partition has found."""

    topic: str
    partition: int
    proved: int
    """Number of records that are exactly the signed ones."""
    unsigned: int
    """Number of records that no head covers, such as those newer than the last head."""
    expired_before: int
    """Records with a smaller offset have expired, as the archive says."""
    damages: tuple[Damage, ...]
    """At most `MOST_DAMAGES`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What the check of an archive has found."""

    partitions: tuple[PartitionProof, ...]
    """Sorted by topic and partition."""
    trusted: Trusted

    @property
    def damages(self) -> list[Damage]:
        """The damages of all partitions."""
        return [damage for each in self.partitions for damage in each.damages]

    @property
    def ok(self) -> bool:
        """Whether every signed record is as it was signed, and every statement can be trusted."""
        return not self.trusted.problems and not self.damages


def sign_heads(spark: SparkSession, folder: Path, key: SigningKey, keys: Sequence[PublicKey]) -> list[Head]:
    """Sign heads of what is archived and not signed yet; return them.

    Args:
        spark: the session to use.
        folder: the archive.
        key: the key to sign with.
        keys: whom to trust with what is signed already: `key`, or the first of the keys that came before it.

    Raises:
        NotTrusted: the statements so far do not fit the key, or each other.
        BadArchive: the folder is not an archive.
    """
    manifest, trusted = load(folder), continued(folder, key, keys)
    latest = {place: (heads[-1].last_offset, heads[-1].link) for place, heads in trusted.heads.items()}
    new = [file for file in manifest.files if _beyond(file, latest)]
    made: list[Head] = _sorted(read_files(spark, folder, new)).rdd.mapPartitions(partial(_heads_of, latest)).collect()
    made.sort(key=lambda each: (each.topic, each.partition))
    if made:
        state_heads(folder / CHAIN, key, made)
    return made


def continued(folder: Path, key: SigningKey, keys: Sequence[PublicKey]) -> Trusted:
    """Return an archive's statements for `key` to add one; raise `NotTrusted` if it must not."""
    trusted = read_trusted_statements(folder / CHAIN, keys)
    if trusted.problems:
        raise NotTrusted(f"{trusted.problems[0]}. Nothing is signed on top of what is not trusted")
    if trusted.statements:
        last = trusted.statements[-1]
        signer = last.new_key.key_id if last.new_key else last.key_id
        if signer != key.public.key_id:
            raise NotTrusted(f"{folder} is signed with key {signer}: `tidegate chain rotate` introduces another key")
    return trusted


def prove(spark: SparkSession, folder: Path, keys: Sequence[PublicKey], *, statements: Path | None = None) -> Proof:
    """Check every record of an archive against the heads that were signed of it.

    Args:
        spark: the session to use.
        folder: the archive.
        keys: whom to trust.
        statements: the folder of the statements to go by, such as a copy kept elsewhere; the archive's own by default.

    Raises:
        BadArchive: the folder is not an archive.
    """
    manifest = load(folder)
    trusted = read_trusted_statements(statements or folder / CHAIN, keys)
    heads, expired = trusted.heads, _expired(manifest)
    records = _sorted(read_files(spark, folder, manifest.files, damaged=True))
    found = records.rdd.mapPartitions(partial(_proofs_of, heads, expired)).collect()
    for place in heads.keys() - {(proof.topic, proof.partition) for proof in found}:  # no record is left of these
        found.append(_proof(place, (), heads[place], expired.get(place, 0)))
    return Proof(tuple(sorted(found, key=lambda each: (each.topic, each.partition))), trusted)


def _expired(manifest: Manifest) -> dict[Place, int]:
    return {(topic, p): first for topic, known in manifest.expired.items() for p, first in known.items()}


def _beyond(file: DataFile, latest: Mapping[Place, tuple[int, bytes]]) -> bool:
    """Whether a file holds records that no head covers."""
    return any(span.last > latest.get((file.topic, p), (-1, GENESIS))[0] for p, span in file.spans.items())


def content_column() -> Column:
    """Return the formula of `tidegate.archive.chain.content` for Spark."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (takes seconds to import)

    def number(value: Column) -> Column:
        return f.unhex(f.lpad(f.hex(value), 16, "0"))

    def part(raw: Column) -> Column:
        counted = f.concat(number(f.length(raw).cast("long")), raw)
        return f.when(raw.isNull(), f.unhex(f.lit("F" * 16))).otherwise(counted)

    def header(so_far: Column, each: Column) -> Column:
        return f.concat(so_far, part(each["key"].cast("binary")), part(each["value"]))

    headers = f.aggregate("headers", f.unhex(f.lit("")), header)
    text = f.concat(
        number(f.col("timestamp_ms")),
        part(f.col("key")),
        part(f.col("value")),
        number(f.size("headers").cast("long")),
        headers,
    )
    return f.unhex(f.sha2(text, 256))


def _sorted(records: DataFrame) -> DataFrame:
    """Return what the chain needs of each record: partitions of topics in one piece, sorted by offset."""
    from pyspark.sql import functions as f  # noqa: PLC0415  (takes seconds to import)

    misfiled = f.col("day") != day_of(f.col("timestamp_ms"))
    needed = records.select(
        *("topic", "partition", "offset"), content_column().alias("content"), "timestamp_ms", misfiled.alias("misfiled")
    )
    tasks = 4 * records.sparkSession.sparkContext.defaultParallelism
    return needed.repartition(tasks, "topic", "partition").sortWithinPartitions(*needed.columns)


def _heads_of(latest: Mapping[Place, tuple[int, bytes]], rows: Iterable[Row]) -> Iterator[Head]:
    """Yield the new heads of the partitions that one task holds."""
    for place, some in groupby(rows, key=itemgetter(0, 1)):
        after, before = latest.get(place, (-1, GENESIS))
        records = (Seen(row[2], bytes(row[3]), row[4]) for row in some if row[2] > after)
        topic, partition = place
        made = head(topic, partition, records, after=after, before=before)
        if made is not None:
            yield made


def _proofs_of(
    heads: Mapping[Place, Sequence[Head]], expired: Mapping[Place, int], rows: Iterable[Row]
) -> Iterator[PartitionProof]:
    """Yield the proof of each partition that one task holds."""
    for place, some in groupby(rows, key=itemgetter(0, 1)):
        yield _proof(place, some, heads.get(place, ()), expired.get(place, 0))


def _proof(place: Place, rows: Iterable[Row], heads: Sequence[Head], expired_before: int) -> PartitionProof:
    damages: list[Damage] = []

    def note(damage: Damage) -> None:
        if len(damages) < MOST_DAMAGES:
            damages.append(damage)

    def seen() -> Iterator[Seen]:
        for _, _, offset, held, timestamp_ms, misfiled in rows:
            if misfiled:
                note(Damage(Kind.MISFILED, *place, offset, offset, 1, 1, timestamp_ms, timestamp_ms))
            yield Seen(offset, bytes(held), timestamp_ms)

    checker = Checker(*place, heads, expired_before)
    for damage in checker.check(seen()):
        note(damage)
    return PartitionProof(*place, checker.proved, checker.unsigned, expired_before, tuple(damages))
