"""What remains of a run as proof: its recording, and every decision recomputed on Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from demo.environment import ROOT, DemoFailed, Environment
from demo.verdict import Recomputed
from tidegate.replay.record import record

RECOMPUTE_SECONDS = 180.0
# In its own process: Spark's JVM exits with it, and its output goes to a log instead of the terminal.
PROGRAM = """
import json, sys
from tidegate.replay.recompute import recompute
from tidegate.replay.report import render
asked = json.loads(sys.argv[1])
result = recompute(**asked)
print(render(result.jobs, result.seconds, result.damaged), file=sys.stderr)
print(json.dumps({"decisions": result.decisions, "identical": result.identical, "differing": result.differing,
                  "detail": str(result.first or result.not_recomputable or "")}))
"""


def record_run(environment: Environment) -> Path:
    """Record all of Tidegate's topics into the run's folder; return the recording's folder."""
    folder = environment.folder / "recording"
    record(environment.settings, folder)
    return folder


def recompute_run(environment: Environment) -> Recomputed:
    """Recompute every decision on the broker's topics; raises `DemoFailed` with the log's name if that fails."""
    asked = {
        "bootstrap_servers": environment.info.bootstrap_servers,
        "topic_prefix": environment.prefix,
        "jars": [str(jar) for jar in environment.info.connector_jars],
    }
    log = environment.logs / "recompute.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    env |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(environment.info.java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command, env=env, cwd=environment.folder, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            out, _ = child.communicate(timeout=RECOMPUTE_SECONDS)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DemoFailed(f"recomputing took more than {RECOMPUTE_SECONDS:g} s; see {log}") from None
            raise
    if child.returncode != 0:
        raise DemoFailed(f"recomputing exited with code {child.returncode}; see {log}")
    found = json.loads(out.splitlines()[-1])
    other = found["decisions"] - found["identical"] - found["differing"]
    return Recomputed(found["identical"], found["differing"], other, found["detail"])
