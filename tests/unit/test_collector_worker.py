"""The collector's worker threads and its questions to Kafka: bounded in time, and no error is lost or logged twice."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from services.collector.offsets import KafkaOffsets
from services.collector.settings import CollectorSettings
from services.collector.worker import StillBusy, WorkerThread
from tests.support.fake_time import fake_time


def test_one_call_at_a_time() -> None:
    """A call that timed out keeps its thread; the next call waits up to its own limit; errors name the worker."""

    async def play() -> None:
        worker, gate = WorkerThread("disk"), threading.Event()
        with pytest.raises(TimeoutError, match=r"disk did not answer within 0\.05 s"):
            await worker.call(0.05, gate.wait, 20)
        with pytest.raises(StillBusy, match="disk has been busy"):
            await worker.call(0.05, lambda: 1)
        gate.set()
        assert await worker.call(5.0, lambda: 2) == 2
        with pytest.raises(ZeroDivisionError):
            await worker.call(5.0, lambda: 1 // 0)
        worker.close()

    asyncio.run(play())


def test_a_call_that_could_not_be_answered_in_time_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk takes 900 s, and a job waits 1000 s: a read that begins too late would make the next one late as well."""
    passed, made = [0.0], list[str]()
    fake_time(monkeypatch, "services.collector.worker", monotonic=lambda: passed[0])
    started, gates = threading.Semaphore(0), [threading.Event(), threading.Event()]

    def read(name: str, gate: threading.Event) -> None:
        made.append(name)
        started.release()
        gate.wait(100)

    def lasts(seconds: float) -> None:
        passed[0] += seconds

    async def play() -> None:
        worker = WorkerThread("disk")
        calls = [asyncio.create_task(worker.call(1000.0, read, "first", gates[0]))]
        assert await asyncio.to_thread(started.acquire, timeout=10)
        calls += [asyncio.create_task(worker.call(1000.0, read, name, gates[1])) for name in ("second", "late")]
        await asyncio.sleep(0)
        passed[0] += 900.0
        gates[0].set()
        with pytest.raises(StillBusy):
            await asyncio.wait_for(calls[2], 60)
        gates[1].set()
        assert await asyncio.gather(*calls[:2]) == [None, None]

        await worker.call(5000.0, lasts, 999.9)
        gates[1].clear()
        calls = [asyncio.create_task(worker.call(5000.0, read, "third", gates[1]))]
        await asyncio.sleep(0)
        with pytest.raises(StillBusy):
            await asyncio.wait_for(worker.call(1000.0, read, "late", gates[1]), 60)
        calls += [asyncio.create_task(worker.call(5000.0, read, "fourth", gates[1]))]
        await asyncio.sleep(0)
        gates[1].set()
        assert await asyncio.gather(*calls) == [None, None]
        worker.close()

    asyncio.run(play())
    assert made == ["first", "second", "third", "fourth"]


def test_a_call_that_fails_after_its_time_is_not_reported_by_asyncio() -> None:
    """The caller has logged the timeout; a later exception must not appear as "never retrieved"."""
    reported: list[dict[str, Any]] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        worker, gate = WorkerThread("kafka"), threading.Event()

        def fail_late() -> None:
            gate.wait(20)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

        with pytest.raises(TimeoutError):
            await worker.call(0.05, fail_late)
        gate.set()
        assert await worker.call(5.0, lambda: 2) == 2
        await asyncio.sleep(0)
        gc.collect()
        worker.close()

    asyncio.run(play())
    assert reported == []


class FailingAdmin:
    """An admin client whose broker lists a topic of many partitions, and knows no end offset of them."""

    def describe_topics(self, topics: Any, **_: float) -> dict[str, Future[Any]]:
        """Return the description of every topic."""
        partition = type("Partition", (), {"leader": object()})
        partitions = [type("WithId", (partition,), {"id": number}) for number in range(50)]
        description = type("Description", (), {"partitions": partitions})
        return {name: answered(description) for name in topics.topic_names}

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        """Fail for every partition."""
        futures: dict[TopicPartition, Future[Any]] = {partition: Future() for partition in asked}
        for future in futures.values():
            future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return futures

    def poll(self, _seconds: float) -> None:
        """Have nothing to log."""


def answered(value: Any) -> Future[Any]:
    """Return a future with its result."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_a_topic_without_end_offsets_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Fifty partitions without an answer are one warning over two rounds, and the rounds fail without zeros."""
    offsets = KafkaOffsets(CollectorSettings(), 1.0)
    offsets._admin = FailingAdmin()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(KafkaException):
                offsets.end_offsets(["clicks"])
    ours = [record.getMessage() for record in caplog.records if record.name == "services.collector.offsets"]
    assert len(ours) == 1
    assert "topic clicks (partitions)" in ours[0]
