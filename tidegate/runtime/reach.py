"""The first question to Kafka: does a broker answer, and does it let this client in?"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from tidegate.runtime.producer import said
from tidegate.runtime.settings import ServiceSettings

STEP_SECONDS = 1.0
"""How often to look whether waiting is of any use. A signal cannot end a longer call into librdkafka."""
NOT_LET_IN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})
"""What librdkafka tells of a login, or of a certificate, that is refused."""


class Unreachable(ConnectionError):
    """No broker answers at the given address."""


class NoLogin(Unreachable):
    """A broker answers, but not to this client: its certificate, password or token is missing or not accepted."""


def ask(settings: ServiceSettings, *, seconds: float, try_login_again: bool) -> ClusterMetadata:
    """Return what a broker says about the brokers and all topics.

    Raises `Unreachable` if none answers in time, and `NoLogin` if a broker, or the provider of access tokens, refuses
    this client: at once, or when the time is up if it is to `try_login_again`.
    """
    told: list[KafkaError] = []
    admin = AdminClient({**settings.kafka(), "error_cb": told.append})
    deadline = time.monotonic() + seconds
    while True:
        try:
            return admin.list_topics(timeout=STEP_SECONDS)
        except KafkaException as error:
            admin.poll(0)  # only now librdkafka tells what went wrong before, and hands over its log lines
            is_late = time.monotonic() >= deadline
            refused = refusal(settings, told)
            if refused and (is_late or not try_login_again):
                raise refused from None
            if is_late:
                at = settings.bootstrap_servers
                raise Unreachable(f"no Kafka broker answers at {at} ({said(error)})") from None


def refusal(settings: ServiceSettings, told: Iterable[KafkaError]) -> NoLogin | None:
    """Return that a broker refuses this client, if librdkafka has told so."""
    refused = next((each for each in told if each.code() in NOT_LET_IN), None)
    if refused is None:
        return None
    oauth = settings.oauth() if refused.code() == KafkaError._AUTHENTICATION else None
    token = f" with a token from {oauth.token_endpoint_url}" if oauth else ""
    return NoLogin(f"cannot log in to Kafka at {settings.bootstrap_servers}{token}: {refused.str()}")
