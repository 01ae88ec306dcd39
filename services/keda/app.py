"""The gRPC server that KEDA asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from services.keda.protocol import CLASSES, METHODS, SERVICE
from services.keda.scaler import METRIC, TARGET, NoAnswer, job_of, recommended
from services.keda.settings import KedaSettings
from tidegate.fleet.fleet import LiveFleet
from tidegate.runtime.clock import Clock

THREADS = 132
MOST_STREAMS = THREADS - 4
"""A stream holds a thread as long as it lasts; the others must stay free for questions."""
LARGEST_BYTES = 65_536
"""Of a message: the metadata of a trigger has some hundred. Whoever asks need not have signed in, and questions wait in
memory."""
MOST_CALLS = 1000
"""Streams, and questions that are answered or wait; further ones are refused."""
KEEPALIVE_SECONDS = 20.0
"""How often to ask whether KEDA is still there, and how long to wait for the answer; gRPC asks after two hours."""
LOOK_SECONDS = 1.0
"""How often a stream looks whether its job has become active."""


class ExternalScaler:
    """The methods of KEDA's service. Each answers UNAVAILABLE while there is nothing to recommend."""

    def __init__(self, jobs: LiveFleet, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock
        self._streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.ending = threading.Event()

    def is_active(self, request: Any, context: Any) -> Any:
        """Answer whether the job should have any slot."""
        return CLASSES["IsActiveResponse"](result=self._slots(request, context) > 0)

    def stream_is_active(self, request: Any, context: Any) -> Iterator[Any]:
        """Say it at once, and again whenever it changes, until KEDA hangs up."""
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_STREAMS} streams are open already")
        try:
            said = None
            while context.is_active() and not self.ending.is_set():
                active = self._slots(request, context) > 0
                if active != said:
                    said = active
                    yield CLASSES["IsActiveResponse"](result=active)
                self.ending.wait(LOOK_SECONDS)
        finally:
            self._streams.release()

    def get_metric_spec(self, _request: Any, _context: Any) -> Any:
        """Answer with the name of the metric, and with the target that makes it the number of replicas."""
        spec = CLASSES["MetricSpec"](metricName=METRIC, targetSize=TARGET, targetSizeFloat=TARGET)
        return CLASSES["GetMetricSpecResponse"](metricSpecs=[spec])

    def get_metrics(self, request: Any, context: Any) -> Any:
        """Answer with the recommended size."""
        slots = self._slots(request.scaledObjectRef, context)
        value = CLASSES["MetricValue"](metricName=METRIC, metricValue=slots, metricValueFloat=slots)
        return CLASSES["GetMetricsResponse"](metricValues=[value])

    def _slots(self, ref: Any, context: Any) -> int:
        if self._jobs.state != "live":
            context.abort(grpc.StatusCode.UNAVAILABLE, f"the topics: {self._jobs.state}")
        try:
            with self._jobs.reading() as fleet:
                return recommended(fleet, job_of(ref.name, ref.scalerMetadata), self._clock.now())
        except NoAnswer as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise  # abort has raised already


def serve(settings: KedaSettings, scaler: ExternalScaler) -> tuple[grpc.Server, int]:
    """Start the server; return it and its port. Raises `OSError` if the port is taken or a certificate is not there."""
    millis = int(KEEPALIVE_SECONDS * 1000)
    options = [
        ("grpc.keepalive_time_ms", millis),
        ("grpc.http2.ping_timeout_ms", millis),
        ("grpc.http2.max_pings_without_data", 0),  # a stream is silent for as long as nothing changes
        ("grpc.max_receive_message_length", LARGEST_BYTES),
    ]
    server = grpc.server(ThreadPoolExecutor(THREADS, "keda"), options=options, maximum_concurrent_rpcs=MOST_CALLS)
    methods: dict[str, Callable[..., Any]] = {
        "IsActive": scaler.is_active,
        "StreamIsActive": scaler.stream_is_active,
        "GetMetricSpec": scaler.get_metric_spec,
        "GetMetrics": scaler.get_metrics,
    }
    handlers = {name: _handler(name, method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    where = f"{settings.keda_host}:{settings.keda_port}"
    try:
        credentials = _credentials(settings)
        port = server.add_insecure_port(where) if credentials is None else server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {where}: {error}") from None
    server.start()
    return server, port


def _handler(name: str, method: Callable[..., Any]) -> Any:
    request, response, streams = METHODS[name]
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    return make(method, CLASSES[request].FromString, CLASSES[response].SerializeToString)


def _credentials(settings: KedaSettings) -> Any:
    if settings.keda_tls_certificate is None or settings.keda_tls_key is None:
        return None
    pair = settings.keda_tls_key.read_bytes(), settings.keda_tls_certificate.read_bytes()
    authority = settings.keda_tls_client_ca
    if authority is None:
        return grpc.ssl_server_credentials([pair])
    return grpc.ssl_server_credentials([pair], authority.read_bytes(), require_client_auth=True)
