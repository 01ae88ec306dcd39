"""The package `gssapi` as far as Tidegate uses it, with a ticket for every server, or a reason why there is none."""

from __future__ import annotations

import base64
import sys
from types import SimpleNamespace
from typing import Any

import pytest


class GSSError(Exception):
    """What Kerberos says."""

    def __str__(self) -> str:
        return f"Major (851968): Unspecified GSS failure.  Minor code may provide more, Minor (1): {self.args[0]}"


class ExpiredCredentialsError(GSSError):
    """An old ticket."""


def install(monkeypatch: pytest.MonkeyPatch, why: GSSError | None = None) -> None:
    """Take the package's place; `why` is raised in place of a ticket."""

    def context(*, name: str, **_: object) -> Any:
        return SimpleNamespace(step=f"ticket for {name}".encode)

    def credentials(**_: object) -> None:
        if why is not None:
            raise why

    fake: Any = SimpleNamespace(
        Credentials=credentials,
        SecurityContext=context,
        Name=lambda name, _kind: name,
        NameType=SimpleNamespace(hostbased_service=None),
        MechType=SimpleNamespace(kerberos=None),
        OID=SimpleNamespace(from_int_seq=str),
        exceptions=SimpleNamespace(GSSError=GSSError, ExpiredCredentialsError=ExpiredCredentialsError),
    )
    monkeypatch.setitem(sys.modules, "gssapi", fake)


def shown_to(host: str) -> str:
    """Return the `Authorization` that a server of that host gets."""
    return f"Negotiate {base64.b64encode(f'ticket for HTTP@{host}'.encode()).decode()}"
