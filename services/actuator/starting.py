"""ANNOUNCE, SUBMIT and VERIFY: a new run from the checkpoint, and the proof that it works.

SUBMIT after a crash: the cluster cannot be asked by name (the master's list of drivers has no arguments), but the
driver says who it is as the first thing it does. So a start whose fate is unknown is waited for as long as the
cluster has a driver that nobody claims; if the run does not show up, the fence is raised over it, so that it ends
without a write should it come later, and it is submitted anew.
"""

from __future__ import annotations

from services.actuator import strangers
from services.actuator.backends import BackendRefused, BackendUnreachable, DriverState, Submission
from services.actuator.fence import Fence
from services.actuator.restart import RestartEvent, RestartState
from services.actuator.task import ActionOutcome, Task, batches_from_text
from tidegate.launcher.control import Token

POLL_SECONDS = 0.05
ASK_SECONDS = 0.5
"""Between two questions to the cluster whether the new driver still lives."""
ARRIVAL_SECONDS = 60.0
"""How long a driver that may be ours has to say so."""
UNANSWERED_SECONDS = 60.0
"""How long the cluster may fail to answer before an attempt is given up."""


def announce(task: Task, fence: Fence) -> ActionOutcome:
    """Take the fence for the run that is about to be submitted."""
    if task.token is None:
        task.token = fence.take(task.control, task.spec.job_id, task.command.epoch, task.owner)
    if task.token is None:
        return ActionOutcome(
            RestartEvent.OUTFENCED, "A newer command holds the job's fence; nothing was started.", "OUTFENCED"
        )
    return ActionOutcome(RestartEvent.ANNOUNCED, details={"run": task.token.run})


def submit(task: Task, fence: Fence, state: RestartState, *, taken_over: bool) -> ActionOutcome:
    """Submit the run, unless a predecessor did, or the job runs in an application that is not ours.

    `taken_over` says that STARTING was announced by another process.
    """
    if taken_over:
        adopted = _adopt(task)
        if adopted is not None:
            return adopted
        task.token = None
    if task.token is None:
        task.token = fence.take(task.control, task.spec.job_id, task.command.epoch, task.owner)
        if task.token is None:
            return ActionOutcome(
                RestartEvent.OUTFENCED, "A newer command holds the job's fence; nothing was started.", "OUTFENCED"
            )
    refused = _beside_a_stranger(task)
    if refused is not None:
        return refused
    task.check()
    begun = task.clock.monotonic()
    try:
        submission_id = task.backend.submit(Submission(task.spec, task.token, state.parallelism))
    except BackendRefused as error:
        return ActionOutcome(RestartEvent.NOT_SUBMITTED, f"The cluster did not take the run: {error}.", "NOT_SUBMITTED")
    except BackendUnreachable as error:
        adopted = _adopt(task)  # the request may have arrived though its answer did not
        if adopted is not None:
            return adopted
        return ActionOutcome(RestartEvent.NOT_SUBMITTED, f"The cluster does not answer: {error}.", "NOT_SUBMITTED")
    task.known_submissions += (submission_id,)
    seconds = round(task.clock.monotonic() - begun, 3)
    return ActionOutcome(
        RestartEvent.SUBMITTED, submission_id=submission_id, details={"run": task.token.run, "submit_seconds": seconds}
    )


def verify(task: Task, begun_seconds_ago: float, before: str, last_commit_at: float | None, run: int) -> ActionOutcome:
    """Wait for the first batch committed by the run; an idle job is well when its queries have come round.

    `before` is `last_batches` of the STOPPED result, `run` the number of the run that was submitted.
    """
    deadline = task.clock.monotonic() + task.spec.application.start_deadline_seconds - begun_seconds_ago
    token = Token(task.command.epoch, run)
    known = batches_from_text(before)
    unanswered_since: float | None = None
    ask_at = 0.0
    while True:
        task.check()
        now = task.clock.monotonic()
        facts = task.control.running(token) or {}
        incarnation = facts.get("application_id")
        for checkpoint in task.checkpoints() if incarnation else []:
            query_id, batch_id = known.get(checkpoint.path.name, (None, None))
            if query_id is not None and checkpoint.query_id != query_id:
                sentence = f"{checkpoint.path} belongs to query {checkpoint.query_id}, before it was {query_id}."
                return ActionOutcome(RestartEvent.SILENT, sentence, "OTHER_QUERY", incarnation=incarnation)
            first = checkpoint.first_commit_after(batch_id)
            if first is not None:
                downtime = None if last_commit_at is None else round(max(0.0, first[1] - last_commit_at), 3)
                took = "" if downtime is None else f" {downtime:.1f} s after the last commit before"
                return ActionOutcome(
                    RestartEvent.COMMITTED,
                    f"Batch {first[0]} was committed{took}.",
                    details={"first_batch_id": first[0], "first_commit_at": first[1]},
                    incarnation=incarnation,
                    downtime_seconds=downtime,
                )
        if incarnation and facts.get("idle_at"):
            return ActionOutcome(
                RestartEvent.COMMITTED, "The queries run and find nothing to do.", incarnation=incarnation
            )
        if now >= ask_at:
            ask_at = now + ASK_SECONDS
            try:
                ended = _has_ended(task, facts.get("submission_id"))
                unanswered_since = None
            except (BackendUnreachable, BackendRefused):
                unanswered_since = unanswered_since or now
                ended = now - unanswered_since > UNANSWERED_SECONDS
            if ended:
                return ActionOutcome(RestartEvent.SILENT, "The new run ended before its first batch.", "NOT_VERIFIED")
        if now > deadline:
            limit = task.spec.application.start_deadline_seconds
            return ActionOutcome(RestartEvent.SILENT, f"No batch was committed within {limit:g} s.", "NOT_VERIFIED")
        task.wait(POLL_SECONDS)


def _beside_a_stranger(task: Task) -> ActionOutcome | None:
    """Return why nothing may be started; a cluster that does not say what runs is asked for some time."""
    deadline = task.clock.monotonic() + UNANSWERED_SECONDS
    while True:
        try:
            return strangers.refusal(task)
        except (BackendUnreachable, BackendRefused) as error:
            if task.clock.monotonic() > deadline:
                return ActionOutcome(RestartEvent.NOT_SUBMITTED, f"What runs cannot be told: {error}.", "NOT_SUBMITTED")
        task.wait(1.0)


def _has_ended(task: Task, submission_id: str | None) -> bool:
    submission_id = submission_id or (task.known_submissions[-1] if task.known_submissions else None)
    if submission_id is None:
        return False
    return task.backend.state(task.spec, submission_id) is DriverState.ENDED


def _adopt(task: Task) -> ActionOutcome | None:
    """Return Submitted if a run with the fence's present token is there or comes; None if it certainly will not."""
    held = task.control.fence()
    if held is None or held[0].epoch != task.command.epoch:
        return None
    token = held[0]
    deadline = task.clock.monotonic() + ARRIVAL_SECONDS
    while True:
        facts = task.control.running(token)
        if facts is not None:
            submission_id = facts.get("submission_id")
            task.known_submissions += (submission_id,) if submission_id else ()
            sentence = "The run that a predecessor submitted is there."
            return ActionOutcome(
                RestartEvent.SUBMITTED,
                sentence,
                submission_id=submission_id,
                details={"run": token.run, "adopted": True},
            )
        try:
            unclaimed = task.backend.live_drivers(task.spec) - task.claimed - set(task.known_submissions)
        except (BackendUnreachable, BackendRefused):
            unclaimed = frozenset({"unknown"})
        if not unclaimed or task.clock.monotonic() > deadline:
            return None
        task.wait(POLL_SECONDS * 4)
