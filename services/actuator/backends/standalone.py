"""Spark standalone: submits drivers through the master's REST gateway, and reads from `/json/` who is alive.

The gateway (`org.apache.spark.deploy.rest`, protocol v1) starts only JVM classes. So a PySpark driver is submitted as
`SparkSubmit` itself, in client mode, with the script among its arguments: the driver then runs on a worker, and the
master watches it. Applications that have ended stay listed for a while; only their state counts.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import httpx

from services.actuator.backends import LAUNCHER, LOG_BYTES, BackendRefused, BackendUnreachable, DriverState, Submission
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import Token
from tidegate.remote.http import HTTP_ERRORS

_PENDING = frozenset({"SUBMITTED", "RELAUNCHING", "UNKNOWN"})
_OVER = frozenset({"FINISHED", "KILLED", "FAILED", "ERROR"})
_ALIVE_APPLICATION = frozenset({"WAITING", "RUNNING"})
_OF_THE_DRIVERS_JVM = ("extraClassPath", "extraLibraryPath", "defaultJavaOptions", "extraJavaOptions")
"""Settings that take effect when a JVM starts. The worker starts the driver's: the inner `spark-submit` is too late."""
_DEFAULTS = "spark.driver.defaultJavaOptions"
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)
OPEN_JAVA = " ".join(
    [
        "-XX:+IgnoreUnrecognizedVMOptions",  # Java 8
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Djdk.reflect.useDirectMethodHandle=false",
    ]
)
"""What Spark needs of Java 17. The gateway of Spark 3.5 leaves it out (JavaModuleOptions); later ones add it too."""


class Standalone:
    """A standalone master at the spec's `rest_url` and `master_ui_url`. Thread-safe."""

    def __init__(self, transport: httpx.BaseTransport | None = None) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
        self._http = httpx.Client(timeout=10.0, trust_env=False, transport=transport)

    def submit(self, submission: Submission) -> str:
        """Start a driver, return its id. After `BackendUnreachable` it may have been started or not."""
        app = submission.spec.application
        names = [f"spark.driver.{name}" for name in _OF_THE_DRIVERS_JVM]
        answer = self._ask(
            "POST",
            f"{_rest(submission.spec)}/v1/submissions/create",
            {
                "action": "CreateSubmissionRequest",
                "clientSparkVersion": "3.5.0",  # the master only asks that there is one
                "appResource": LAUNCHER.as_uri(),
                "mainClass": "org.apache.spark.deploy.SparkSubmit",
                "appArgs": submission.submit_args(app.master),
                "environmentVariables": {"SPARK_ENV_LOADED": "1", **app.env},
                "sparkProperties": {
                    "spark.app.name": submission.spec.job_id,
                    "spark.master": app.master,
                    "spark.driver.memory": f"{app.driver_memory_mb}m",
                    "spark.driver.cores": app.conf.get("spark.driver.cores", "1"),
                    "spark.driver.supervise": "false",
                    **{name: app.conf[name] for name in names if name in app.conf},
                    _DEFAULTS: f"{OPEN_JAVA} {app.conf.get(_DEFAULTS, '')}".rstrip(),
                },
            },
        )
        if not answer.get("success") or "submissionId" not in answer:
            raise BackendRefused(f"{app.rest_url}: {answer.get('message', answer)}")
        return str(answer["submissionId"])

    def state(self, spec: JobSpec, submission_id: str) -> DriverState:
        """Return what the master says about a driver."""
        answer = self._ask("GET", f"{_rest(spec)}/v1/submissions/status/{quote(submission_id, safe='')}")
        found = answer.get("success")
        if answer.get("action") != "SubmissionStatusResponse" or (not found and "message" in answer):
            # a master that is still recovering also answers "not found", with its reason in the message
            raise BackendUnreachable(f"{spec.application.rest_url}: {str(answer.get('message', answer))[:200]}")
        if not found:
            return DriverState.ABSENT
        said = str(answer.get("driverState"))
        if said == "RUNNING":
            return DriverState.RUNNING
        if said not in _PENDING | _OVER:
            raise BackendUnreachable(f"{spec.application.rest_url}: driver {submission_id} is said to be {said[:80]}")
        return DriverState.PENDING if said in _PENDING else DriverState.ENDED

    def reason(self, spec: JobSpec, submission_id: str) -> str:
        """Return nothing: a master does not say so."""
        del spec, submission_id
        return ""

    def kill(self, spec: JobSpec, submission_id: str) -> None:
        """End a driver by force; it may have ended already."""
        self._ask("POST", f"{_rest(spec)}/v1/submissions/kill/{quote(submission_id, safe='')}")

    def applications(self, spec: JobSpec) -> dict[str, str]:
        """Return the names, by id, of all applications that hold or wait for slots.

        A driver that has not registered its application yet is not among them: the master does not know its name.
        """
        listed = _listed(spec, self._master(spec), "activeapps", "id", "name", "state")
        return {str(app["id"]): str(app["name"]) for app in listed if app["state"] in _ALIVE_APPLICATION}

    def granted(self, spec: JobSpec, application_id: str) -> int | None:
        """Return how many task slots the cluster has granted to an application; None if it does not know it."""
        listed = _listed(spec, self._master(spec), "activeapps", "id", "cores")
        return next((int(app["cores"]) for app in listed if app["id"] == application_id), None)

    def live_drivers(self, spec: JobSpec) -> frozenset[str]:
        """Return the ids of all drivers that the master counts as active."""
        return frozenset(str(driver["id"]) for driver in _listed(spec, self._master(spec), "activedrivers", "id"))

    def log_tail(self, spec: JobSpec, submission_id: str, token: Token) -> str:
        """Return the end of a driver's log from the worker that runs or ran it; empty if the master does not know it.

        A driver has two logs: `stderr` is that of its JVM, and `stdout` has all that its Python process prints.
        Raises `BackendUnreachable` if the master or the worker does not answer.
        """
        del token
        master = self._master(spec)
        drivers = [one for kind in ("activedrivers", "completeddrivers") for one in _listed(spec, master, kind, "id")]
        on = next((driver.get("worker") for driver in drivers if driver["id"] == submission_id), None)
        workers = _listed(spec, master, "workers", "id", "webuiaddress")
        worker = next((worker for worker in workers if worker["id"] == on), None)
        if on is None or worker is None:
            return ""
        return "\n".join(self._log(worker["webuiaddress"], submission_id, kind) for kind in ("stderr", "stdout"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _log(self, worker: str, submission_id: str, kind: str) -> str:
        url = f"{worker}/log/"
        asked: dict[str, str | int] = {"driverId": submission_id, "logType": kind, "byteLength": LOG_BYTES}
        try:
            return self._http.get(url, params=asked).raise_for_status().text[: 2 * LOG_BYTES]
        except HTTP_ERRORS as error:
            raise BackendUnreachable(f"GET {url}: {type(error).__name__}: {error}") from error

    def _master(self, spec: JobSpec) -> dict[str, Any]:
        url = spec.application.master_ui_url
        if url is None:
            raise BackendRefused(f"job {spec.job_id}: application.master_ui_url is needed by the standalone backend")
        answer = self._ask("GET", f"{url.rstrip('/')}/json/")
        if answer.get("status") != "ALIVE":
            raise BackendUnreachable(f"{url}: the master is {answer.get('status')}, not ALIVE")
        return answer

    def _ask(self, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = self._http.request(method, url, json=body)
            answer = response.json()
        except (*HTTP_ERRORS, ValueError) as error:
            raise BackendUnreachable(f"{method} {url}: {type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise BackendUnreachable(f"{method} {url}: a JSON object is expected, found {str(answer)[:80]!r}")
        return answer


def _listed(spec: JobSpec, master: dict[str, Any], name: str, *fields: str) -> list[dict[str, Any]]:
    """Return a list of a master's answer; raise if it is not all there: what is not listed would count as ended."""
    found = master.get(name)
    whole = isinstance(found, list) and all(
        isinstance(one, dict) and all(one.get(field) is not None for field in fields) for one in found
    )
    if not whole:
        url = spec.application.master_ui_url
        raise BackendUnreachable(f"{url}: {name} with {', '.join(fields)} are expected, found {str(found)[:80]!r}")
    return list(found or ())


def _rest(spec: JobSpec) -> str:
    url = spec.application.rest_url
    if url is None:
        raise BackendRefused(f"job {spec.job_id}: application.rest_url is needed by the standalone backend")
    return url.rstrip("/")
