"""What remains of a run as proof: its recording, and the audit of every hop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from demo.environment import LIGHT_JVM, ROOT, Environment
from demo.failed import DemoFailed
from demo.verdict import Audited
from tidegate.replay.record import record
from tidegate.stack.processes import inherited

AUDIT_SECONDS = 300.0
DECISIONS = "decisions-recompute"
"""The check that makes every decision again."""


def record_run(environment: Environment) -> Path:
    """Record all of Tidegate's topics into the run's folder; return the recording's folder."""
    folder = environment.folder / "recording"
    record(environment.settings, folder)
    return folder


def audit_run(environment: Environment) -> Audited:
    """Audit topics, event logs and Redis with `tidegate audit`; raises `DemoFailed` with the log's name if that fails.

    In its own process: Spark's JVM exits with it, and its output goes to a log instead of the terminal.
    """
    info = environment.info
    told, page, log = (
        environment.folder / "audit.json",
        environment.folder / "audit.html",
        environment.logs / "audit.log",
    )
    command = [sys.executable, "-m", "tidegate", "audit", "--json", str(told), "--html", str(page)]
    command += ["--bootstrap-servers", info.bootstrap_servers, "--topic-prefix", environment.prefix]
    command += ["--event-logs", str(environment.event_log_dir), "--redis", info.redis_url]
    env = inherited() | {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(info.java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"SPARK_SUBMIT_OPTS": LIGHT_JVM}  # a short history: most of the time Spark plans queries, each only once
    env |= {"TIDEGATE_REDIS_PASSWORD": info.redis_password, "TIDEGATE_REDIS_PREFIX": environment.redis_prefix}
    env |= {"TIDEGATE_FILES": json.dumps(environment.settings.files)}
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, env=env, cwd=environment.folder, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = child.wait(timeout=AUDIT_SECONDS)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DemoFailed(f"the audit took more than {AUDIT_SECONDS:g} s; see {log}") from None
            raise
    if code not in (0, 1):
        raise DemoFailed(f"the audit exited with code {code}; see {log}")
    return audited(json.loads(told.read_text("utf-8")), page)


def audited(told: dict[str, object], page: Path) -> Audited:
    """Return what the audit's JSON says."""
    checks = told["checks"]
    assert isinstance(checks, list)  # noqa: S101  (we have written it)
    wrong = [
        f"{check['title']}: {check['named'][0]['place']}: {check['named'][0]['found']}"
        for check in checks
        if check["status"] == "FAILED"
    ]
    unsure = [check["title"] for check in checks if check["status"] in ("warned", "not provable", "not checked")]
    decisions = next(check for check in checks if check["check"] == DECISIONS)
    passed = sum(check["status"] == "passed" for check in checks)
    return Audited(passed, tuple(wrong), tuple(unsure), decisions["passed"], decisions["not_provable"], page)
