"""The load generator: records at a rate that a file says, evenly, never in a bunch.

    python -m demo.load --bootstrap-servers B --topic T --rate-file F

The file holds records/s as a number and is read again five times a second, so writing to it changes the load. Time in
which the generator could not run (killed, blocked, paused) is lost and not made up for: a burst afterwards would be
a load that nobody asked for. Ends on SIGTERM after delivering what it has sent.
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

TICK_SECONDS = 0.05
LONGEST_TICK_SECONDS = 0.25
"""What a late tick may make up for; the rest of a longer pause is lost."""


class Pace:
    """How many records are due: the rate times the time since the last tick, fractions carried over. Pure."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._carried = 0.0

    def due(self, now: float, rate: float) -> int:
        """Return the records to send at `now` (s, monotonic) at `rate` (records/s)."""
        passed = 0.0 if self._last is None else min(max(0.0, now - self._last), LONGEST_TICK_SECONDS)
        self._last = now
        whole = math.floor(self._carried + passed * rate)
        self._carried += passed * rate - whole
        return whole


class RateFile:
    """The rate in a file; what cannot be read leaves the rate as it was."""

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
                log.warning("%s: %r is not a rate; staying at %g records/s", self._path, text[:80], self._rate)
        return self._rate


def produce(producer: Producer, topic: str, rate: Callable[[], float], stop: threading.Event) -> tuple[int, int]:
    """Send until `stop` is set; return (records sent, records that were not delivered)."""
    pace = Pace()
    sent = 0
    failed = 0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal failed
        if error is not None:
            failed += 1
            log.warning("a record was not delivered: %s", error.str())

    while not stop.wait(TICK_SECONDS):
        for _ in range(pace.due(time.monotonic(), rate())):
            try:
                # Partitions in turn: the load is even whatever the keys.
                producer.produce(topic, f"{sent}".encode(), f"k{sent % 1000}".encode(), on_delivery=delivered)
            except BufferError:  # the broker is away: what does not fit is not sent later in a bunch
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
    parser.add_argument("--rate-file", required=True, type=Path, help="holds records/s; read again as it changes")
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
    log.info("sent %d records, %d were not delivered", sent, failed)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
