"""The rules that hold for all tests hold indeed: shown on a small test file run by a pytest of its own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import logging
import pytest

def test_quiet(): logging.getLogger("tidegate.engine.decide").warning("only a warning")
def test_foreign(): logging.getLogger("aiokafka").error("not ours")
def test_loud(): logging.getLogger("tidegate.engine.decide").error("the flux ran out")
@pytest.mark.expects_errors("this test breaks it on purpose")
def test_loud_on_purpose(): logging.getLogger("tidegate.runtime.kafka").error("broken")
@pytest.mark.expects_errors
def test_without_reason(): pass
"""


def run_pytest(folder: Path) -> str:
    """The output of a run over TESTS under the shared conftest."""
    (folder / "test_sample.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:randomly", "-rA"]
    command += ["--rootdir", str(folder), "-c", "/dev/null", str(folder / "test_sample.py")]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_an_error_of_ours_fails_the_test_that_logged_it(tmp_path: Path) -> None:
    """ERRORs of our loggers fail, warnings and foreign loggers do not, and a marker with a reason lifts the rule."""
    output = run_pytest(tmp_path)
    assert "logged as an ERROR: tidegate.engine.decide: the flux ran out" in output
    verdicts = {test: verdict for verdict, test in re.findall(r"^(PASSED|FAILED) \S+::(\w+)", output, re.MULTILINE)}
    assert verdicts == {
        "test_quiet": "PASSED",
        "test_foreign": "PASSED",
        "test_loud": "FAILED",
        "test_loud_on_purpose": "PASSED",
        "test_without_reason": "FAILED",
    }
