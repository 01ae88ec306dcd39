"""Ed25519 keys as files: a private one that only its owner can read, and public ones to trust.

A private key file is JSON with the service it signs for, and mode 0600. A file of public keys has one key a line, so
that the keys of several services are trusted by joining their files.
"""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from tidegate.archive.durable import sync

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PRIVATE_MODE = 0o600
PUBLIC = ".pub"
"""What the name of a public key has after that of its private key."""


class BadKey(ValueError):
    """A key file cannot be used; the text names the file and says why."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that signatures are checked with."""

    service: str
    """The service that signs with it, such as `archive`."""
    raw: bytes

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the key's SHA-256."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def signed(self, signature: bytes, text: bytes) -> bool:
        """Whether the signature is this key's, of this text."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  (only in the extra `replay`)
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, text)
        except InvalidSignature:
            return False
        return True

    def to_line(self) -> str:
        """Return the key as a line of JSON, without the line break."""
        return json.dumps(
            {"service": self.service, "key_id": self.key_id, "public_key": b64encode(self.raw).decode()},
        )


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key. Its text never shows the key."""

    public: PublicKey
    _private: Ed25519PrivateKey = field(repr=False)

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text."""
        return self._private.sign(text)


def new_key(path: Path, service: str) -> SigningKey:
    """Write a new private key to `path`, and its public key next to it; raise `BadKey` if there is one already."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    private = Ed25519PrivateKey.generate()
    key = _signing_key(service, private)
    secret = json.dumps({"service": service, "private_key": b64encode(private.private_bytes_raw()).decode()})
    shared = public_path(path)
    if shared.exists():
        raise BadKey(f"{shared} already exists; a key is never overwritten")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_MODE)
    except FileExistsError:
        raise BadKey(f"{path} already exists; a key is never overwritten") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secret + "\n")
            file.flush()
            os.fsync(file.fileno())  # the next statement may say that only this key signs from now on
        shared.write_text(key.public.to_line() + "\n", encoding="utf-8")
        sync(path.parent)
    except BaseException:  # such as a full disk: a file that holds no key would be in the way
        for each in (path, shared):
            each.unlink(missing_ok=True)
        raise
    return key


def public_path(path: Path) -> Path:
    """Return where the public key of a private key file is."""
    return Path(f"{path}{PUBLIC}")


def read_key(path: Path) -> SigningKey:
    """Return the private key in a file; raise `BadKey` if it is no key, or if others can read it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    if path.suffix == PUBLIC:
        raise BadKey(f"{path} is a public key: signing takes the private one, {path.with_suffix('')}")
    if path.stat().st_mode & 0o077:
        close = f"chmod 600 {quote(str(path))}"
        raise BadKey(f"{path} can be read by others: run `{close}`, and replace the key if they may have")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        raw = b64decode(fields["private_key"], validate=True)
        return _signing_key(str(fields["service"]), Ed25519PrivateKey.from_private_bytes(raw))
    except (ValueError, KeyError, TypeError, RecursionError):  # the text of the error might hold the key
        raise BadKey(f"{path} is not a private key: `tidegate chain new-key` makes one") from None


def read_trusted(path: Path) -> list[PublicKey]:
    """Return the public keys in a file, one a line; raise `BadKey` with the line that is none."""
    keys = []
    for line_number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            key = public_key(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadKey(f"{path}, line {line_number}: not a public key") from None
        keys.append(key)
    if not keys:
        raise BadKey(f"{path} holds no public key")
    return keys


def public_key(fields: dict[str, str]) -> PublicKey:
    """Return the public key that JSON states; raise `ValueError`, `KeyError` or `TypeError` if it states none."""
    key = PublicKey(str(fields["service"]), b64decode(fields["public_key"], validate=True))
    if len(key.raw) != 32 or fields["key_id"] != key.key_id:  # noqa: PLR2004  (an Ed25519 key has 32 bytes)
        raise ValueError(f"the key's id is {key.key_id}, not {fields['key_id']}")
    return key


def _signing_key(service: str, private: Ed25519PrivateKey) -> SigningKey:
    return SigningKey(PublicKey(service, private.public_key().public_bytes_raw()), private)
