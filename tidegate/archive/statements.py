"""Signed statements: where the chains stood (heads), and which key signs from now on. One file each, in `DIR/chain`.

Statements are numbered from 0 and hold the SHA-256 of the statement before, so none can be taken out of the middle,
exchanged or inserted. A new key is introduced by a statement that the old key signs; from then on the old key is not
trusted. Whoever trusts the first key can therefore check everything, offline.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidegate.archive.chain import Head, Mark
from tidegate.archive.durable import sync
from tidegate.archive.keys import PublicKey, SigningKey, public_key

PURPOSE = b"tidegate chain statement 1\n"
"""In front of what is signed, so that no signature can be taken for one of something else."""
FIRST = "0" * 64
"""In place of the hash of a statement before the first."""


class BadStatement(ValueError):
    """A file among the statements is none; the text says which, and why."""


class StatementTaken(RuntimeError):
    """Somebody else made the next statement at the same time."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, as it was read."""

    number: int
    at: datetime
    key_id: str
    heads: tuple[Head, ...] = ()
    new_key: PublicKey | None = None


@dataclass(frozen=True, slots=True)
class Trusted:
    """What is left of the statements when those that cannot be trusted are taken out."""

    statements: tuple[Statement, ...]
    problems: tuple[str, ...]
    """A line for each statement that is missing, altered, or signed by somebody else."""

    @property
    def heads(self) -> dict[tuple[str, int], list[Head]]:
        """The heads by topic (without prefix) and partition, in the order in which they were signed."""
        found: dict[tuple[str, int], list[Head]] = {}
        for statement in self.statements:
            for each in statement.heads:
                found.setdefault((each.topic, each.partition), []).append(each)
        return found


def state_heads(folder: Path, key: SigningKey, heads: Iterable[Head]) -> Path:
    """Sign heads and add the statement to those in `folder`; return its path."""
    return _add(folder, key, {"heads": [_head_fields(each) for each in heads]})


def state_new_key(folder: Path, key: SigningKey, successor: PublicKey) -> Path:
    """Sign, with the old key, that its successor signs from now on; return the statement's path."""
    return _add(folder, key, {"new_key": json.loads(successor.to_line())})


def numbered(folder: Path) -> dict[int, Path]:
    """Return the paths of the statements in `folder` by number, sorted."""
    paths = folder.glob("*.json") if folder.is_dir() else ()
    return dict(sorted((int(path.stem), path) for path in paths if re.fullmatch("[0-9]+", path.stem)))


def read_trusted_statements(folder: Path, keys: Sequence[PublicKey]) -> Trusted:
    """Check the statements in `folder`, from the first to the last, and return those that can be trusted."""
    trusted = {key.key_id: key for key in keys}
    retired: dict[str, int] = {}
    kept: list[Statement] = []
    problems: list[str] = []
    before, following = FIRST, 0
    for number, path in numbered(folder).items():
        if number > following:
            problems.append(f"{folder}: {_missing(following, number - 1)}")
        raw = path.read_bytes()
        try:
            statement = _checked(raw, number, before if number == following else None, trusted, retired)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            said = error if isinstance(error, Untrusted) else f"it is not a statement ({error!r})"
            problems.append(f"{path}: {said}")
        else:
            kept.append(statement)
            if statement.new_key is not None:
                retired[statement.key_id] = number
                trusted[statement.new_key.key_id] = statement.new_key
        before, following = hashlib.sha256(raw).hexdigest(), number + 1
    return Trusted(tuple(kept), tuple(problems))


def signed_blocks(folder: Path) -> dict[tuple[str, int], list[int]] | None:
    """Return the last offset of each block that heads state, by topic and partition, or None if there are no heads.

    Signatures are not checked: whoever forges a block here changes only where `expire` cuts. Raises `BadStatement` for
    a file that is no statement.
    """
    found: dict[tuple[str, int], set[int]] = {}
    for path in numbered(folder).values():
        try:
            heads = [_head(each) for each in json.loads(path.read_bytes()).get("heads", ())]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadStatement(
                f"{path} is not a statement ({error!r:.200}): `tidegate chain verify` says more"
            ) from None
        for made in heads:
            found.setdefault((made.topic, made.partition), set()).update(mark.offset for mark in made.marks)
    return {place: sorted(offsets) for place, offsets in found.items()} or None


class Untrusted(ValueError):
    """A statement cannot be trusted; the text says why."""


def _checked(
    raw: bytes, number: int, before: str | None, trusted: dict[str, PublicKey], retired: dict[str, int]
) -> Statement:
    """Return the statement; `before` is None if the statement before is missing."""
    fields = json.loads(raw)
    signature = b64decode(fields.pop("signature"), validate=True)
    key_id = fields["key_id"]
    key = trusted.get(key_id)
    if key is None:
        raise Untrusted(f"it is signed with key {key_id}, which is not trusted")
    if not key.signed(signature, PURPOSE + _canonical(fields)):
        raise Untrusted(f"its signature with key {key_id} does not fit: it was altered after it was signed")
    if key_id in retired:
        raise Untrusted(f"key {key_id} was replaced by statement {retired[key_id]} and signs no more")
    if fields["number"] != number:
        raise Untrusted(f"it says that it is statement {fields['number']}")
    if before is not None and fields["before"] != before:
        raise Untrusted("it follows another statement than the one that is there")
    successor = public_key(fields["new_key"]) if "new_key" in fields else None
    if successor is not None and successor.service != key.service:
        raise Untrusted(f"a key of {key.service} cannot introduce one of {successor.service}")
    return Statement(
        number,
        datetime.fromisoformat(fields["at"]),
        key_id,
        tuple(_head(each) for each in fields.get("heads", ())),
        successor,
    )


def _add(folder: Path, key: SigningKey, what: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    known = numbered(folder)
    number = max(known, default=-1) + 1
    before = hashlib.sha256(known[number - 1].read_bytes()).hexdigest() if known else FIRST
    fields = {
        "number": number,
        "before": before,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "key_id": key.public.key_id,
        **what,
    }
    signature = b64encode(key.sign(PURPOSE + _canonical(fields))).decode()
    path = folder / f"{number:08}.json"
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(_canonical({**fields, "signature": signature}) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(scratch, path)  # unlike a rename, this never replaces a statement
    except FileExistsError:
        raise StatementTaken(f"{path} was written by somebody else just now: try again") from None
    finally:
        scratch.unlink(missing_ok=True)
    for each in (folder, folder.parent):
        sync(each)
    return path


def _canonical(fields: dict[str, Any]) -> bytes:
    """Return JSON that is the same for the same fields."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _head_fields(head: Head) -> dict[str, Any]:
    return {
        "topic": head.topic,
        "partition": head.partition,
        "after": head.after,
        "before": head.before.hex(),
        "first_offset": head.first_offset,
        "last_offset": head.last_offset,
        "records": head.records,
        "link": head.link.hex(),
        "marks": [
            [mark.offset, mark.records, mark.link.hex(), f"{mark.total:x}", f"{mark.weighted:x}", mark.timestamp_ms]
            for mark in head.marks
        ],
    }


def _head(fields: dict[str, Any]) -> Head:
    marks = tuple(
        Mark(offset, records, bytes.fromhex(link), int(total, 16), int(weighted, 16), timestamp_ms)
        for offset, records, link, total, weighted, timestamp_ms in fields["marks"]
    )
    return Head(
        fields["topic"],
        fields["partition"],
        fields["after"],
        bytes.fromhex(fields["before"]),
        fields["first_offset"],
        marks,
    )


def _missing(first: int, last: int) -> str:
    return f"statement {first} is missing" if first == last else f"statements {first} to {last} are missing"
