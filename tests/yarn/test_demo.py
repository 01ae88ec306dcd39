"""The demo on YARN: the same script and the same checks as on Spark standalone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.demo_run import run_demo_in
from tests.support.yarn_job import YarnInfo


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["in_place", "restart"])
def test_the_demo_passes(way: str, yarn: YarnInfo, tmp_path: Path) -> None:
    """The job falls behind, grows and shrinks; no record is lost, and every decision is recomputed."""
    settings = {"HADOOP_CONF_DIR": str(yarn.conf_dir)}
    options = ("--backend", "yarn", "--resource-manager", yarn.url, "--way", way, "--time-factor", "2")
    run = run_demo_in(tmp_path, settings, *options)
    assert (run / "report.png").is_file()
