"""FIND and STOP: which runs of a job live, and how they are brought to an end, all the way down to the JVM.

A driver is gone only when the cluster says it ended, its application holds no slots, and, if it stood on this
machine, its Python and its JVM are no more: after a kill the JVM was seen to live on for three seconds, and it is the
JVM that writes the checkpoint. The ladder: marker (the run ends at a batch boundary) → kill → give up.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.actuator import strangers
from services.actuator.backends import BackendRefused, BackendUnreachable
from services.actuator.checkpoint import CheckpointError
from services.actuator.fence import Fence
from services.actuator.restart import RestartEvent
from services.actuator.task import ActionOutcome, Task, batches_to_text
from tidegate.events.command import CommandKind
from tidegate.launcher.control import ControlError

POLL_SECONDS = 0.2
"""Between two looks at the old run. Each asks the cluster, and what is slept here is downtime."""
GRACE_SECONDS = 8.0
"""After the stop deadline, before the kill: the launcher's own fallback and the end of the JVM."""
KILL_SECONDS = 30.0
"""After the first kill, before giving up."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A driver that may write to the checkpoint."""

    submission_id: str
    facts: dict[str, Any]
    """What it said of itself in the control directory; empty before its driver came up."""


def live_runs(task: Task) -> list[LiveRun]:
    """Return every run of the job that is not certainly gone; raise `BackendUnreachable` when nobody can say."""
    arrived = {}
    for token in task.control.runs():
        if str(token) not in task.gone:
            facts = task.control.running(token) or {}
            arrived[str(facts["submission_id"])] = facts
    live = []
    for submission_id in dict.fromkeys([*task.known_submissions, *arrived]):
        facts = arrived.get(submission_id, {})
        if submission_id in task.gone:
            continue
        if _gone(task, submission_id, facts):
            task.gone |= {submission_id, f"{facts.get('epoch')}-{facts.get('run')}"}
        else:
            live.append(LiveRun(submission_id, facts))
    return live


def find(task: Task, patience_seconds: float) -> ActionOutcome:
    """Find what runs. Waits out a cluster that does not answer, for at most `patience_seconds`."""
    held = task.control.fence()
    if held is not None and held[0].epoch > task.command.epoch:
        return ActionOutcome(RestartEvent.OUTFENCED, f"The job's fence is already at run {held[0]}.", "OUTFENCED")
    deadline = task.clock.monotonic() + patience_seconds
    while True:
        try:
            runs, facts = live_runs(task), _checkpoint_facts(task)
            refused = _refusal(task, runs)
        except (BackendUnreachable, BackendRefused, CheckpointError, ControlError) as error:
            if task.clock.monotonic() > deadline:
                return ActionOutcome(RestartEvent.UNKNOWN, f"What runs cannot be told: {error}.", "STOP_FAILED")
            task.wait(1.0)
            continue
        if refused is not None:
            return refused
        if runs:
            return ActionOutcome(RestartEvent.FOUND, submission_id=runs[-1].submission_id)
        return ActionOutcome(RestartEvent.NOTHING_RUNS, "The job does not run.", details=facts)


def _refusal(task: Task, runs: list[LiveRun]) -> ActionOutcome | None:
    """Return Refused if what runs forbids the command, else None; raise `BackendUnreachable` when nobody can say."""
    if runs and task.command.kind is CommandKind.START:
        sentence = f"The job runs already, as {runs[-1].submission_id}; it was left alone."
        return ActionOutcome(RestartEvent.REFUSED, sentence, "ALREADY_RUNNING", submission_id=runs[-1].submission_id)
    if runs and task.command.kind is CommandKind.STOP:
        return None
    return strangers.refusal(task, unsaid=sum("application_id" not in run.facts for run in runs))


def stop(task: Task, fence: Fence) -> ActionOutcome:
    """End every run older than a freshly taken token."""
    app = task.spec.application
    begun = task.clock.monotonic()
    task.token = None
    token = fence.take(task.control, task.spec.job_id, task.command.epoch, task.owner)
    if token is None:
        return ActionOutcome(
            RestartEvent.OUTFENCED, "A newer command holds the job's fence; nothing was stopped.", "OUTFENCED"
        )
    task.token = token
    task.control.request_stop(token, task.command.command_id, app.stop_deadline_seconds)
    kill_at = begun + app.stop_deadline_seconds + GRACE_SECONDS
    killed, trouble = False, ""
    while True:
        now = task.clock.monotonic()
        try:
            runs = live_runs(task)
            if not runs:
                break
            # a driver that has not come up reads no marker, and has written nothing
            doomed = [run for run in runs if now >= kill_at or not run.facts]
            for run in doomed:
                killed = True
                task.backend.kill(task.spec, run.submission_id)
        except (BackendUnreachable, BackendRefused) as error:
            trouble = f" ({error})"
            doomed = []
        if now >= kill_at + KILL_SECONDS:
            sentence = f"The old run did not end within {now - begun:.0f} s, killed or not{trouble}."
            return ActionOutcome(RestartEvent.WOULD_NOT_STOP, sentence, "STOP_FAILED")
        task.wait(1.0 if doomed or trouble else POLL_SECONDS)
        trouble = ""
    task.control.tidy()
    facts = _checkpoint_facts(task)
    facts |= {"stop_seconds": round(task.clock.monotonic() - begun, 3), "killed": killed}
    how = "by force" if killed else "at a batch boundary" if facts["clean"] else "inside a batch, which will run again"
    return ActionOutcome(RestartEvent.GONE, f"The old run ended {how} after {facts['stop_seconds']} s.", details=facts)


def _checkpoint_facts(task: Task) -> dict[str, str | bool | int | float]:
    checkpoints = task.checkpoints()
    commits = [c.newest_commit for c in checkpoints if c.newest_commit is not None]
    times = [max(c.commit_times.values()) for c in checkpoints if c.commit_times]
    facts: dict[str, str | bool | int | float] = {
        "clean": all(c.clean for c in checkpoints),
        "last_batches": batches_to_text(checkpoints),
    }
    if commits:
        facts |= {"last_batch_id": max(commits), "last_commit_at": max(times)}
    return facts


def _gone(task: Task, submission_id: str, facts: dict[str, Any]) -> bool:
    if task.backend.state(task.spec, submission_id).alive:
        return False
    if _process_alive(task, facts):
        return False
    application_id = facts.get("application_id")
    return application_id is None or str(application_id) not in task.backend.applications(task.spec)


def _process_alive(task: Task, facts: dict[str, Any]) -> bool:
    """Return whether the run's Python or JVM lives on this machine; a pid given to another program does not count."""
    if facts.get("host") != socket.gethostname():
        return False
    for name in ("pid", "jvm_pid"):
        try:
            words = Path(f"/proc/{int(facts[name])}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, KeyError):
            continue
        if b"--control-dir" in words and task.spec.job_id.encode() in words:
            return True
    return False
