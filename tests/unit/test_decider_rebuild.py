"""What the decider reads when Redis has lost the reservations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.decider import rebuild
from services.decider.rebuild import read_holds
from services.decider.settings import DeciderSettings
from services.decider.specs import SpecBook
from tests.support.events import START, command, job, result
from tests.support.fake_consumer import FakeMessage
from tidegate.events.result import Phase


def test_long_topics_do_not_make_the_process_look_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than the main loop may be silent: a restart would begin all over, and nothing be granted."""
    beats: list[str] = []
    records = {"tidegate.commands": command(command_id="c"), "tidegate.results": result("c", Phase.ACCEPTED, 1)}

    class Reader:
        def __init__(self, _settings: object, topics: list[str], **_: Any) -> None:
            self._record = records[topics[0]]

        def read_to_end(self, *, stop: Callable[[], bool]) -> Iterator[FakeMessage]:
            for offset in range(3):
                assert not stop()  # asked all the time, also while nothing comes
                yield FakeMessage(0, offset, self._record)

        def close(self) -> None:
            pass

    monkeypatch.setattr(rebuild, "TopicReader", Reader)
    read_holds(DeciderSettings(), SpecBook([job("rates")]), START, lambda: beats.append("alive"))
    assert len(beats) == 6


@pytest.mark.parametrize(
    ("issued", "since"),
    [
        ([], []),
        ([START + timedelta(hours=1), START], [START - timedelta(minutes=1)]),
        ([datetime.min.replace(tzinfo=UTC)], [datetime.fromtimestamp(0, UTC)]),
    ],
    ids=["none", "two", "of the year one"],
)
def test_results_are_read_from_the_oldest_command_on(
    issued: list[datetime], since: list[datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka has no record before 1970, and no date is a minute before the year one: that must not end the decider."""
    asked: list[datetime | None] = []
    commands = [command(command_id=str(n), issued_at=at) for n, at in enumerate(issued)]

    class Reader:
        def __init__(self, _settings: object, topics: list[str], **given: Any) -> None:
            asked.append(given["since"])
            self._events = commands if topics == ["tidegate.commands"] else []

        def read_to_end(self, **_: Any) -> Iterator[FakeMessage]:
            return iter([FakeMessage(0, offset, event) for offset, event in enumerate(self._events)])

        def close(self) -> None:
            pass

    monkeypatch.setattr(rebuild, "TopicReader", Reader)
    read_holds(DeciderSettings(), SpecBook([job("rates")]), START, lambda: None)
    assert asked == [None, *since]
