"""What a run says about itself: the file `running-<token>.json`, which the driver writes when something is new."""

from __future__ import annotations

import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

from tidegate.launcher.control import Control, Token, utc_now

SUBMISSION_ID = "TIDEGATE_SUBMISSION_ID"
"""The environment variable that tells a driver in a pod its id."""
_DRIVER_DIR = re.compile(r"driver-\d+-\d+$")


class RunFacts:
    """The facts of one run. May be used by several threads."""

    def __init__(self, control: Control, token: Token, parallelism: int, *, hands_over: bool) -> None:
        self._control = control
        self.token = token
        """The run that this driver is."""
        self._lock = threading.Lock()
        # a pod is told its id; a standalone worker starts a driver in a folder named after its id
        told, driver = os.environ.get(SUBMISSION_ID), _DRIVER_DIR.search(str(Path.cwd()))
        self._facts: dict[str, Any] = {
            "submission_id": told or (driver[0] if driver else _process_id(os.getppid())),
            **token._asdict(),
            "parallelism": parallelism,
            **({"hands_over": True} if hands_over else {}),
            "pid": os.getpid(),
            "jvm_pid": os.getppid(),
            "host": socket.gethostname(),
            "arrived_at": utc_now(),
        }

    def get(self, name: str) -> Any:
        """Return a fact; None if it is not known."""
        return self._facts.get(name)

    def report(self, **facts: Any) -> None:
        """Add facts, and write all of them."""
        with self._lock:
            known = self._facts | facts
            self._control.write_running(self.token, known)
            self._facts = known

    def adopt(self, token: Token) -> None:
        """Go on as a newer run."""
        with self._lock:
            known = {name: fact for name, fact in self._facts.items() if name != "idle_at"}
            known |= token._asdict()
            self._control.write_running(token, known)
            self._facts, self.token = known, token


def _process_id(pid: int) -> str:
    """Return the pid and the start tick (field 22 of proc(5) stat), as the local backend names a driver."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return f"{pid}-{stat.rpartition(')')[2].split()[19]}"
