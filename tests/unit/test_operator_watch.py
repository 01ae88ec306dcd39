"""The operator's objects as an API server tells them: listed once, then watched, and listed again when that fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from services.operator import reflector
from services.operator.cluster import KubernetesStreamingJobs
from services.operator.ports import ObjectMoved
from services.operator.reflector import STUCK_AFTER_SECONDS, Reflector
from services.operator.resource import GROUP, PLURAL, VERSION
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.fake_streaming_jobs import FIELDS
from tests.support.set_clock import SetClock
from tests.unit.test_operator import World
from tidegate.launcher.kubernetes.api import ApiError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import wait_until

PATH = f"/apis/{GROUP}/{VERSION}/namespaces/jobs/{PLURAL}"
LIST, WATCH = f"GET {PATH}", f"WATCH {PATH}"


@pytest.fixture
def server(server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> FakeKubernetes:
    """An API server with two objects; a watch of it lasts a second, and pauses are short."""
    monkeypatch.setattr(reflector, "WATCH_SECONDS", 1)
    monkeypatch.setattr(reflector, "PAUSE_SECONDS", 0.02)
    for name in ("rates", "sales"):
        server.put(f"{PATH}/{name}", spec=FIELDS)
    return server


@pytest.fixture
def cluster(server: FakeKubernetes) -> Iterator[KubernetesStreamingJobs]:
    """The client of the operator, which watches."""
    with closing(KubernetesStreamingJobs(server.api, "jobs", SystemClock())) as made:
        made.start()
        yield made


def seen(cluster: KubernetesStreamingJobs) -> dict[str, int]:
    """Return the interval of each object, as the client has it."""
    return {one["metadata"]["name"]: one["spec"].get("interval_seconds", 10) for one in cluster.all()}


def becomes(cluster: KubernetesStreamingJobs, **intervals: int) -> bool:
    """Wait until the client has these objects and no others."""
    return wait_until(lambda: seen(cluster) == intervals, 10, 0.01)


def is_watching(server: FakeKubernetes) -> bool:
    """Wait until a watch is open."""
    return wait_until(lambda: server.watches == 1, 10, 0.01)


def change(server: FakeKubernetes, name: str, seconds: int) -> None:
    """Have somebody change an object, or make it."""
    server.put(f"{PATH}/{name}", spec=FIELDS | {"interval_seconds": seconds})


def delete(server: FakeKubernetes, name: str) -> None:
    """Have somebody delete an object."""
    assert server.answer("DELETE", f"{PATH}/{name}", None)[0] == 200


def test_objects_are_listed_once_and_then_watched(cluster: KubernetesStreamingJobs, server: FakeKubernetes) -> None:
    """With a thousand objects, a list is megabytes. What is made, changed or deleted is told, over several watches."""
    for seconds in range(20, 25):
        change(server, "rates", seconds)
        change(server, "more", seconds)
        assert becomes(cluster, rates=seconds, sales=10, more=seconds)
        delete(server, "more")
        assert becomes(cluster, rates=seconds, sales=10)
        watches = server.requests.count(WATCH)
        assert wait_until(lambda: server.requests.count(WATCH) > watches, 30, 0.01)  # noqa: B023
    assert server.requests.count(LIST) == 1


def test_a_bookmark_is_where_the_next_watch_goes_on(cluster: KubernetesStreamingJobs, server: FakeKubernetes) -> None:
    """While only other objects change, the server forgets the version of the list: that is no reason to list again."""
    assert is_watching(server)
    server.bookmark_seconds = 0.1
    for _ in range(3):
        server.put("/api/v1/namespaces/jobs/pods/a")
        watches = server.requests.count(WATCH)
        assert wait_until(lambda: server.requests.count(WATCH) > watches, 30, 0.01)  # noqa: B023
        server.forget()
    change(server, "rates", 20)
    assert becomes(cluster, rates=20, sales=10)
    assert server.requests.count(LIST) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_version_that_the_server_has_forgotten_is_listed_again(
    cluster: KubernetesStreamingJobs, server: FakeKubernetes, late: bool
) -> None:
    """Whether it says so by its status or by an event. What has been deleted meanwhile is gone, and all is told."""
    assert is_watching(server)
    server.tells_expired_late = late
    with server.lock:
        server.cut()
        delete(server, "sales")
        change(server, "rates", 20)
        server.forget()
    assert becomes(cluster, rates=20)
    assert server.requests.count(LIST) == 2
    assert server.requests.index(LIST, 1) >= 3, "it tried to watch on first"
    change(server, "rates", 30)
    assert becomes(cluster, rates=30)


def test_nothing_is_missed_when_connections_break(cluster: KubernetesStreamingJobs, server: FakeKubernetes) -> None:
    """Changes around each break are told all the same, and no object seems to be missing meanwhile."""
    for seconds in range(20, 30):
        assert is_watching(server)
        server.cut()
        change(server, "rates", seconds)
        assert set(seen(cluster)) == {"rates", "sales"}
        assert becomes(cluster, rates=seconds, sales=10)


def test_an_api_server_that_is_away_is_asked_less_and_less(
    cluster: KubernetesStreamingJobs, server: FakeKubernetes
) -> None:
    """Meanwhile nobody knows the objects, and none seems to be missing; afterwards they are what they are then."""
    assert is_watching(server)
    server.silent = True
    server.cut()

    def is_away() -> bool:
        try:
            return not cluster.all()
        except ApiError:
            return True

    assert wait_until(is_away, 30, 0.01)
    asked = len(server.requests)
    assert not wait_until(lambda: len(server.requests) > asked + 8, 1.0, 0.05)
    assert is_away()
    delete(server, "sales")
    server.silent = False
    assert wait_until(lambda: not is_away(), 30, 0.01)
    assert becomes(cluster, rates=10)
    assert cluster.alive


def test_no_object_is_missing_before_the_first_list_is_answered(server: FakeKubernetes) -> None:
    """A round that comes first waits; if the list fails it does nothing, and soon has all of them."""
    server.broken = 500
    with closing(KubernetesStreamingJobs(server.api, "jobs", SystemClock())) as cluster:
        cluster.start()
        with pytest.raises(ApiError, match="500: the server is broken"):
            cluster.all()
        server.broken = None
        assert wait_until(lambda: server.requests.count(WATCH) > 0, 30, 0.01)
        assert becomes(cluster, rates=10, sales=10)


def test_an_account_that_may_not_watch_goes_on_by_lists(
    server: FakeKubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Role may be older than the operator. The log says so, once, and once that it watches."""
    caplog.set_level("INFO", "operator")
    server.forbidden = re.compile("^WATCH")
    with closing(KubernetesStreamingJobs(server.api, "jobs", SystemClock())) as cluster:
        cluster.start()
        assert becomes(cluster, rates=10, sales=10)
        change(server, "rates", 20)
        assert becomes(cluster, rates=20, sales=10)
        assert wait_until(lambda: server.requests.count(WATCH) > 3, 30, 0.01)
        server.forbidden = None
        assert is_watching(server)
        change(server, "rates", 30)
        assert becomes(cluster, rates=30, sales=10)
        assert wait_until(lambda: "watched again" in caplog.text, 30, 0.01)
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert warning.startswith("cannot watch the StreamingJobs, and lists them now and then instead: GET http")
    assert 'User "tester" cannot WATCH' in warning
    assert warning.endswith("lists the rights that each account needs")


def test_an_own_change_is_seen_at_once(server: FakeKubernetes) -> None:
    """The next round must not plan on the version before, however late the watch tells it."""
    server.forbidden = re.compile("^WATCH")
    world = World()
    with closing(KubernetesStreamingJobs(server.api, "jobs", world.time)) as cluster:
        cluster.start()
        assert becomes(cluster, rates=10, sales=10)
        world.cluster = cluster  # type: ignore[assignment]
        operator = world.restarted()
        operator.turn()
        patches = sum(request.startswith("PATCH") for request in server.requests)
        assert [spec.job_id for spec in world.jobs.published] == ["rates", "sales"]
        operator.turn()
        assert sum(request.startswith("PATCH") for request in server.requests) == patches
    assert server.objects[f"{PATH}/rates"]["status"]["conditions"][0]["status"] == "True"


def test_a_change_of_somebody_else_wins_over_one_on_an_older_version(
    cluster: KubernetesStreamingJobs, server: FakeKubernetes
) -> None:
    """The server refuses ours, and the object is soon what they made of it."""
    version = next(one["metadata"]["resourceVersion"] for one in cluster.all() if one["metadata"]["name"] == "rates")
    change(server, "rates", 20)
    with pytest.raises(ObjectMoved):
        cluster.change("rates", {"metadata": {"resourceVersion": version}, "spec": {"slots": 3}})
    assert becomes(cluster, rates=20, sales=10)
    delete(server, "sales")
    with pytest.raises(ObjectMoved):
        cluster.change_status("sales", {"why": "…"})
    assert becomes(cluster, rates=20)


def test_an_object_goes_with_its_last_finalizer(cluster: KubernetesStreamingJobs, server: FakeKubernetes) -> None:
    """The answer to that change is the object once more: it does not come back by it."""
    server.put(f"{PATH}/rates", metadata={"finalizers": ["ours"]})
    delete(server, "rates")
    assert wait_until(lambda: any("deletionTimestamp" in one["metadata"] for one in cluster.all()), 30, 0.01)
    cluster.change("rates", {"metadata": {"finalizers": []}})
    assert becomes(cluster, sales=10)


def told(name: str, version: int, **spec: Any) -> dict[str, Any]:
    """Return an object."""
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "spec": spec}


class Told:
    """A reflector that is told what a test says, in its own thread."""

    def __init__(self, *listed: dict[str, Any]) -> None:
        self.listed = [*listed]
        self.time = SetClock()
        self.before_list: Callable[[], None] = lambda: None
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._wakes = threading.Semaphore(0)
        self.reflector = Reflector(self._list, self._watch, self.time)
        self.reflector.start()

    def tell(self, kind: str, one: dict[str, Any]) -> None:
        """Have an event told; the next call returns after it has been taken in."""
        self._events.append((kind, one))
        self._wakes.release()
        assert wait_until(lambda: self.reflector._version == one["metadata"]["resourceVersion"], 30, 0.01)

    def break_off(self) -> None:
        """End the watch by an error."""
        self._wakes.release()

    def versions(self) -> dict[str, int]:
        """Return the version of each object."""
        found = self.reflector.all()
        return {one["metadata"]["name"]: int(one["metadata"]["resourceVersion"]) for one in found}

    def _list(self) -> tuple[list[dict[str, Any]], str]:
        found = list(self.listed)
        self.before_list()
        return found, "100"

    def _watch(self, _version: str, _seconds: int) -> Iterator[tuple[str, dict[str, Any]]]:
        while self._wakes.acquire():
            if not self._events:
                raise ApiError("broken")
            yield self._events.pop(0)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """A reflector with one object."""
    monkeypatch.setattr(reflector, "PAUSE_SECONDS", 0.02)
    made = Told(told("rates", 90))
    assert made.versions() == {"rates": 90}
    yield made
    made.reflector.close()
    made.break_off()


def test_what_is_newer_stays(objects: Told) -> None:
    """A watch may tell an object late that a change of our own has been answered on since."""
    objects.reflector.take(told("rates", 105))
    assert objects.versions() == {"rates": 105}
    objects.tell("MODIFIED", told("rates", 103))
    assert objects.versions() == {"rates": 105}
    objects.reflector.take(told("rates", 104))
    assert objects.versions() == {"rates": 105}
    objects.tell("MODIFIED", told("rates", 106))
    assert objects.versions() == {"rates": 106}


def test_an_object_that_is_gone_does_not_come_back(objects: Told) -> None:
    """The answer to a change of our own may come after the watch has told the end of the object."""
    objects.tell("DELETED", told("rates", 110))
    objects.reflector.take(told("rates", 109))
    assert objects.versions() == {}
    objects.tell("ADDED", told("rates", 112))
    objects.reflector.take(told("rates", 109))
    assert objects.versions() == {"rates": 112}


def test_an_object_that_was_made_again_is_not_deleted_by_what_is_told_of_the_one_before(objects: Told) -> None:
    """A change of our own, which names the object, may be answered with the new one first."""
    objects.reflector.take(told("rates", 115))
    objects.tell("DELETED", told("rates", 110))
    objects.tell("ADDED", told("rates", 112))
    assert objects.versions() == {"rates": 115}


def test_a_list_is_not_newer_than_a_change_that_was_answered_meanwhile(objects: Told) -> None:
    """Its objects are those of the instant at which it was made; what is missing in it is gone."""
    objects.tell("ADDED", told("sales", 101))
    listed = threading.Event()

    def changed_meanwhile() -> None:
        objects.reflector.take(told("rates", 120))
        listed.set()

    objects.before_list = changed_meanwhile
    objects.break_off()
    assert listed.wait(30)
    assert wait_until(lambda: objects.versions() == {"rates": 120}, 30, 0.01)


def test_a_server_that_was_restored_from_a_backup_is_believed(objects: Told) -> None:
    """It counts versions again from an older one: what was told before does not count as newer for ever."""
    objects.listed = [told("rates", 40)]
    objects.break_off()
    assert wait_until(lambda: objects.versions() == {"rates": 40}, 30, 0.01)
    objects.tell("MODIFIED", told("rates", 41))
    assert objects.versions() == {"rates": 41}


@pytest.mark.expects_errors("an error that nobody expects")
def test_an_error_that_nobody_expects_ends_no_watch(objects: Told) -> None:
    """It is logged with its place, no object seems to be missing, and the objects are listed again."""
    failed = threading.Event()

    def fails() -> None:
        objects.before_list = lambda: None
        failed.set()
        raise KeyError("items")

    objects.before_list = fails
    objects.break_off()
    assert failed.wait(30)
    objects.tell("MODIFIED", told("rates", 106))
    assert objects.versions() == {"rates": 106}


def test_health_tells_of_a_watch_that_neither_tells_anything_nor_fails(
    objects: Told, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever holds it, nobody plans on old objects any more, and the operator is unhealthy until it starts again."""
    world = World()
    world.cluster, world.time = objects.reflector, objects.time  # type: ignore[assignment]
    operator = world.restarted()
    objects.tell("DELETED", told("rates", 106))
    for seconds, healthy in ((STUCK_AFTER_SECONDS, True), (20, True), (20, False)):
        world.time.at += timedelta(seconds=seconds)
        operator.turn()
        assert operator.health.alive == healthy
    assert [record.message for record in caplog.records] == [
        "cannot list the StreamingJobs: neither an answer nor a failure for 180 s"
    ]
