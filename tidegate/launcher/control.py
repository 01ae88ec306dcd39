"""The control files: how actuator and driver talk to each other without a connection between them.

They are in a folder that both reach, the control directory, or in a ConfigMap of the job (`store.py`). The folder may
be in HDFS.

    <control_dir>/<job_id>/fence                         the newest run allowed on the checkpoint    (actuator)
    <control_dir>/<job_id>/stop                          every run older than this one must stop     (actuator)
    <control_dir>/<job_id>/size                          how many task slots a running driver gets   (actuator)
    <control_dir>/<job_id>/sized-<epoch>-<run>.json      how far that driver has come with it        (driver)
    <control_dir>/<job_id>/running-<epoch>-<run>.json    who runs, written when the driver arrives   (driver)
    <control_dir>/<job_id>/progress-<epoch>-<run>.json   finished tasks, and those of running batches  (driver)
    <control_dir>/<job_id>/stopped-<epoch>-<run>.json    how its queries ended, for people to read   (driver)

and, when one driver hands over to another:

    <control_dir>/<job_id>/ready-<epoch>-<run>.json      a second driver is warm and waits           (driver)
    <control_dir>/<job_id>/hold                          which driver must pause its queries         (actuator)
    <control_dir>/<job_id>/paused-<epoch>-<run>.json     how it has obeyed; the token is the order's (driver)
    <control_dir>/<job_id>/go                            which driver may start its queries          (actuator)
    <control_dir>/<job_id>/turn-<epoch>-<run>.json       who runs after an order to pause            (driver)

The name of a run is its *token* (epoch, run): the epoch of the command that started it, and a number that counts the
starts of that command. A rollback is another start, and so is a start after a crash that left the first one unknown.
Tokens only grow, so a marker left over from an earlier restart can never stop or fence a later run.

An order for another size has a token of the same sequence, and it names the run that it is meant for. It is a *claim*
on the job like the fence: the newest claim tells which actuator may act. But only the fence forbids runs, so an order
never keeps the running driver from starting its queries.

`hold` and `go` are orders: each has a token of its own, for which the fence was taken, and names the driver it is for.
The driver that goes on does so under the order's token, and so becomes the newest run.

Files are JSON, and a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.launcher.file_store import SharedPlace
from tidegate.launcher.kubernetes import Api
from tidegate.launcher.store import FolderStore, Store, store_at

REHEARSAL = "tidegate-rehearsal"
"""Names of the queries with which a driver warms up start with this; they are not the job's."""
SUBMISSION_ID = "TIDEGATE_SUBMISSION_ID"
"""The environment variable that tells a driver in a pod its id."""
STOP_EXTENSION = 0.5
"""By this share of its deadline, a stop may wait longer for a batch that is nearly done."""
_RUNNING = re.compile(r"running-(\d+)-(\d+)\.json")


class Token(NamedTuple):
    """A run of a job. Tokens of one job are ordered: the greater one is the newer run.

    The control files have its fields under their names here.
    """

    epoch: int
    run: int = 1

    def __str__(self) -> str:
        return f"{self.epoch}-{self.run}"


class HandoverOrder(NamedTuple):
    """What one driver must do in a handover."""

    token: Token
    submission_id: str
    """The driver. Two may be the same run, if two actuators submitted it."""
    deadline_seconds: float = 0.0


class SizeOrder(NamedTuple):
    """An order to the driver of one run to have `parallelism` task slots."""

    token: Token
    owner: str
    for_run: Token
    parallelism: int


class ControlError(ValueError):
    """A control file is not as it should be; the message names the file and what it holds."""


class Control:
    """The control files of one job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.place = store.place
        """Where the files are, for messages."""
        self.folder = store.path if isinstance(store, FolderStore) else None
        """The folder, if they are in one on this machine."""

    @classmethod
    def at(
        cls,
        place: str | Path,
        job_id: str,
        *,
        api: Api | None = None,
        patience_seconds: float = 0.0,
        open_folder: Callable[[str], SharedPlace] | None = None,
    ) -> Control:
        """Return the control files of a job at a place: the path or URI of a folder, or `configmap:NAMESPACE`.

        See `store_at` for the other arguments.
        """
        try:
            return cls(store_at(place, job_id, api=api, patience_seconds=patience_seconds, open_folder=open_folder))
        except ValueError as error:
            raise ControlError(str(error)) from None

    def fence(self, *, newest: bool = False) -> tuple[Token, str] | None:
        """Return the newest run allowed on the checkpoint and who allowed it, or None if there is no fence yet.

        Whoever is about to write asks for the `newest`: the store may have changed some tenths of a second ago.
        """
        data = self._read("fence", newest=newest)
        return None if data is None else (self._token_of("fence", data), str(data.get("owner", "")))

    def raise_fence(self, token: Token, owner: str) -> bool:
        """Allow `token` and forbid every older run; return False if there is a newer claim or another owner's."""
        seen = self._claims_seen()
        newest = self.newest_claim()
        if newest is None or newest[0] < token:
            return self._store.swap(seen, "fence", json.dumps({**token._asdict(), "owner": owner}))
        return self.fence() == (token, owner) == newest

    def size_order(self) -> SizeOrder | None:
        """Return the newest order for another size, or None if there was none yet."""
        data = self._read("size")
        if data is None:
            return None
        place = self._place_of("size")
        for_run = Token(int(_number(place, data, "for_epoch")), int(_number(place, data, "for_run")))
        slots = int(_number(place, data, "parallelism"))
        return SizeOrder(self._token_of("size", data), str(data.get("owner", "")), for_run, slots)

    def order_size(self, order: SizeOrder, command_id: str) -> bool:
        """Order another size; return False if there is a newer claim on the job, or the same of another owner."""
        seen = self._claims_seen()
        newest = self.newest_claim()
        if newest is None or newest[0] < order.token:
            data = {
                **order.token._asdict(),
                "owner": order.owner,
                "for_epoch": order.for_run.epoch,
                "for_run": order.for_run.run,
                "parallelism": order.parallelism,
                "command_id": command_id,
            }
            return self._store.swap(seen, "size", json.dumps(data))
        return self.size_order() == order and newest == (order.token, order.owner)

    def newest_claim(self) -> tuple[Token, str] | None:
        """Return the token and owner of the fence or of the order for a size, whichever is newer."""
        order = self.size_order()
        claims = [claim for claim in (self.fence(), order and (order.token, order.owner)) if claim is not None]
        return max(claims, default=None)

    def next_token(self, epoch: int) -> Token:
        """Return a token of an epoch that is newer than all its runs and claims; nothing reserves it yet."""
        claim = self.newest_claim()
        known = [*self.runs(), *([claim[0]] if claim is not None else [])]
        return Token(epoch, max((token.run for token in known if token.epoch == epoch), default=0) + 1)

    def stop_marker(self) -> tuple[Token, float] | None:
        """Return the oldest run that may stay and the seconds the others have to reach a batch boundary, or None."""
        data = self._read("stop")
        if data is None:
            return None
        return self._token_of("stop", data), _number(self._place_of("stop"), data, "deadline_seconds")

    def seconds_to_stop(self, token: Token) -> float | None:
        """Return how many seconds a run has to stop, or None if no marker asks it to."""
        marker = self.stop_marker()
        return marker[1] if marker is not None and marker[0] > token else None

    def request_stop(self, token: Token, command_id: str, deadline_seconds: float) -> None:
        """Ask every run older than `token` to stop at a batch boundary within the deadline."""
        marker = self.stop_marker()
        if marker is None or marker[0] < token:
            data = {**token._asdict(), "command_id": command_id, "deadline_seconds": deadline_seconds}
            self._write("stop", data)

    def hold(self) -> HandoverOrder | None:
        """Return the newest order to pause, or None."""
        return self._order("hold")

    def request_hold(self, order: HandoverOrder) -> None:
        """Ask a driver to pause its queries at a batch boundary within the order's deadline."""
        self._write_order("hold", order)

    def go(self) -> HandoverOrder | None:
        """Return the newest permission to start or resume queries, or None."""
        return self._order("go")

    def let_go(self, order: HandoverOrder) -> None:
        """Let a driver start or resume its queries, under the order's token."""
        self._write_order("go", order)

    def ready(self, token: Token) -> dict[str, Any] | None:
        """Return how warm a second driver is, or None while it is not ready."""
        return self._read(f"ready-{token}.json")

    def write_ready(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how warm this driver is."""
        self._write(f"ready-{token}.json", facts)

    def paused(self, order: Token) -> dict[str, Any] | None:
        """Return how a driver has answered an order to pause, or None while it has not."""
        return self._read(f"paused-{order}.json")

    def write_paused(self, order: Token, facts: dict[str, Any]) -> None:
        """Write how this driver has obeyed an order to pause."""
        self._write(f"paused-{order}.json", facts)

    def take_turn(self, order: Token, submission_id: str) -> bool:
        """Take the turn that an order to pause gives away; return False if another driver has taken it.

        Only one of them can create the file.
        """
        name = f"turn-{order}.json"
        self._store.swap({name: None}, name, json.dumps({"submission_id": submission_id}))
        return (self._read(name) or {}).get("submission_id") == submission_id

    def write_running(self, token: Token, facts: dict[str, Any]) -> None:
        """Write who runs."""
        self._write(f"running-{token}.json", facts)

    def write_progress(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how far the run has come."""
        self._write(f"progress-{token}.json", facts)

    def write_stopped(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how the queries of the run ended."""
        self._write(f"stopped-{token}.json", facts)

    def write_sized(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how far the driver of a run has come with the newest order for a size."""
        self._write(f"sized-{token}.json", facts)

    def sized(self, token: Token) -> dict[str, Any] | None:
        """Return how far the driver of a run has come with an order for a size, or None if it has had none."""
        return self._read(f"sized-{token}.json")

    def runs(self) -> list[Token]:
        """Return every run whose driver has arrived, oldest first."""
        found = [_RUNNING.fullmatch(name) for name in self._store.names()]
        return sorted(Token(int(match[1]), int(match[2])) for match in found if match)

    def tidy(self, keep: int = 20) -> None:
        """Remove the files of all but the newest `keep` runs; all but the newest run must have ended.

        A ConfigMap holds 1 MiB; a run leaves less than 10 kB.
        """
        kinds = ("running", "sized", "progress", "stopped", "ready", "paused", "turn")
        self._store.remove([f"{kind}-{token}.json" for token in self.runs()[:-keep] for kind in kinds])

    def running(self, token: Token) -> dict[str, Any] | None:
        """Return what a run wrote about itself, or None if its driver has not arrived."""
        return self._read(f"running-{token}.json")

    def progress(self, token: Token) -> dict[str, Any] | None:
        """Return how far a run has come, or None if it has not said so yet."""
        return self._read(f"progress-{token}.json")

    def _order(self, name: str) -> HandoverOrder | None:
        data = self._read(name)
        if data is None:
            return None
        seconds = _number(self._place_of(name), data, "deadline_seconds")
        return HandoverOrder(self._token_of(name, data), str(data.get("submission_id")), seconds)

    def _write_order(self, name: str, order: HandoverOrder) -> None:
        """Write an order unless a newer one is there."""
        known = self._order(name)
        if known is None or known.token < order.token:
            data = {"submission_id": order.submission_id, "deadline_seconds": order.deadline_seconds}
            self._write(name, {**order.token._asdict(), **data})

    def _token_of(self, name: str, data: dict[str, Any]) -> Token:
        place = self._place_of(name)
        return Token(int(_number(place, data, "epoch")), int(_number(place, data, "run")))

    def _claims_seen(self) -> dict[str, str | None]:
        """Return the texts of all claims, for a write that must not undo a newer one."""
        return {name: self._store.read(name, newest=first) for name, first in (("fence", True), ("size", False))}

    def _place_of(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _read(self, name: str, *, newest: bool = False) -> dict[str, Any] | None:
        try:
            text = self._store.read(name, newest=newest)
        except UnicodeDecodeError as error:
            raise ControlError(f"{self._place_of(name)}: not text: {error}") from None
        if text is None:
            return None
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ControlError(f"{self._place_of(name)}: not JSON ({error}): {text[:80]!r}") from None
        if not isinstance(data, dict):
            raise ControlError(f"{self._place_of(name)}: expected a JSON object, found {text[:80]!r}")
        return data

    def _write(self, name: str, data: dict[str, Any]) -> None:
        self._store.write(name, json.dumps(data))


def utc_now() -> str:
    """Return the time of this machine's clock, as the files have it."""
    return datetime.now(timezone.utc).isoformat()  # noqa: UP017 - drivers may run Python 3.10, Spark's oldest


def _number(place: str, data: dict[str, Any], field: str) -> float:
    value = data.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ControlError(f"{place}: {field} must be a number of at least 0, found {value!r}")
    return value
