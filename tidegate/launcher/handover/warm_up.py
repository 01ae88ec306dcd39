"""Gets a second driver ready: waits for its executors, rehearses its queries, and says in `ready-…` how warm it is."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.launcher.control.files import Control
from tidegate.launcher.handover.rehearsal import rehearse
from tidegate.launcher.handover.state_loads import load_state
from tidegate.launcher.handover.turn import Turn
from tidegate.launcher.queries.checkpoints import SETTING, beside_checkpoints
from tidegate.launcher.queries.query_start import PendingQuery, QueryStart
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.spark.hadoop import HadoopPath, names, remove

EXECUTORS_SECONDS = 60.0
"""How long the driver waits for its executors before it says how many have come."""
QUIET_SECONDS = 3.0
"""How long after a query was taken another one may come, if the script does not wait for one."""
SETTLE_SHARE, SETTLE_SECONDS = 0.1, 10.0
"""How long the JVMs may go on compiling after the rehearsals: a share of the warm-up until then, within a limit."""
_LOOK_SECONDS = 0.1
_WARM = re.compile(r"warm-(\d+)-(\d+)")


class TakenQueries:
    """The queries that a script has started so far, in its order. None of them runs yet."""

    def __init__(self) -> None:
        self.queries: list[PendingQuery] = []
        self.script_waits = threading.Event()
        """Set when the script waits for one of them."""
        self._newest_at = 0.0

    def add(self, query: PendingQuery) -> None:
        """Add the script's next query."""
        self.queries.append(query)
        self._newest_at = time.monotonic()

    def are_all(self) -> bool:
        """Whether no other one is to be expected: the script waits, or none has come for a while."""
        return self.script_waits.is_set() or time.monotonic() > self._newest_at + QUIET_SECONDS


class WarmUp:
    """The warm-up of a second driver, for as long as its turn is not over."""

    def __init__(self, control: Control, run: DriverRun, turn: Turn, log: DriverLog) -> None:
        self._control = control
        self._run = run
        self._turn = turn
        self._log = log

    def get_ready(self, taken: TakenQueries) -> None:
        """Warm up for all queries, and say how warm the driver is."""
        started = time.monotonic()
        first = taken.queries[0].how
        context = first.writer._spark.sparkContext
        enough = self._wait_for_executors(context)
        facts: dict[str, Any] = {
            "batches": 0,
            "state_partitions": 0,
            "executors_seconds": round(time.monotonic() - started, 3),
        }
        if enough:  # with fewer slots it will not be let go
            place = self._place(first)
            self._log.attempt("remove what killed drivers have left", self._remove_left, place)
            self._rehearse_all(taken, place / f"warm-{self._run.token}", facts)
            self._sleep(min(SETTLE_SECONDS, (time.monotonic() - started) * SETTLE_SHARE))
        # asking for the slots fails if the JVM has died
        facts |= {"slots": self._slots(context), "queries": len(taken.queries)}
        facts |= {"submission_id": self._run.submission_id, "seconds": round(time.monotonic() - started, 3)}
        self._control.write_ready(self._run.token, facts)
        self._log.say(f"run {self._run.token} is warm and waits for its turn: {facts}")

    def _rehearse_all(self, taken: TakenQueries, folder: Path | HadoopPath, facts: dict[str, Any]) -> None:
        """Rehearse each query as it comes, until all are there."""
        done = 0
        while not self._turn.over:
            are_all = taken.are_all()  # first: the script may start another query and wait for it meanwhile
            if done < len(taken.queries):
                self._rehearse(taken.queries[done].how, folder, facts)
                done += 1
            elif are_all:
                return
            else:
                time.sleep(_LOOK_SECONDS)

    def _rehearse(self, how: QueryStart, folder: Path | HadoopPath, facts: dict[str, Any]) -> None:
        try:
            facts["batches"] += rehearse(how, folder, lambda: not self._turn.over)
        except Exception as error:  # noqa: BLE001 - a driver that is not warm can take over all the same
            facts["error"] = f"{type(error).__name__}: {error}"[:500]
        try:
            facts["state_partitions"] += load_state(how, self._run.parallelism)
        except Exception as error:  # noqa: BLE001 - some state cannot be read by itself; its load stays slow
            facts["state_error"] = f"{type(error).__name__}: {error}"[:500]

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._turn.over:
            time.sleep(_LOOK_SECONDS)

    def _place(self, how: QueryStart) -> Path | HadoopPath:
        """Return the folder for the checkpoints of all runs' rehearsals: all executors must see it."""
        return self._control.folder or beside_checkpoints(str(how.setting(SETTING)))

    def _remove_left(self, place: Path | HadoopPath) -> None:
        """Remove the checkpoints of older runs, whose drivers were killed while they warmed up."""
        with suppress(FileNotFoundError):
            for left in filter(None, map(_WARM.fullmatch, names(place))):
                if (int(left[1]), int(left[2])) < self._run.token:
                    remove(place / left[0])

    def _wait_for_executors(self, context: Any) -> bool:
        """Wait for the executors of this run's size; return whether they have come."""
        deadline = time.monotonic() + EXECUTORS_SECONDS
        while self._slots(context) < self._run.parallelism:
            if time.monotonic() >= deadline or self._turn.over:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def _slots(self, context: Any) -> int:
        executors = int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one of them
        if context.master.startswith("local"):
            return self._run.parallelism
        return executors * int(context.getConf().get("spark.executor.cores", "1"))
