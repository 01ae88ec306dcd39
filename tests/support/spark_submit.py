"""A stand-in for `spark-submit`."""

from __future__ import annotations

from pathlib import Path


def stand_in(spark_home: Path, program: str) -> Path:
    """Make `program`, a script with its `#!` line, the `spark-submit` of a Spark in `spark_home`; return its file."""
    submit = spark_home / "bin" / "spark-submit"
    submit.parent.mkdir(parents=True)
    submit.write_text(program)
    submit.chmod(0o755)
    return submit
