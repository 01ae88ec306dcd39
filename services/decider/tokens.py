"""Access tokens for Faust's consumer, which knows OAuth but fetches no tokens.

librdkafka and Java's client fetch their own: with a POST of RFC 6749's client credentials, and the secret in its header
as it is. This asks in the same way.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from aiokafka.abc import AbstractTokenProvider
from typing_extensions import override

from services.decider.tls import trusting
from tidegate.runtime.settings import OAuthClient

RENEW_AT = 0.8
"""After this share of its lifetime a token is renewed, as librdkafka and Java's client do it."""
ANSWER_SECONDS = 5.0
"""How long the token endpoint may take for an answer."""
TRIES = 3
PAUSE_SECONDS = 0.5
"""Before the second try; each later pause is twice as long."""
REFUSED_SECONDS = 10.0
"""For so long a refusal holds, as in librdkafka; aiokafka would ask several times a second."""


class NoToken(OSError):
    """The token endpoint gives no token; the text says why, without the secret. aiokafka tries again later."""


class TokenRefused(NoToken):
    """The token endpoint refuses the client or what it asks for."""


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Fetches an access token, and keeps it until most of its lifetime is over."""

    def __init__(self, client: OAuthClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._renew_at = "", float("-inf")
        self._failure, self._ask_at = NoToken(), float("-inf")

    @override
    async def token(self) -> str:
        """Return a token that is valid for a while. Raises `NoToken`."""
        return await asyncio.to_thread(self._current, self._clock())

    @override
    def extensions(self) -> dict[str, str]:
        """Return what brokers want to be told in addition."""
        return dict(self._client.extensions)

    def _current(self, asked_at: float) -> str:
        """Return the token. Who asked before the last attempt had failed is told so, and asks no further."""
        with self._lock:
            if asked_at < self._ask_at:
                raise type(self._failure)(*self._failure.args)
            if asked_at >= self._renew_at:
                try:
                    self._token, lifetime = self._fetched()
                except NoToken as failure:
                    pause = REFUSED_SECONDS if isinstance(failure, TokenRefused) else 0.0
                    self._failure, self._ask_at = failure, self._clock() + pause
                    raise
                self._renew_at = asked_at + RENEW_AT * lifetime
            return self._token

    def _fetched(self) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds; try again unless the endpoint refuses, or hangs."""
        began = self._clock()
        for number in range(TRIES):
            try:
                return _ask(self._client)
            except TokenRefused:
                raise
            except NoToken:
                if number == TRIES - 1 or self._clock() - began >= ANSWER_SECONDS:
                    raise
            time.sleep(PAUSE_SECONDS * 2**number)
        raise AssertionError


def _ask(client: OAuthClient) -> tuple[str, float]:
    """Return a token and its lifetime in seconds, by one request; a lifetime that is not told counts as 0."""
    login = f"{client.client_id}:{client.client_secret.get_secret_value()}".encode()
    form = {"grant_type": "client_credentials"} | ({"scope": client.scope} if client.scope else {})
    headers = {"Authorization": f"Basic {base64.b64encode(login).decode()}", "Accept": "application/json"}
    url = client.token_endpoint_url
    request = Request(url, urlencode(form).encode(), headers)  # noqa: S310  (the settings allow http and https only)
    opener = build_opener(HTTPSHandler(context=trusting(client.ca_file)), _NoRedirect())
    try:
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            given = json.load(answer)
        return str(given["access_token"]), float(given.get("expires_in", 0))
    except HTTPError as error:
        with error:
            why = f"no OAuth token from {url}: HTTP {error.code} {_reason(error)}"
        refused = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code != HTTPStatus.TOO_MANY_REQUESTS
        raise (TokenRefused if refused else NoToken)(why) from None
    except URLError as error:
        raise NoToken(f"no OAuth token from {url}: {error.reason}") from None
    except OSError as error:
        raise NoToken(f"no OAuth token from {url}: {error}") from None
    except (HTTPException, ValueError, TypeError, KeyError, AttributeError):  # its text may hold a token
        raise NoToken(f"no OAuth token from {url}: the answer is no JSON with access_token and expires_in") from None


class _NoRedirect(HTTPRedirectHandler):
    """Has a redirection be an error: the secret is for one endpoint."""

    @override
    def redirect_request(self, *_: Any) -> None: ...


def _reason(error: HTTPError) -> str:
    """Return the error that an endpoint names, as RFC 6749 has it; otherwise what its status means."""
    try:
        said: Any = json.loads(error.read(10_000))
        return ": ".join(str(said[name]) for name in ("error", "error_description") if said.get(name)) or error.reason
    except (OSError, ValueError, TypeError, AttributeError):
        return error.reason
