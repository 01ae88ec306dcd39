"""The demo with the job's files on S3: the same script and the same checks as with a shared folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.s3.conftest import S3Server
from tests.support.demo_run import run_demo_apart


@pytest.mark.timeout(900)
def test_the_demo_passes_without_a_shared_folder(s3: S3Server, tmp_path: Path) -> None:
    """The job falls behind, grows and shrinks in place; no record is lost, and every decision is recomputed."""
    settings = [f"--conf={name}={value}" for name, value in s3.spark_conf.items()]
    run_demo_apart(f"{s3.root}/demo", tmp_path, {}, *settings)
