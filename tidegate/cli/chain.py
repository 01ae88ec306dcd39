"""`chain`: sign what is archived, and verify that nothing was changed since."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from tidegate.archive import keys, prove, statements
from tidegate.archive.damage import Damage
from tidegate.archive.store import CHAIN, load
from tidegate.cli.archive import Folder
from tidegate.cli.help import group
from tidegate.cli.outputs import even_if_unread
from tidegate.cli.problems import NO, Problem
from tidegate.cli.spark import LOCAL, Master, session
from tidegate.terminal import stdout, styled, table
from tidegate.words import figure

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="The private key.")]
Trusted = Annotated[
    Path | None,
    typer.Option("--trust", metavar="FILE", help="Public keys to trust; needed once the first key was replaced."),
]
MOST_LINES = 50
"""Most damages that are printed."""


def new_key(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where the private key goes; must not exist yet.")],
    service: Annotated[str, typer.Option("--service", help="What the key signs for.")] = "archive",
) -> None:
    """Make a key pair to sign with.

    FILE is the private key, which only you can read. FILE.pub is the public key: give it to those who verify. To trust
    several keys, join their files.

    Example:  tidegate chain new-key archive.key
    """
    made = keys.new_key(path, service)
    stdout().print(f"key {made.public.key_id}: {path} signs, {keys.public_path(path)} verifies")


def head(folder: Folder, key: Key, trust: Trusted = None, master: Master = LOCAL) -> None:
    """Sign everything in an archive that is not signed yet.

    For each partition, a head states where its hash chain stands. The heads of one run are one statement, signed with
    your key, in DIR/chain. Run it as often as you like: what is not signed can be changed without a trace. Keep a copy
    of DIR/chain elsewhere, since nothing in an archive shows that its end was cut off.

    Example:  tidegate chain head /data/tidegate-archive --key archive.key
    """
    signer = keys.read_key(key)
    load(folder)
    with session(master) as spark:
        made = prove.sign_heads(spark, folder, signer, _trusted(trust, signer))
    if not made:
        stdout().print("everything is signed already")
        return
    rows = [[each.topic, each.partition, each.first_offset, each.last_offset, figure(each.records)] for each in made]
    columns = ["topic", "partition", "first offset", "last offset", "records"]
    stdout().print(table("", columns, rows, right=columns[1:]))
    stdout().print(f"signed with key {signer.public.key_id}")


def rotate(
    folder: Folder,
    key: Key,
    successor: Annotated[Path, typer.Option("--new-key", metavar="FILE", help="The key that signs from now on.")],
    trust: Trusted = None,
) -> None:
    """Replace the key that signs an archive.

    The old key signs that the new one takes over, and is not trusted for anything after that. Those who trust the old
    key need do nothing.

    Example:  tidegate chain new-key second.key
              tidegate chain rotate /data/tidegate-archive --key archive.key --new-key second.key
    """
    load(folder)
    old, new = keys.read_key(key), keys.read_key(successor)
    if old.public.service != new.public.service:
        raise Problem(
            f"{key} signs for {old.public.service}, {successor} for {new.public.service}",
            f"make the new key with --service {quote(old.public.service)}",
        )
    signed = prove.continued(folder, old, _trusted(trust, old)).statements
    if new.public.key_id in {old.public.key_id, *(each.key_id for each in signed)}:
        raise Problem(
            f"{successor} signs this archive already, or did: a key that was replaced is not trusted again",
            "`tidegate chain new-key` makes another one",
        )
    statements.state_new_key(folder / CHAIN, old, new.public)
    stdout().print(f"key {new.public.key_id} signs in the place of {old.public.key_id}")


def verify(
    folder: Folder,
    trust: Annotated[Path, typer.Option("--trust", metavar="FILE", help="The public keys to trust.")],
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FOLDER", help="Go by this copy of DIR/chain, which you kept elsewhere."),
    ] = None,
    master: Master = LOCAL,
) -> None:
    """Verify that every signed record is still as it was signed.

    Needs no network, and no private key. Records that were altered, removed, inserted or reordered are named with
    topic, partition, offset and day: the exact offset if a block of 4,096 records has one damaged record, otherwise the
    block. The exit code is 1 if anything was changed, or if a statement cannot be trusted.

    Example:  tidegate chain verify /data/tidegate-archive --trust archive.key.pub
    """
    trusted = keys.read_trusted(trust)
    load(folder)
    signed = heads or folder / CHAIN
    if not statements.numbered(signed):
        raise Problem(f"nothing is signed: there is no statement in {signed}", "`tidegate chain head` signs")
    with session(master) as spark:
        found = prove.prove(spark, folder, trusted, statements=signed)
    with even_if_unread():
        _print(found)
    if not found.ok:
        raise typer.Exit(NO)


def _trusted(path: Path | None, key: keys.SigningKey) -> list[keys.PublicKey]:
    return [key.public] if path is None else keys.read_trusted(path)


def _print(found: prove.Proof) -> None:
    by_topic: dict[str, list[prove.PartitionProof]] = defaultdict(list)
    for each in found.partitions:
        by_topic[each.topic].append(each)
    rows = []
    for topic, some in by_topic.items():
        damages = sum(len(each.damages) for each in some)
        rows.append(
            [
                topic,
                len(some),
                figure(sum(each.proved for each in some)),
                figure(sum(each.unsigned for each in some)),
                styled("fail" if damages else "ok"),
            ]
        )
    columns = ["topic", "partitions", "as signed", "not signed", "result"]
    stdout().print(table("", columns, rows, right=columns[1:4]))
    for each in found.partitions:
        if each.expired_before:
            place = f"{each.topic}, partition {each.partition}"
            stdout().print(f"{place}: begins at offset {each.expired_before}; the rest has expired")
    lines = [f"STATEMENT {problem}" for problem in found.trusted.problems]
    lines += [f"DAMAGED {said(damage)}" for damage in found.damages]
    for line in lines[:MOST_LINES]:
        stdout().print(line, style="bold red")
    if len(lines) > MOST_LINES:
        stdout().print(f"and {figure(len(lines) - MOST_LINES)} more", style="bold red")
    if found.ok and found.trusted.statements:
        last = found.trusted.statements[-1]
        stdout().print(f"all as it was signed; last signed at {last.at:%Y-%m-%d %H:%M:%S} UTC with key {last.key_id}")


def said(damage: Damage) -> str:
    """Return a damage in words, with its place."""
    one = damage.first_offset == damage.last_offset
    offsets = f"offset {damage.first_offset}" if one else f"offsets {damage.first_offset} to {damage.last_offset}"
    days = sorted({_day(ms) for ms in (damage.first_ms, damage.last_ms)})
    counts = "" if one else f"; {figure(damage.signed)} records were signed here, {figure(damage.found)} are there"
    return f"{damage.topic}, partition {damage.partition}, {offsets} ({' to '.join(days)}): {damage.kind}{counts}"


def _day(timestamp_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):  # of a forged record
        return f"timestamp {timestamp_ms}"


app = group("Sign what is archived, and verify it.", new_key, head, rotate, verify)
