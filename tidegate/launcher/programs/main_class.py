"""A main class of the user's jar, in Scala or Java: runs unchanged in the driver's JVM, behind the gate.

The gate (`Gate.java`) asks before each start of a query, in every session of the application: the fence is checked, and
a query without a checkpoint gets one. Nothing is written before the answer. The queries that have started are looked
up in their sessions.

Spark starts this Python process from the driver's JVM. When one of the two ends, so does the other.

There is no handover: a paused query must be started again behind the program's own handle, and a JVM has no way to do
that from outside.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.launcher.programs.gate import DriverContext, load_gate
from tidegate.launcher.queries.query_start import Fenced
from tidegate.launcher.run.launch import Launch

_START_SECONDS = 2.0
"""How long after it was allowed a query may appear among those of its session."""
_EXIT_SECONDS = 20.0
"""How long the JVM may take for its shutdown hooks."""
_LOOK_SECONDS = 0.1


class MainClass:
    """The program of a job in Scala or Java."""

    hands_over = False
    waits = False

    def __init__(self, name: str, args: Sequence[str], say: Callable[[str], None]) -> None:
        self._name = name
        self._args = args
        self._say = say
        self._gate: Any = None
        self._context: DriverContext | None = None
        self._sessions: list[Any] = []
        self._known: set[str] = set()
        self._allowed_at = 0.0
        self._fenced: Fenced | None = None

    def context(self) -> Any | None:
        """Return the program's SparkContext; None while there is none."""
        return None if self._context is None or self._context.stopped else self._context

    def run(self, launch: Launch) -> None:
        """Run the main class until it and the threads that it left behind have ended."""
        SparkContext._ensure_initialized()
        gateway = SparkContext._gateway
        ensure_callback_server_started(gateway)
        self._gate = load_gate(gateway.jvm)
        self._gate.open(_Answers(partial(self._before_start, launch)))
        args = gateway.new_array(gateway.jvm.java.lang.String, len(self._args))
        for number, text in enumerate(self._args):
            args[number] = text
        try:
            self._gate.run(self._name, args)
        except Py4JJavaError as failure:
            if self._fenced is not None:
                raise self._fenced from None
            text = str(failure).partition("\n: ")[2] or str(failure)
            print(f'Exception in thread "main" {text}', file=sys.stderr, flush=True)
            launch.run.report_failure(text)
            raise SystemExit(1) from None
        except (Py4JError, OSError):
            launch.run.report_failure(f"{self._name} ended the driver's JVM, as System.exit does")
            raise SystemExit(1) from None

    def new_queries(self) -> list[Any]:
        """Return the queries that have started since the last call, in all sessions."""
        if self.context() is None:
            return []
        found = [StreamingQuery(query) for session in list(self._sessions) for query in session.streams().active()]
        runs = {query.runId: query for query in found}
        before, self._known = self._known, set(runs)
        return [query for run_id, query in runs.items() if run_id not in before]

    def prepare_to_stop(self) -> None:
        """Make `System.exit` wait, and wait for starts that were allowed just before."""
        if self._gate is not None:
            self._gate.hold()
        time.sleep(max(0.0, min(_START_SECONDS, self._allowed_at + _START_SECONDS - time.monotonic())))

    def stopped(self) -> None:
        """Let `System.exit` end the JVM."""
        if self._gate is not None:
            self._gate.release()

    def end(self, code: int) -> None:
        """End the JVM, whose shutdown hooks stop Spark, and then this process."""
        jvm, parent = SparkContext._jvm, os.getppid()
        if jvm is not None:
            threading.Thread(target=_quietly, args=(lambda: jvm.java.lang.System.exit(code),), daemon=True).start()
            until = time.monotonic() + _EXIT_SECONDS
            while os.getppid() == parent and time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
            if os.getppid() == parent:
                _quietly(lambda: jvm.java.lang.Runtime.getRuntime().halt(code))
        os._exit(code)

    def _before_start(self, launch: Launch, session: Any, statement: Any) -> str | None:
        """Return where a query keeps its checkpoint, or None if it knows that; raise if it must not start."""
        try:
            spark = session.sparkContext()
            if self._context is None or self._context.applicationId != spark.applicationId():
                self._context, self._sessions = DriverContext(SparkContext._jvm, spark), []
            if session not in self._sessions:
                self._sessions.append(session)
            place = launch.starter.allow(self._context, session, statement)
        except Fenced as fenced:
            self._fenced = fenced
            self._say(fenced.text)
            # a program that goes on without the query must end too
            threading.Thread(target=launch.leave, args=(fenced,), daemon=True).start()
            raise RuntimeError(fenced.text) from None  # py4j passes no SystemExit on
        self._allowed_at = time.monotonic()
        return place


class _Answers:
    """The launcher's answers, as an object of the JVM."""

    def __init__(self, answer: Callable[[Any, Any], str | None]) -> None:
        self._answer = answer

    def apply(self, session: Any, statement: Any) -> str | None:
        """Answer whether a query may start."""
        return self._answer(session, statement)

    class Java:
        """What the object is to the JVM."""

        implements = ("java.util.function.BiFunction",)


def _quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):  # the JVM is gone, as it should be
        call()
