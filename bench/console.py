"""The console with 1,000 jobs: events per second, memory after an hour of them, and how long a page takes."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from time import process_time

from starlette.testclient import TestClient

from bench.streams import decided, spec_of
from bench.table import BenchRow
from tests.support.fleets import SimulatedTopics
from tidegate.console.access import Access
from tidegate.console.app import build
from tidegate.console.settings import ConsoleSettings
from tidegate.events.decision import Decision
from tidegate.events.envelope import decode, value_of

JOBS = 1000
HOUR = 360
"""Decisions per job in an hour."""
PAGES = 20


def main() -> list[BenchRow]:
    """Fold an hour of decisions of every job, and load the page of the fleet."""
    recorded = [value_of(decision) for _, decision in decided("bench", HOUR, partitions=8)]
    topics, before = SimulatedTopics(), _megabytes()
    for number in range(JOBS):
        topics.fleet.take_spec(spec_of("bench").model_copy(update={"job_id": f"bench-{number}"}))
    began = process_time()
    for value in recorded:
        for number in range(JOBS):
            topics.fleet.take(decode(Decision, value.replace(b'"bench"', b'"bench-%d"' % number)))
    pace = JOBS * HOUR / (process_time() - began)
    held = _megabytes() - before
    page = _page_seconds(topics)
    return [
        BenchRow("console, decisions/s read and folded on one core", f"{pace:,.0f}/s", "", pace, 10_000),
        BenchRow(f"console, memory of {JOBS:,} jobs after an hour, MB", f"{held:.0f} MB", "", held, 150, at_most=True),
        BenchRow("console, page of the fleet, ms", f"{1000 * page:.0f} ms", "", 1000 * page, 100, at_most=True),
    ]


def _megabytes() -> float:
    """Return the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _page_seconds(topics: SimulatedTopics) -> float:
    """Return the shortest time in which the page of the fleet came."""
    settings = ConsoleSettings()
    app = build(settings, topics, Access(settings), "a key", lambda: datetime.now(UTC))
    browser = TestClient(app, base_url="http://127.0.0.1")
    times = []
    for _ in range(PAGES):
        began = process_time()
        browser.get("/").raise_for_status()
        times.append(process_time() - began)
    return min(times)
