"""The collector's worker threads and its questions to Kafka: bounded in time, and no error is lost or logged twice."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from services.collector.offsets import KafkaOffsets
from services.collector.settings import CollectorSettings
from services.collector.worker import StillBusy, WorkerThread


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


def test_calls_that_come_faster_than_they_can_be_answered_do_not_all_come_too_late() -> None:
    """A disk takes 1.5 s, and jobs are measured every second: most of what is read is told, and not almost nothing."""
    made: list[int] = []

    def read(number: int) -> None:
        made.append(number)
        time.sleep(0.15)

    async def play() -> int:
        worker = WorkerThread("disk")
        calls = []
        for number in range(40):
            calls.append(asyncio.create_task(worker.call(0.3, read, number)))
            await asyncio.sleep(0.1)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        worker.close()
        return answers.count(None)

    answered = asyncio.run(play())
    assert len(made) / 2 < answered <= len(made)


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
