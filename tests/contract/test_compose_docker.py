"""The deployment on a real Docker daemon: compose.yaml comes up, scales its demo job, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import captured
from tidegate.client import commands, results
from tidegate.events.command import CommandKind
from tidegate.events.result import Phase
from tidegate.stack.ports import free_ports

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OURS = ("collector", "decider", "actuator", "console", "init", "demo-load")
SCALED_SECONDS = 600.0
"""Enough for a busy machine; two free cores need two minutes."""


class Compose:
    """compose.yaml under a project name and on ports of its own."""

    def __init__(self, secrets: Path) -> None:
        self.project = f"tidegate-{uuid.uuid4().hex[:8]}"
        self.kafka, redis, self.spark, console = (str(port) for port in free_ports(4))
        ports = {"KAFKA": self.kafka, "REDIS": redis, "SPARK": self.spark, "CONSOLE": console}
        self._environment = os.environ | {f"HOST_{name}_PORT": port for name, port in ports.items()}
        self.client = {
            "TIDEGATE_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.kafka}",
            "TIDEGATE_REDIS_URL": f"redis://127.0.0.1:{redis}/0",
            "TIDEGATE_REDIS_USERNAME": "monitor",
            "TIDEGATE_REDIS_PASSWORD": (secrets / "redis_monitor").read_text("utf-8"),
        }

    def run(self, *words: str, timeout: float = 120) -> str:
        """Run `docker compose` with these words, all profiles included, and return its output."""
        command = ["docker", "compose", "-p", self.project, "-f", str(DEPLOY / "compose.yaml"), "--profile", "demo"]
        return _output([*command, *words], timeout, self._environment)

    def containers(self) -> list[dict[str, Any]]:
        """Return what Docker knows of each container, those that ended included."""
        ids = self.run("ps", "--all", "--quiet").split()
        found: list[dict[str, Any]] = json.loads(_output(["docker", "inspect", *ids]))
        return found

    def left(self) -> list[str]:
        """Return the containers, volumes and networks of the project."""
        label = f"label=com.docker.compose.project={self.project}"
        kinds = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
        return [name for kind in kinds for name in _output(["docker", *kind, "--quiet", "--filter", label]).split()]


@pytest.fixture
def compose(docker: None) -> Iterator[Compose]:
    """Return the Compose file with secrets; nothing of it is left afterwards."""
    secrets = DEPLOY / "secrets"
    ours = not secrets.exists()
    _output([str(DEPLOY / "make-secrets.sh")])
    made = Compose(secrets)
    yield made
    try:
        made.run("down", "--volumes", "--timeout", "20")
    finally:
        if ours:
            shutil.rmtree(secrets)


@pytest.mark.timeout(1800)
def test_the_whole_file_comes_up_and_scales_its_demo_job(compose: Compose) -> None:
    """All services get healthy; the demo job is scaled up; doctor passes; logs are JSON; `down -v` leaves nothing."""
    compose.run("up", "--build", "--detach", "--wait", "--wait-timeout", "600", timeout=1200)
    containers = compose.containers()
    states = {one["Name"]: one["State"] for one in containers}
    ended = {name for name, state in states.items() if not state["Running"]}
    assert ended == {f"/{compose.project}-init-1"}
    assert [state["ExitCode"] for name, state in states.items() if name in ended] == [0]
    volumes = {mount["Name"] for one in containers for mount in one["Mounts"] if mount["Type"] == "volume"}
    assert volumes == {f"{compose.project}_{name}" for name in ("kafka-data", "redis-data", "spark-data")}

    deadline = time.monotonic() + SCALED_SECONDS
    assert _first_growth(compose.client["TIDEGATE_BOOTSTRAP_SERVERS"], deadline) > 1

    for what in ("app", "driver"):  # of any site whose page the browser shows
        kill = f"http://127.0.0.1:{compose.spark}/{what}/kill/?id=unknown&terminate=true"
        with pytest.raises(urllib.error.HTTPError, match=r"40[45]"):
            urllib.request.urlopen(kill, data=b"", timeout=20)

    doctor = [sys.executable, "-m", "tidegate", "doctor"]
    assert "Redis" in _output(doctor, environment=os.environ | compose.client)

    compose.run("stop", "--timeout", "20")
    for service in OURS:
        lines = compose.run("logs", "--no-log-prefix", "--no-color", service).splitlines()
        assert lines
        assert [line for line in lines if not line.startswith("{")] == []
        assert service == "init" or "stopped by a signal, exit code 0" in lines[-1]
    compose.run("down", "--volumes")
    assert compose.left() == []


def _first_growth(bootstrap_servers: str, deadline: float) -> int:
    """Return the first larger size that the demo job has reached; fail at the deadline."""

    def late() -> bool:
        return time.monotonic() > deadline

    orders = {}
    for order in commands(bootstrap_servers, job="demo", follow=True, stop=late):
        if order.kind is CommandKind.RESCALE and order.to_parallelism > order.from_parallelism:
            orders[order.command_id] = order.to_parallelism
            break
    for result in results(bootstrap_servers, job="demo", follow=True, stop=late):
        if result.command_id in orders and result.phase is Phase.VERIFIED:
            return result.parallelism
    raise TimeoutError(f"the demo job did not grow in {SCALED_SECONDS:g} s")


def _output(command: list[str], timeout: float = 120, environment: dict[str, str] | None = None) -> str:
    ran = captured(*command, env=environment, timeout=timeout)
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    return ran.stdout
