"""Who may do what: tokens, sessions, and the checks in front of everything that changes a job.

A token belongs to a name, and only a token gives a name: what an operator does is recorded under it. Browsers trade a
token for a signed cookie, which is good for half a day, however often it is used; programs send
`Authorization: Bearer TOKEN`. A request with a cookie that changes something must also carry the session's own form
token and come from one of our pages.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.requests import Request

from tidegate.console.settings import ConsoleSettings


class Role(StrEnum):
    """What somebody may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whose token was right, or anybody where reading needs no token."""

    name: str
    role: Role


ANYBODY = Person("", Role.VIEWER)
SESSION_SECONDS = 12 * 3600
"""How long after signing in a session ends. Each answer renews the cookie, but not this."""
START_NAME = "operator"
"""The name of who signs in with the token that the console makes at its start."""


class Forbidden(Exception):
    """The request must not be carried out; the text says what is missing."""

    def __init__(self, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.status = status


class Access:
    """Knows every token, by its checksum only."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.start_token: str | None = None
        """Made if nobody has a token and only this machine can reach the console."""
        self.reading_is_open = not settings.console_viewers
        operators = {name: token.get_secret_value() for name, token in settings.console_operators.items()}
        viewers = {name: token.get_secret_value() for name, token in settings.console_viewers.items()}
        if not operators and settings.on_loopback:
            self.start_token = secrets.token_urlsafe(24)
            operators = {START_NAME: self.start_token}
        self.changes_are_possible = bool(operators)
        self._people = _by_checksum(operators, Role.OPERATOR) + _by_checksum(viewers, Role.VIEWER)

    def known(self, token: str) -> Person | None:
        """Return whose token this is; takes the same time for any token."""
        given, found = _checksum(token), None
        for checksum, person in self._people:
            if hmac.compare_digest(checksum, given):
                found = person
        return found

    def person(self, request: Request, now: datetime) -> Person | None:
        """Return who sends a request; None if they must sign in first."""
        if (token := bearer(request)) is not None:
            return self.known(token)
        session = request.session
        if "name" in session:
            if now.timestamp() - session["since"] < SESSION_SECONDS:
                return Person(session["name"], Role(session["role"]))
            session.clear()
        return ANYBODY if self.reading_is_open else None

    def sign_in(self, request: Request, token: str, now: datetime) -> Person:
        """Start a session; raise `Forbidden` if nobody has this token."""
        check_origin(request)
        person = self.known(token.strip())
        if person is None:
            raise Forbidden("Nobody has this token.", 401)
        request.session.clear()
        form, since = secrets.token_urlsafe(24), now.timestamp()
        request.session.update(name=person.name, role=person.role.value, form=form, since=since)
        return person

    def operator(self, request: Request, form_token: str, now: datetime) -> Person:
        """Return the operator who sends a change; raise `Forbidden` unless everything about the request is right."""
        if not self.changes_are_possible:
            raise Forbidden("Changes are off: no operator has a token.")
        person = self.person(request, now)
        if person is None or person is ANYBODY:
            raise Forbidden("Sign in with an operator's token first.", 401)
        if person.role is not Role.OPERATOR:
            raise Forbidden(f"{person.name} may look, but not change anything.")
        if bearer(request) is None:
            check_origin(request)
            expected = request.session.get("form", "")
            if not expected or not hmac.compare_digest(expected.encode(), form_token.encode()):
                raise Forbidden("This form is out of date. Load the page again.")
        return person


def bearer(request: Request) -> str | None:
    """Return the token that a program sends. Other logins, which a proxy may add, are not for the console."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def check_origin(request: Request) -> None:
    """Raise `Forbidden` if the request was made by a page of another site."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    foreign = site not in {None, "same-origin", "none"}
    try:
        elsewhere = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:  # such as http://[
        elsewhere = True
    if foreign or elsewhere:
        raise Forbidden("This request comes from another site.")


def _checksum(token: str) -> bytes:
    return sha256(token.encode()).digest()


def _by_checksum(tokens: Mapping[str, str], role: Role) -> list[tuple[bytes, Person]]:
    return [(_checksum(token), Person(name, role)) for name, token in tokens.items()]
