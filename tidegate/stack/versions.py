"""The versions of Spark that Tidegate works with, and what each of them lacks. Documentation and `doctor` say the same.

`docs/reference/spark-versions.md` is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkVersion:
    """One minor version of Spark."""

    minor: str
    tried: str
    """The release that the tests use."""
    scala: str
    java: str
    python: str
    tests: str
    """What the tests run on it."""
    lacks: tuple[str, ...] = ()
    """What does not work as on the newest version, and what follows."""


_NO_EXIT_CODE = (
    "the event log has no exit code: a driver that fails outside its queries is measured as `stopped`, not `failed`"
)
_NO_MAIN_CLASS = (
    "jobs in Scala or Java (`application.main_class`) are refused: Spark 3.5 has no place where a start can be fenced "
    "before it touches the checkpoint"
)
_NO_S3 = (
    "control files cannot be on S3, because its Hadoop does not write conditionally: set `application.control_dir` to "
    "a place elsewhere"
)
_NO_STATE = (
    "before a handover, the second driver loads none of the state, which only Spark 4.0 and later can read: with much "
    "state, the gap is longer"
)
_NO_AUDIT = "`tidegate audit` needs Spark 4.0 or later: its checks define functions in SQL"
_STANDALONE = "on a standalone cluster: start, resize in place, hand over, restart, stop"
_MOST = f"{_STANDALONE}; jobs in Scala; `replay`, `archive`, `audit`, `backtest`"
SPARK_VERSIONS = (
    SparkVersion(
        minor="3.5",
        tried="3.5.7",
        scala="2.12",
        java="8, 11, 17",
        python="3.10 and 3.11",
        tests=f"event logs; {_STANDALONE}; `replay`, `archive`, `backtest`",
        lacks=(_NO_MAIN_CLASS, _NO_EXIT_CODE, _NO_STATE, _NO_S3, _NO_AUDIT),
    ),
    SparkVersion("4.0", "4.0.0", "2.13", "17, 21", "3.10 to 3.13", _MOST, (_NO_S3,)),
    SparkVersion("4.1", "4.1.1", "2.13", "17, 21", "3.10 to 3.14", _MOST),
    SparkVersion("4.2", "4.2.0", "2.13", "17, 21", "3.10 to 3.14", "everything"),
)


def known(version: str) -> SparkVersion | None:
    """Return what is known of a release such as `3.5.7`; None if it is of no version in the table."""
    minor = ".".join(version.split(".")[:2])
    return next((one for one in SPARK_VERSIONS if one.minor == minor), None)
