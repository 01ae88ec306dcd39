"""Sends spans to an OpenTelemetry collector over OTLP/HTTP. Needs the extra `traces`; imported only if it is used."""

from __future__ import annotations

from atexit import register
from collections.abc import Sequence
from datetime import datetime
from functools import cache

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tidegate.runtime.spans import Trace, TraceSpan

SEND_SECONDS = 3.0
"""How long a receiver may take, retries included; a service that ends waits for it once."""
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def exporter(endpoint: str) -> Trace:
    """Return what sends spans to `endpoint`, in a thread of its own. What the receiver does not take is dropped."""
    batches = BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=SEND_SECONDS))
    register(batches.shutdown)
    return through(batches)


def through(processor: SpanProcessor) -> Trace:
    """Return what hands spans to a processor of OpenTelemetry's SDK."""

    def export(spans: Sequence[TraceSpan]) -> None:
        for span in spans:
            processor.on_end(readable(span))

    return export


def readable(span: TraceSpan) -> ReadableSpan:
    """Return a span as OpenTelemetry's exporters take it."""
    parent = None if span.parent_id is None else _context(span.trace_id, span.parent_id, remote=True)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=parent,
        resource=_resource(span.service),
        attributes=span.attributes,
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.OK) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=_nanoseconds(span.start),
        end_time=_nanoseconds(span.end),
    )


@cache
def _resource(service: str) -> Resource:
    return Resource.create({"service.name": f"tidegate-{service}"})


def _context(trace_id: str, span_id: str, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=remote, trace_flags=SAMPLED)


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000
