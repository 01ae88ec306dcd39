"""Two drivers of a handover and one control directory: whatever the order of events, at most one of them runs (I4)."""

from __future__ import annotations

import tempfile
import types
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_drivers import LOG, driver_run
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.files import Control, HandoverOrder, Token
from tidegate.launcher.handover import turn
from tidegate.launcher.handover.turn import StartedQuery, Turn
from tidegate.launcher.queries.query_start import QueryStart

FIRST, SECOND = "driver-1-0", "driver-1-1"
EVENTS = ("hold", "let the second go", "the second looks", "the first looks", "forgotten", "end the second and resume")


class Pair:
    """The two drivers, the actuator's part, and what the first one's query does."""

    def __init__(self, folder: Path) -> None:
        self.control = Control.at(folder, "job")
        self.newest = Token(6, 0)
        self.first = Turn(self.control, driver_run(self.control, FIRST, Token(5, 1)), LOG, waits=False)
        self.second = Turn(self.control, driver_run(self.control, SECOND, Token(5, 2)), LOG, waits=True)
        self.second_runs = self.second_ended = False
        self.java = types.SimpleNamespace(isActive=lambda: not self.first.holding)
        query = types.SimpleNamespace(id="q", _jsq=self.java, lastProgress=None)
        streams = types.SimpleNamespace(resetTerminated=lambda: None)
        writer = types.SimpleNamespace(_spark=types.SimpleNamespace(streams=streams))
        self.first.remember(StartedQuery(query, QueryStart(lambda _writer: query, writer, (), {})))

    def _order(self, *, hold: bool, driver: str) -> None:
        self.newest = Token(6, self.newest.run + 1)
        Claims(self.control).raise_fence(self.newest, "a")
        order = HandoverOrder(self.newest, driver, 5.0)
        (self.control.request_hold if hold else self.control.let_go)(order)

    def play(self, event: str) -> None:
        """Let one thing happen; the actuator acts only as SWITCH and RESUME do."""
        if event == "hold" and not self.second_ended:
            self._order(hold=True, driver=FIRST)
        elif event == "let the second go" and (self.control.paused(self.newest) or {}).get("paused"):
            self.control.let_go(HandoverOrder(self.newest, SECOND))
        elif event == "the second looks" and not self.second_ended and not self.second.over:
            self.second_runs = self.second_runs or self.second.may_go()
        elif event == "the first looks":
            self.first.look()
        elif event == "forgotten":
            with mock.patch.object(turn, "FORGOTTEN_SECONDS", 0.0):
                self.first.look()
        elif event == "end the second and resume":
            self.second_ended, self.second_runs = True, False
            self._order(hold=False, driver=FIRST)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(EVENTS), max_size=14))
def test_at_most_one_driver_runs(events: list[str]) -> None:
    """Permissions may come late, twice or never, and the first driver may stop waiting at any moment."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(turn, "end_at_boundary", return_value=True),
        mock.patch("tidegate.launcher.control.store.os.fsync"),
    ):
        pair = Pair(Path(folder))
        for event in events:
            pair.play(event)
            assert pair.first.holding or not pair.second_runs, events
        for event in ("end the second and resume", "the first looks"):
            pair.play(event)
        assert not pair.first.holding, "the first driver goes on in the end"
