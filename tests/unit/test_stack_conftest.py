"""The rules that hold for all tests, shown on a small test file that a pytest of its own runs."""

import re
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.support.programs import captured
from tests.support.quarantine import BadQuarantine, quarantined

ROOT = Path(__file__).parents[2]
TESTS = """
import logging
import pytest

def test_quiet(): logging.getLogger("tidegate.engine.decide").warning("only a warning")
def test_foreign(): logging.getLogger("aiokafka").error("not ours")
def test_loud(): logging.getLogger("tidegate.engine.decide").error("the flux ran out")
def test_console(): logging.getLogger("console").error("no page")
def test_keda(): logging.getLogger("keda").error("no answer")
def test_operator(): logging.getLogger("operator").error("no change")
@pytest.mark.expects_errors("this test breaks it on purpose")
def test_loud_on_purpose(): logging.getLogger("tidegate.runtime.consumer").error("broken")
@pytest.mark.expects_errors
def test_without_reason(): pass
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    """Run TESTS under the shared conftest; return what pytest wrote."""
    (folder / "test_sample.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:randomly", "-rA", *arguments]
    command += ["--rootdir", str(folder), "-c", "/dev/null", str(folder / "test_sample.py")]
    done = captured(*command, cwd=ROOT)
    return done.stdout + done.stderr


def test_an_error_of_ours_fails_the_test_that_logged_it(tmp_path: Path) -> None:
    """ERRORs of our loggers fail, warnings and foreign loggers do not, and a marker with a reason lifts the rule."""
    output = run_pytest(tmp_path)
    assert "logged as an ERROR: tidegate.engine.decide: the flux ran out" in output
    verdicts = {test: verdict for verdict, test in re.findall(r"^(PASSED|FAILED) \S+::(\w+)", output, re.MULTILINE)}
    assert verdicts == {
        "test_quiet": "PASSED",
        "test_foreign": "PASSED",
        "test_loud": "FAILED",
        "test_console": "FAILED",
        "test_keda": "FAILED",
        "test_operator": "FAILED",
        "test_loud_on_purpose": "PASSED",
        "test_without_reason": "FAILED",
    }


def test_a_quarantined_test_runs_and_cannot_fail_the_run(tmp_path: Path) -> None:
    """Only the listed test is excused, and its reason is shown."""
    listed = tmp_path / "quarantine.toml"
    listed.write_text('[[test]]\nid = "test_sample.py::test_loud"\nreason = "too loud"\nuntil = 2999-01-01\n')
    output = run_pytest(tmp_path, "--quarantine", str(listed))
    assert re.search(r"^XFAIL \S*test_loud", output, re.MULTILINE)
    assert "quarantine: too loud" in output
    assert re.search(r"^FAILED \S*test_without_reason", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ('id = "a"\nreason = "b"\nuntil = 2020-01-01', "the quarantine of a ended on 2020-01-01: fix the test"),
        ('id = "a"\nuntil = 2999-01-01', "entry 0 needs id (text), reason (text) and until (date)"),
        ('id = "a"\nreason = "b"\nuntil = "soon"', "entry 0 needs id (text), reason (text) and until (date)"),
        ("id = ", "Invalid value"),
    ],
)
def test_a_bad_or_expired_quarantine_is_refused(tmp_path: Path, entry: str, error: str) -> None:
    """The error names the entry and what to change."""
    listed = tmp_path / "quarantine.toml"
    listed.write_text(f"[[test]]\n{entry}\n")
    with pytest.raises(BadQuarantine) as refused:
        quarantined(listed, date(2026, 1, 1))
    assert error in str(refused.value)


def test_a_refused_quarantine_stops_the_run(tmp_path: Path) -> None:
    """No test runs until the list is right."""
    listed = tmp_path / "quarantine.toml"
    listed.write_text('[[test]]\nid = "a"\nreason = "b"\nuntil = 2020-01-01\n')
    output = run_pytest(tmp_path, "--quarantine", str(listed))
    assert "the quarantine of a ended on 2020-01-01: fix the test" in output
    assert "passed" not in output
