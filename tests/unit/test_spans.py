"""Traces: one from a snapshot to the first committed batch, the same at every replay, and as OTLP on the wire."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.support.command_log import command_log
from tests.support.events import job, overloaded
from tests.support.fake_world import FakeWorld
from tests.support.http_server import QuietHandler, serving
from tests.unit.test_decider_handler import Bench
from tidegate.events.command import ScalingCommand
from tidegate.events.envelope import encode, span_of, trace_of
from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.runtime import otlp
from tidegate.runtime.otlp import SEND_SECONDS, exporter, through
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.spans import Trace, TraceSpan, no_trace, spans_of_result
from tidegate.runtime.tracer import tracer


def change(trace: Trace, folder: Path) -> tuple[FakeWorld, ScalingCommand]:
    """Let a decider order a restart to a larger size, and an actuator carry it out; return both their doings."""
    bench = Bench(job(rescale=(Way.RESTART,)))
    bench.trace = trace
    bench.take(*overloaded(7))
    (ordered,) = bench.commands()
    world = FakeWorld(folder, rescale=(Way.RESTART,))
    world.start(4)
    world.trace = trace
    world.seconds = (ordered.issued_at - world.now()).total_seconds() + world.seconds + 1
    assert world.carry(ordered) is Phase.VERIFIED
    return world, ordered


def test_one_trace_leads_from_the_snapshot_to_the_first_committed_batch(tmp_path: Path) -> None:
    """Every span has the trace of the snapshot, its parent is in the trace, and the names tell the whole change."""
    memory = InMemorySpanExporter()
    _, ordered = change(through(SimpleSpanProcessor(memory)), tmp_path)
    spans = memory.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    assert {span.context.trace_id for span in spans if span.context} == {int(trace_of(ordered.snapshot_id), 16)}

    def path(name: str) -> list[str]:
        (at,) = [span for span in spans if span.name == name]
        names = [at.name]
        while at.parent is not None:
            at = by_id[at.parent.span_id]
            names.append(at.name)
        return names

    phases = ["accepted", "stopping", "stopped", "starting", "running", "verified"]
    assert [span.name for span in spans] == ["snapshot", "decision", *phases, "first batch", "rescale"]
    assert path("first batch") == ["first batch", "verified", "rescale", "decision", "snapshot"]
    assert all(path(phase) == [phase, "rescale", "decision", "snapshot"] for phase in phases)
    services = {span.name: span.resource.attributes["service.name"] for span in spans}
    assert (services["snapshot"], services["decision"], services["rescale"]) == (
        "tidegate-collector",
        "tidegate-decider",
        "tidegate-actuator",
    )
    assert all(span.attributes and span.attributes["tidegate.job_id"] == "rates" for span in spans)
    assert all(span.status.status_code is StatusCode.OK for span in spans)
    times = [(span.start_time, span.end_time) for span in spans if span.name != "first batch"]
    assert all(start is not None and end is not None and start <= end for start, end in times)


def test_a_record_names_the_span_of_its_event(tmp_path: Path) -> None:
    """The `traceparent` on the topics leads to the same spans, so other tools may join in."""
    seen: list[TraceSpan] = []
    world, ordered = change(seen.extend, tmp_path)
    parents = {f"00-{span.trace_id}-{span.span_id}-01" for span in seen}
    for event in (ordered, *(result for result in world.topic if result.command_id == ordered.command_id)):
        record = encode(event, trace_id=trace_of(ordered.snapshot_id))
        assert dict(record.headers)["traceparent"].decode() in parents


def test_a_replay_gives_the_same_trace(tmp_path: Path) -> None:
    """From the recorded results alone come the spans that the actuator exported, byte for byte."""
    seen: list[TraceSpan] = []
    world, ordered = change(seen.extend, tmp_path)
    results = [result for result in world.topic if result.command_id == ordered.command_id]
    log = command_log()
    again: list[TraceSpan] = []
    for result in results:
        again += spans_of_result(ordered, log.results(ordered.command_id), result, None)
        log.add(result)
    assert again == seen[2:]


def test_a_decision_without_a_command_is_no_trace() -> None:
    """Most decisions change nothing; a trace of each would hide the others."""
    seen: list[TraceSpan] = []
    bench = Bench()
    bench.trace = seen.extend
    bench.take(*overloaded(1))
    assert (len(bench.decisions()), bench.commands(), seen) == (1, [], [])


def test_a_failed_phase_is_an_error(tmp_path: Path) -> None:
    """A size that does not work shows as an error, with what was said."""
    seen: list[TraceSpan] = []
    world = FakeWorld(tmp_path, works=lambda size: size != 12, rescale=(Way.RESTART,))
    world.start(4)
    world.trace = seen.extend
    bench = Bench(job(rescale=(Way.RESTART,)))
    bench.take(*overloaded(7))
    (ordered,) = bench.commands()
    world.works = lambda size: size != ordered.to_parallelism
    world.seconds += (ordered.issued_at - world.now()).total_seconds() + 1
    assert world.carry(ordered) is Phase.ROLLED_BACK
    whole = {span.name: span for span in seen}["rescale"]
    assert whole.error is not None
    assert whole.error.startswith("NOT_VERIFIED: ")
    assert whole.parent_id == span_of(ordered.command_id)


@contextmanager
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest], threading.Event]]:
    """An OTLP/HTTP receiver on loopback: its URL, what it got, and an event for the first request."""
    got: list[ExportTraceServiceRequest] = []
    arrived = threading.Event()

    class Receives(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - as the base class calls it
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            got.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            arrived.set()

    with serving(Receives) as server:
        yield f"http://127.0.0.1:{server.server_port}", got, arrived


def test_spans_arrive_at_an_otlp_receiver(tmp_path: Path) -> None:
    """Over HTTP as protobuf: the ids and the services are those of the spans."""
    seen: list[TraceSpan] = []
    change(seen.extend, tmp_path)
    with receiver() as (url, got, _):
        through(SimpleSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))(seen)
    found = {
        (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex() or None, span.name)
        for request in got
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert found == {(span.trace_id, span.span_id, span.parent_id, span.name) for span in seen}


@pytest.fixture
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """What would run at the end of the process; it runs at the end of the test."""
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(otlp, "register", registered.append)
    yield registered
    for end in registered:
        end()


def test_the_setting_turns_traces_on(tmp_path: Path, at_exit: list[Callable[[], None]]) -> None:
    """Without `otlp_endpoint` nothing is exported; with it spans go there, the last ones when the service ends."""
    assert tracer(ServiceSettings()) is no_trace
    seen: list[TraceSpan] = []
    change(seen.extend, tmp_path)
    with receiver() as (url, got, arrived):
        tracer(ServiceSettings(otlp_endpoint=url))(seen)
        (end,) = at_exit
        end()
        assert arrived.wait(20)
    assert sum(len(s.spans) for request in got for r in request.resource_spans for s in r.scope_spans) == len(seen)


def test_a_receiver_that_is_away_delays_nobody(
    tmp_path: Path, at_exit: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporting never waits and never raises; the end of the service waits a few seconds at most."""
    senders, send = list[threading.Thread](), OTLPSpanExporter.export

    def note(sender: OTLPSpanExporter, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        senders.append(threading.current_thread())
        return send(sender, spans)

    monkeypatch.setattr(OTLPSpanExporter, "export", note)
    seen: list[TraceSpan] = []
    change(seen.extend, tmp_path)
    export = exporter("http://127.0.0.1:1")
    export(seen)
    (end,) = at_exit
    started = time.monotonic()
    end()
    assert time.monotonic() - started < 3 * SEND_SECONDS
    assert senders
    assert threading.current_thread() not in senders
