"""`tidegate top`: the table follows the fleet, and keys lead to a job's reasons and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.support.fleets import SimulatedTopics, decision, spec
from tidegate.cli.top_app import Reasons, TopApp
from tidegate.events.decision import Status

Steps = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def fleet_of(jobs: int) -> SimulatedTopics:
    """Return jobs with a decision of just now; of these, the third is late."""
    topics = SimulatedTopics()
    for number in range(jobs):
        topics.fleet.take_spec(spec(number))
        late = {"status": Status.LATE} if number == 2 else {}
        topics.fleet.take(decision(spec(number), datetime.now(UTC)).model_copy(update=late))
    return topics


def play(topics: SimulatedTopics, steps: Steps, size: tuple[int, int] = (120, 30)) -> None:
    """Run the app on a screen of this size, and the steps in it."""

    async def run() -> None:
        made = TopApp(topics)
        async with made.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(made, pilot)

    asyncio.run(run())


def table(made: TopApp) -> DataTable[str]:
    """Return the table of jobs."""
    return made.screen_stack[0].query_one("#jobs", DataTable)


def shown(made: TopApp, row: int) -> list[str]:
    """Return a row of the table as text."""
    return [str(cell) for cell in table(made).get_row_at(row)]


def said(made: TopApp, name: str) -> str:
    """Return what a line or a page says."""
    return str(made.screen.query_one(name, Static).render())


def test_a_sentence_cannot_steer_the_terminal() -> None:
    """A forged decision shows no more than letters, in the table and among the reasons."""
    topics = fleet_of(1)
    forged = {"sentence": "all \x1b]0;fine\x07\u202e"}
    topics.fleet.take(decision(spec(0), datetime.now(UTC) + timedelta(seconds=1)).model_copy(update=forged))

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        assert shown(made, 0)[-1] == "all ]0;fine"
        await pilot.press("enter")
        assert said(made, "#reasons").replace("\n", "").isprintable()

    play(topics, steps)


def test_jobs_that_need_an_operator_come_first_and_states_are_words() -> None:
    """A late job is on top, with a symbol and a word for its state, its figures, and the reason."""

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        assert table(made).row_count == 5
        first = shown(made, 0)
        assert first[:3] == ["! late", "job-0002", "4"]
        assert "keeps 4 slots" in first[-1]
        assert shown(made, 1)[0] == "✓ fine"
        assert "5 jobs, 20 slots: 1 late, 4 fine" in said(made, "#summary")

    play(fleet_of(5), steps)


def test_enter_leads_to_the_reasons_and_escape_back() -> None:
    """Arrows choose a job, Enter shows its decision in words, Escape shows the table again, q ends."""

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        assert isinstance(made.screen, Reasons)
        text = said(made, "#reasons")
        assert "job-0000" in text
        assert "Measured over" in text
        assert "[KEEPS_UP]" in text
        await pilot.press("enter", "slash")
        assert len(made.screen_stack) == 2, "these keys are the table's"
        await pilot.press("escape")
        assert len(made.screen_stack) == 1
        await pilot.press("q")
        assert made.return_code == 0

    play(fleet_of(5), steps)


def test_the_table_follows_and_the_chosen_job_stays_chosen() -> None:
    """When a job moves up because it is late, its figures change and the cursor goes along."""
    topics = fleet_of(5)

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*["down"] * 4)
        assert shown(made, table(made).cursor_row)[1] == "job-0004"
        newer = decision(spec(4), datetime.now(UTC) + timedelta(seconds=2), lag_records=98_765)
        topics.fleet.take(newer.model_copy(update={"status": Status.POOL_EXHAUSTED}))
        made.refresh_jobs()
        await pilot.pause()
        row = shown(made, table(made).cursor_row)
        assert (row[0], row[1], row[4]) == ("! pool exhausted", "job-0004", "98,765")
        assert table(made).cursor_row == 1

    play(topics, steps)


def test_a_part_of_a_name_finds_jobs() -> None:
    """Only the jobs that fit are shown, until Escape shows all again."""

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"0003", "enter")
        assert table(made).row_count == 1
        assert shown(made, 0)[1] == "job-0003"
        await pilot.press("escape")
        await pilot.pause()
        assert table(made).row_count == 5

    play(fleet_of(5), steps)


def test_of_many_jobs_the_table_has_those_that_need_an_operator() -> None:
    """A thousand rows take too long to draw, and to read; the line above tells that there are more, `/` finds them."""

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        assert table(made).row_count == 200
        assert shown(made, 0)[1] == spec(2).job_id
        assert "300 jobs" in said(made, "#summary")
        assert "(100 more: / finds them)" in said(made, "#summary")
        await pilot.press("slash", *spec(299).job_id, "enter")
        assert (table(made).row_count, shown(made, 0)[1]) == (1, spec(299).job_id)
        assert "more" not in said(made, "#summary")

    play(fleet_of(300), steps)


@pytest.mark.parametrize("size", [(200, 60), (80, 24), (40, 10), (20, 5)])
def test_any_size_of_terminal_will_do(size: tuple[int, int]) -> None:
    """The app starts on any terminal and follows a change of its size, also with many jobs."""

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(60, 15)
        await pilot.press("down", "enter")
        await pilot.resize_terminal(*size)
        assert isinstance(made.screen, Reasons)

    play(fleet_of(50), steps, size)


def test_without_jobs_or_topics_it_says_so() -> None:
    """An empty fleet is told, and so is a feed that has ended."""
    topics = SimulatedTopics(state="the broker is gone")

    async def steps(made: TopApp, pilot: Pilot[None]) -> None:
        summary = said(made, "#summary")
        assert summary.startswith("OLD: reading ended with: the broker is gone  Tidegate ")
        assert summary.endswith("no jobs yet")
        await pilot.press("enter")
        assert not isinstance(made.screen, Reasons)

    play(topics, steps)


def test_a_narrow_terminal_shows_that_the_figures_are_old() -> None:
    """When the reading has ended, the clock goes on: the line says so where no width cuts it off."""
    topics = fleet_of(3)
    topics.state = "the broker is gone"

    async def steps(made: TopApp, _pilot: Pilot[None]) -> None:
        assert "OLD: reading ended" in made.screen.query_one("#summary", Static).render_line(0).text

    play(topics, steps, (40, 12))
