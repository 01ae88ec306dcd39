"""Keys and signed statements: what was signed cannot be changed, and only the right key can add to it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.archive.chain import Head, Seen, content, head
from tidegate.archive.damage import Damage, Kind
from tidegate.archive.keys import BadKey, SigningKey, new_key, public_path, read_key, read_trusted
from tidegate.archive.manifest import Manifest
from tidegate.archive.statements import numbered, read_trusted_statements, signed_blocks, state_heads, state_new_key
from tidegate.cli import app
from tidegate.cli.chain import said


def some_head(first: int = 0) -> Head:
    """A head over three records."""
    made = head("decisions", 1, [Seen(n, content(n, None, b"x", ()), n) for n in range(first, first + 3)], block=2)
    assert made is not None
    return made


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """A key that signs."""
    return new_key(tmp_path / "a.key", "archive")


@pytest.fixture
def chain(tmp_path: Path, key: SigningKey) -> Path:
    """A folder with three statements."""
    for number in range(3):
        state_heads(tmp_path / "chain", key, [some_head(10 * number)])
    return tmp_path / "chain"


def test_the_chain_is_the_documented_one_for_ever() -> None:
    """What was signed years ago must still verify: the bytes that are hashed never change."""
    first = content(1_772_366_400_000, b"rates", b"{}", [("type", b"x"), ("none", None)])
    second = content(1_772_366_401_000, None, None, [])
    made = head("decisions", 1, [Seen(3, first, 1_772_366_400_000), Seen(5, second, 1_772_366_401_000)])

    def sized(raw: bytes) -> bytes:
        return struct.pack(">q", len(raw)) + raw

    absent, number = b"\xff" * 8, struct.Struct(">q").pack
    whole = number(1_772_366_400_000) + sized(b"rates") + sized(b"{}") + number(2)
    whole += sized(b"type") + sized(b"x") + sized(b"none") + absent
    assert first == hashlib.sha256(whole).digest()
    assert second == hashlib.sha256(number(1_772_366_401_000) + absent + absent + number(0)).digest()
    at = sized(b"decisions") + number(1)
    link = hashlib.sha256(hashlib.sha256(bytes(32) + at + number(3) + first).digest() + at + number(5) + second)
    one, two = int.from_bytes(first), int.from_bytes(second)
    assert made is not None
    assert made.link == link.digest()
    assert (made.marks[0].total, made.marks[0].weighted) == (
        (one + two) % (2**255 - 19),
        (3 * one + 5 * two) % (2**255 - 19),
    )


def test_a_private_key_is_for_its_owner_alone(tmp_path: Path, key: SigningKey) -> None:
    """The file has mode 0600, is never overwritten, is refused if others can read it, and its text is never shown."""
    path = tmp_path / "a.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path).public == key.public
    secret = json.loads(path.read_text())["private_key"]
    assert secret not in repr(key) + public_path(path).read_text()
    with pytest.raises(BadKey, match="never overwritten"):
        new_key(path, "archive")
    path.chmod(0o640)
    with pytest.raises(BadKey, match="is a public key: signing takes the private one"):
        read_key(public_path(path))
    with pytest.raises(BadKey, match="can be read by others") as refused:
        read_key(path)
    assert secret not in str(refused.value)


@contextmanager
def full_disk(free_bytes: int) -> Iterator[None]:
    """Let no file grow larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("free_bytes", [20, 100], ids=["private key", "public key"])
def test_a_key_on_a_full_disk_leaves_nothing(tmp_path: Path, free_bytes: int) -> None:
    """An empty file would be no key, and in the way of one."""
    with pytest.raises(OSError, match="File too large"), full_disk(free_bytes):
        new_key(tmp_path / "a.key", "archive")
    assert list(tmp_path.iterdir()) == []


def test_a_statement_on_a_full_disk_leaves_nothing(chain: Path, key: SigningKey) -> None:
    """Neither a part of the statement nor the file that it was written to; afterwards the next one is made."""
    before = sorted(chain.iterdir())
    with pytest.raises(OSError, match="File too large"), full_disk(100):
        state_heads(chain, key, [some_head(30)])
    assert sorted(chain.iterdir()) == before
    assert state_heads(chain, key, [some_head(30)]).name == "00000003.json"


def test_a_statement_is_on_disk_when_it_is_made(chain: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name too: the folder is synchronized after the statement is linked into it."""
    synced = list[tuple[str, bool]]()

    def fsync(file: int) -> None:
        synced.append((Path(f"/proc/self/fd/{file}").readlink().name, (chain / "00000003.json").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    state_heads(chain, key, [some_head(30)])
    assert synced == [(f"00000003.{os.getpid()}.tmp", False), ("chain", True), (chain.parent.name, True)]


def test_the_command_shows_no_private_key(tmp_path: Path) -> None:
    """`chain new-key` says the key's id and the files, and a broken key file is refused without its text."""
    ran = CliRunner().invoke(app, ["chain", "new-key", str(tmp_path / "b.key")])
    assert ran.exit_code == 0
    assert json.loads((tmp_path / "b.key").read_text())["private_key"] not in ran.output
    assert read_trusted(tmp_path / "b.key.pub")[0].key_id in ran.output
    (tmp_path / "b.key").write_text('{"service": "archive", "private_key": "c2VjcmV0"}')
    with pytest.raises(BadKey) as refused:
        read_key(tmp_path / "b.key")
    assert "c2VjcmV0" not in str(refused.value)


def test_several_services_are_trusted_by_joining_files(tmp_path: Path, key: SigningKey) -> None:
    """One public key a line; a line that is none is named."""
    other = new_key(tmp_path / "o.key", "other")
    joined = tmp_path / "trust"
    joined.write_text((tmp_path / "a.key.pub").read_text() + (tmp_path / "o.key.pub").read_text())
    assert read_trusted(joined) == [key.public, other.public]
    joined.write_text((tmp_path / "a.key.pub").read_text() + "{}\n")
    with pytest.raises(BadKey, match="line 2"):
        read_trusted(joined)


def test_heads_come_back_as_they_were_signed(chain: Path, key: SigningKey) -> None:
    """All statements can be trusted, and hold the heads that were signed, in order."""
    trusted = read_trusted_statements(chain, [key.public])
    assert trusted.problems == ()
    assert trusted.heads == {("decisions", 1): [some_head(0), some_head(10), some_head(20)]}
    assert signed_blocks(chain) == {("decisions", 1): [1, 2, 11, 12, 21, 22]}


@pytest.mark.parametrize("field", ["number", "before", "at", "key_id", "heads", "signature"])
def test_an_altered_statement_is_found(chain: Path, key: SigningKey, field: str) -> None:
    """Whichever field is altered, the statement is not trusted any more, and is named."""
    path = chain / "00000001.json"
    fields = json.loads(path.read_text())
    other = json.loads((chain / "00000002.json").read_text())
    # both may have been made in the same second
    fields[field] = {"key_id": "0" * 16, "at": "2026-01-01T00:00:00Z"}.get(field, other[field])
    path.write_text(json.dumps(fields))
    trusted = read_trusted_statements(chain, [key.public])
    assert [statement.number for statement in trusted.statements] in ([0, 2], [0])
    assert "00000001.json" in trusted.problems[0]


def test_a_statement_cannot_be_taken_out_exchanged_or_copied(chain: Path, key: SigningKey) -> None:
    """A missing statement is named, and one in the place of another is not trusted."""
    (chain / "00000001.json").rename(chain / "00000007.json")
    problems = read_trusted_statements(chain, [key.public]).problems
    assert any("statement 1 is missing" in problem for problem in problems)
    assert any("it says that it is statement 1" in problem for problem in problems)
    (chain / "00000007.json").unlink()
    shutil.copy(chain / "00000000.json", chain / "00000001.json")
    problems = read_trusted_statements(chain, [key.public]).problems
    assert any("it says that it is statement 0" in problem for problem in problems)
    assert any("follows another statement" in problem for problem in problems)


def test_anything_else_in_the_place_of_a_statement_is_named(chain: Path, key: SigningKey) -> None:
    """A file that is no statement is a problem, not a crash."""
    for text in ("", "[]", "{}", '{"signature": 3}', "\udcff"):
        (chain / "00000001.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert "it is not a statement" in read_trusted_statements(chain, [key.public]).problems[0]


def test_an_outsider_cannot_sign(chain: Path, key: SigningKey, tmp_path: Path) -> None:
    """A statement with a key that is not trusted is not believed, and neither is a key that it introduces."""
    outsider = new_key(tmp_path / "s.key", "archive")
    state_new_key(chain, outsider, outsider.public)
    state_heads(chain, outsider, [some_head(30)])
    trusted = read_trusted_statements(chain, [key.public])
    assert len(trusted.statements) == 3
    assert [problem.partition(": ")[2] for problem in trusted.problems] == [
        f"it is signed with key {outsider.public.key_id}, which is not trusted"
    ] * 2


def test_a_key_is_replaced_by_one_that_it_has_signed(chain: Path, key: SigningKey, tmp_path: Path) -> None:
    """Whoever trusts the first key trusts its successor, and from then on nothing that the first one signs."""
    second, third = new_key(tmp_path / "2.key", "archive"), new_key(tmp_path / "3.key", "archive")
    state_new_key(chain, key, second.public)
    state_heads(chain, second, [some_head(30)])
    state_new_key(chain, second, third.public)
    state_heads(chain, third, [some_head(40)])
    trusted = read_trusted_statements(chain, [key.public])
    assert trusted.problems == ()
    assert len(trusted.heads["decisions", 1]) == 5
    state_heads(chain, key, [some_head(50)])
    (problem,) = read_trusted_statements(chain, [key.public]).problems
    assert "was replaced by statement 3 and signs no more" in problem


def test_a_key_that_has_signed_does_not_come_back(chain: Path, key: SigningKey, tmp_path: Path) -> None:
    """A key that was replaced signs no more: if it, or the present one, were introduced, nobody could sign again."""
    archive = Manifest(topic_prefix="t.", created_at=datetime(2026, 3, 1, tzinfo=UTC))
    (tmp_path / "archive.json").write_text(archive.model_dump_json(), "utf-8")
    second = new_key(tmp_path / "2.key", "archive")
    for old, new in (("a.key", "a.key"), ("a.key", "2.key"), ("2.key", "a.key")):
        words = ["chain", "rotate", str(tmp_path), "--key", str(tmp_path / old), "--new-key", str(tmp_path / new)]
        ran = CliRunner().invoke(app, [*words, "--trust", str(tmp_path / "a.key.pub")])
        assert ran.exit_code == (0 if new == "2.key" else 2)
        assert ("signs this archive already" in ran.stderr) == (new != "2.key")
    state_heads(chain, second, [some_head(30)])
    assert read_trusted_statements(chain, [key.public]).problems == ()


@pytest.mark.parametrize("name", [".", "..", ""])
def test_a_key_needs_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A folder is no place for a key, and is named as such."""
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["chain", "new-key", name])
    assert (ran.exit_code, ran.stderr) == (2, f"error: {name or '.'} already exists; a key is never overwritten\n")
    assert list(tmp_path.iterdir()) == []


def test_a_key_of_one_service_introduces_none_of_another(chain: Path, key: SigningKey, tmp_path: Path) -> None:
    """A rotation stays within a service."""
    state_new_key(chain, key, new_key(tmp_path / "2.key", "other").public)
    (problem,) = read_trusted_statements(chain, [key.public]).problems
    assert "a key of archive cannot introduce one of other" in problem
    assert list(numbered(chain)) == [0, 1, 2, 3]


def test_damage_is_said_with_its_place() -> None:
    """One offset or several, with the days and what was counted; a timestamp that is no time is shown as it is."""
    one = Damage(Kind.ALTERED, "decisions", 3, 7, 7, 9, 9, 1_772_366_400_000, 1_772_366_400_000)
    assert said(one) == "decisions, partition 3, offset 7 (2026-03-01): altered"
    some = Damage(Kind.REMOVED, "results", 0, 7, 9, 5, 2, 1_772_366_400_000, 1_772_466_400_000)
    assert said(some) == (
        "results, partition 0, offsets 7 to 9 (2026-03-01 to 2026-03-02): removed;"
        " 5 records were signed here, 2 are there"
    )
    forged = Damage(Kind.INSERTED, "results", 0, 7, 7, 0, 1, 2**62, 2**62)
    assert "timestamp 4611686018427387904" in said(forged)


def test_trusted_keys_may_have_empty_lines_between_them(tmp_path: Path, key: SigningKey) -> None:
    """Files that were joined by hand have such lines; a file that is no text is refused by its line."""
    trust = tmp_path / "trust"
    trust.write_bytes(b"\n" + public_path(tmp_path / "a.key").read_bytes() + b"\r\n\n")
    assert read_trusted(trust) == [key.public]
    trust.write_bytes(b"\xff\n")
    with pytest.raises(BadKey, match="line 1: not a public key"):
        read_trusted(trust)


@pytest.mark.parametrize("text", ["{", "[]", '{"heads":7}', '{"heads":[{"x":1}]}', 100_000 * "["])
def test_expire_names_a_file_that_is_no_statement(tmp_path: Path, text: str) -> None:
    """A damaged statement stops `archive expire` with an error that names it: nobody knows where a block ends."""
    made = {"topic_prefix": "tidegate.", "created_at": "2026-01-01T00:00:00Z"}
    (tmp_path / "archive.json").write_text(json.dumps(made), "utf-8")
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "00000000.json").write_text(text, "utf-8")
    (tmp_path / "chain" / "²3.json").write_text("{}", "utf-8")
    ran = CliRunner().invoke(app, ["archive", "expire", str(tmp_path), "--keep", "1d"])
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {tmp_path}/chain/00000000.json is not a statement")


def test_no_archive_is_kept_for_longer_than_the_calendar_goes_back(tmp_path: Path) -> None:
    """Such a time to keep is refused with its value."""
    made = {"topic_prefix": "tidegate.", "created_at": "2026-01-01T00:00:00Z"}
    (tmp_path / "archive.json").write_text(json.dumps(made), "utf-8")
    ran = CliRunner().invoke(app, ["archive", "expire", str(tmp_path), "--keep", "999999d"])
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: --keep '999999d'")
