"""The load generator: sends records evenly, at the rate written in a file.

    python -m demo.load --bootstrap-servers B --topic T --rate-file F

The file holds a number, the records per second, and is read five times a second: write to it to change the load. If
the generator is paused or blocked, it does not catch up afterwards, because a burst would be a load nobody asked for.
On SIGTERM it delivers what it has sent and exits.
"""

from __future__ import annotations

import argparse
import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

log = logging.getLogger("load")

TICK_SECONDS = 0.2
LONGEST_TICK_SECONDS = 0.5
"""A late tick makes up for this much; the rest of a longer pause is skipped."""


class Pacer:
    """Says how many records are due: the rate times the time since the last tick, carrying fractions over. Pure."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._carried = 0.0

    def due(self, now: float, rate: float) -> int:
        """Return how many records to send at `now` (monotonic seconds) at `rate` (records/s)."""
        passed = 0.0 if self._last is None else min(max(0.0, now - self._last), LONGEST_TICK_SECONDS)
        self._last = now
        whole = math.floor(self._carried + passed * rate)
        self._carried += passed * rate - whole
        return whole


class RateFile:
    """Reads the rate from a file; while it is unreadable, the rate stays as it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._rate = 0.0

    def read(self) -> float:
        """Return the rate in records/s."""
        try:
            text = self._path.read_text(encoding="utf-8").strip()
        except OSError as error:
            text = f"unreadable: {error.strerror}"
        if text != self._text:
            self._text = text
            try:
                rate = float(text)
            except ValueError:
                rate = math.nan
            if math.isfinite(rate) and 0 <= rate <= 1_000_000:
                self._rate = rate
                log.info("%g records/s", rate)
            else:
                log.warning("%s: %r is not a rate, so it stays at %g records/s", self._path, text[:80], self._rate)
        return self._rate


def produce(producer: Producer, topic: str, rate: Callable[[], float], stop: threading.Event) -> tuple[int, int]:
    """Send records until `stop` is set; return how many were sent and how many were not delivered."""
    pacer = Pacer()
    sent = 0
    failed = 0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal failed
        if error is not None:
            failed += 1
            log.warning("a record was not delivered: %s", error.str())

    while not stop.wait(TICK_SECONDS):
        for _ in range(pacer.due(time.monotonic(), rate())):
            try:
                # murmur2 of 1000 keys spreads the load evenly.
                producer.produce(topic, f"{sent}".encode(), f"k{sent % 1000}".encode(), on_delivery=delivered)
            except BufferError:  # the broker is unreachable; skip these records rather than send a burst later
                break
            sent += 1
        producer.poll(0)
    producer.flush(10)
    return sent, failed


def main(arguments: list[str] | None = None) -> int:
    """Run the generator; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.load", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument(
        "--rate-file", required=True, type=Path, help="holds the rate in records/s; write to it to change the load"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 20_000,
        }
    )
    reading = RateFile(options.rate_file)
    last_read = -math.inf
    rate = 0.0

    def current() -> float:
        nonlocal last_read, rate
        if time.monotonic() - last_read > 0.2:
            last_read, rate = time.monotonic(), reading.read()
        return rate

    sent, failed = produce(producer, options.topic, current, stop)
    log.info("stopped: sent %d records, %d were not delivered", sent, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
