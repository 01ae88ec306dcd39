"""The external scaler for KEDA, asked over gRPC as KEDA asks, on a fleet in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2

from services.keda import app
from services.keda.app import MOST_STREAMS, ExternalScaler, serve
from services.keda.protocol import CLASSES, METHODS, SERVICE
from services.keda.settings import KedaSettings
from tests.support.engine import step
from tests.support.events import job, observed, snapshot
from tests.support.fake_streaming_jobs import FakeJobs
from tests.support.fleets import decision
from tests.support.proxy import TcpProxy
from tidegate.engine.state import JobState
from tidegate.events.job import Mode
from tidegate.events.snapshot import ClusterState
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import wait_until

LIMIT = 60.0


class Keda:
    """A client of the external scaler, with the messages as KEDA's own stubs would send them."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def ask(self, method: str, limit: float | None = LIMIT, **fields: Any) -> Any:
        """Call a method."""
        request, response, streams = METHODS[method]
        kind = self.channel.unary_stream if streams else self.channel.unary_unary
        call = kind(f"/{SERVICE}/{method}", CLASSES[request].SerializeToString, CLASSES[response].FromString)
        return call(CLASSES[request](**fields), timeout=limit)

    def slots(self, **fields: Any) -> Any:
        """Return the value of the metric."""
        ref = CLASSES["ScaledObjectRef"](**fields)
        (value,) = self.ask("GetMetrics", scaledObjectRef=ref, metricName="tidegate-slots").metricValues
        assert value.metricValue == value.metricValueFloat
        return value.metricValue


def decide(jobs: FakeJobs, final: int, at: datetime | None = None) -> None:
    """Have a decision on `rates`."""
    found = jobs.fleet.get("rates")
    assert found is not None
    made = decision(found.spec, at or datetime.now(UTC))
    sequence = (found.decision.sequence if found.decision else made.sequence) + 1
    jobs.fleet.take(made.model_copy(update={"final_parallelism": final, "sequence": sequence}))


@pytest.fixture
def jobs() -> FakeJobs:
    """Topics with the job `rates`."""
    made = FakeJobs()
    made.fleet.take_spec(job("rates"))
    return made


@pytest.fixture
def keda(jobs: FakeJobs) -> Iterator[Keda]:
    """A client of a running scaler."""
    scaler = ExternalScaler(jobs, SystemClock())
    server, port = serve(KedaSettings(keda_port=0), scaler)
    client = Keda(f"127.0.0.1:{port}")
    yield client
    client.channel.close()
    scaler.ending.set()
    assert server.stop(1.0).wait(LIMIT)


def test_the_messages_are_those_that_keda_publishes() -> None:
    """Names, numbers and types are those of KEDA's published service; bytes written by hand are read."""
    kinds = descriptor_pb2.FieldDescriptorProto
    ref = CLASSES["ScaledObjectRef"].DESCRIPTOR
    assert [(f.name, f.number, f.type) for f in ref.fields] == [
        ("name", 1, kinds.TYPE_STRING),
        ("namespace", 2, kinds.TYPE_STRING),
        ("scalerMetadata", 3, kinds.TYPE_MESSAGE),
    ]
    # 0a 01 'a': field 1, one byte; 1a 0a: field 3, ten bytes: a map entry with key 'job' and value 'rat'
    read = CLASSES["ScaledObjectRef"].FromString(b"\x0a\x01a\x1a\x0a\x0a\x03job\x12\x03rat")
    assert (read.name, dict(read.scalerMetadata)) == ("a", {"job": "rat"})
    value = CLASSES["MetricValue"](metricName="m", metricValue=6, metricValueFloat=0.5)
    assert value.SerializeToString() == b"\x0a\x01m\x10\x06\x19\x00\x00\x00\x00\x00\x00\xe0\x3f"
    assert CLASSES["GetMetricSpecResponse"].DESCRIPTOR.fields_by_name["metricSpecs"].message_type.name == "MetricSpec"


@pytest.mark.parametrize("final", [1, 3, 16, 250])
def test_kedas_autoscaler_arrives_at_the_decided_size(keda: Keda, jobs: FakeJobs, final: int) -> None:
    """The HPA that KEDA makes goes to ceil(value / target), which is the size of the newest decision."""
    decide(jobs, final)
    (spec,) = keda.ask("GetMetricSpec", name="any", namespace="jobs").metricSpecs
    assert spec.metricName == "tidegate-slots"
    assert spec.targetSize == spec.targetSizeFloat
    assert math.ceil(keda.slots(name="rates") / spec.targetSizeFloat) == final


def test_the_job_is_named_in_the_trigger_or_is_the_scaled_object(keda: Keda, jobs: FakeJobs) -> None:
    """`metadata.job` wins over the name of the scaled object."""
    decide(jobs, 5)
    assert keda.slots(name="rates-deployment", scalerMetadata={"job": "rates", "scalerAddress": "x:9090"}) == 5
    with pytest.raises(grpc.RpcError) as refused:
        keda.slots(name="rates-deployment")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "there is no job 'rates-deployment'" in refused.value.details()


def test_an_old_decision_is_no_answer(keda: Keda, jobs: FakeJobs) -> None:
    """Without a fresh decision KEDA is told so, and uses its fallback: unknown is never a size."""
    with pytest.raises(grpc.RpcError, match="no decision on 'rates' yet"):
        keda.slots(name="rates")
    decide(jobs, 5, datetime.now(UTC) - timedelta(minutes=10))
    with pytest.raises(grpc.RpcError, match="the newest decision on 'rates' is of"):
        keda.slots(name="rates")
    with pytest.raises(grpc.RpcError, match="the newest decision on 'rates' is of"):
        keda.ask("IsActive", name="rates")
    jobs.state = "loading"
    with pytest.raises(grpc.RpcError, match="the topics: loading"):
        keda.slots(name="rates")


def test_an_old_decision_on_a_failed_job_is_no_answer_either(keda: Keda, jobs: FakeJobs) -> None:
    """The collector still says that the job has failed; but nobody decides any more, so no size holds."""
    decide(jobs, 5, datetime.now(UTC) - timedelta(minutes=10))
    found = jobs.fleet.get("rates")
    assert found is not None
    found.state = ClusterState.FAILED
    with pytest.raises(grpc.RpcError, match="the newest decision on 'rates' is of"):
        keda.slots(name="rates")
    decide(jobs, 6)
    assert keda.slots(name="rates") == 6


@pytest.mark.parametrize("state", [ClusterState.UNKNOWN, ClusterState.STARTING, ClusterState.RUNNING])
def test_a_size_that_nobody_has_told_is_no_answer(state: ClusterState, keda: Keda, jobs: FakeJobs) -> None:
    """While the cluster does not say how large the job is, the decision has size 0: KEDA must not go to no replica."""
    spec, seen = job("rates", mode=Mode.ADVISE), snapshot(1, state=state, slots=None, free=None)
    _, made = step(JobState.new(), seen, spec, observed(seen))
    assert made.final_parallelism == 0
    jobs.fleet.take(made.model_copy(update={"decided_at": datetime.now(UTC)}))
    with pytest.raises(grpc.RpcError, match="the cluster has not said how large 'rates' is"):
        keda.slots(name="rates")
    with pytest.raises(grpc.RpcError, match="the cluster has not said how large 'rates' is"):
        keda.ask("IsActive", name="rates")


def test_a_job_without_slots_is_not_active(keda: Keda, jobs: FakeJobs) -> None:
    """KEDA may go to no replica when the decision says 0, and is told at once when that changes."""
    decide(jobs, 0)
    assert keda.ask("IsActive", name="rates").result is False
    stream = keda.ask("StreamIsActive", name="rates")
    assert next(stream).result is False
    decide(jobs, 2)
    assert next(stream).result is True
    stream.cancel()


def test_each_of_a_hundred_jobs_has_its_stream(keda: Keda, jobs: FakeJobs) -> None:
    """KEDA opens one for each trigger: a job whose stream is refused starts only at KEDA's next poll."""
    decide(jobs, 3)
    streams = [keda.ask("StreamIsActive", name="rates") for _ in range(100)]
    assert [next(stream).result for stream in streams] == [True] * 100
    assert keda.slots(name="rates") == 3
    for stream in streams:
        stream.cancel()


def test_a_large_question_is_refused(keda: Keda, jobs: FakeJobs) -> None:
    """Anyone who reaches the port may ask, and questions wait in memory: some hundred of 4 MB would fill a pod's."""
    decide(jobs, 6)
    with pytest.raises(grpc.RpcError) as refused:
        keda.ask("IsActive", name="rates", scalerMetadata={"other": "x" * 100_000})
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert keda.slots(name="rates", scalerMetadata={"other": "x" * 10_000}) == 6


def test_streams_leave_threads_for_questions(keda: Keda, jobs: FakeJobs) -> None:
    """However many streams are asked for, a question is still answered; a stream too many is refused."""
    decide(jobs, 3)
    streams = [keda.ask("StreamIsActive", name="rates") for _ in range(MOST_STREAMS)]
    assert [next(stream).result for stream in streams] == [True] * MOST_STREAMS
    with pytest.raises(grpc.RpcError) as refused:
        next(keda.ask("StreamIsActive", name="rates"))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert keda.slots(name="rates") == 3
    for stream in streams:
        stream.cancel()


def test_streams_of_a_keda_that_is_cut_off_are_given_to_its_successor(
    jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is gone without a word: the streams would stay open for two hours, and new ones would be refused."""
    monkeypatch.setattr(app, "KEEPALIVE_SECONDS", 2.0)
    monkeypatch.setattr(app, "MOST_STREAMS", 2)  # a slow machine opens a hundred in more time than a ping may take
    decide(jobs, 3)
    scaler = ExternalScaler(jobs, SystemClock())
    server, port = serve(KedaSettings(keda_port=0), scaler)
    with TcpProxy(port) as network:
        lost, successor = Keda(f"127.0.0.1:{network.port}"), Keda(f"127.0.0.1:{port}")
        held = []

        def served() -> bool:
            try:
                return bool(next(successor.ask("StreamIsActive", name="rates")).result)
            except grpc.RpcError:
                return False

        def has_all() -> bool:
            streams = [lost.ask("StreamIsActive", None, name="rates") for _ in range(2)]
            try:
                if [next(stream).result for stream in streams] == [True, True] and not served():
                    held.extend(streams)
                    return True
            except grpc.RpcError:  # a slow machine: its answer to a ping came too late
                pass
            for stream in streams:
                stream.cancel()  # else the next try would find these still open
            return False

        assert wait_until(has_all, LIMIT)
        network.timeout()
        assert wait_until(served, LIMIT, 0.2)
        lost.channel.close()
        successor.channel.close()
    scaler.ending.set()
    assert server.stop(1.0).wait(LIMIT)


def test_the_end_of_the_server_ends_its_streams(jobs: FakeJobs) -> None:
    """A stream ends when the service does."""
    scaler = ExternalScaler(jobs, SystemClock())
    decide(jobs, 3)
    server, port = serve(KedaSettings(keda_port=0), scaler)
    client = Keda(f"127.0.0.1:{port}")
    stream = client.ask("StreamIsActive", name="rates")
    next(stream)
    scaler.ending.set()
    with pytest.raises((StopIteration, grpc.RpcError)):
        next(stream)
    assert server.stop(1.0).wait(LIMIT)
    client.channel.close()


def test_a_method_that_is_left_out_is_unimplemented(keda: Keda) -> None:
    """KEDA's optional StreamMetricSpec gets the answer on which KEDA goes on without it."""
    call = keda.channel.unary_stream(f"/{SERVICE}/StreamMetricSpec")
    with pytest.raises(grpc.RpcError) as refused:
        next(call(b"", timeout=LIMIT))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_tls_settings_must_be_whole() -> None:
    """A certificate without its key is refused by name."""
    with pytest.raises(ValueError, match="must be set together"):
        KedaSettings(keda_tls_certificate="cert.pem")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keda_tls_client_ca needs"):
        KedaSettings(keda_tls_client_ca="ca.pem")  # type: ignore[arg-type]
