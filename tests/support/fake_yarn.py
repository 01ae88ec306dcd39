"""A small ResourceManager, and a `spark-submit` that registers applications with it, each with its arguments."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.actuator.backends.yarn import Yarn
from tests.support.events import job
from tests.support.spark_submit import stand_in
from tidegate.events.job import Application, JobSpec
from tidegate.remote.yarn import LIVE, ResourceManager

URL = "http://rm:8088"
_SUBMIT = """#!/bin/sh
if [ -e "$APPS/refuses" ]; then
    echo "Exception in thread main: the queue takes no more" >&2
    exit 1
fi
printf '%s\\n' "$@" > "$APPS/application_1_$(ls "$APPS" | wc -l)"
"""


class FakeResourceManager:
    """Answers as the REST API of Hadoop 3 does; a test may change the applications."""

    def __init__(self) -> None:
        self.apps: dict[str, dict[str, Any]] = {}
        self.silent = False
        self.container: str | None = None
        """The state of the driver's container, as its node tells it."""
        self.metrics = {
            "availableMB": 4096,
            "totalMB": 8192,
            "availableVirtualCores": 5,
            "totalVirtualCores": 8,
            "activeNodes": 2,
        }
        self.asked: list[str] = []
        """The states that a caller has asked for, call after call."""
        self.queues: list[dict[str, Any]] = [
            {"queueName": "default", "absoluteMaxCapacity": 100.0, "resourcesUsed": {"memory": 4096, "vCores": 3}}
        ]

    @property
    def client(self) -> ResourceManager:
        """A client of it."""
        return ResourceManager(transport=httpx.MockTransport(self.answer))

    def add(self, id_: str, name: str, **more: Any) -> None:
        """Add a running application with its driver and two executors."""
        self.apps[id_] = {
            "id": id_,
            "name": name,
            "user": "ann",
            "state": "RUNNING",
            "finalStatus": "UNDEFINED",
            "queue": "default",
            "applicationType": "SPARK",
            "applicationTags": "",
            "startedTime": 1_772_366_400_000 + len(self.apps),
            "runningContainers": 3,
            "diagnostics": "",
        } | more

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer a request."""
        if self.silent:
            raise httpx.ConnectError("refused")
        if "/node/containers/" in request.url.path:
            state = {"container": {"state": self.container}}
            return httpx.Response(404) if self.container is None else httpx.Response(200, json=state)
        if request.url.host == "node":
            return httpx.Response(200, text=f"{request.url.path}: the driver of this run says something")
        path = request.url.path.removeprefix("/ws/v1/cluster/")
        queues = {"type": "capacityScheduler", "queues": {"queue": self.queues}}
        told = {
            "apps": {"apps": {"app": self._listed(request.url.params)}},
            "metrics": {"clusterMetrics": self.metrics | self._ends()},
            "scheduler": {"scheduler": {"schedulerInfo": queues}},
        }
        if path in told:
            return httpx.Response(200, json=told[path])
        app = self.apps[path.split("/")[1]]
        if path.endswith("/appattempts"):
            attempt = {"nodeHttpAddress": "node:8042", "containerId": "container_1_1"}
            return httpx.Response(200, json={"appAttempts": {"appAttempt": [attempt]}})
        if request.url.params.get("user.name") != app["user"]:
            return httpx.Response(403, text="The default static user cannot carry out this operation.")
        app |= {"state": "KILLED", "finalStatus": "KILLED"}
        return httpx.Response(202, json={"state": "KILLED"})

    def _ends(self) -> dict[str, int]:
        ends = Counter(app["finalStatus"] for app in self.apps.values() if app["state"] not in LIVE.split(","))
        return {"appsCompleted": ends["SUCCEEDED"], "appsFailed": ends["FAILED"], "appsKilled": ends["KILLED"]}

    def _listed(self, query: httpx.QueryParams) -> list[dict[str, Any]]:
        self.asked.append(query.get("states", ""))
        states = query.get("states", "").split(",") if "states" in query else None
        found = [app for app in self.apps.values() if states is None or app["state"] in states]
        tag = query.get("applicationTags")
        return [app for app in found if tag is None or tag in app["applicationTags"].split(",")]


class YarnCluster:
    """The cluster behind the `yarn` backend, for the contract."""

    names_drivers = True

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.manager = FakeResourceManager()
        self.spec = on_yarn(job("rates"))
        self._apps = folder / "apps"
        self._apps.mkdir()
        stand_in(folder, _SUBMIT)
        monkeypatch.setenv("SPARK_HOME", str(folder))
        monkeypatch.setenv("APPS", str(self._apps))
        self._yarn = Yarn(folder / "launcher", self.manager.client)

    @property
    def backend(self) -> Yarn:
        """The backend; what was submitted meanwhile runs."""
        for file in sorted(self._apps.glob("application_*")):
            if file.name not in self.manager.apps:
                tag = _setting(self._words(file), "spark.yarn.tags")
                self.manager.add(file.name, self.spec.job_id, applicationTags=tag)
        return self._yarn

    def arguments(self, submission_id: str) -> list[str]:
        """Return the arguments of spark-submit, with the launcher in place of the script that runs it."""
        found = (self._words(file) for file in self._apps.glob("application_*"))
        words = next(words for words in found if submission_id == _setting(words, "spark.yarn.tags"))
        script = next(word for word in words if re.search(r"tidegate_launcher_\w+\.py$", word))
        (launcher,) = re.findall(r'"(\S+/__main__\.py)"', Path(script).read_text("utf-8"))
        return [launcher if word == script else word for word in words]

    def end(self, submission_id: str) -> None:
        """Have a driver end by itself."""
        for app in self.manager.apps.values():
            if app["applicationTags"] == submission_id:
                app |= {"state": "FINISHED", "finalStatus": "SUCCEEDED"}

    def start_foreign(self, name: str) -> str:
        """Register an application."""
        self.manager.add("application_9_1", name)
        return "application_9_1"

    def end_foreign(self, application_id: str) -> None:
        """Have it end."""
        self.manager.apps[application_id] |= {"state": "FAILED", "finalStatus": "FAILED"}

    def refuse(self) -> None:
        """Accept no more drivers."""
        (self._apps / "refuses").touch()

    def be_silent(self) -> None:
        """Answer no more."""
        self.manager.silent = True

    def close(self) -> None:
        """Close the connections."""
        self._yarn.close()

    def _words(self, file: Path) -> list[str]:
        return file.read_text("utf-8").splitlines()


def on_yarn(spec: JobSpec, **more: Any) -> JobSpec:
    """Return a spec as that of a job on YARN."""
    left_out = {"master", "rest_url", "master_ui_url", "backend"}
    fields = spec.application.model_dump(exclude=left_out, exclude_none=True)
    return spec.model_copy(update={"application": Application(**(fields | more), backend="yarn", rest_url=URL)})


def _setting(words: list[str], name: str) -> str:
    return next(word.partition("=")[2] for word in words if word.startswith(f"{name}="))
