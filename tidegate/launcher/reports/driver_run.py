"""The run that a driver carries out, and what it says about itself.

That is the file `running-<token>.json`, which the driver writes when something is new.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import traceback
from pathlib import Path
from typing import Any

from tidegate.launcher.control.files import SUBMISSION_ID, Control, Token, utc_now
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.failure import MAX_CHARS, explanation, is_missing, secrets_of
from tidegate.launcher.spark.executors import size_limits

_DRIVER_DIR = re.compile(r"driver-\d+-\d+$")


class DriverRun:
    """One run and its facts. May be used by several threads."""

    def __init__(
        self, control: Control, token: Token, parallelism: int, log: DriverLog, *, hands_over: bool = False
    ) -> None:
        self._control = control
        self._log = log
        self.token = token
        """The run that this driver is. It changes with a handover."""
        self.parallelism = parallelism
        """Its size in task slots."""
        self.submission_id = _submission_id()
        """Its driver."""
        self.stopping = threading.Event()
        """Set when the run is being stopped: it starts nothing any more."""
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {
            "submission_id": self.submission_id,
            **token._asdict(),
            "parallelism": parallelism,
            **({"hands_over": True} if hands_over else {}),
            "pid": os.getpid(),
            "jvm_pid": os.getppid(),
            "host": socket.gethostname(),
            "arrived_at": utc_now(),
        }
        self._settings: list[tuple[str, str]] = []
        self._missing: list[str] = []
        """Sentences that explain why a jar may not be there."""

    def get(self, name: str) -> Any:
        """Return a fact; None if it is not known."""
        return self._facts.get(name)

    def report(self, **facts: Any) -> None:
        """Add facts, and write all of them."""
        with self._lock:
            known = self._facts | facts
            self._control.write_running(self.token, known)
            self._facts = known

    def report_application(self, context: Any) -> None:
        """Report the application of a SparkContext, if it is a new one: a program may start a new session."""
        if context.applicationId == self.get("application_id"):
            return
        self._settings = context.getConf().getAll()  # a failure may be reported when the JVM is gone
        self.report(
            application_id=context.applicationId,
            application=dict(self._settings).get("spark.tidegate.application"),
            started_at=utc_now(),
            queries=[],
            **size_limits(context),
        )

    def report_failure(self, failure: BaseException | str) -> None:
        """Say why the program or a query failed; a problem with that must not hide the failure itself."""
        self._log.attempt("report a failure", self._report_failure, failure)

    def _report_failure(self, failure: BaseException | str) -> None:
        text = failure if isinstance(failure, str) else "".join(traceback.format_exception_only(failure))
        why = " ".join(self._missing)[: MAX_CHARS // 2] if is_missing(text) else ""
        said = self.explain(text)
        self.report(error=f"{said[: MAX_CHARS - len(why) - 1]} {why}" if why else said)

    def explain_missing(self, sentence: str) -> None:
        """Keep a sentence that explains a later failure if that is for want of a jar, and log it."""
        self._log.say(sentence)
        self._missing.append(sentence)

    def withdraw_failure(self, error: Any) -> None:
        """Take back what was reported of a failure, unless another one has been reported since."""
        with self._lock:
            known = {name: fact for name, fact in self._facts.items() if name != "error"}
            if error is not None and self._facts.get("error") == error:
                self._control.write_running(self.token, known)
                self._facts = known

    def explain(self, text: str) -> str:
        """Return the root cause of a failure in one line, without the secrets of the application."""
        return explanation(text, secrets_of(os.environ, self._settings))

    def adopt(self, token: Token) -> None:
        """Go on as a newer run."""
        with self._lock:
            known = {name: fact for name, fact in self._facts.items() if name not in {"idle_at", "waits"}}
            known |= token._asdict()
            self._control.write_running(token, known)
            self._facts, self.token = known, token


def _submission_id() -> str:
    """Return the id of this driver: a pod is told it, and a standalone worker names the driver's folder after it."""
    told, folder = os.environ.get(SUBMISSION_ID), _DRIVER_DIR.search(str(Path.cwd()))
    return told or (folder[0] if folder else _process_id(os.getppid()))


def _process_id(pid: int) -> str:
    """Return the pid and the start tick (field 22 of proc(5) stat), as the local backend names a driver."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return f"{pid}-{stat.rpartition(')')[2].split()[19]}"
