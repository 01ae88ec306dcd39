"""YARN: `spark-submit` in cluster mode starts a driver, and the ResourceManager's REST API says what becomes of it.

A run's *tag* is the key of its submission: the driver runs in an application with that tag, and knows it. YARN lets
two applications have one tag. So a run that was submitted already is not submitted again, and if that was seen too
late, the fence decides, as on a standalone cluster.

`spark-submit` finds the cluster by `HADOOP_CONF_DIR`. It is told not to wait for the application, and YARN not to start
a driver again by itself: the actuator decides that. The launcher goes along as an archive, because the driver's
container is on any node.

An application has ended to the ResourceManager some time before its driver's processes have. So its node is asked, too.
If that does not answer, the ResourceManager's word counts: otherwise a dead node would keep the job down for ever. That
of a run that ended long ago is not asked: a cloud takes nodes away, and each would have to be waited for.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from services.actuator.backends import (
    LAUNCHER,
    LOG_BYTES,
    BackendRefused,
    BackendUnreachable,
    DriverState,
    Submission,
    launcher_files,
)
from services.actuator.backends.spark_submit import environment, spark_submit
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import SUBMISSION_ID, Token
from tidegate.remote.yarn import (
    LIVE,
    PENDING,
    RUNNING,
    TAG_PREFIX,
    ResourceManager,
    RmRefused,
    RmUnreachable,
    containers,
    tags,
)

SUBMIT_SECONDS = 180.0
"""How long `spark-submit` may take: it copies jars that the cluster does not have."""
SUBMITS = 4
"""How many may run at once, each a JVM of its own: a hundred jobs may have to start in the same second."""
LOOK_SECONDS = 0.5
"""How often a start that waits for others looks whether it is still wanted."""
_INSIDE = "tidegate-launcher"
"""Where a driver finds the archive."""
_START = f'''"""Runs the launcher, which is next to this file."""

import runpy
import sys

sys.argv[0] = "{_INSIDE}/tidegate/launcher/{LAUNCHER.name}"
runpy.run_path(sys.argv[0], run_name="__main__")
'''
_ALIVE = frozenset({"RUNNING", "KILLING", "RELAUNCHING", "REINITIALIZING", "PAUSING", "PAUSED", "RESUMING"})
"""States of a container, as its node tells them, in which it has processes."""
_ERRORS = ("Exception", "ERROR", "Error:", "must be set")

LATELY_SECONDS = 3600.0
"""For so long after an application has ended, by our clock, its node is asked whether its driver has, too."""

T = TypeVar("T")


class Yarn:
    """The clusters of the specs' `rest_url`. Thread-safe."""

    def __init__(self, files: Path | None = None, manager: ResourceManager | None = None) -> None:
        self._files = files
        self._manager = manager or ResourceManager()
        self._submits = threading.BoundedSemaphore(SUBMITS)

    def submit(self, submission: Submission) -> str:
        """Start a driver, return its id. After `BackendUnreachable` it may have been started or not."""
        spec, tag = submission.spec, _tag(submission)
        if self._of(spec, tag):
            return tag
        code = launcher_code(self._files or self._own_folder)
        words = submission.submit_args(
            spec.application.master,
            deploy_mode="cluster",
            launcher_at=str(code.with_suffix(".py")),
            conf=_conf(submission, tag, code),
        )
        with self._slot(submission.check):
            try:
                ran = subprocess.run(
                    [spark_submit(), *words],
                    env=environment() | spec.application.env,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                    timeout=SUBMIT_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                late = f"spark-submit of {spec.job_id} did not end in {SUBMIT_SECONDS:g} s"
                raise BackendUnreachable(late) from error
            except OSError as error:
                raise BackendRefused(f"spark-submit of {spec.job_id}: {error}") from error
        if ran.returncode and not self._of(spec, tag):
            raise BackendRefused(f"spark-submit of {spec.job_id} ended with {ran.returncode}: {_why(ran.stderr)}")
        return tag

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the ResourceManager says about a driver, and of one that has ended, its node."""
        apps = self._of(spec, submission_id)
        states = {str(app["state"]) for app in apps}
        if RUNNING in states or any(self._has_process(spec, app) for app in apps if _ended_lately(app)):
            return DriverState.RUNNING
        if states & PENDING:
            return DriverState.PENDING
        return DriverState.ENDED if states else DriverState.ABSENT

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return why a driver still waits for its container."""
        waiting = [app for app in self._of(spec, submission_id) if app["state"] in PENDING]
        return str(waiting[-1].get("diagnostics", "")).strip() if waiting else ""

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """End a driver by force, and with it its executors; it may have ended already."""
        for app in self._of(spec, submission_id):
            if app["state"] in {*PENDING, RUNNING}:
                _answer(partial(self._manager.kill, _url(spec), app))

    def applications(self, spec: JobSpec) -> dict[str, str]:
        """Return the names, by id, of all Spark applications that run or wait.

        A driver of Tidegate's that waits for its container is not among them: the fence keeps it from writing.
        """
        found = _answer(lambda: self._manager.applications(_url(spec), states=LIVE))
        waits = {app["id"] for app in found if app["state"] in PENDING and _own_tag(app)}
        return {str(app["id"]): str(app["name"]) for app in found if app["id"] not in waits}

    def granted(self, spec: JobSpec, application_id: str) -> int | None:
        """Return the slots of an application's containers, its driver's left out; None if it has none to tell."""
        found = _answer(lambda: self._manager.applications(_url(spec), states=RUNNING))
        app = next((app for app in found if app["id"] == application_id), None)
        executors = None if app is None else containers(app)
        return None if executors is None else executors * spec.application.executor_cores

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the ids of all drivers of Tidegate's that run or may run."""
        found = _answer(lambda: self._manager.applications(_url(spec), states=LIVE))
        return frozenset(tag for app in found if (tag := _own_tag(app)))

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return the end of a driver's log from its node, as long as that keeps it, and what YARN says of its end."""
        del token
        apps = self._of(spec, submission_id)
        if not apps:
            return ""
        parts = [str(apps[-1].get("diagnostics", ""))]
        for node, container in self._containers(spec, apps[-1]):
            place = f"{node}/containerlogs/{container}"
            parts += [self._manager.text(f"{place}/{name}", size=str(-LOG_BYTES)) for name in ("stderr", "stdout")]
        return "\n".join(part for part in parts if part)[-2 * LOG_BYTES :]

    def close(self) -> None:
        """Close the connections."""
        self._manager.close()

    @contextmanager
    def _slot(self, check: Callable[[], object]) -> Iterator[None]:
        """Wait until fewer than `SUBMITS` run; raise what `check` does once nobody wants the start any more."""
        while not self._submits.acquire(timeout=LOOK_SECONDS):
            check()
        try:
            check()
            yield
        finally:
            self._submits.release()

    @cached_property
    def _own_folder(self) -> Path:
        """Ours alone: in the temporary folder itself, anyone could leave a launcher before we do."""
        folder = tempfile.TemporaryDirectory(prefix="tidegate-launcher-")
        weakref.finalize(self, folder.cleanup)  # at the end of the process at the latest
        return Path(folder.name)

    def _has_process(self, spec: JobSpec, app: Mapping[str, Any]) -> bool:
        """Return whether a node still runs the driver of an application that has ended to the ResourceManager."""
        told = (self._manager.text(f"{node}/containers/{name}") for node, name in self._containers(spec, app))
        return any(_state(text) in _ALIVE for text in told)

    def _containers(self, spec: JobSpec, app: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the containers of an application's driver: the address of the node's API, and the container's id."""
        found = _answer(lambda: self._manager.get(_url(spec), f"apps/{app['id']}/appattempts"))
        attempts = _inside(found, "appAttempts", "appAttempt") or []
        return [
            (f"http://{attempt['nodeHttpAddress']}/ws/v1/node", str(attempt["containerId"]))
            for attempt in attempts
            if _inside(attempt, "nodeHttpAddress") and _inside(attempt, "containerId")
        ]

    def _of(self, spec: JobSpec, tag: str) -> list[dict[str, Any]]:
        return _answer(lambda: self._manager.tagged(_url(spec), tag))


def launcher_code(folder: Path) -> Path:
    """Return an archive of the launcher's code in a folder; next to it is the script that starts it."""
    files = launcher_files()
    digest = hashlib.sha256("\0".join(part for file in files.items() for part in file).encode()).hexdigest()
    archive = folder / f"tidegate_launcher_{digest[:12]}.zip"
    if archive.is_file():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / archive.name
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as into:
            for name, text in files.items():
                into.writestr(name, text)
        made.with_suffix(".py").write_text(_START, encoding="utf-8")
        for file in (made.with_suffix(".py"), made):  # whoever sees the archive finds the script
            file.chmod(0o644)
            file.replace(folder / file.name)
    return archive


def _conf(submission: Submission, tag: str, code: Path) -> dict[str, str]:
    """Return the settings that only YARN needs; to those that list something, Tidegate's are added."""
    app = submission.spec.application

    def added(name: str, value: str) -> dict[str, str]:
        return {name: ",".join(filter(None, (app.conf.get(name, ""), value)))}

    return {
        **added("spark.yarn.dist.archives", f"{code.absolute().as_uri()}#{_INSIDE}"),
        **added("spark.yarn.tags", tag),
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in app.env.items()},
        f"spark.yarn.appMasterEnv.{SUBMISSION_ID}": tag,
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.submit.waitAppCompletion": "false",
    }


def _ended_lately(app: Mapping[str, Any]) -> bool:
    """Return whether an application has ended, and the ResourceManager does not say that this was long ago."""
    at = app.get("finishedTime")
    is_old = isinstance(at, int) and 0 < at / 1000 < time.time() - LATELY_SECONDS
    return app["state"] not in PENDING and not is_old


def _state(text: str) -> str | None:
    """Return the state of a container, as its node tells it; None if that says something else."""
    try:
        state = _inside(json.loads(text), "container", "state")
    except ValueError:
        return None
    return state if isinstance(state, str) else None


def _inside(found: Any, *names: str) -> Any:
    """Return what is in an object of an object; None if there is no such thing."""
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _tag(submission: Submission) -> str:
    return f"{TAG_PREFIX}{submission.spec.job_id}-{submission.token}"


def _own_tag(app: dict[str, Any]) -> str | None:
    return next((tag for tag in tags(app) if tag.startswith(TAG_PREFIX)), None)


def _url(spec: JobSpec) -> str:
    if spec.application.rest_url is None:
        raise BackendRefused(f"job {spec.job_id}: application.rest_url is needed by the yarn backend")
    return spec.application.rest_url


def _answer(question: Callable[[], T]) -> T:
    """Return the answer of the ResourceManager, or raise what the actuator knows."""
    try:
        return question()
    except RmUnreachable as error:
        raise BackendUnreachable(str(error)) from error
    except RmRefused as error:
        raise BackendRefused(str(error)) from error


def _why(log: str) -> str:
    """Return the line of spark-submit's log that says most about its failure."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in _ERRORS) and not line.startswith("at ")]
    found = (telling or lines[-1:] or ["it said nothing"])[0][:500]
    if "HADOOP_CONF_DIR" in found and "HADOOP_CONF_DIR" not in os.environ:
        found += " (in the actuator's environment, or in application.env)"
    return found
