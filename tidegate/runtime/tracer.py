"""Where the spans of a service go: to an OpenTelemetry collector, or nowhere."""

from __future__ import annotations

from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.spans import Trace, no_trace


def tracer(settings: ServiceSettings) -> Trace:
    """Return what exports spans to `otlp_endpoint`, or nothing without one; needs the extra `traces`."""
    if settings.otlp_endpoint is None:
        return no_trace
    from tidegate.runtime.otlp import exporter  # noqa: PLC0415 - the extra may not be installed

    return exporter(settings.otlp_endpoint)
