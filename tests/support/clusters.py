"""Clusters behind each backend, for the contract that all backends pass. A new backend adds its cluster here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from services.actuator.backends import Backend, DriverState
from services.actuator.backends.kubernetes import Kubernetes
from services.actuator.backends.local import Local
from services.actuator.backends.standalone import Standalone
from tests.support.events import job, with_application
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubernetes import FakeKubernetes, fake_kubernetes
from tests.support.fake_yarn import YarnCluster
from tests.support.spark_submit import stand_in
from tidegate.events.job import Application, JobSpec, KubernetesPods
from tidegate.runtime.poll import wait_until

SAID = "the driver of this run says something"


class Cluster(Protocol):
    """What the contract needs besides the backend: what happens in a cluster by itself."""

    @property
    def backend(self) -> Backend:
        """The backend."""

    @property
    def spec(self) -> JobSpec:
        """The job."""

    @property
    def names_drivers(self) -> bool:
        """Whether a run that is submitted twice is the same driver."""

    def arguments(self, submission_id: str) -> list[str]:
        """Return the arguments with which a driver was started."""

    def end(self, submission_id: str) -> None:
        """Have a driver end by itself."""

    def start_foreign(self, name: str) -> str:
        """Start an application that Tidegate did not start; return its id among the applications."""

    def end_foreign(self, application_id: str) -> None:
        """Have it end."""

    def refuse(self) -> None:
        """Accept no more drivers."""

    def be_silent(self) -> None:
        """Answer no more. Skips the test if there is nobody who could be silent."""


class SimulatedFake:
    """The cluster of the actuator's unit tests."""

    names_drivers = False

    def __init__(self, folder: Path) -> None:
        self.backend = self._fake = FakeCluster(folder)
        self.spec = job("rates")

    def arguments(self, submission_id: str) -> list[str]:
        """Return what the submission says."""
        return self._fake.submissions[submission_id].submit_args("spark://master")

    def end(self, submission_id: str) -> None:
        """Have a driver end by itself."""
        self._fake.drivers[submission_id] = DriverState.ENDED

    def start_foreign(self, name: str) -> str:
        """Add an application."""
        self._fake.foreign["app-9"] = name
        return "app-9"

    def end_foreign(self, application_id: str) -> None:
        """Remove it."""
        del self._fake.foreign[application_id]

    def refuse(self) -> None:
        """Accept no more drivers."""
        self._fake.refuses = True

    def be_silent(self) -> None:
        """Answer no more."""
        self._fake.down_until = 1e9


class LocalMachine:
    """This machine, with a stand-in for `spark-submit` that runs until a file tells it to end."""

    names_drivers = False

    _SUBMIT = f'#!/bin/sh\necho "{SAID}"\nwhile [ ! -e "$ENDS/$$" ]; do sleep 0.05; done\n'

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ends = folder / "ends"
        self._ends.mkdir()
        self._submit = stand_in(folder, self._SUBMIT)
        monkeypatch.setenv("SPARK_HOME", str(folder))
        monkeypatch.setenv("ENDS", str(self._ends))
        self.spec = job(f"rates-{os.getpid()}")  # other tests may run on this machine
        self.backend = Local(folder)
        self._foreign: dict[str, subprocess.Popen[bytes]] = {}

    def arguments(self, submission_id: str) -> list[str]:
        """Return the command line of the process."""
        pid = submission_id.partition("-")[0]
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]

    def end(self, submission_id: str) -> None:
        """Let the process end."""
        (self._ends / submission_id.partition("-")[0]).touch()

    def start_foreign(self, name: str) -> str:
        """Start a process that looks like somebody's spark-submit."""
        program = [sys.executable, "-c", "import time; time.sleep(60)", "org.apache.spark.deploy.SparkSubmit"]
        process = subprocess.Popen([*program, "--name", name, "rates.py"], start_new_session=True)

        def found() -> str | None:
            seen = self.backend.applications(self.spec)
            return next((id_ for id_ in seen if id_.startswith(f"{process.pid}-")), None)

        application_id = wait_until(found, 10, 0.05)
        assert application_id is not None
        self._foreign[application_id] = process
        return application_id

    def end_foreign(self, application_id: str) -> None:
        """End the process."""
        process = self._foreign.pop(application_id)
        process.kill()
        process.wait(10)

    def refuse(self) -> None:
        """Take spark-submit away."""
        self._submit.unlink()

    def be_silent(self) -> None:
        """There is no master to be silent."""
        pytest.skip("this backend asks nobody")

    def close(self) -> None:
        """End all processes."""
        live = self.backend.live_drivers(self.spec)
        for submission_id in live:
            self.backend.kill(self.spec, submission_id)
        assert wait_until(lambda: not any(self.backend.state(self.spec, id_).alive for id_ in live), 10, 0.05)
        for application_id in list(self._foreign):
            self.end_foreign(application_id)


class StandaloneMaster:
    """A master and its worker, as they answer over HTTP."""

    names_drivers = False

    def __init__(self) -> None:
        self.spec = with_application(job("rates"), rest_url="http://master:6066", master_ui_url="http://master:8080")
        self.backend = Standalone(transport=httpx.MockTransport(self._answer))
        self._started: dict[str, list[str]] = {}
        self._states: dict[str, str] = {}
        self._applications: dict[str, str] = {}
        self._refuses = self._silent = False

    def arguments(self, submission_id: str) -> list[str]:
        """Return the arguments of the inner spark-submit."""
        return self._started[submission_id]

    def end(self, submission_id: str) -> None:
        """Have a driver end by itself."""
        self._states[submission_id] = "FINISHED"

    def start_foreign(self, name: str) -> str:
        """Register an application."""
        self._applications["app-9"] = name
        return "app-9"

    def end_foreign(self, application_id: str) -> None:
        """Remove it."""
        del self._applications[application_id]

    def refuse(self) -> None:
        """Accept no more drivers."""
        self._refuses = True

    def be_silent(self) -> None:
        """Answer no more."""
        self._silent = True

    def close(self) -> None:
        """Close the connections."""
        self.backend.close()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if self._silent:
            raise httpx.ConnectError("refused")
        if request.url.path == "/log/":
            return httpx.Response(200, text=SAID)
        kind, _, name = request.url.path.removeprefix("/v1/submissions/").rstrip("/").partition("/")
        if kind == "create":
            return httpx.Response(200, json=self._create(request))
        if kind == "status":
            return httpx.Response(200, json=self._status(name))
        if kind == "kill":
            if self._states.get(name) == "RUNNING":
                self._states[name] = "KILLED"
            return httpx.Response(200, json={"action": "KillSubmissionResponse", "success": name in self._states})
        return httpx.Response(200, json=self._view())

    def _create(self, request: httpx.Request) -> dict[str, Any]:
        if self._refuses:
            return {"success": False, "message": "no more drivers"}
        name = f"driver-1-{len(self._started)}"
        self._started[name] = _json(request)["appArgs"]
        self._states[name] = "RUNNING"
        return {"success": True, "submissionId": name}

    def _status(self, name: str) -> dict[str, Any]:
        known = {"driverState": self._states[name]} if name in self._states else {}
        return {"action": "SubmissionStatusResponse", "success": bool(known), "submissionId": name, **known}

    def _view(self) -> dict[str, Any]:
        drivers = [{"id": name, "worker": "w-1", "alive": state == "RUNNING"} for name, state in self._states.items()]
        apps = [{"id": i, "name": n, "state": "RUNNING", "cores": 2} for i, n in self._applications.items()]
        return {
            "status": "ALIVE",
            "workers": [{"id": "w-1", "webuiaddress": "http://worker:8081"}],
            "activeapps": apps,
            "activedrivers": [driver for driver in drivers if driver["alive"]],
            "completeddrivers": [driver for driver in drivers if not driver["alive"]],
        }


class KubernetesCluster:
    """An API server and its objects; the test does what the kubelet would do."""

    names_drivers = True

    def __init__(self, server: FakeKubernetes) -> None:
        self.spec = on_kubernetes(job("rates"))
        self.server = server
        self.backend = Kubernetes(server.api)
        self._pods = "/api/v1/namespaces/jobs/pods"
        server.usual_log = SAID

    def arguments(self, submission_id: str) -> list[str]:
        """Return the arguments of the pod's container."""
        pod = self.server.objects[f"{self._pods}/{submission_id.rpartition('/')[2]}"]
        words: list[str] = pod["spec"]["containers"][0]["args"]
        return words

    def end(self, submission_id: str) -> None:
        """Have a driver's container end."""
        self.server.put(f"{self._pods}/{submission_id.rpartition('/')[2]}", status={"phase": "Succeeded"})

    def start_foreign(self, name: str) -> str:
        """Add a driver's pod and an executor's, with the labels that Spark gives them."""
        labels = {"spark-app-selector": "spark-9", "spark-app-name": name}
        for role in ("driver", "executor"):
            pod = {"metadata": {"labels": labels | {"spark-role": role}}, "spec": {"nodeName": "n"}}
            self.server.put(f"{self._pods}/theirs-{role}", **pod, status={"phase": "Running"})
        return "spark-9"

    def end_foreign(self, application_id: str) -> None:
        """Have its pods end, and be deleted."""
        del application_id
        self.server.put(f"{self._pods}/theirs-driver", status={"phase": "Failed"})
        del self.server.objects[f"{self._pods}/theirs-executor"]

    def refuse(self) -> None:
        """Accept no more pods, as a quota does."""
        self.server.forbidden = re.compile("POST .*/pods")

    def be_silent(self) -> None:
        """Answer no more."""
        self.server.silent = True


class SparkOperator(KubernetesCluster):
    """The same, with a Spark operator that makes a driver's pod of each SparkApplication at once."""

    def __init__(self, server: FakeKubernetes) -> None:
        super().__init__(server)
        self.spec = on_kubernetes(job("rates"), spark_application={})
        server.after_create = self._submit

    def refuse(self) -> None:
        """Accept no more SparkApplications."""
        self.server.forbidden = re.compile("POST .*/sparkapplications")

    def _submit(self, path: str, made: dict[str, Any]) -> None:
        """Do what the operator does for a new object, through `spark-submit` in cluster mode."""
        if made.get("kind") != "SparkApplication":
            return
        spec, name = made["spec"], made["metadata"]["name"]
        template = spec["driver"]["template"]
        labels = {"spark-role": "driver", "spark-app-selector": f"spark-{len(self.server.objects)}"}
        labels |= {"spark-app-name": name, "sparkoperator.k8s.io/app-name": name} | template["metadata"]["labels"]
        words = ["driver", "--class", "org.apache.spark.deploy.PythonRunner", spec["mainApplicationFile"]]
        (container,) = template["spec"]["containers"]
        pod = template["spec"] | {"containers": [container | {"args": [*words, *spec["arguments"]]}]}
        self.server.put(
            f"{self._pods}/{spec['driver']['podName']}",
            metadata={"labels": labels},
            spec=pod,
            status={"phase": "Running"},
        )
        self.server.put(path, status={"applicationState": {"state": "RUNNING"}})


def on_kubernetes(spec: JobSpec, **block: Any) -> JobSpec:
    """Return a spec as that of a job on Kubernetes, in the namespace `jobs`."""
    left_out = {"control_dir", "master", "rest_url", "master_ui_url", "backend"}
    fields = spec.application.model_dump(exclude=left_out, exclude_none=True)
    pods = KubernetesPods(**({"namespace": "jobs", "image": "spark:4.2.0"} | block))
    return spec.model_copy(
        update={"application": Application(**fields, backend="kubernetes", kubernetes=pods)},
    )


def _json(request: httpx.Request) -> dict[str, Any]:
    found: dict[str, Any] = httpx.Response(200, content=request.content).json()
    return found


@contextmanager
def cluster_of(backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield the cluster behind a backend."""
    if backend == "fake":
        yield SimulatedFake(folder)
        return
    if backend in {"kubernetes", "spark operator"}:
        with fake_kubernetes() as server:
            yield KubernetesCluster(server) if backend == "kubernetes" else SparkOperator(server)
        return
    if backend == "yarn":
        cluster: YarnCluster | LocalMachine | StandaloneMaster = YarnCluster(folder, monkeypatch)
    else:
        cluster = LocalMachine(folder, monkeypatch) if backend == "local" else StandaloneMaster()
    try:
        yield cluster
    finally:
        cluster.close()
