"""How this machine runs `spark-submit`."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from services.actuator.backends import BackendRefused
from tidegate.runtime.settings import NOT_SETTINGS, PREFIX


def spark_submit() -> str:
    """Return the path of `spark-submit`: that of `$SPARK_HOME`, or of the installed pyspark.

    Raises `BackendRefused` if neither is found.
    """
    return f"{os.environ.get('SPARK_HOME') or home_of_pyspark()}/bin/spark-submit"


@cache
def home_of_pyspark() -> str:
    """Return the folder of the installed pyspark, which takes a process; raises `BackendRefused` if there is none."""
    command = [sys.executable, "-m", "pyspark.find_spark_home"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendRefused(f"cannot find Spark: {error}") from error
    return found.stdout.strip()


def environment() -> dict[str, str]:
    """Return the environment without the actuator's settings, which hold passwords."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX) or name in NOT_SETTINGS}
