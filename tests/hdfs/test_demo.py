"""The demo with the job's files in HDFS: the same script and the same checks as with a shared folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hdfs.conftest import Hdfs
from tests.support.demo_run import run_demo_apart


@pytest.mark.timeout(900)
def test_the_demo_passes_without_a_shared_folder(hdfs: Hdfs, tmp_path: Path) -> None:
    """The job falls behind, grows and shrinks in place; no record is lost, and every decision is recomputed."""
    run_demo_apart(f"{hdfs.uri}/demo", tmp_path, {"TIDEGATE_FILES": json.dumps({"hdfs": {"url": hdfs.url}})})
