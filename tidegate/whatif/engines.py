"""The engine that decides: the one of this process, or that of another checkout or wheel in a child process.

The other engine gets the same inputs, as the bytes that are on the topics, and answers with a decision and its state.
The state goes back and forth, so the child remembers nothing, and a trial can branch where it likes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from pydantic import TypeAdapter

from tidegate.engine.decide import ENGINE_VERSION
from tidegate.engine.state import from_wire
from tidegate.events.decision import Decision, Observed
from tidegate.events.envelope import Unreadable, decode
from tidegate.events.job import JobSpec
from tidegate.events.snapshot import MetricSnapshot
from tidegate.installed import engine
from tidegate.whatif.recorded import CannotTry

CHILD = Path(__file__).with_name("engine_child.py")
ANSWER_SECONDS = 60.0
"""Longest wait for an answer of the child, its start included."""
END_SECONDS = 5.0
"""Longest wait for its end."""
_OBSERVED = TypeAdapter(Observed)


class TrialEngine(Protocol):
    """An engine, as far as a trial uses it. A state is what the engine itself calls one."""

    @property
    def name(self) -> str:
        """What to call it."""

    def read(self, state: Mapping[str, Any]) -> object:
        """Return a state from the wire."""

    def step(self, state: object, snapshot: MetricSnapshot, spec: JobSpec, seen: Observed) -> tuple[object, Decision]:
        """Decide on a snapshot; return the next state and the decision."""


class ThisEngine:
    """The installed engine."""

    name = f"engine {ENGINE_VERSION}"

    def read(self, state: Mapping[str, Any]) -> object:
        """See `TrialEngine`."""
        return from_wire(dict(state))

    def step(self, state: Any, snapshot: MetricSnapshot, spec: JobSpec, seen: Observed) -> tuple[object, Decision]:
        """See `TrialEngine`."""
        return engine().step(state, snapshot, spec, seen)


class OtherEngine:
    """The engine of another checkout or wheel. Use it as a context: the child ends with it."""

    def __init__(self, path: Path) -> None:
        """Start the child. Raises `CannotTry` if there is no engine at `path`, or it does not start."""
        place = path.resolve()
        if not (place.suffix == ".whl" and place.is_file()) and not (place / "tidegate" / "engine").is_dir():
            raise CannotTry(f"{path} is neither a wheel nor a folder with a tidegate package, such as a checkout")
        self._path = path
        self._child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", str(CHILD), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._rest = b""
        self._specs: dict[int, tuple[JobSpec, str]] = {}
        try:
            hello = self._answer()
        except BaseException:
            self.close()
            raise
        self.name = f"engine {hello['engine_version']} of {path}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child and everything it started."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(END_SECONDS)

    def read(self, state: Mapping[str, Any]) -> object:
        """See `TrialEngine`."""
        return dict(state)

    def step(self, state: Any, snapshot: MetricSnapshot, spec: JobSpec, seen: Observed) -> tuple[object, Decision]:
        """See `TrialEngine`. Raises `CannotTry` with what the child says is wrong."""
        kept = self._specs.get(id(spec))
        if kept is None:
            kept = self._specs[id(spec)] = spec, spec.model_dump_json(exclude_none=True)
        sent = {
            "state": state,
            "snapshot": snapshot.model_dump_json(exclude_none=True),
            "spec": kept[1],
            "observed": _OBSERVED.dump_json(seen, exclude_none=True).decode(),
        }
        self._send(json.dumps(sent).encode() + b"\n")
        answer = self._answer()
        try:
            return answer["state"], decode(Decision, answer["decision"].encode())
        except Unreadable as error:
            raise CannotTry(f"the engine at {self._path} makes decisions that cannot be read: {error.detail}") from None

    def _send(self, line: bytes) -> None:
        assert self._child.stdin is not None  # noqa: S101  (it was asked for)
        try:
            self._child.stdin.write(line)
            self._child.stdin.flush()
        except BrokenPipeError:
            raise CannotTry(f"the engine at {self._path} has ended") from None

    def _answer(self) -> dict[str, Any]:
        """Return the next line; raises `CannotTry` if none comes in time, or it is an error."""
        assert self._child.stdout is not None  # noqa: S101
        pipe, deadline = self._child.stdout.fileno(), time.monotonic() + ANSWER_SECONDS
        while b"\n" not in self._rest:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(pipe, 1 << 20) if ready else b""
            if not more:
                why = "has ended without an answer" if ready else f"did not answer in {ANSWER_SECONDS:g} s"
                raise CannotTry(f"the engine at {self._path} {why}")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CannotTry(f"the engine at {self._path}: {answer['error']}")
        return answer
