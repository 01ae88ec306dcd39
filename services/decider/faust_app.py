"""The Faust app: its settings, its consumer, and the topics it needs.

Running Faust showed limits that this module, `app.py`, `lanes.py` and `outbox.py` work around: raw bytes everywhere,
one message in flight per partition, no web server, no topics created by Faust, sessions of seconds instead of minutes.
"""

from __future__ import annotations

import weakref
from datetime import UTC
from tempfile import TemporaryDirectory
from typing import Any

import faust
from confluent_kafka.admin import AdminClient, NewTopic
from faust.transport.drivers.aiokafka import Consumer

from services.decider.record_headers import read_any_names
from services.decider.sessions import replace_connections_in_time
from services.decider.settings import DeciderSettings
from services.decider.tls import trusting
from services.decider.tokens import Tokens
from tidegate.runtime.topics import (
    STATES_CONFIG,
    TopicsDoNotFit,
    create_topics,
    in_sync,
    partition_counts,
    pipeline_partitions,
)

RAW = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
METADATA_MS = 5000
"""How old what Faust's consumer knows of the partitions' leaders may be."""
BUFFERED = 64
"""Records that Faust fetches ahead; after a stop, the rest of them is read again."""


def new_app(settings: DeciderSettings) -> faust.App:
    """Return a Faust app without a web server, tables or topics of its own."""
    folder = TemporaryDirectory(prefix="tidegate-decider-")  # Faust insists on one, and leaves it empty
    app = faust.App(
        settings.group,
        broker=[f"kafka://{server.strip()}" for server in settings.bootstrap_servers.split(",")],
        broker_credentials=_credentials(settings),
        broker_session_timeout=settings.session_timeout_seconds,
        broker_heartbeat_interval=min(3.0, settings.session_timeout_seconds / 3),
        broker_rebalance_timeout=60.0,
        # A broker that hangs is noticed after the first; by the second, it is then known who leads instead of it. By
        # default that takes minutes. While others are slow to join the group, a request to join is repeated as well.
        broker_request_timeout=1.5 * settings.session_timeout_seconds,
        consumer_metadata_max_age_ms=METADATA_MS,
        broker_commit_interval=1.0,
        stream_buffer_maxsize=BUFFERED,
        stream_wait_empty=True,
        topic_disable_leader=True,
        topic_allow_declare=False,
        web_enabled=False,
        autodiscover=False,
        timezone=UTC,
        datadir=folder.name,
        worker_redirect_stdouts=False,
    )
    app.transport.Consumer = RewindingConsumer
    replace_connections_in_time()
    read_any_names()
    weakref.finalize(app, folder.cleanup)  # at the end of the process at the latest
    return app


class RewindingConsumer(Consumer):  # type: ignore[misc]
    """Faust's consumer, which also rewinds partitions without a committed offset.

    During a rebalance Faust drops the records it has fetched and seeks to the committed offsets. For a partition
    without one, or at 0, aiokafka's `seek_to_committed` does nothing, so the dropped records were skipped until the
    next restart. (A decider killed before its first commit left its successor with lag and nothing to do.) The handler
    drops, by their sequence, the records that rewinding reads twice.
    """

    async def perform_seek(self) -> None:
        """Move every partition to its committed offset, or to its beginning."""
        await super().perform_seek()
        fresh = [
            tp
            for tp in self.assignment()
            if tp.topic in self.app.topics.acking_topics and not self._committed_offset[tp]
        ]
        if fresh:
            for tp, offset in (await self.earliest_offsets(*fresh)).items():
                await self.seek(tp, offset)


def still_assigned(app: faust.App, event: Any) -> bool:
    """Return whether work on an event may start; Faust's streams skip records by the same rule."""
    return bool(app.flow_control.is_active()) and event.message.generation_id == app.consumer_generation_id


def drop(app: faust.App, event: Any) -> None:
    """Drop an event without acknowledging it, so that Faust does not wait for it before it gives up partitions.

    This is safe: Faust resumes only after it has moved every partition back to its committed offset.
    """
    app.consumer.unacked.discard(event.message)


def _credentials(settings: DeciderSettings) -> Any:
    """Return Faust's credentials for the security protocol; None for plaintext."""
    context = None
    if settings.security_protocol.endswith("SSL"):
        context = trusting(settings.ssl_ca_file)
        if settings.ssl_certificate_file and settings.ssl_key_file:
            password = settings.ssl_key_password.get_secret_value() if settings.ssl_key_password else None
            context.load_cert_chain(settings.ssl_certificate_file, settings.ssl_key_file, password)
    if oauth := settings.oauth():
        return faust.OAuthCredentials(oauth_cb=Tokens(oauth), ssl_context=context)
    if settings.sasl_mechanism and settings.sasl_username and settings.sasl_password:
        return faust.SASLCredentials(
            mechanism=settings.sasl_mechanism,
            username=settings.sasl_username,
            password=settings.sasl_password.get_secret_value(),
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context)


def prepare_topics(settings: DeciderSettings) -> int:
    """Check the topics, create the changelog with as many partitions as the snapshots, and return that number.

    Raises `TopicsDoNotFit` if the changelog has another number: a pipeline's state must be on the partition of its
    snapshots.
    """
    counts = partition_counts(settings)
    partitions, found = pipeline_partitions(settings, counts), counts.get(settings.changelog)
    if found is None:  # to ask for it each time would need Kafka's controller, which may be away while brokers serve
        changelog = NewTopic(
            settings.changelog,
            num_partitions=partitions,
            replication_factor=settings.replication_factor,
            config={"cleanup.policy": "compact"} | STATES_CONFIG | in_sync(settings.replication_factor),
        )
        create_topics(AdminClient(settings.kafka()), [changelog])
    elif found != partitions:
        text = f"topic {settings.changelog} has {found} partitions, the pipeline topics have {partitions}"
        raise TopicsDoNotFit(f"{text}; if some were added, docs/own-cluster.md says what to do")
    return partitions
