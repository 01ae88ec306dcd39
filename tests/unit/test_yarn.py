"""Jobs on YARN: what the actuator asks of `spark-submit` and the ResourceManager, and what the collector sees."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from services.actuator.backends import BackendRefused, BackendUnreachable, DriverState, Submission, spark_submit
from services.actuator.backends.yarn import SUBMITS, Yarn, launcher_code
from services.actuator.task import Abandoned
from services.collector.clusters import Clusters
from services.collector.kubernetes import KubernetesClusters
from services.collector.master import HttpMaster
from services.collector.view import ClusterView
from services.collector.yarn import YarnClusters, YarnView
from tests.support.counted import CountedList
from tests.support.events import job, with_application
from tests.support.fake_yarn import URL, FakeResourceManager, YarnCluster, on_yarn
from tidegate.events.job import JobSpec
from tidegate.launcher.control.files import Token
from tidegate.launcher.kubernetes.api import Api
from tidegate.remote.yarn import ENDED, ResourceManager
from tidegate.runtime.poll import wait_until

SPEC = on_yarn(job("rates"))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnCluster]:
    """A cluster on which nothing runs yet."""
    cluster = YarnCluster(tmp_path, monkeypatch)
    yield cluster
    cluster.close()


def test_a_run_is_submitted_to_the_cluster_with_its_key(cluster: YarnCluster) -> None:
    """Its tag is what the driver calls itself; YARN must not start it again; the spec's lists are kept."""
    conf = {"spark.yarn.tags": "team-a", "spark.yarn.dist.archives": "data.zip#data", "spark.cores.max": "99"}
    spec = on_yarn(job("rates"), conf=conf, env={"TZ": "UTC"})
    tag = cluster.backend.submit(Submission(spec, Token(7, 2), 2))
    assert tag == "tidegate-rates-7-2"
    (app,) = cluster.backend.applications(spec)
    words = (cluster._apps / app).read_text().splitlines()
    assert words[:4] == ["--master", "yarn", "--deploy-mode", "cluster"]
    settings = dict(word.split("=", 1) for word in words if word.startswith("spark."))
    assert settings["spark.yarn.tags"] == f"team-a,{tag}"
    assert settings["spark.yarn.dist.archives"].startswith("data.zip#data,file:///")
    assert settings["spark.yarn.appMasterEnv.TIDEGATE_SUBMISSION_ID"] == tag
    assert settings["spark.yarn.appMasterEnv.TZ"] == "UTC"
    assert settings["spark.yarn.maxAppAttempts"] == "1"
    assert settings["spark.executor.instances"] == "2"
    assert settings["spark.dynamicAllocation.enabled"] == "false"
    assert settings["spark.cores.max"] == str(spec.scaling.max_parallelism), "how far the launcher may grow it"


def test_the_archive_has_the_launcher(tmp_path: Path) -> None:
    """Unpacked where the driver finds it, the script next to the archive runs it; it is made once."""
    archive = launcher_code(tmp_path)
    made = archive.stat().st_mtime_ns
    assert launcher_code(tmp_path) == archive
    assert archive.stat().st_mtime_ns == made
    zipfile.ZipFile(archive).extractall(tmp_path / "tidegate-launcher")
    command = [sys.executable, str(archive.with_suffix(".py")), "--help"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
    assert "Runs a streaming program under Tidegate" in ran.stdout


def test_a_launcher_that_somebody_else_has_left_is_not_used(
    cluster: YarnCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder is everybody's, and the archive's name is known: what lies there is not run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted = launcher_code(tmp_path)
    planted.with_suffix(".py").write_text("print('planted')\n")
    backend = Yarn(None, cluster.manager.client)
    backend.submit(Submission(cluster.spec, Token(7, 2), 2))
    (app,) = cluster.backend.applications(cluster.spec)
    script = next(word for word in (cluster._apps / app).read_text().splitlines() if word.endswith(".py"))
    assert Path(script).parent != tmp_path
    assert Path(script).parent.stat().st_mode & 0o077 == 0


def test_a_driver_that_waits_for_its_container_says_why(cluster: YarnCluster) -> None:
    """It may still run, it is nobody's application yet, and it holds nothing."""
    tag = cluster.backend.submit(Submission(cluster.spec, Token(7, 2), 2))
    (app,) = cluster.backend.applications(cluster.spec)
    assert cluster.backend.reason(cluster.spec, tag) == ""
    cluster.manager.apps[app] |= {"state": "ACCEPTED", "diagnostics": "Queue's AM resource limit exceeded."}
    assert cluster.backend.state(cluster.spec, tag) is DriverState.PENDING
    assert cluster.backend.reason(cluster.spec, tag) == "Queue's AM resource limit exceeded."
    assert cluster.backend.live_drivers(cluster.spec) == {tag}
    assert cluster.backend.applications(cluster.spec) == {}
    assert cluster.backend.granted(cluster.spec, app) is None


def test_a_driver_has_ended_when_its_processes_have(cluster: YarnCluster) -> None:
    """The ResourceManager says so before; a node that knows nothing of the container is believed, too."""
    tag = cluster.backend.submit(Submission(cluster.spec, Token(7, 2), 2))
    assert cluster.backend.state(cluster.spec, tag) is DriverState.RUNNING
    cluster.end(tag)
    cluster.manager.container = "KILLING"
    assert cluster.backend.state(cluster.spec, tag) is DriverState.RUNNING
    for state in ("DONE", None):
        cluster.manager.container = state
        assert cluster.backend.state(cluster.spec, tag) is DriverState.ENDED


def test_slots_are_the_containers_without_the_drivers(cluster: YarnCluster) -> None:
    """Where the account may not see them, they are unknown."""
    cluster.manager.add("application_1", "rates", runningContainers=4)
    assert cluster.backend.granted(cluster.spec, "application_1") == 3 * cluster.spec.application.executor_cores
    cluster.manager.apps["application_1"]["runningContainers"] = -1
    assert cluster.backend.granted(cluster.spec, "application_1") is None


def test_a_refused_submission_says_why(cluster: YarnCluster) -> None:
    """The line of spark-submit's log that tells; a run that is there all the same was submitted."""
    cluster.refuse()
    with pytest.raises(BackendRefused, match="the queue takes no more"):
        cluster.backend.submit(Submission(cluster.spec, Token(7, 2), 2))
    cluster.manager.add("application_1", "rates", applicationTags="tidegate-rates-7-2")
    assert cluster.backend.submit(Submission(cluster.spec, Token(7, 2), 2)) == "tidegate-rates-7-2"


def test_a_spark_that_is_not_found_is_no_late_answer(cluster: YarnCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was submitted, so nobody has to wait for a driver that may arrive."""
    run = subprocess.run

    def slow(command: list[str], **options: Any) -> Any:
        if "pyspark.find_spark_home" in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return run(command, **options)

    monkeypatch.delenv("SPARK_HOME")
    spark_submit.home_of_pyspark.cache_clear()
    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(BackendRefused, match=r"cannot find Spark: .*find_spark_home.* timed out after 60 seconds"):
        cluster.backend.submit(Submission(cluster.spec, Token(7, 2), 2))


def test_only_some_drivers_are_submitted_at_once(cluster: YarnCluster, tmp_path: Path) -> None:
    """Each `spark-submit` is a JVM on the actuator's machine, and after an outage hundreds of jobs may start."""
    running = tmp_path / "running"
    running.mkdir()
    submit = tmp_path / "bin" / "spark-submit"
    words = f"touch {running}/$$; ls {running} | wc -l >> {tmp_path}/most; sleep 0.3; rm {running}/$$"
    submit.write_text(f"#!/bin/sh\n{words}\n")
    submissions = [Submission(cluster.spec, Token(epoch, 1), 2) for epoch in range(12)]
    with ThreadPoolExecutor(len(submissions)) as pool:
        list(pool.map(cluster.backend.submit, submissions))
    seen = [int(line) for line in (tmp_path / "most").read_text().split()]
    assert len(seen) == len(submissions)
    assert max(seen) <= SUBMITS


def test_a_start_that_waits_for_others_is_given_up_when_the_actuator_stops(
    cluster: YarnCluster, tmp_path: Path
) -> None:
    """Its `spark-submit` would outlive the actuator, and start a driver next to the one of the next actuator."""
    (tmp_path / "bin" / "spark-submit").write_text(f"#!/bin/sh\necho >> {tmp_path}/started\nsleep 1\n")
    cancelled = threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise Abandoned

    submissions = [Submission(cluster.spec, Token(epoch, 1), 2, check=check) for epoch in range(SUBMITS + 2)]
    with ThreadPoolExecutor(len(submissions)) as pool:
        futures = [pool.submit(cluster.backend.submit, each) for each in submissions]
        assert wait_until((tmp_path / "started").exists, 20, 0.01)
        cancelled.set()
        ended = [type(future.exception()) for future in futures]
    started = len((tmp_path / "started").read_text().splitlines())
    assert started <= SUBMITS
    assert ended.count(Abandoned) == len(submissions) - started


def test_a_job_on_yarn_needs_its_resource_manager() -> None:
    """The error names field and value."""
    application = SPEC.application.model_dump(exclude_none=True)
    for change, text in (
        ({"rest_url": None}, "needs rest_url"),
        ({"master_ui_url": "http://m:8080"}, "takes no master_ui_url"),
        ({"master": "spark://m:7077"}, "backend 'yarn' does not fit the master 'spark://m:7077'"),
        ({"backend": "standalone"}, "backend 'standalone' does not fit the master 'yarn'"),
        ({"control_dir": None}, "needs control_dir"),
    ):
        with pytest.raises(ValidationError, match=text):
            JobSpec.model_validate({**SPEC.model_dump(exclude_none=True), "application": {**application, **change}})


def _view(manager: FakeResourceManager, spec: JobSpec = SPEC) -> ClusterView:
    async def ask() -> ClusterView:
        clusters = Clusters(HttpMaster(5.0), KubernetesClusters(Api(), 5.0), YarnClusters(5.0, manager.client))
        try:
            return (await clusters.view(str(spec.application.cluster_place))).of(spec)
        finally:
            await clusters.close()

    return asyncio.run(ask())


def test_the_pool_is_the_queue() -> None:
    """Slots of its executors, and those that memory and cores leave room for, not more than the queue's share."""
    manager = FakeResourceManager()
    manager.add("application_1", "rates")
    manager.add("application_2", "other", runningContainers=2)
    manager.add("application_3", "elsewhere", runningContainers=4, queue="root.night")
    view = _view(manager)
    assert (view.slots_used, view.slots_total, view.workers_alive) == (3, 3 + 4, 2), "4,096 MB for 896 MB each"
    assert view.active["application_1"].cores == 2
    assert view.active_by_name["rates"].id == "application_1"

    manager = FakeResourceManager()
    manager.queues = [{"queueName": "root", "queues": {"queue": [{**manager.queues[0], "absoluteMaxCapacity": 50.0}]}}]
    assert _view(manager).slots_total == 0, "it uses its half of the memory"
    manager.queues[0]["queues"]["queue"][0]["resourcesUsed"] = {"memory": 0, "vCores": 3}
    assert _view(manager).slots_total == 1, "and one core is left of its half"


def test_slots_that_the_account_may_not_see_are_unknown_to_the_collector_too() -> None:
    """Zero would be a job that has lost its executors; what there is room for is known all the same."""
    manager = FakeResourceManager()
    manager.add("application_1", "rates", runningContainers=-1)
    view = _view(manager)
    assert view.active["application_1"].cores is None
    assert (view.slots_used, view.slots_total) == (0, 4)


def test_the_applications_of_a_cluster_are_looked_at_once_for_all_its_jobs() -> None:
    """Each job has its own executors' cores, also in another queue, and hundreds may share a cluster."""
    manager = FakeResourceManager()
    for number in range(9):
        manager.add(f"application_{number}", f"job-{number}", queue="root.night" if number == 8 else "default")
    apps = CountedList(manager.apps.values())
    view = YarnView(apps, manager.metrics, {"queues": {"queue": manager.queues}})
    for number in range(9):
        sizes: Any = {"min_parallelism": 1 + number, "max_parallelism": 4 + 4 * number}
        of_job = view.of(on_yarn(job(f"job-{number}", executor_cores=1 + number, **sizes)))
        assert of_job.active[f"application_{number}"].cores == 2 * (1 + number)
        assert of_job.slots_used == 2 * 8 + (2 * number if number < 8 else 0)
    passes = apps.passes
    for _ in range(9):
        view.of(on_yarn(job("job-3")))
    assert apps.passes == passes


def test_executors_without_a_size_have_no_room_that_is_known() -> None:
    """A job whose settings Spark would refuse still has its applications; only its pool is missing."""
    manager = FakeResourceManager()
    manager.add("application_1", "rates")
    app = SPEC.application.model_copy(update={"conf": {"spark.executor.memoryOverheadFactor": "a tenth"}})
    view = _view(manager, SPEC.model_copy(update={"application": app}))
    assert (view.slots_used, view.slots_total) == (2, None)


def test_an_application_that_has_ended_is_not_active() -> None:
    """Its end is told as a master tells it; one that waits is active without slots."""
    manager = FakeResourceManager()
    manager.add("application_1", "rates", state="FINISHED", finalStatus="SUCCEEDED", runningContainers=-1)
    manager.add("application_2", "rates", state="FAILED", finalStatus="FAILED", runningContainers=-1)
    manager.add("application_3", "rates", state="ACCEPTED", runningContainers=0)
    view = _view(manager)
    assert {id_: app.state for id_, app in view.completed.items()} == {
        "application_1": "FINISHED",
        "application_2": "FAILED",
    }
    assert {id_: (app.state, app.cores) for id_, app in view.active.items()} == {"application_3": ("WAITING", 0)}


def test_ended_applications_are_asked_for_when_one_has_ended() -> None:
    """A cluster may remember thousands of them; one that ended between two looks is found too."""
    manager = FakeResourceManager()
    manager.add("application_1", "rates", state="FINISHED", finalStatus="SUCCEEDED")
    manager.add("application_2", "rates")
    clusters = YarnClusters(5.0, manager.client)

    def ended() -> set[str]:
        return set(asyncio.run(clusters.view(URL)).of(on_yarn(job("rates"))).completed)

    try:
        assert [ended() for _ in range(3)] == [{"application_1"}] * 3
        assert manager.asked.count(ENDED) == 1
        manager.add("application_3", "other", state="FAILED", finalStatus="FAILED")
        assert ended() == {"application_1", "application_3"}
        manager.apps["application_2"] |= {"state": "KILLED", "finalStatus": "KILLED"}
        assert ended() == {"application_1", "application_2", "application_3"}
        assert manager.asked.count(ENDED) == 3
    finally:
        clusters.close()


def test_a_cluster_that_hangs_costs_no_other_one_its_answer() -> None:
    """A ResourceManager that never answers takes all the time that there is."""
    manager, gate = FakeResourceManager(), threading.Event()
    manager.add("application_1", "rates")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "hangs":
            gate.wait(10)
            raise httpx.ReadTimeout("no answer", request=request)
        return manager.answer(request)

    clusters = YarnClusters(1.0, ResourceManager(transport=httpx.MockTransport(answer)))

    async def ask() -> tuple[YarnView | BaseException, YarnView | BaseException]:
        return await asyncio.gather(clusters.view("http://hangs:8088"), clusters.view(URL), return_exceptions=True)

    try:
        hangs, answers = asyncio.run(ask())
    finally:
        gate.set()
        clusters.close()
    assert isinstance(hangs, TimeoutError)
    assert isinstance(answers, YarnView)


def test_without_the_capacity_scheduler_the_pool_is_the_cluster() -> None:
    """Other schedulers tell their queues otherwise."""
    manager = FakeResourceManager()
    manager.queues = []
    manager.add("application_3", "elsewhere", runningContainers=4, queue="root.night")
    view = _view(manager)
    assert (view.slots_used, view.slots_total) == (3, 3 + 4)


def test_a_kill_is_the_submitters(cluster: YarnCluster) -> None:
    """The API takes it from no one else."""
    tag = cluster.backend.submit(Submission(cluster.spec, Token(7, 2), 2))
    assert wait_until(lambda: cluster.backend.state(cluster.spec, tag).alive, 30)
    cluster.backend.kill(cluster.spec, tag)
    assert cluster.backend.state(cluster.spec, tag) is DriverState.ENDED


def test_nobody_is_taken_for_the_user_of_an_earlier_kill() -> None:
    """Hadoop sets a cookie for the first `user.name` that it sees, and believes it rather than later ones."""
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        user, cookie = request.url.params.get("user.name", ""), request.headers.get("cookie", "")
        asked.append((user, cookie))
        return httpx.Response(200, json={}, headers={"set-cookie": f"hadoop.auth={user}; Path=/"} if user else {})

    manager = ResourceManager(transport=httpx.MockTransport(answer))
    manager.kill("http://rm:8088", {"id": "application_1", "user": "shop"})
    manager.get("http://rm:8088", "info")
    manager.kill("http://rm:8088", {"id": "application_2", "user": "etl"})
    assert asked == [("shop", ""), ("", ""), ("etl", "")]


def test_an_address_that_is_none_does_not_answer(tmp_path: Path) -> None:
    """It must not look like a fault of Tidegate's."""
    spec = with_application(SPEC, rest_url="http://rm:8o88")
    with pytest.raises(BackendUnreachable, match="Invalid port: '8o88'"):
        Yarn(tmp_path).state(spec, "t")


@pytest.mark.parametrize("apps", [[1], {"app": [None]}, {"app": [{}]}, {"app": "x"}, {"app": {"id": "a"}}])
def test_an_answer_of_another_kind_is_no_answer(tmp_path: Path, apps: object) -> None:
    """It must not end the actuator, and not mean that nothing runs."""
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json={"apps": apps}))
    yarn = Yarn(tmp_path, ResourceManager(transport=transport))
    for ask in (lambda: yarn.state(SPEC, "t"), lambda: yarn.applications(SPEC), lambda: yarn.granted(SPEC, "a")):
        with pytest.raises(BackendUnreachable):
            ask()


@pytest.mark.parametrize(("hours", "asks"), [(0.01, True), (2.0, False), (None, True)])
def test_nodes_of_runs_that_ended_long_ago_are_not_asked(tmp_path: Path, hours: float | None, asks: bool) -> None:
    """Twenty old runs whose nodes a cloud has taken away would else keep each command waiting for minutes."""
    nodes: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/ws/v1/node/"):
            nodes.append(request.extensions["timeout"]["connect"])
            raise httpx.ConnectTimeout("gone")
        if request.url.path.endswith("/appattempts"):
            attempt = {"nodeHttpAddress": "nm:8042", "containerId": "c"}
            return httpx.Response(200, json={"appAttempts": {"appAttempt": [attempt]}})
        ended = {} if hours is None else {"finishedTime": int((time.time() - 3600 * hours) * 1000)}
        app = {"id": "a", "name": "rates", "state": "FINISHED", "user": "ann", "applicationTags": "t", **ended}
        return httpx.Response(200, json={"apps": {"app": [app]}})

    yarn = Yarn(tmp_path, ResourceManager(transport=httpx.MockTransport(answer)))
    assert yarn.state(SPEC, "t") is DriverState.ENDED
    assert bool(nodes) is asks
    assert all(seconds <= 2.0 for seconds in nodes)


@pytest.mark.parametrize("said", ["<html>log in</html>", "[]", '{"container": null}', '{"container": {"state": []}}'])
def test_a_node_that_says_something_else_has_not_answered(tmp_path: Path, said: str) -> None:
    """Such as the page of a proxy: then the ResourceManager's word counts."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/ws/v1/node/"):
            return httpx.Response(200, text=said)
        if request.url.path.endswith("/appattempts"):
            attempt = {"nodeHttpAddress": "nm:8042", "containerId": "c"}
            return httpx.Response(200, json={"appAttempts": {"appAttempt": [attempt]}})
        app = {"id": "a", "name": "rates", "state": "FINISHED", "user": "ann", "applicationTags": "t"}
        return httpx.Response(200, json={"apps": {"app": [app]}})

    yarn = Yarn(tmp_path, ResourceManager(transport=httpx.MockTransport(answer)))
    assert yarn.state(SPEC, "t") is DriverState.ENDED
