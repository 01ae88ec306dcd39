"""The master's `/json/`, and answers that cannot be used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from services.collector.master import HttpMaster, MasterUnreachable, parse_state
from services.collector.view import ClusterView
from tests.support.eventlogs import APP_ID, MASTER


def changed(**fields: Any) -> bytes:
    """Return the recorded answer with some fields changed."""
    return json.dumps(json.loads(MASTER) | fields).encode()


def test_the_recorded_answer_is_read() -> None:
    """One worker of 6 cores runs a driver and an application of 2 cores: 5 slots, 2 used."""
    view = parse_state(MASTER, "ui")
    assert (view.slots_total, view.slots_used, view.workers_alive) == (5, 2, 1)
    assert view.active[APP_ID].cores == 2
    assert view.active_by_name["recorded"].id == APP_ID
    assert view.completed == {}


def test_dead_workers_and_waiting_drivers_take_no_slots() -> None:
    """Only live workers provide slots, and a driver that waits for a worker uses none."""
    state = json.loads(MASTER)
    worker, driver = state["workers"][0], state["activedrivers"][0]
    view = parse_state(
        changed(
            workers=[worker, worker | {"state": "DEAD"}],
            activedrivers=[driver, driver | {"state": "SUBMITTED", "worker": "None"}],
        ),
        "ui",
    )
    assert (view.slots_total, view.slots_used, view.workers_alive) == (5, 2, 1)


def test_of_several_applications_with_one_name_the_newest_counts() -> None:
    """Names repeat after restarts; the application that started last counts."""
    app = json.loads(MASTER)["activeapps"][0]
    older = app | {"id": "app-older", "starttime": app["starttime"] - 1000}
    view = parse_state(changed(activeapps=[app, older]), "ui")
    assert view.active_by_name["recorded"].id == APP_ID
    assert set(view.active) == {APP_ID, "app-older"}


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"<html>no</html>", "not a master's answer"),
        (b"{}", "status: Field required"),
        (b"[]", "not a master's answer"),
        (changed(workers=[{"state": "ALIVE"}]), "workers.0.cores: Field required"),
        (changed(activeapps=None), "activeapps"),
        (changed(status="STANDBY"), "the master is STANDBY"),
        (changed(status="RECOVERING"), "the master is RECOVERING"),
    ],
)
def test_an_unusable_answer_counts_as_unreachable(answer: bytes, what: str) -> None:
    """Garbage, or the answer of a standby master, counts as unreachable with a reason, not as an empty cluster."""
    with pytest.raises(MasterUnreachable, match=f"http://m: .*{what}|http://m: {what}"):
        parse_state(answer, "http://m")


async def _ask(respond: Callable[[httpx.Request], httpx.Response]) -> ClusterView:
    master = HttpMaster(1.0)
    await master.close()
    master._client = httpx.AsyncClient(transport=httpx.MockTransport(respond), timeout=1.0)
    try:
        return await master.view("http://m:8080/")
    finally:
        await master.close()


def test_the_address_of_the_answer() -> None:
    """The address ends in `/json/`, with or without a slash in the URL."""
    asked = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=MASTER)

    assert asyncio.run(_ask(respond)).slots_total == 5
    assert asked == ["http://m:8080/json/"]


@pytest.mark.parametrize("status", [500, 404, 302])
def test_an_http_error_counts_as_unreachable(status: int) -> None:
    """A proxy's error page is not an empty cluster."""
    with pytest.raises(MasterUnreachable, match=str(status)):
        asyncio.run(_ask(lambda _: httpx.Response(status, headers={"location": "http://x/"})))


def test_a_refused_connection_counts_as_unreachable() -> None:
    """If nobody listens, the master is unreachable."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(MasterUnreachable, match="refused"):
        asyncio.run(_ask(refuse))
