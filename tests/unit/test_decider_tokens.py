"""Access tokens for Faust: kept until most of their lifetime is over, and clear errors without the secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from services.decider import tokens
from services.decider.tokens import NoToken, TokenRefused, Tokens
from tests.support.secured_kafka import write_certificates
from tests.support.token_endpoint import SECRET, TokenEndpoint, login_by
from tidegate.runtime.settings import KafkaConnection

WRONG_SECRET = {"sasl_oauthbearer_client_secret": SecretStr("wrong")}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> TokenEndpoint:
    """A token endpoint; who asks it again does so soon."""
    monkeypatch.setattr(tokens, "PAUSE_SECONDS", 0.01)
    return TokenEndpoint()


@pytest.fixture
def connection(endpoint: TokenEndpoint) -> Iterator[KafkaConnection]:
    """How the endpoint's client connects."""
    with endpoint.serve() as url:
        yield connection_by(url)


def connection_by(url: str, **change: Any) -> KafkaConnection:
    """Return how the endpoint's client connects."""
    return KafkaConnection.model_validate(login_by(url) | change)


def tokens_of(connection: KafkaConnection, **clock: Any) -> Tokens:
    """Return a provider of tokens for a connection."""
    client = connection.oauth()
    assert client is not None
    return Tokens(client, **clock)


def token(found: Tokens) -> str:
    """Return the token that aiokafka would get."""
    return str(asyncio.run(found.token()))


def test_a_token_is_renewed_before_it_expires(endpoint: TokenEndpoint, connection: KafkaConnection) -> None:
    """A token of 300 s is given to each connection of the first 240 s: 0.8 * 300."""
    now = 1000.0
    found = tokens_of(connection, clock=lambda: now)
    for seconds, asked in ((0, 1), (239, 1), (240, 2), (479, 2), (480, 3)):
        now = 1000.0 + seconds
        assert token(found).count(".") == 2
        assert len(endpoint.answered) == asked


def test_several_connections_at_once_ask_once(endpoint: TokenEndpoint, connection: KafkaConnection) -> None:
    """They wait for the same token."""

    async def together() -> set[str]:
        found = tokens_of(connection)
        return set(await asyncio.gather(*(found.token() for _ in range(5))))

    assert len(asyncio.run(together())) == 1
    assert endpoint.answered == [200]


def test_several_connections_at_once_fail_together(endpoint: TokenEndpoint, connection: KafkaConnection) -> None:
    """While a provider hangs, one after the other would wait its own 16 s, and a decider that ends for all of them."""
    endpoint.failures = 1000

    async def together() -> list[Any]:
        found = tokens_of(connection)
        return await asyncio.gather(*(found.token() for _ in range(5)), return_exceptions=True)

    assert {str(error).rpartition(": ")[2] for error in asyncio.run(together())} == {"HTTP 503 temporarily_unavailable"}
    assert endpoint.answered == [503, 503, 503]


def test_a_token_of_an_unknown_lifetime_serves_one_connection(
    endpoint: TokenEndpoint, connection: KafkaConnection
) -> None:
    """Endpoints need not say how long a token holds."""
    endpoint.lifetime_seconds = 0
    found = tokens_of(connection)
    token(found)
    token(found)
    assert len(endpoint.answered) == 2


def test_an_endpoint_that_fails_is_asked_again(endpoint: TokenEndpoint, connection: KafkaConnection) -> None:
    """After three times without an answer, the error names the endpoint, and the next connection asks again."""
    endpoint.failures = 2
    assert token(tokens_of(connection))
    assert endpoint.answered == [503, 503, 200]
    endpoint.failures = 3
    found = tokens_of(connection)
    with pytest.raises(NoToken, match="HTTP 503 temporarily_unavailable"):
        token(found)
    assert token(found)


def test_an_endpoint_that_hangs_is_not_asked_again_at_once(
    endpoint: TokenEndpoint, connection: KafkaConnection
) -> None:
    """Each try would take its full time, and a decider that ends waits for it. The next connection asks again."""
    seconds = count(1000.0, tokens.ANSWER_SECONDS)
    endpoint.failures = 3
    with pytest.raises(NoToken, match="HTTP 503"):
        token(tokens_of(connection, clock=lambda: next(seconds)))
    assert endpoint.answered == [503]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (WRONG_SECRET, "HTTP 401 invalid_client: Invalid client or"),
        ({"sasl_oauthbearer_scope": None}, "HTTP 400 invalid_scope"),
    ],
)
def test_a_refusal_is_told_at_once(
    change: dict[str, Any],
    said: str,
    endpoint: TokenEndpoint,
    connection: KafkaConnection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To ask again would not help. Neither the error nor the log holds the secret."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(TokenRefused, match=said) as caught:
        token(tokens_of(connection.model_copy(update=change)))
    assert str(connection.sasl_oauthbearer_token_endpoint_url) in str(caught.value)
    assert len(endpoint.answered) == 1
    assert not any(secret in str(caught.value) + caplog.text for secret in ("wrong", SECRET))


def test_a_refused_client_does_not_ask_with_every_connection(
    endpoint: TokenEndpoint, connection: KafkaConnection
) -> None:
    """Otherwise aiokafka asks at once, and a provider may lock out a client that is wrong too often."""
    now = 1000.0
    found = tokens_of(connection.model_copy(update=WRONG_SECRET), clock=lambda: now)
    for seconds, asked in ((0, 1), (9, 1), (10, 2), (19, 2), (20, 3)):
        now = 1000.0 + seconds
        with pytest.raises(TokenRefused, match="invalid_client"):
            token(found)
        assert len(endpoint.answered) == asked


def test_the_endpoints_certificate_is_checked(endpoint: TokenEndpoint, tmp_path: Path) -> None:
    """By the given authority, or by those that the system knows."""
    write_certificates(tmp_path)
    with endpoint.serve(tmp_path / "broker.pem") as url:
        assert token(tokens_of(connection_by(url, sasl_oauthbearer_ca_file=tmp_path / "ca.pem")))
        with pytest.raises(NoToken, match="certificate verify failed"):
            token(tokens_of(connection_by(url)))


def test_an_endpoint_that_is_not_there_is_named() -> None:
    """Nothing listens on port 1."""
    with pytest.raises(NoToken, match=r"no OAuth token from http://127\.0\.0\.1:1/token: .*refused"):
        token(tokens_of(connection_by("http://127.0.0.1:1/token")))


@pytest.mark.parametrize("answer", [{}, {"access_token": "x", "expires_in": "soon"}, ["x"]])
def test_an_answer_without_a_token_is_an_error(
    answer: Any, endpoint: TokenEndpoint, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not repeat the answer."""
    monkeypatch.setattr(endpoint, "answer", lambda *_: (200, answer))
    with pytest.raises(NoToken, match="the answer is no JSON with access_token"):
        token(tokens_of(connection))


def test_an_answer_that_breaks_off_is_asked_for_again(endpoint: TokenEndpoint, connection: KafkaConnection) -> None:
    """It is an `OSError`, the one error after which aiokafka tries to connect again."""
    endpoint.cut_off = 1
    assert token(tokens_of(connection))
    endpoint.cut_off = 3
    with pytest.raises(NoToken, match="the answer is no JSON with access_token"):
        token(tokens_of(connection))
    assert len(endpoint.answered) == 5


def test_a_redirection_is_not_followed(
    endpoint: TokenEndpoint, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secret would go to another place."""
    monkeypatch.setattr(endpoint, "answer", lambda *_: (302, {}))
    monkeypatch.setattr(endpoint, "location", connection.sasl_oauthbearer_token_endpoint_url)
    with pytest.raises(TokenRefused, match="HTTP 302"):
        token(tokens_of(connection))
    assert len(endpoint.answered) == 1
