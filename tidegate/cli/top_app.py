"""The screens of `tidegate top`: a table of all jobs, and the reasons of one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static
from typing_extensions import override

from tidegate.fleet.explain import explain
from tidegate.fleet.fleet import Fleet, LiveFleet
from tidegate.fleet.rows import FleetRow, badge_of, counted, ranked, row_of
from tidegate.terminal import harmless
from tidegate.words import age, size

REFRESH_SECONDS = 0.5
COLUMNS = ("state", "job", "slots", "delay", "lag", "arrival/s", "capacity/s", "mode", "why")
MOST_ROWS = 200
"""Jobs in the table: with 1,000 rows, to draw them in another order takes longer than `REFRESH_SECONDS`."""
TONES = {"good": "green", "busy": "yellow", "bad": "bold red", "unknown": "dim"}


class Reasons(Screen[None]):
    """The newest decision on one job, in words."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "app.pop_screen", "Back")]

    def __init__(self, feed: LiveFleet, job_id: str) -> None:
        super().__init__()
        self._feed = feed
        self._job_id = job_id
        self._text = Static(id="reasons", markup=False)

    @override
    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._text
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start showing."""
        self.query_one(VerticalScroll).focus()
        self.update()
        self.set_interval(REFRESH_SECONDS, self.update)

    def update(self) -> None:
        """Show what is known now."""
        with self._feed.reading() as fleet:
            job = fleet.get(self._job_id)
            if job is None:
                text = f"Tidegate does not manage {self._job_id} any more."
            elif job.decision is None:
                text = f"{self._job_id}: no decision yet."
            else:
                results = [job.last_result] if job.last_result is not None else []
                silent = badge_of(job, datetime.now(UTC)).word == "silent"
                old = [f"SILENT: the last decision was {age(job.decision.decided_at)}.", ""] if silent else []
                text = "\n".join([*old, *explain(job.decision, results)])
        self._text.update(harmless(text))


class TopApp(App[None]):
    """All jobs, those that need an operator first."""

    CSS = """
    #summary { height: 1; padding: 0 1; }
    #find { display: none; height: 3; }
    #find.shown { display: block; }
    DataTable { height: 1fr; }
    VerticalScroll { padding: 1 2; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "reasons", "Reasons", priority=True),
        Binding("slash", "find", "Find"),
        Binding("escape", "show_all", "All jobs", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, feed: LiveFleet) -> None:
        super().__init__()
        self._feed = feed
        self._shown: dict[str, tuple[Text, ...]] = {}
        self._wanted = ""
        self._line = Static(id="summary", markup=False)
        self._table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True, id="jobs")

    @override
    def compose(self) -> ComposeResult:
        yield self._line
        yield Input(placeholder="part of a job's name", id="find")
        for name in COLUMNS:
            self._table.add_column(name, key=name)
        yield self._table
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start showing."""
        self._table.focus()
        self.refresh_jobs()
        self.set_interval(REFRESH_SECONDS, self.refresh_jobs)

    def refresh_jobs(self) -> None:
        """Show the fleet as it is now; the chosen job stays chosen wherever it moves."""
        if not self._table.is_attached:
            return  # the app is ending
        now = datetime.now(UTC)
        with self._feed.reading() as fleet:
            jobs = ranked((job for job in fleet if self._wanted in job.spec.job_id), now)
            rows = {job.spec.job_id: cells_of(row_of(job, now)) for job in jobs[:MOST_ROWS]}
            self._summary(fleet, now, len(jobs) - len(rows))
        table = self._table
        if list(rows) != list(self._shown):
            chosen, place = self._chosen(), table.cursor_row
            table.clear()
            for job_id, cells in rows.items():
                table.add_row(*cells, key=job_id)
            if rows:
                table.move_cursor(row=list(rows).index(chosen) if chosen in rows else min(place, len(rows) - 1))
        else:
            for job_id, cells in rows.items():
                for name, cell, before in zip(COLUMNS, cells, self._shown[job_id], strict=True):
                    if cell != before:
                        table.update_cell(job_id, name, cell, update_width=True)
        self._shown = rows

    @override
    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        on_table = len(self.screen_stack) == 1
        if action == "reasons":
            return on_table and not isinstance(self.focused, Input)
        return on_table or action not in {"find", "show_all"}

    def action_reasons(self) -> None:
        """Show the reasons of the chosen job."""
        if (chosen := self._chosen()) is not None:
            self.push_screen(Reasons(self._feed, chosen))

    def on_data_table_row_selected(self) -> None:
        """Enter in the table."""
        self.action_reasons()

    def action_find(self) -> None:
        """Ask for a part of a name."""
        field = self.query_one("#find", Input)
        field.add_class("shown")
        field.focus()

    def action_show_all(self) -> None:
        """Show all jobs again."""
        field = self.query_one("#find", Input)
        field.value = ""
        field.remove_class("shown")
        self._table.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Show only the jobs that fit."""
        self._wanted = message.value.strip().lower()
        self.refresh_jobs()

    def on_input_submitted(self) -> None:
        """Leave the field, and keep what it found."""
        self._table.focus()

    def _chosen(self) -> str | None:
        place = self._table.cursor_row
        return list(self._shown)[place] if 0 <= place < len(self._shown) else None

    def _summary(self, fleet: Fleet, now: datetime, left_out: int) -> None:
        slots = sum(job.decision.current_parallelism for job in fleet if job.decision is not None)
        states = ", ".join(f"{count} {badge.word}" for badge, count in counted(fleet, now))
        state = {"live": "", "loading": "(reading the topics)  "}.get(
            self._feed.state, f"OLD: reading ended with: {self._feed.state}  "
        )
        jobs = f"{len(fleet)} job" + ("" if len(fleet) == 1 else "s")
        said = f"{jobs}, {size(slots)}: {states}" if len(fleet) else "no jobs yet"
        more = f"  ({left_out} more: / finds them)" if left_out else ""
        # What the figures are worth comes first: the line is cut where the terminal ends.
        self._line.update(f"{state}Tidegate {now:%H:%M:%S} UTC  {said}{more}")


def cells_of(row: FleetRow) -> tuple[Text, ...]:
    """Return a row's cells; its state has a symbol and a word, so that nobody needs the colour."""
    state = Text(f"{row.badge.symbol} {row.badge.word}", style=TONES[row.badge.tone])
    figures = (row.slots, row.delay, row.lag, row.arrival, row.capacity)
    right = [Text(text, justify="right") for text in figures]
    return state, Text(row.job_id, style="bold"), *right, Text(row.mode), Text(harmless(row.why))
