"""Reading a topic to its end: how long is too long."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.runtime import consumer
from tidegate.runtime.consumer import TopicReader


class _Clock:
    """A clock that moves when something is asked for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def _reader(monkeypatch: pytest.MonkeyPatch, answers: list[Any], seconds_each: float) -> TopicReader:
    """Return a reader of one partition that gets these answers; the last one is its end."""
    clock, reader = _Clock(), TopicReader.__new__(TopicReader)
    reader._unread = {("results", 0)}

    def poll(_seconds: float = 0.0) -> Any:
        clock.now += seconds_each
        answer = answers.pop(0)
        if not answers:
            reader._unread.clear()
        return answer

    monkeypatch.setattr(consumer, "time", clock)
    monkeypatch.setattr(reader, "poll", poll)
    return reader


def test_a_long_topic_is_read_to_its_end_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of records with a pause now and then are no reason to give up: a service would never start."""
    answers = [*(number if number % 7 else None for number in range(1, 120)), 120]
    reader = _reader(monkeypatch, list(answers), 5.0)
    assert list(reader.read_to_end(60.0)) == [answer for answer in answers if answer is not None]


def test_a_topic_whose_end_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader says nothing: after a minute of silence the reader names it."""
    reader = _reader(monkeypatch, [1, *[None] * 100], 5.0)
    with pytest.raises(TimeoutError, match=r"\('results', 0\).*nothing came for 60 s"):
        list(reader.read_to_end(60.0))
