"""The drivers of one job: which are alive, which are not ours, and how to start and stop them.

Three sources know about them. The *command log* knows which drivers were submitted. The *control directory* knows
which of those arrived: the launcher writes there who it is, as the first thing it does. The *cluster* knows what is
alive, ours or not.

A driver is gone only when the cluster says that it has ended and that its application holds no slots and, if it ran on
this machine, when its Python process and its JVM are gone too. After a kill the JVM was seen to live on for three
seconds, and it is the JVM that writes to the checkpoint.

A *foreign driver* runs the job and was not started by Tidegate: for example because the job already ran when it was put
under Tidegate. Neither the log nor the control directory knows it. There are three signs of one:

1. The cluster lists a live application with the job's name that is not ours.
2. It lists one with another name that is not ours, and the event log of that application, in the spec's
   `event_log_dir`, names a query of the job's checkpoint.
3. The checkpoint changes while no driver of ours is alive (`actions/foreign.py`). This needs no clock: two looks at the
   newest batches are compared.

An application is ours if a run has written its id into the control directory, or if a result carries it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from services.actuator.backends import Backend, BackendRefused, BackendUnreachable, DriverState, Submission
from services.actuator.checkpoint import read_checkpoints
from services.actuator.command_log import CommandLog
from services.actuator.event_logs import running_query
from services.actuator.processes import command_line
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.control.json_files import ControlError
from tidegate.launcher.reports.failure import explanation, last_errors, secrets_of
from tidegate.remote.files import WITHOUT_OPTIONS, Files

NO_ANSWER = (BackendUnreachable, BackendRefused)
"""What a question to the cluster raises when the cluster does not answer it."""


@dataclass(frozen=True, slots=True)
class LiveDriver:
    """A driver of the job that may write to the checkpoint."""

    submission_id: str
    facts: dict[str, Any]
    """What it wrote about itself in the control directory; empty until it has arrived."""


@dataclass
class JobDrivers:
    """The drivers of one job, while one command is carried out. Questions to the cluster may raise `NO_ANSWER`."""

    spec: JobSpec
    backend: Backend
    control: Control
    log: CommandLog
    files: Files = WITHOUT_OPTIONS
    before: JobDrivers | None = None
    """Those on the cluster where the job was started last, if its spec names another one."""
    _gone: set[str] = field(init=False, default_factory=set)
    """Drivers that were seen to have ended, which never changes."""

    def live(self) -> list[LiveDriver]:
        """Return every driver of ours that is not certainly gone."""
        arrived = {str(facts["submission_id"]): facts for facts in self._arrived()}
        live = []
        for submission_id in dict.fromkeys([*self.log.job(self.spec.job_id).submissions, *arrived]):
            if submission_id in self._gone:
                continue
            driver = LiveDriver(submission_id, arrived.get(submission_id, {}))
            if self._is_gone(driver):
                self._gone.add(submission_id)
            else:
                live.append(driver)
        return live

    def runs_here(self) -> bool:
        """Whether the cluster itself says that a driver of ours is alive."""
        known = self.log.job(self.spec.job_id).submissions
        return any(self.backend.state(self.spec, submission_id).alive for submission_id in known)

    def foreign(self) -> list[str]:
        """Return the ids of the live applications that run the job, by name or by event log, and are not ours."""
        arrived = self._arrived()
        ours = {facts.get("application_id") for facts in arrived} | self.log.incarnations()
        # on Kubernetes, an application has its driver's name as id, or as name if the Spark operator started it
        drivers = {str(facts["submission_id"]) for facts in arrived} | self.log.submissions()
        ours |= {driver.rpartition("/")[2] for driver in drivers}
        running = self.backend.applications(self.spec)
        others = {id_: name for id_, name in running.items() if not {id_, name} & ours}
        named = {id_ for id_, name in others.items() if name == self.spec.job_id}
        return sorted(named | self._writing_here(others.keys() - named))

    def unclaimed(self) -> frozenset[str]:
        """Return the ids of the cluster's live drivers that are not known to be any job's."""
        return self.backend.live_drivers(self.spec) - self.log.submissions()

    def newest_run(self, epoch: int) -> Token | None:
        """Return the newest run of an epoch whose driver has arrived; None if there is none."""
        return max((token for token in self.control.runs() if token.epoch == epoch), default=None)

    def facts(self, token: Token) -> dict[str, Any]:
        """Return what a run wrote about itself in the control directory; nothing until its driver has arrived."""
        return self.control.running(token) or {}

    def reason(self, token: Token, submission_id: str | None) -> str:
        """Return why a run failed, in one line without secrets; an empty text if nothing says so.

        The run itself knows best. If it could not say anything, the cluster may know what hinders or ended its driver,
        or the last errors in the driver's log may tell.
        """
        app = self.spec.application
        text = str(self.facts(token).get("error", ""))
        if not text and submission_id is not None:
            with contextlib.suppress(*NO_ANSWER, OSError):
                text = self.backend.reason(self.spec, submission_id)
                text = text or last_errors(self.backend.log_tail(self.spec, submission_id, token))
        return explanation(text, secrets_of(app.conf, app.env))

    def state(self, submission_id: str) -> DriverState:
        """Return what the cluster says about a driver."""
        return self.backend.state(self.spec, submission_id)

    def granted(self, application_id: str) -> int | None:
        """Return how many task slots the cluster has granted to an application; None if it does not say."""
        return self.backend.granted(self.spec, application_id)

    def submit(
        self, token: Token, parallelism: int, check: Callable[[], object] = lambda: None, *, handover: bool = False
    ) -> str:
        """Start a driver; return its id. After `BackendUnreachable` it may have been started or not.

        While it has to wait before that, `check` may stop it by an error.
        """
        return self.backend.submit(Submission(self.spec, token, parallelism, handover, check))

    def request_stop(self, token: Token, command_id: str) -> None:
        """Ask every run older than `token` to stop at a batch boundary within the spec's deadline."""
        self.control.request_stop(token, command_id, self.spec.application.stop_deadline_seconds)

    def tidy(self) -> None:
        """Forget the runs of long ago, but for those whose drivers are alive."""
        arrived = [driver.facts for driver in self.live() if driver.facts]
        self.control.tidy(alive=[Token(facts["epoch"], facts["run"]) for facts in arrived])

    def kill(self, submission_id: str) -> None:
        """End a driver by force."""
        self.backend.kill(self.spec, submission_id)

    def _writing_here(self, application_ids: Collection[str]) -> set[str]:
        """Return the applications that run a query of the job's checkpoint, as their event logs tell."""
        if not application_ids:
            return set()
        app = self.spec.application
        queries = {c.query_id for c in read_checkpoints(app.checkpoint_location, self.files) if c.query_id is not None}
        return running_query(app.event_log_dir, application_ids, queries, self.files) if queries else set()

    def _arrived(self) -> list[dict[str, Any]]:
        """Return what each run wrote about itself, oldest first; raise `ControlError` if it does not say who it is."""
        found = []
        for token in self.control.runs():
            facts = self.control.running(token)
            if facts is not None:
                if not isinstance(facts.get("submission_id"), str):
                    raise ControlError(f"{self.control.place}: running-{token}.json does not say who runs")
                found.append({**facts, **token._asdict()})
        return found

    def _is_gone(self, driver: LiveDriver) -> bool:
        if self.backend.state(self.spec, driver.submission_id).alive or self._process_alive(driver.facts):
            return False
        application_id = driver.facts.get("application_id")
        return application_id is None or str(application_id) not in self.backend.applications(self.spec)

    def _process_alive(self, facts: dict[str, Any]) -> bool:
        """Return whether the run's Python process or its JVM is alive on this machine.

        A process that was given the same pid later does not count, not even if a newer run of the job has got it.
        """
        if facts.get("host") != socket.gethostname():
            return False
        for name in ("pid", "jvm_pid"):
            run = _run_of(command_line(int(facts.get(name, 0))), self.spec.job_id)
            if run is not None and run <= Token(int(facts["epoch"]), int(facts["run"])):
                return True
        return False


def _run_of(words: list[bytes], job_id: str) -> Token | None:
    """Return the run of a job that a command line started (see `Submission.launcher_args`); None if it did not."""
    if b"--control-dir" not in words:
        return None
    begin = words.index(b"--control-dir")  # the program's own arguments come later, and may have the same names
    given = dict(zip(words[begin : begin + 8 : 2], words[begin + 1 : begin + 8 : 2], strict=False))
    if given.get(b"--job-id") != job_id.encode():
        return None
    return Token(int(given.get(b"--epoch", 0)), int(given.get(b"--run", 0)))
