"""The operator on objects and topics in memory: objects become specs, decisions become status."""

from __future__ import annotations

import copy
import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from services.operator.app import ROUND_SECONDS, Operator, TopicRequests
from services.operator.cluster import KubernetesStreamingJobs
from services.operator.status import camel, changes
from tests.support.events import command, job, result
from tests.support.fake_streaming_jobs import FIELDS, FakeJobs, FakeStreamingJobs
from tests.support.fleets import decision
from tests.support.set_clock import SetClock
from tidegate.events.decision import Decision, Status, TrailEntry
from tidegate.events.job import JobSpec, Mode, SpecChange
from tidegate.events.result import Phase
from tidegate.events.snapshot import ClusterState
from tidegate.launcher.kubernetes.access import ApiAccess
from tidegate.launcher.kubernetes.api import Api, ApiError, ApiRefused, ApiUnreachable
from tidegate.operate import with_mode
from tidegate.runtime.health import Health
from tidegate.runtime.producer import TooLarge
from tidegate.runtime.settings import ServiceSettings
from tidegate.runtime.topics import TopicsLost
from tools import crd

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class World:
    """An operator, and what is around it."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed
        self.time, self.cluster, self.jobs = SetClock(), FakeStreamingJobs(), FakeJobs()
        self.operator = self.restarted()

    def restarted(self) -> Operator:
        """Return an operator that remembers nothing."""
        return Operator(
            namespace="jobs",
            allowed=self.allowed,
            poll_seconds=1.0,
            clock=self.time,
            cluster=self.cluster,
            jobs=self.jobs,
            requests=self.jobs,
            health=Health(self.time, CollectorRegistry()),
        )

    def turn(self) -> dict[str, Any]:
        """Let the operator do a round, show what it published; return the status of `rates`."""
        self.operator.turn()
        self.jobs.deliver()
        status: dict[str, Any] = self.cluster.objects.get("rates", {}).get("status", {})
        return status

    def decides(self, current: int, final: int, **fields: Any) -> Decision:
        """Have a decision on `rates` made just now, with its state running."""
        self.time.at += timedelta(seconds=10)
        job = self.jobs.fleet.get("rates")
        assert job is not None
        sizes = {"current_parallelism": current, "proposed_parallelism": final, "final_parallelism": final}
        made = decision(job.spec, self.time.at).model_copy(update={**sizes, **fields})
        self.jobs.fleet.take(made)
        job.state = ClusterState.RUNNING
        return made

    @property
    def slots(self) -> int | None:
        """What the object says."""
        slots: int | None = self.cluster.objects["rates"]["spec"].get("slots")
        return slots

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition of `rates`."""
        found = {each["type"]: each for each in self.cluster.objects["rates"]["status"]["conditions"]}[kind]
        return found["status"], found["reason"], found["message"]


@pytest.fixture
def world() -> World:
    """A world with one object, `rates`, that the operator has taken over."""
    made = World()
    made.cluster.apply("rates", FIELDS)
    made.turn()
    return made


def test_an_object_becomes_the_spec_that_apply_would_publish(world: World) -> None:
    """The fields are those of the file, the name is the job's id, and the change says who asked and for what."""
    (spec,) = world.jobs.published
    assert spec.model_copy(update={"change": None}) == JobSpec.model_validate_json(
        JobSpec.model_validate({**FIELDS, "job_id": "rates", "sources": ("in",)}).model_dump_json()
    )
    assert spec.change == SpecChange(
        by="kubectl-client-side-apply", reason="StreamingJob jobs/rates, generation 1", at=NOW
    )
    assert world.cluster.objects["rates"]["metadata"]["finalizers"] == ["tidegate.dev/operator"]
    assert world.condition("Accepted")[:2] == ("True", "Valid")
    assert world.condition("InSync")[:2] == ("True", "Same")
    assert world.condition("Healthy")[:2] == ("Unknown", "NoDecision")


def test_rounds_without_changes_write_nothing(world: World) -> None:
    """Nothing is published or patched twice, also before the topic has shown the version, and after a restart."""
    world.operator.turn()
    written = len(world.cluster.writes)
    world.turn()
    world.operator = world.restarted()
    world.turn()
    assert len(world.jobs.published) == 1
    assert len(world.cluster.writes) == written


def test_a_version_that_the_topic_has_not_shown_yet_is_not_published_again() -> None:
    """Two rounds before the topic answers publish one version."""
    world = World()
    world.cluster.apply("rates", FIELDS)
    world.operator.turn()
    world.operator.turn()
    assert [spec.version for spec in world.jobs.published] == [1]


def test_the_annotation_is_the_reason(world: World) -> None:
    """What the annotation `kubernetes.io/change-cause` says is recorded with the change."""
    world.cluster.objects["rates"]["metadata"]["annotations"] = {"kubernetes.io/change-cause": "twice the load"}
    world.cluster.apply("rates", {"interval_seconds": 5}, "kubectl-edit")
    world.turn()
    spec = world.jobs.published[-1]
    assert (spec.version, spec.interval_seconds) == (2, 5)
    assert spec.change is not None
    assert (spec.change.by, spec.change.reason) == ("kubectl-edit", "twice the load")


def test_a_wrong_spec_is_named_and_disturbs_nobody(world: World) -> None:
    """Accepted is False with field, value and what to do; the former version and the neighbors go on."""
    world.cluster.apply("rates", {"scaling": {"policy": "tyde", "min_parallelism": 5, "max_parallelism": 3}})
    world.cluster.apply("other", FIELDS)
    world.turn()
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "Invalid")
    assert "scaling: min_parallelism 5 is above max_parallelism 3" in message
    assert message.endswith("Correct that and apply the object again. Version 1 stays in force.")
    assert [(spec.job_id, spec.version) for spec in world.jobs.published] == [("rates", 1), ("other", 1)]
    world.cluster.apply("rates", {"scaling": {"policy": "tyde"}})
    world.turn()
    assert "scaling.policy: " in world.condition("Accepted")[2]
    world.cluster.apply("rates", {"scaling": {"policy": "hpa"}})
    world.turn()
    assert world.condition("Accepted")[:2] == ("True", "Valid")
    assert world.jobs.published[-1].scaling.policy == "hpa"


def test_a_spec_in_force_that_the_engine_refuses_is_named_and_disturbs_nobody(world: World) -> None:
    """Another version of Tidegate may have published it, with a policy that is not installed here."""
    present = world.jobs.published[-1]
    scaling = present.scaling.model_copy(update={"policy": "tyde"})
    world.jobs.fleet.take_spec(present.model_copy(update={"version": 2, "scaling": scaling}))
    world.cluster.apply("rates", {"scaling": {"policy": "tyde"}})
    world.cluster.scale("rates", 5)
    world.cluster.apply("other", FIELDS)
    for _ in range(2):
        world.turn()
    assert [(spec.job_id, spec.version) for spec in world.jobs.published] == [("rates", 1), ("other", 1)]
    message = world.condition("Accepted")[2]
    assert message.count("unknown policy 'tyde'") == 1
    assert message.endswith("Version 2 stays in force.")


def test_a_request_that_the_engine_refuses_stays_open_and_is_named(world: World) -> None:
    """What is in force has a policy that is not installed here; once it has another one, the request is carried out."""
    present = world.jobs.published[-1]
    scaling = present.scaling.model_copy(update={"policy": "tyde"})
    world.jobs.fleet.take_spec(present.model_copy(update={"version": 2, "scaling": scaling}))
    world.cluster.scale("rates", 5)
    for _ in range(2):
        world.turn()
        assert world.condition("Accepted")[:2] == ("False", "Invalid")
        assert "unknown policy 'tyde'" in world.condition("Accepted")[2]
    world.jobs.fleet.take_spec(present.model_copy(update={"version": 3}))
    world.turn()
    made = world.jobs.published[-1]
    assert made.version == 4
    assert made.manual is not None
    assert made.manual.parallelism == 5
    assert world.condition("Accepted")[:2] == ("True", "Valid")


@pytest.mark.parametrize("levels", [60, 190, 1000, 20_000])
def test_an_object_that_is_nested_too_deep_is_named_and_disturbs_nobody(levels: int) -> None:
    """Kubernetes takes 10,000 levels, far more than Python: reading the list of all objects ended the operator."""
    world = World()

    class Nested(Api):
        def _request(self, *_: Any) -> bytes:
            listed = json.dumps({"items": world.cluster.all()}).replace('"here"', '{"a": [' * levels + "]}" * levels)
            return listed.encode()

    pods = FIELDS["application"]["kubernetes"] | {"driver_template": {"it": "here"}}
    world.cluster.apply("rates", FIELDS | {"application": FIELDS["application"] | {"kubernetes": pods}})
    world.cluster.apply("other", FIELDS | {"application": FIELDS["application"] | {"args": ['"[{\\', "]"]}})
    with closing(KubernetesStreamingJobs(Nested(ApiAccess("http://k", "the test")), "jobs", world.time)) as cluster:
        cluster.start()
        listed = cluster.all()
    world.cluster.all = lambda: listed  # type: ignore[method-assign]
    world.turn()
    assert [(spec.job_id, spec.application.args) for spec in world.jobs.published] == [("other", ('"[{\\', "]"))]
    assert world.condition("Accepted")[:2] == ("False", "Invalid")
    assert "(the whole spec): nested deeper than 50 levels" in world.condition("Accepted")[2]


@pytest.mark.expects_errors("an error that nobody expects, once")
def test_an_object_that_meets_an_unexpected_error_disturbs_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has its place, once however often it is met; the neighbors go on."""
    world.cluster.apply("other", FIELDS)
    world.cluster.objects["rates"]["status"]["conditions"][0].pop("type")
    world.turn()
    world.turn()
    assert [spec.job_id for spec in world.jobs.published] == ["rates", "other"]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [(record.message, record.exc_info is not None) for record in errors] == [
        ("rates: an error that Tidegate does not expect; trying again", True)
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_spec_that_cannot_be_read_is_not_overwritten(world: World, known: bool) -> None:
    """A newer Tidegate may have written it: Accepted says so, neither change nor size is published, nor a version 1.

    The operator may know the version before, or have started since.
    """
    present = world.jobs.published.pop()
    world.jobs.fleet.unusable = {"rates": "scaling.mode: Input should be 'active', 'advise' or 'paused', found 'nap'"}
    if not known:
        world.jobs.fleet.remove("rates")
    world.time.at += timedelta(minutes=1)
    world.cluster.apply("rates", {"interval_seconds": 5, "slots": 3})
    world.cluster.apply("other", FIELDS)
    world.turn()
    assert [spec.job_id for spec in world.jobs.published] == ["other"]
    status, reason, message = world.condition("Accepted")
    assert (status, reason) == ("False", "UnreadableSpec")
    assert "found 'nap'. Nothing is published over it: upgrade the operator, if a newer Tidegate wrote" in message
    assert "run `tidegate remove rates`: then the spec of this object is published" in message
    world.jobs.fleet.unusable = {}
    world.jobs.fleet.take_spec(present.model_copy(update={"version": 7}))
    world.turn()
    made = world.jobs.published[-1]
    assert (made.job_id, made.version, made.interval_seconds) == ("rates", 8, 5)
    assert made.manual is not None
    assert made.manual.parallelism == 3
    assert world.condition("Accepted")[:2] == ("True", "Valid")


def test_a_job_whose_spec_cannot_be_read_is_removed_with_its_object(world: World) -> None:
    """Deleting the object asks for that, also of an operator that has not read another version."""
    world.jobs.fleet.remove("rates")
    world.jobs.fleet.unusable = {"rates": "not JSON"}
    world.operator = world.restarted()
    world.cluster.delete("rates")
    world.turn()
    assert world.jobs.removed == ["rates"]
    assert world.cluster.objects == {}


def test_a_size_does_not_drop_fields_of_a_newer_version(world: World) -> None:
    """What `kubectl scale` republishes would lack them. The request stays open, and counts once they are gone."""
    world.jobs.fleet.unknown = {"rates": ["scaling.nap", "naps"]}
    world.cluster.scale("rates", 5)
    for _ in range(2):
        world.turn()
        status, _, message = world.condition("Accepted")
        assert status == "False"
        assert "slots: 5 is not requested, because the spec in force has fields that this version" in message
        assert "would drop: scaling.nap, naps. Upgrade the operator" in message
    assert [spec.version for spec in world.jobs.published] == [1]
    world.cluster.apply("rates", {"interval_seconds": 5})
    world.turn()
    made = world.jobs.published[-1]
    assert made.manual is not None
    assert (made.version, made.interval_seconds, made.manual.parallelism) == (2, 5, 5)
    assert world.condition("Accepted")[:2] == ("True", "Valid")


def test_fields_of_a_newer_version_are_named(world: World) -> None:
    """The job's spec is not that of the object: the object's next change drops them, as a file does."""
    world.jobs.fleet.unknown = {"rates": ["scaling.nap"]}
    world.turn()
    status, reason, message = world.condition("InSync")
    assert (status, reason) == ("False", "ChangedElsewhere")
    assert "changed the job elsewhere: scaling.nap, which this version of Tidegate does not know. The obj" in message
    world.cluster.apply("rates", {"interval_seconds": 5})
    world.turn()
    assert world.condition("InSync")[:2] == ("True", "Same")


def test_an_object_does_not_move_its_job_while_that_runs(world: World) -> None:
    """Accepted names the fields with both values; stopped first, the job moves. The neighbors go on."""
    elsewhere = "k8s://https://elsewhere:6443"
    world.operator.allowed = [elsewhere]
    application = {**FIELDS["application"], "master": elsewhere}
    world.cluster.apply("rates", {**FIELDS, "application": application})
    world.cluster.apply("other", FIELDS)
    world.turn()
    status, _, message = world.condition("Accepted")
    assert status == "False"
    assert "application.master: k8s://https://kubernetes.default.svc -> k8s://https://elsewhere:6443" in message
    assert message.endswith("Version 1 stays in force.")
    assert [(spec.job_id, spec.version) for spec in world.jobs.published] == [("rates", 1), ("other", 1)]
    world.cluster.apply("rates", {**FIELDS, "running": False})
    world.turn()
    world.cluster.apply("rates", {**FIELDS, "running": True, "application": application})
    world.turn()
    assert world.condition("Accepted")[0] == "True"
    assert world.jobs.published[-1].application.master == elsewhere


def test_a_wrong_spec_of_a_new_job_starts_nothing() -> None:
    """There is no job, and the condition says so."""
    world = World()
    world.cluster.apply("rates", {**FIELDS, "guards": {}})
    world.turn()
    assert world.jobs.published == []
    assert world.condition("Accepted")[2].startswith("guards: unknown field")
    assert world.condition("Accepted")[2].endswith("The job is not started.")


def test_a_spec_that_is_too_large_for_its_topic_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object may be larger than a record: its status says so, the version before stays, and nothing else is done."""

    def publish(spec: JobSpec) -> None:
        if "spark.note" in spec.application.conf:
            raise TooLarge("tidegate.jobs key b'rates': Broker: Message size too large")
        published(spec)

    published = world.jobs.publish
    monkeypatch.setattr(world.jobs, "publish", publish)
    world.cluster.apply("rates", {"application": FIELDS["application"] | {"conf": {"spark.note": "x" * 100}}})
    for _ in range(2):
        world.turn()
        accepted = world.condition("Accepted")
        assert accepted[:2] == ("False", "Invalid")
        assert "Message size too large" in accepted[2]
        assert accepted[2].endswith("Version 1 stays in force.")
        assert world.condition("InSync")[0] == "Unknown"
    writes = list(world.cluster.writes)
    world.turn()
    assert world.cluster.writes == writes
    world.cluster.apply("rates", {"application": FIELDS["application"]})
    world.turn()
    assert world.condition("Accepted")[0] == "True"


def test_the_pods_of_a_job_are_in_the_namespace_of_its_object() -> None:
    """It need not be said, and another one is refused: who may write objects here starts no pods elsewhere."""
    world = World()
    application = FIELDS["application"] | {"kubernetes": {"image": "spark:4.2.0"}}
    world.cluster.apply("rates", FIELDS | {"application": application})
    world.turn()
    pods = world.jobs.published[-1].application.kubernetes
    assert pods is not None
    assert pods.namespace == "jobs"
    elsewhere = application | {"kubernetes": {"image": "spark:4.2.0", "namespace": "kube-system"}}
    world.cluster.apply("rates", {"application": elsewhere})
    world.turn()
    assert "must be the object's own, 'jobs', found 'kube-system'" in world.condition("Accepted")[2]
    assert len(world.jobs.published) == 1


STANDALONE = {
    "backend": "standalone",
    "kubernetes": None,
    "master": "spark://spark:7077",
    "rest_url": "http://spark:6066",
    "master_ui_url": "http://spark:8080/",
    "control_dir": "/control",
}
YARN = {"backend": "yarn", "kubernetes": None, "master": "yarn", "rest_url": "http://rm:8088", "control_dir": "/c"}
LOCAL = {"backend": "local", "kubernetes": None, "master": "spark://spark:7077", "control_dir": "/control"}


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        (STANDALONE, ["spark://spark:7077", "http://spark:6066", "http://spark:8080"]),
        (YARN, ["yarn", "http://rm:8088"]),
        (LOCAL, ["local", "spark://spark:7077"]),
        ({"master": "k8s://https://elsewhere:6443"}, ["k8s://https://elsewhere:6443"]),
        ({"checkpoint_location": "hdfs://namenode:8020/rates"}, ["hdfs://namenode:8020"]),
        ({"event_log_dir": "s3a://logs/events"}, ["s3a://logs"]),
        ({"control_dir": "HTTP://169.254.169.254/latest"}, ["http://169.254.169.254"]),
        ({"control_dir": "http:/latest"}, ["http://"]),
        ({"control_dir": "hdfs://[namenode/x"}, ["hdfs://[namenode/x"]),
    ],
)
def test_the_services_ask_only_what_is_allowed(fields: dict[str, Any], places: list[str]) -> None:
    """Accepted names each place and what to do; the former version stays, and with the setting the object is valid."""
    application = {key: value for key, value in (FIELDS["application"] | fields).items() if value is not None}
    for missing in places:
        world = World(*(place for place in places if place != missing))
        world.cluster.apply("rates", FIELDS | {"application": application})
        world.turn()
        status, reason, message = world.condition("Accepted")
        assert (status, reason) == ("False", "Invalid")
        assert message.count("may not name") == 1
        assert f"may not name '{missing}" in message
        assert "added to TIDEGATE_OPERATOR_ALLOWED_PLACES of the operator. Correct that" in message
        assert world.jobs.published == []
        world.allowed = (*places,)
        world.operator = world.restarted()
        world.turn()
        assert world.condition("Accepted")[:2] == ("True", "Valid")


def test_paths_and_this_cluster_need_no_setting(world: World) -> None:
    """Folders of volumes, also as file: URIs, and the API server of this cluster, named or not."""
    here = {"master": "k8s://https://kubernetes.default.svc", "event_log_dir": "file:/data/events"}
    world.cluster.apply("rates", {"application": FIELDS["application"] | here})
    world.turn()
    assert world.condition("Accepted")[:2] == ("True", "Valid")
    world.cluster.apply("rates", {"application": FIELDS["application"] | {"event_log_dir": "s3a://logs/events"}})
    world.turn()
    assert world.condition("Accepted")[2].endswith("Version 2 stays in force.")


def test_scaling_an_object_is_an_operators_size(world: World) -> None:
    """`kubectl scale` is a request like that of `tidegate scale`: once per write, with who asked."""
    world.cluster.scale("rates", 6)
    world.turn()
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1, 2]
    request = world.jobs.published[-1].manual
    assert request is not None
    assert (request.parallelism, request.reason) == (6, "kubectl set 6 slots on StreamingJob jobs/rates")
    assert world.cluster.objects["rates"]["status"]["appliedSlots"] == 6
    world.cluster.scale("rates", 7, "kube-controller-manager")
    world.turn()
    again = world.jobs.published[-1]
    assert again.manual is not None
    assert again.manual.parallelism == 7
    assert again.manual.request_id != request.request_id
    assert again.change is not None
    assert again.change.by == "kube-controller-manager"


def test_a_request_is_published_once_although_the_operator_is_killed_in_between(world: World) -> None:
    """A new operator finds the request on the topic by its id, and only notes it."""
    world.cluster.scale("rates", 6)
    write = world.cluster.change_status
    world.cluster.change_status = lambda *_: None  # type: ignore[method-assign]  # killed before it can
    world.turn()
    world.cluster.change_status = write  # type: ignore[method-assign]
    world.operator = world.restarted()
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1, 2]
    assert world.cluster.objects["rates"]["status"]["appliedSlots"] == 6


def test_the_size_is_written_back_once_the_job_has_settled(world: World) -> None:
    """Not while a request or a command is open, and never as a request: so the same size can be asked for again."""
    world.decides(3, 3)
    world.turn()
    assert world.slots == 3
    world.cluster.scale("rates", 6)
    world.turn()
    asked = (TrailEntry(by="operator", code="MANUAL", before=3, after=6, sentence=""),)
    world.decides(3, 3, trail=asked, status=Status.PENDING_SCALE_UP)
    world.turn()
    assert world.slots == 6
    job = world.jobs.fleet.get("rates")
    assert job is not None
    job.last_result = result("c", Phase.RESIZING, 1)
    world.decides(3, 3)
    world.turn()
    assert world.slots == 6
    job.last_result = job.last_result.model_copy(update={"phase": Phase.VERIFIED, "at": world.time.at})
    world.turn()
    assert world.slots == 6, "the newest decision may not have seen the new size"
    world.decides(3, 3)
    world.turn()
    assert world.slots == 3
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1, 2]
    world.cluster.scale("rates", 6)
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1, 2, 3]


def test_clocks_that_differ_do_not_keep_a_size_from_being_written_back(world: World) -> None:
    """The actuator's clock is behind the decider's by more than the change takes: its result is of the order still."""
    ordered = command(to=3, epoch=int(world.time.at.timestamp()) + 10)
    made = world.decides(4, 3, command=ordered, status=Status.PENDING_SCALE_DOWN)
    assert made.sequence == ordered.epoch
    job = world.jobs.fleet.get("rates")
    assert job is not None
    job.last_result = result("before", Phase.VERIFIED, at=made.decided_at + timedelta(seconds=1), epoch=1)
    world.turn()
    assert world.slots is None
    behind = made.decided_at - timedelta(seconds=20)
    job.last_result = result(ordered.command_id, Phase.VERIFIED, at=behind, epoch=ordered.epoch)
    world.decides(3, 3)
    world.turn()
    assert world.slots == 3


def test_a_size_that_was_written_back_is_no_request_although_the_operator_is_killed_in_between(world: World) -> None:
    """The object has the size and its status does not say so yet: Kubernetes knows that nobody else wrote it."""
    world.decides(3, 3)
    write = world.cluster.change_status
    world.cluster.change_status = lambda *_: None  # type: ignore[method-assign]  # killed before it can
    world.turn()
    world.cluster.change_status = write  # type: ignore[method-assign]
    assert world.slots == 3
    world.operator = world.restarted()
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1]
    assert world.cluster.objects["rates"]["status"]["appliedSlots"] == 3
    for slots in (6, 3):
        world.cluster.scale("rates", slots)
        world.turn()
    assert [spec.manual and spec.manual.parallelism for spec in world.jobs.published] == [None, 6, 3]


def test_a_size_that_nobody_knows_is_not_written_back(world: World) -> None:
    """The newest snapshot may say already that the job has ended, when the newest decision knew nothing of it.

    An autoscaler takes 0 for switched off.
    """
    world.cluster.apply("rates", {"scaling": {"min_parallelism": 0, "max_parallelism": 8}})
    world.turn()
    job = world.jobs.fleet.get("rates")
    assert job is not None
    trail = (TrailEntry(by="supervisor", code="JOB_STATE_UNKNOWN", before=0, after=0, sentence=""),)
    world.decides(0, 0, trail=trail, status=Status.UNKNOWN)
    job.state = ClusterState.STOPPED
    world.turn()
    assert world.slots is None
    world.decides(0, 0, trail=())
    job.state = ClusterState.STOPPED
    world.turn()
    assert world.slots == 0


def test_a_size_that_somebody_writes_meanwhile_is_not_overwritten(world: World) -> None:
    """The size is written back to the version of the object that was looked at, and to no other."""
    world.decides(3, 3)
    items = world.cluster.all()
    world.cluster.scale("rates", 6)
    world.cluster.all = lambda: items  # type: ignore[method-assign]  # as it was before
    world.turn()
    assert world.slots == 6


def test_the_status_says_what_why_says(world: World) -> None:
    """Slots, target, state, the sentence, the decision and the last change; Healthy follows the decision's status."""
    made = world.decides(3, 5, status=Status.PENDING_SCALE_UP)
    job = world.jobs.fleet.get("rates")
    assert job is not None
    job.last_result = result("c", Phase.VERIFIED, 1)
    status = world.turn()
    assert (status["slots"], status["target"], status["state"]) == (3, 5, "running")
    assert (status["why"], status["status"]) == (made.sentence, "PENDING_SCALE_UP")
    assert status["lastDecision"]["id"] == made.decision_id
    assert status["lastChange"]["phase"] == "verified"
    assert world.condition("Healthy") == ("True", "PendingScaleUp", made.sentence)
    world.decides(3, 3, status=Status.LATE)
    world.turn()
    assert world.condition("Healthy")[:2] == ("False", "Late")
    made = world.decides(3, 3, status=Status.UNKNOWN)
    world.turn()
    assert world.condition("Healthy") == ("Unknown", "Unknown", made.sentence)
    world.time.at += timedelta(minutes=5)
    world.turn()
    assert world.condition("Healthy")[:2] == ("Unknown", "DecisionsStopped")
    job.state = ClusterState.FAILED
    world.turn()
    assert world.condition("Healthy")[:2] == ("False", "JobFailed")


def test_a_size_that_nobody_knows_is_not_shown_as_zero(world: World) -> None:
    """Whoever waits until SLOTS is 0 before deleting the object must not read it while the job may be running."""
    world.decides(3, 3)
    assert world.turn()["slots"] == 3
    unknown = TrailEntry(by="supervisor", code="JOB_STATE_UNKNOWN", before=0, after=0, sentence="")
    world.decides(0, 0, trail=(unknown,), status=Status.UNKNOWN)
    status = world.turn()
    assert "slots" not in status
    assert "target" not in status
    world.decides(0, 0, trail=(replace(unknown, code="JOB_STOPPED"),))
    assert world.turn()["slots"] == 0


def test_the_status_fits_its_schema(world: World) -> None:
    """Every field that is written is one that the API server knows, and has its type."""
    from jsonschema import Draft4Validator  # noqa: PLC0415

    world.decides(3, 3)
    status = world.turn()
    closed = copy.deepcopy(crd.STATUS)
    closed["additionalProperties"] = False
    assert [error.message for error in Draft4Validator(closed).iter_errors(status)] == []


def test_a_long_message_is_cut_to_what_the_schema_allows(world: World) -> None:
    """The API server would refuse the whole status, again and again: with it, what was taken over."""
    job = world.jobs.fleet.get("rates")
    assert job is not None
    args = ("--query", "select 1, ä " * 4000)
    application = job.spec.application.model_copy(update={"args": args})
    world.jobs.fleet.take_spec(job.spec.model_copy(update={"version": 2, "application": application}))
    world.turn()
    status, reason, message = world.condition("InSync")
    assert (status, reason) == ("False", "ChangedElsewhere")
    assert len(message) == crd.STATUS["properties"]["conditions"]["items"]["properties"]["message"]["maxLength"]
    assert message.endswith("…")


def test_a_condition_keeps_its_time_until_its_status_changes(world: World) -> None:
    """`lastTransitionTime` is that of the change, whatever the message says since."""
    world.decides(3, 3)
    world.turn()
    before = {each["type"]: each for each in world.cluster.objects["rates"]["status"]["conditions"]}
    world.decides(3, 3, sentence="Something else.")
    world.turn()
    after = {each["type"]: each for each in world.cluster.objects["rates"]["status"]["conditions"]}
    assert after["Healthy"]["message"] == "Something else."
    assert after["Healthy"]["lastTransitionTime"] == before["Healthy"]["lastTransitionTime"]


def test_a_change_elsewhere_stays_and_is_named(world: World) -> None:
    """After `tidegate pause` the job is paused until the object changes, and InSync says who paused it."""
    job = world.jobs.fleet.get("rates")
    assert job is not None
    paused = with_mode(job.spec, Mode.PAUSED, SpecChange(by="ada", reason="tidegate pause", at=NOW))
    world.jobs.fleet.take_spec(paused)
    world.turn()
    assert len(world.jobs.published) == 1
    text = "ada (tidegate pause) has changed the job elsewhere: scaling.mode: active -> paused."
    assert world.condition("InSync")[:2] == ("False", "ChangedElsewhere")
    assert world.condition("InSync")[2] == f"{text} The object's next change replaces that."
    world.cluster.scale("rates", 4)
    world.turn()
    world.cluster.apply("rates", {"interval_seconds": 5})
    world.turn()
    assert [spec.scaling.mode for spec in world.jobs.published] == [Mode.ACTIVE, Mode.PAUSED, Mode.ACTIVE]
    assert world.condition("InSync")[0] == "True"


def test_deleting_an_object_removes_its_job(world: World) -> None:
    """The job is removed before the object goes away; the program keeps running, as with `tidegate remove`."""
    world.cluster.delete("rates")
    world.turn()
    assert world.jobs.removed == ["rates"]
    assert world.cluster.objects == {}
    world.turn()
    assert world.jobs.removed == ["rates"]


def test_a_job_is_removed_with_its_object_although_the_operator_was_killed_after_it_had_published_it() -> None:
    """While no operator runs, somebody deletes the object; nothing else would ever remove the job."""

    class KilledError(BaseException):
        """The process ends here."""

    world = World()

    def publish(spec: JobSpec) -> None:
        FakeJobs.publish(world.jobs, spec)
        raise KilledError

    world.cluster.apply("rates", FIELDS)
    world.jobs.publish = publish  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        world.turn()
    world.jobs.deliver()
    world.cluster.delete("rates")
    world.operator = world.restarted()
    world.turn()
    assert world.jobs.removed == ["rates"]
    assert world.cluster.objects == {}


def test_deleting_an_object_that_never_was_valid_removes_nobodys_job() -> None:
    """A job of that name which somebody else has applied stays."""
    world = World()
    other = JobSpec.model_validate({**FIELDS, "job_id": "rates", "sources": ("in",)})
    world.jobs.fleet.take_spec(other)
    world.cluster.apply("rates", {**FIELDS, "interval_seconds": -1})
    world.turn()
    world.cluster.delete("rates")
    world.turn()
    assert world.jobs.removed == []
    assert world.cluster.objects == {}


def _of_others(namespace: str) -> JobSpec:
    """Return a job `rates` that somebody else has applied."""
    application = {**FIELDS["application"], "kubernetes": {"namespace": namespace, "image": "spark:4.2.0"}}
    return JobSpec.model_validate({**FIELDS, "job_id": "rates", "sources": ("in",), "application": application})


@pytest.mark.parametrize("running", [True, False])
def test_an_object_has_no_say_about_a_job_of_its_name_in_another_namespace(running: bool) -> None:
    """Also if that job is stopped: its spec, its size and the job itself stay, and Accepted says what to do."""
    world = World()
    world.jobs.fleet.take_spec(_of_others("team-b").model_copy(update={"running": running}))
    world.cluster.apply("rates", FIELDS | {"slots": 3})
    world.turn()
    world.cluster.apply("rates", {"interval_seconds": 5, "slots": 4})
    status = world.turn()
    assert world.condition("Accepted")[:2] == ("False", "Invalid")
    assert "there is a job rates in namespace team-b: give the object another name" in world.condition("Accepted")[2]
    assert "version" not in status
    world.cluster.delete("rates")
    world.turn()
    assert (world.jobs.published, world.jobs.removed, world.cluster.objects) == ([], [], {})


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("fields", [STANDALONE, YARN])
def test_an_object_does_not_take_over_a_job_of_its_name_on_another_cluster(
    fields: dict[str, Any], running: bool
) -> None:
    """Others may have the rights there. A stopped one was moved to Kubernetes; now Accepted says what to do."""
    application = {key: value for key, value in (FIELDS["application"] | fields).items() if value is not None}
    theirs = {"job_id": "rates", "sources": ("in",), "running": running, "application": application}
    world = World()
    world.jobs.fleet.take_spec(JobSpec.model_validate(FIELDS | theirs))
    world.cluster.apply("rates", FIELDS | {"slots": 3})
    world.turn()
    assert world.condition("Accepted")[:2] == ("False", "Invalid")
    message = world.condition("Accepted")[2]
    assert f"there is a job rates on another cluster (application.backend: {fields['backend']} -> kubernetes" in message
    assert "give the object another name, or remove that job with `tidegate remove rates`" in message
    world.cluster.delete("rates")
    world.turn()
    assert (world.jobs.published, world.jobs.removed, world.cluster.objects) == ([], [], {})


def test_an_object_may_take_over_a_job_on_the_cluster_that_it_names(world: World) -> None:
    """An object that was made again has no status, and its job may have been applied as a file before."""
    world.cluster.objects["rates"]["status"] = {}
    world.cluster.apply("rates", {"interval_seconds": 5})
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1, 2]
    assert world.condition("Accepted")[:2] == ("True", "Valid")


def test_an_object_that_never_was_valid_scales_nobodys_job() -> None:
    """Somebody has applied a job of that name, perhaps on a cluster that an object may not name."""
    world = World()
    world.jobs.fleet.take_spec(_of_others("jobs"))
    world.cluster.apply("rates", {**FIELDS, "interval_seconds": -1, "slots": 3})
    world.turn()
    assert world.jobs.published == []


def test_a_job_that_is_missing_on_the_topic_is_published_again(world: World) -> None:
    """The object stands for the job: what removed it from the topic does not end it."""
    world.jobs.fleet.remove("rates")
    world.time.at += timedelta(minutes=1)
    world.turn()
    assert [spec.version for spec in world.jobs.published] == [1, 1]


def test_nothing_is_done_before_the_topics_are_read_or_without_them(world: World) -> None:
    """While the topics are being read, jobs would seem to be missing; if reading has failed, the operator ends."""
    world.jobs.state = "loading"
    world.cluster.apply("other", FIELDS)
    world.turn()
    assert len(world.jobs.published) == 1
    world.jobs.state = "the broker is gone"
    with pytest.raises(TopicsLost, match="the broker is gone"):
        world.turn()


def test_a_signal_ends_a_round_after_the_object_at_hand() -> None:
    """While a broker is away, each object may take half a minute: Kubernetes would kill the operator."""
    world = World()

    def publish(spec: JobSpec) -> None:
        FakeJobs.publish(world.jobs, spec)
        world.operator.stop()

    world.jobs.publish = publish  # type: ignore[method-assign]
    world.cluster.apply("rates", FIELDS)
    world.cluster.apply("sales", FIELDS)
    world.turn()
    assert [spec.job_id for spec in world.jobs.published] == ["rates"]
    assert world.condition("Accepted")[0] == "True"


def test_an_api_server_that_is_away_is_waited_for(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One line says that it is away, one that it is back, and then everything goes on."""
    caplog.set_level("INFO", "operator")
    world.cluster.away = True
    world.cluster.apply("other", FIELDS)
    world.turn()
    world.turn()
    world.cluster.away = False
    world.turn()
    said = [record.message for record in caplog.records if record.name == "operator"]
    assert [line for line in said if "cannot list" in line] == ["cannot list the StreamingJobs: no answer"]
    assert "the API server answers again" in said
    assert world.jobs.published[-1].job_id == "other"


def test_a_round_ends_in_time_and_the_next_one_goes_on_after_it() -> None:
    """Each object may take the whole timeout: none waits for more than its turn, and later none lacks anything."""
    world, asked = World(), list[str]()
    names = [f"job-{number:02}" for number in range(20)]
    for name in names:
        world.cluster.apply(name, FIELDS)
    change = world.cluster.change

    def hang(name: str, *_: object) -> dict[str, Any]:
        asked.append(name)
        world.time.at += timedelta(seconds=5)
        raise ApiUnreachable("no answer")

    world.cluster.change = hang  # type: ignore[method-assign, assignment]
    for _ in range(30):
        began = world.time.monotonic()
        world.operator.turn()
        assert world.time.monotonic() - began <= ROUND_SECONDS + 5
    assert asked == 3 * names
    world.cluster.change = change  # type: ignore[method-assign]
    world.turn()
    assert [spec.job_id for spec in world.jobs.published] == names
    assert all(world.cluster.objects[name]["status"]["conditions"] for name in names)


def test_what_is_refused_in_every_round_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The account may lack a right: a line for each object every two seconds would hide all others."""

    def refuse(*_: object) -> None:
        raise ApiRefused(403, "may not")

    write = world.cluster.change_status
    for _ in range(2):
        world.decides(3, 3)
        world.cluster.change_status = refuse  # type: ignore[method-assign, assignment]
        for _ in range(3):
            world.turn()
        world.cluster.change_status = write  # type: ignore[method-assign]
        world.turn()
    assert [record.message for record in caplog.records] == ["rates: may not; trying again"] * 2


def test_what_is_refused_is_said_again_of_an_object_that_is_made_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Months may lie between the two; and what failed of objects that are gone must not fill the memory."""

    def refuse(*_: object) -> None:
        raise ApiRefused(403, "may not")

    world.decides(3, 3)
    world.cluster.change_status = refuse  # type: ignore[method-assign, assignment]
    world.turn()
    removed = world.cluster.objects.pop("rates")
    world.turn()
    assert world.operator._failed == {}
    world.cluster.objects["rates"] = removed
    world.turn()
    assert [record.message for record in caplog.records] == ["rates: may not; trying again"] * 2


def test_a_cluster_that_does_not_know_the_kind_says_what_to_apply() -> None:
    """Somebody has deleted the CustomResourceDefinition, or has never applied it: a bare 404 names neither."""

    class Bare:
        def versioned(self, path: str, *_: object, **_query: str) -> tuple[list[dict[str, Any]], str]:
            raise ApiRefused(404, f"GET https://api{path}: 404: 404 page not found")

        watch = versioned

    with closing(KubernetesStreamingJobs(cast("Api", Bare()), "jobs", SetClock())) as cluster:
        cluster.start()
        for ask in (cluster.all, cluster.answers):
            with pytest.raises(ApiError, match=r"knows no StreamingJobs: apply deploy/kubernetes/crd \(GET .*404"):
                ask()


def test_the_selector_finds_the_executors_of_the_job(world: World) -> None:
    """An HPA counts them. The program may give its application another name, so the label is Tidegate's own."""
    world.decides(3, 3)
    assert world.turn()["selector"] == "spark-role=executor,tidegate.dev/job=rates"


def test_only_what_is_different_is_patched() -> None:
    """Fields that are the same are left out; those that are gone are removed."""
    assert changes({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5}) == {"b": 5, "c": None}
    assert camel("POOL_EXHAUSTED") == "PoolExhausted"


def test_the_specs_of_many_objects_go_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first start it publishes 1,000 specs: as many producers would connect, one after the other."""
    made = []

    class Producer:
        def __init__(self, *_: object) -> None:
            made.append(self)

        def produce(self, *_: object, **__: object) -> None:
            """Take a record."""

        def poll(self, _seconds: float) -> None:
            """Do nothing."""

        def flush(self, _seconds: float) -> int:
            return 0

    monkeypatch.setattr("tidegate.runtime.publisher.RecordProducer", Producer)
    requests = TopicRequests(ServiceSettings())
    for number in range(20):
        requests.publish(job(f"job-{number}"))
        requests.remove(f"job-{number}")
    assert len(made) == 1
