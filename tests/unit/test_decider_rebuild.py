"""What the decider reads when Redis has lost the reservations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
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

        def read_to_end(self) -> Iterator[FakeMessage]:
            return iter([FakeMessage(0, offset, self._record) for offset in range(3)])

        def close(self) -> None:
            pass

    monkeypatch.setattr(rebuild, "TopicReader", Reader)
    read_holds(DeciderSettings(), SpecBook([job("rates")]), START, lambda: beats.append("alive"))
    assert len(beats) == 6


def test_a_command_of_the_year_one_does_not_end_the_decider(monkeypatch: pytest.MonkeyPatch) -> None:
    """No date is a minute before it, and Kafka has no record before 1970: all results are read."""
    since: list[datetime | None] = []
    old = command(command_id="c").model_copy(update={"issued_at": datetime.min.replace(tzinfo=UTC)})

    class Reader:
        def __init__(self, _settings: object, topics: list[str], **given: Any) -> None:
            since.append(given["since"])
            self._records = [FakeMessage(0, 0, old)] if topics == ["tidegate.commands"] else []

        def read_to_end(self) -> Iterator[FakeMessage]:
            return iter(self._records)

        def close(self) -> None:
            pass

    monkeypatch.setattr(rebuild, "TopicReader", Reader)
    read_holds(DeciderSettings(), SpecBook([job("rates")]), START, lambda: None)
    assert since == [None, datetime.fromtimestamp(0, UTC)]
