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
on the job like the fence: the newest claim tells which actuator may act (`claims.py`). But only the
fence forbids runs, so an order never keeps the running driver from starting its queries.

`hold` and `go` are orders: each has a token of its own, for which the fence was taken, and names the driver it is for.
The driver that goes on does so under the order's token, and so becomes the newest run.

Files are JSON, and a reader sees a whole file or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.launcher.control.json_files import ControlError, JsonFile, JsonFiles
from tidegate.launcher.control.remote_folder import SharedPlace
from tidegate.launcher.control.store import FolderStore, Store, store_at
from tidegate.launcher.kubernetes.api import Api

REHEARSAL = "tidegate-rehearsal"
"""Names of the queries with which a driver warms up start with this; they are not the job's."""
SUBMISSION_ID = "TIDEGATE_SUBMISSION_ID"
"""The environment variable that tells a driver in a pod its id."""
STOP_EXTENSION = 0.5
"""By this share of its deadline, a stop may wait longer for a batch that is nearly done."""
_OF_RUN = re.compile(r"[a-z]+-(\d+)-(\d+)\.json")
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


class Control:
    """The control files of one job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.files = JsonFiles(store)
        """The files as JSON objects."""
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
        file = self.files.read("fence", newest=newest)
        return None if file is None else (_token(file), file.text("owner"))

    def size_order(self) -> SizeOrder | None:
        """Return the newest order for another size, or None if there was none yet."""
        file = self.files.read("size")
        if file is None:
            return None
        return SizeOrder(_token(file), file.text("owner"), _token(file, "for_"), int(file.number("parallelism")))

    def stop_marker(self) -> tuple[Token, float] | None:
        """Return the oldest run that may stay and the seconds the others have to reach a batch boundary, or None."""
        file = self.files.read("stop")
        return None if file is None else (_token(file), file.number("deadline_seconds"))

    def seconds_to_stop(self, token: Token) -> float | None:
        """Return how many seconds a run has to stop, or None if no marker asks it to."""
        marker = self.stop_marker()
        return marker[1] if marker is not None and marker[0] > token else None

    def request_stop(self, token: Token, command_id: str, deadline_seconds: float) -> None:
        """Ask every run older than `token` to stop at a batch boundary within the deadline."""
        marker = self.stop_marker()
        if marker is None or marker[0] < token:
            data = {**token._asdict(), "command_id": command_id, "deadline_seconds": deadline_seconds}
            self.files.write("stop", data)

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
        return self._facts(f"ready-{token}.json")

    def write_ready(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how warm this driver is."""
        self.files.write(f"ready-{token}.json", facts)

    def paused(self, order: Token) -> dict[str, Any] | None:
        """Return how a driver has answered an order to pause, or None while it has not."""
        return self._facts(f"paused-{order}.json")

    def write_paused(self, order: Token, facts: dict[str, Any]) -> None:
        """Write how this driver has obeyed an order to pause."""
        self.files.write(f"paused-{order}.json", facts)

    def take_turn(self, order: Token, submission_id: str) -> bool:
        """Take the turn that an order to pause gives away; return False if another driver has taken it.

        Only one of them can create the file.
        """
        name = f"turn-{order}.json"
        self.files.swap({name: None}, name, {"submission_id": submission_id})
        return (self._facts(name) or {}).get("submission_id") == submission_id

    def write_running(self, token: Token, facts: dict[str, Any]) -> None:
        """Write who runs."""
        self.files.write(f"running-{token}.json", facts)

    def write_progress(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how far the run has come."""
        self.files.write(f"progress-{token}.json", facts)

    def write_stopped(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how the queries of the run ended."""
        self.files.write(f"stopped-{token}.json", facts)

    def write_sized(self, token: Token, facts: dict[str, Any]) -> None:
        """Write how far the driver of a run has come with the newest order for a size."""
        self.files.write(f"sized-{token}.json", facts)

    def sized(self, token: Token) -> dict[str, Any] | None:
        """Return how far the driver of a run has come with an order for a size, or None if it has had none."""
        return self._facts(f"sized-{token}.json")

    def runs(self) -> list[Token]:
        """Return every run whose driver has arrived, oldest first."""
        return sorted(token for _, token in self._named(_RUNNING))

    def tidy(self, keep: int = 20, *, alive: Collection[Token] = ()) -> None:
        """Remove the files of all but the newest `keep` runs and those that are `alive`; the newest may be, too.

        A ConfigMap holds 1 MiB; a run leaves less than 10 kB.
        """
        oldest = next(iter(self.runs()[-keep:]), Token(0))
        # a token may also be that of an order to pause, under which nobody ran
        self._store.remove([name for name, token in self._named(_OF_RUN) if token < oldest and token not in alive])

    def _named(self, pattern: re.Pattern[str]) -> list[tuple[str, Token]]:
        """Return the files whose names fit, with the tokens in them."""
        found = [(name, pattern.fullmatch(name)) for name in self._store.names()]
        return [(name, Token(int(match[1]), int(match[2]))) for name, match in found if match]

    def running(self, token: Token) -> dict[str, Any] | None:
        """Return what a run wrote about itself, or None if its driver has not arrived."""
        return self._facts(f"running-{token}.json")

    def progress(self, token: Token) -> dict[str, Any] | None:
        """Return how far a run has come, or None if it has not said so yet."""
        return self._facts(f"progress-{token}.json")

    def _order(self, name: str) -> HandoverOrder | None:
        file = self.files.read(name)
        if file is None:
            return None
        return HandoverOrder(_token(file), str(file.data.get("submission_id")), file.number("deadline_seconds"))

    def _write_order(self, name: str, order: HandoverOrder) -> None:
        """Write an order unless a newer one is there."""
        known = self._order(name)
        if known is None or known.token < order.token:
            data = {"submission_id": order.submission_id, "deadline_seconds": order.deadline_seconds}
            self.files.write(name, {**order.token._asdict(), **data})

    def _facts(self, name: str) -> dict[str, Any] | None:
        file = self.files.read(name)
        return None if file is None else file.data


def _token(file: JsonFile, prefix: str = "") -> Token:
    return Token(int(file.number(f"{prefix}epoch")), int(file.number(f"{prefix}run")))


def utc_now() -> str:
    """Return the time of this machine's clock, as the files have it."""
    return datetime.now(timezone.utc).isoformat()  # noqa: UP017 - drivers may run Python 3.10, Spark's oldest
