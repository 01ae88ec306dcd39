"""The search of a backtest on real Spark, and the command from logs to page and job file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.plain_logs import load, model, write_log
from tidegate.backtest.backtest import Choices, backtest_runs
from tidegate.backtest.logs import Logs
from tidegate.backtest.search import NOT_SEARCHED, Found, SearchSpace, search
from tidegate.backtest.trial import Replica, cost_of
from tidegate.cli import app
from tidegate.installed import engine
from tidegate.lab.tunings import DEFAULTS

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the log of half an hour of a job with 3 slots."""
    found = tmp_path_factory.mktemp("events")
    write_log(found / "app-1", load(0.5), model())
    return found


def test_a_search_is_spread_over_spark(folder: Path, session: Any) -> None:
    """Every trial is made once, its cost is that of the same trial made here, and what is found is the cheapest."""
    told: list[tuple[int, int]] = []

    def spread(replica: Replica, seconds: float, window: float) -> Found:
        space = SearchSpace(session, replica, seconds, window)
        found = search(space, 10, lambda done, total: told.append((done, total)))
        mine = [cost_of((replica, engine().policies), one, seconds, window) for one in (DEFAULTS, found.tuning)]
        assert found.gain == pytest.approx(1.0 - mine[1] / mine[0])
        assert space.costs([DEFAULTS], lambda _done: None) == [mine[0]]
        return found

    report = backtest_runs("orders", Logs(folder).runs("orders"), Choices(20.0, 8), spread)
    assert report.found.trials == 10
    assert report.found.gain >= 0.0
    assert [m.gain for m in report.found.matters] == sorted((m.gain for m in report.found.matters), reverse=True)
    assert told[-1] == (10, 10)


@pytest.mark.usefixtures("commands_share")
def test_the_command_writes_page_figures_and_job_file(folder: Path, tmp_path: Path) -> None:
    """One command reads the logs, searches, and writes a self-contained page, JSON and a job file."""
    page, figures, job = tmp_path / "out" / "page.html", tmp_path / "figures.json", tmp_path / "job.yaml"
    words = ["backtest", str(folder), "--html", str(page), "--json", str(figures), "--job-file", str(job)]
    ran = CliRunner().invoke(app, [*words, "--trials", "4", "--objective", "20", "--max-slots", "8"])
    assert ran.exit_code == 0, ran.output
    assert "On the part kept back: " in ran.output
    text = page.read_text("utf-8")
    assert text.count("data:image/png;base64,") == 2
    assert "http://" not in text.replace("http://master", "")
    assert json.loads(figures.read_text("utf-8"))["jobs"][0]["search"]["trials"] == 4
    checked = CliRunner().invoke(app, ["simulate", "--spec", str(job), "--load", "step", "--hours", "0.1"])
    assert checked.exit_code == 0, checked.output


def test_the_command_says_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    """An unknown job, a folder without logs and a missing one are told apart, and a price needs a slot's price."""
    invoke = CliRunner().invoke
    ran = invoke(app, ["backtest", str(folder), "--job", "billing"])
    assert ran.exit_code == 2
    assert "no log of an application 'billing'" in ran.output
    assert "there are: orders" in ran.output
    ran = invoke(app, ["backtest", str(tmp_path)])
    assert ran.exit_code == 1
    ran = invoke(app, ["backtest", str(tmp_path / "absent")])
    assert ran.exit_code == 2
    ran = invoke(app, ["backtest", str(folder), "--late-minute", "1"])
    assert ran.exit_code == 2
    assert "--late-minute needs --slot-hour" in ran.output
    assert NOT_SEARCHED.trials == 0
