"""A Spark standalone master's capacity and applications, from `/json/` of its web UI.

Slots are cores of live workers. Drivers in cluster mode also use worker cores, and the master lists them separately.
Their cores are subtracted from both total and used, so slots are what executors can get. A driver in client mode uses
no worker core. Fields: JsonProtocol.writeMasterState of Spark 4.2.
"""

from __future__ import annotations

import httpx
from pydantic import Field, ValidationError

from services.collector.view import App, ClusterView, Tolerant
from tidegate.events.invalid import first_problem
from tidegate.remote.http import HTTP_ERRORS


class MasterUnreachable(RuntimeError):
    """The master gave no usable answer; the text says which master and why."""


class _Worker(Tolerant):
    cores: int
    cores_used: int = Field(validation_alias="coresused")
    state: str


class _Driver(Tolerant):
    cores: int
    worker: str | None = None
    state: str


class _State(Tolerant):
    status: str
    workers: list[_Worker]
    active_apps: list[App] = Field(validation_alias="activeapps")
    completed_apps: list[App] = Field(validation_alias="completedapps")
    active_drivers: list[_Driver] = Field(validation_alias="activedrivers")


class HttpMaster:
    """Asks masters over HTTP."""

    def __init__(self, timeout_seconds: float) -> None:
        # masters are on the internal network: ignore proxies from the environment
        self._client = httpx.AsyncClient(timeout=timeout_seconds, trust_env=False)

    async def view(self, ui_url: str) -> ClusterView:
        """Return the state of the master at `ui_url`; raise `MasterUnreachable`."""
        try:
            answer = await self._client.get(f"{ui_url.rstrip('/')}/json/")
            answer.raise_for_status()
        except HTTP_ERRORS as error:
            raise MasterUnreachable(f"{ui_url}: {error or type(error).__name__}") from None
        return parse_state(answer.content, ui_url)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def parse_state(answer: bytes, where: str) -> ClusterView:
    """Return the view in a `/json/` answer. A standby or recovering master knows nothing and counts as unreachable."""
    try:
        state = _State.model_validate_json(answer)
    except ValidationError as error:
        raise MasterUnreachable(f"{where}: not a master's answer: {first_problem(error)}") from None
    if state.status != "ALIVE":
        raise MasterUnreachable(f"{where}: the master is {state.status}")
    alive = [worker for worker in state.workers if worker.state == "ALIVE"]
    drivers = sum(driver.cores for driver in state.active_drivers if driver.worker and driver.state == "RUNNING")
    active = sorted(state.active_apps, key=lambda app: app.start_millis)
    return ClusterView(
        slots_total=max(0, sum(worker.cores for worker in alive) - drivers),
        slots_used=max(0, sum(worker.cores_used for worker in alive) - drivers),
        workers_alive=len(alive),
        active={app.id: app for app in active},
        completed={app.id: app for app in state.completed_apps},
        active_by_name={app.name: app for app in active},
    )
