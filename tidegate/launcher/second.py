"""A second driver before its turn: takes the script's queries, rehearses them, and starts all of them when let go.

If the script waited at its first `start`, its other queries would be cold at the handover, and start one after the
other. So it is let past: it gets a handle of a query that is started later, and goes on to its next one. Whoever uses
such a handle waits until the query has started; to the script, that is as if `start` had taken so long. The queries are
all there once the script waits for one of them, or for a while no other has come.

The script is not let past the start of a query without a commit, nor of one with a memory sink: it may go on to use a
table that is not there before the query has started.

When the driver is let go, the queries start in the script's order, each with the settings that it found. If one cannot
be started, neither are those after it; the script learns that from its handles, and the driver ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.launcher.checkpoints import SETTING, private_field
from tidegate.launcher.control import Control, ControlError
from tidegate.launcher.hadoop import HadoopPath
from tidegate.launcher.handover import DriverRun, Turn
from tidegate.launcher.starts import Fenced, PendingQuery, QueryStart
from tidegate.launcher.warm import beside_checkpoints, has_committed, load_state, warm_up

GO_SECONDS = 0.02
"""Between two looks at whether it is this driver's turn: they add to the time without commits."""
WAIT_SECONDS = 900.0
"""How long the driver waits for its turn before it ends: nobody may be left to give it."""
EXECUTORS_SECONDS = 60.0
"""How long the driver waits for its executors before it says how many have come."""
QUIET_SECONDS = 3.0
"""How long after a query was taken another one may come, if the script does not wait for one."""
SETTLE_SHARE, SETTLE_SECONDS = 0.1, 10.0
"""How long the JVMs may go on compiling after the rehearsals: a share of the warm-up until then, within a limit."""
_TRY_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class SecondDriver:
    """What a driver does until its turn has come; nothing, if it does not have to wait for that."""

    def __init__(
        self,
        control: Control,
        run: DriverRun,
        turn: Turn,
        start: Callable[[QueryStart, PendingQuery], Any],
        say: Callable[[str], None],
    ) -> None:
        self._control = control
        self._run = run
        self._turn = turn
        self._start = start
        self._say = say
        self._taken: list[PendingQuery] = []
        self._newest_at = 0.0
        self._script_waits = threading.Event()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        if not turn.waits:
            self._over.set()

    def take(self, how: QueryStart) -> PendingQuery | None:
        """Take a query, and return the script's handle; None if the script may start the query itself."""
        own = self._past(how) if self._turn.waits else None
        with self._turn.lock:
            if not self._turn.waits:
                return None
            query = PendingQuery(own or how, self.wait)
            self._taken.append(query)
            self._newest_at = time.monotonic()
            if len(self._taken) == 1:
                threading.Thread(target=self._work, name="tidegate-second", daemon=True).start()
        if own is None:
            self.wait()
        return query

    def wait(self) -> None:
        """Wait until the queries have started; raise why they have not."""
        self._script_waits.set()
        while not self._over.wait(_LOOK_SECONDS):
            if self._turn.over:
                raise self._not_its_turn()
        if self._failure is not None:
            raise self._failure

    def wait_for_taken(self) -> None:
        """Wait until the queries have started, if there are any yet."""
        if self._taken:
            self.wait()

    def _past(self, how: QueryStart) -> QueryStart | None:
        """Return a start that the script cannot change if it may go on before the query has started."""
        try:
            sink = how.asked.get("format") or private_field(how.writer, "source")
            return how.on_its_own() if sink != "memory" and has_committed(how) else None
        except Exception as error:  # noqa: BLE001 - on a Spark of another kind, the script waits
            self._say(f"the script waits at the start of a query: {type(error).__name__}: {error}")
            return None

    def _work(self) -> None:
        try:
            self._get_ready()
            self._wait_for_go()
            with self._turn.lock:  # an order that comes now waits for all queries and misses none
                self._turn.waits = False
                for query in self._taken:
                    self._start(query.how, query)
        except BaseException as error:  # noqa: BLE001 - the script gets it
            self._failure = error
            self._say(error.text if isinstance(error, Fenced) else f"a query could not be started: {error}")
        self._over.set()
        if self._failure is not None:
            self._run.leave(self._failure)

    def _get_ready(self) -> None:
        started = time.monotonic()
        context = self._taken[0].how.writer._spark.sparkContext
        enough = self._wait_for_executors(context)
        facts: dict[str, Any] = {
            "batches": 0,
            "state_partitions": 0,
            "executors_seconds": round(time.monotonic() - started, 3),
        }
        if enough:  # with fewer slots it will not be let go
            self._rehearse(facts)
            self._settle(min(SETTLE_SECONDS, (time.monotonic() - started) * SETTLE_SHARE))
        facts |= {"slots": self._slots(context), "queries": len(self._taken)}  # asking fails if the JVM has died
        facts |= {"submission_id": self._run.submission_id, "seconds": round(time.monotonic() - started, 3)}
        self._control.write_ready(self._run.token, facts)
        self._say(f"run {self._run.token} is warm and waits for its turn: {facts}")

    def _rehearse(self, facts: dict[str, Any]) -> None:
        """Rehearse each query as it comes, until all are there."""
        folder = self._folder()
        done = 0
        while not self._turn.over:
            # first: the script may start another query and wait for it while this thread looks
            last = self._script_waits.is_set() or time.monotonic() > self._newest_at + QUIET_SECONDS
            if done < len(self._taken):
                try:
                    facts["batches"] += warm_up(self._taken[done].how, folder, lambda: not self._turn.over)
                except Exception as error:  # noqa: BLE001 - a driver that is not warm can take over all the same
                    facts["error"] = f"{type(error).__name__}: {error}"[:500]
                try:
                    facts["state_partitions"] += load_state(self._taken[done].how, self._run.parallelism)
                except Exception as error:  # noqa: BLE001 - some state cannot be read by itself; its load stays slow
                    facts["state_error"] = f"{type(error).__name__}: {error}"[:500]
                done += 1
            elif last:
                return
            else:
                time.sleep(_LOOK_SECONDS)

    def _settle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._turn.over:
            time.sleep(_LOOK_SECONDS)

    def _folder(self) -> Path | HadoopPath:
        """Return where rehearsals keep their checkpoints: all executors must see it."""
        name = f"warm-{self._run.token}"
        if self._control.folder is not None:
            return self._control.folder / name
        return beside_checkpoints(str(self._taken[0].how.writer._spark.conf.get(SETTING))) / name

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

    def _wait_for_go(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and not self._turn.over:
            try:
                if self._turn.may_go():
                    return
            except (ControlError, OSError) as error:  # the next look may succeed
                self._say(f"cannot see whose turn it is: {error}")
                time.sleep(_TRY_SECONDS)
            time.sleep(GO_SECONDS)
        raise self._not_its_turn()

    def _not_its_turn(self) -> Fenced:
        return Fenced(f"run {self._run.token} must not start a query: its turn has not come")
