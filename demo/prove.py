"""The two proofs that outlive a run: its recording, and the recomputation of every decision on Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from demo.house import ROOT, DemoFailed, House
from demo.verdict import Recomputed
from tidegate.replay.record import record

RECOMPUTE_SECONDS = 180.0
# A process of its own: Spark's JVM ends with it, and its chatter goes to a log instead of over the live view.
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


def record_run(house: House) -> Path:
    """Record all of Tidegate's topics into the run's folder; return the recording's folder."""
    folder = house.folder / "recording"
    record(house.settings, folder)
    return folder


def recompute_run(house: House) -> Recomputed:
    """Recompute every decision on the broker's topics; raises `DemoFailed` naming the log when it could not be done."""
    asked = {
        "bootstrap_servers": house.info.bootstrap_servers,
        "topic_prefix": house.prefix,
        "jars": [str(jar) for jar in house.info.connector_jars],
    }
    log = house.logs / "recompute.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    env |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(house.info.java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    with log.open("wb") as errors:
        child = subprocess.Popen(
            command, env=env, cwd=house.folder, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        try:
            out, _ = child.communicate(timeout=RECOMPUTE_SECONDS)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DemoFailed(f"recomputing took more than {RECOMPUTE_SECONDS:g} s; its log: {log}") from None
            raise
    if child.returncode != 0:
        raise DemoFailed(f"recomputing ended with {child.returncode}; its log: {log}")
    found = json.loads(out.splitlines()[-1])
    other = found["decisions"] - found["identical"] - found["differing"]
    return Recomputed(found["identical"], found["differing"], other, found["detail"])
