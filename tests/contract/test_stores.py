"""What actuator and driver rely on, wherever the control files are: every store passes these tests."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from tests.support.fake_kubernetes import FakeKubernetes, fake_kubernetes
from tests.support.fake_s3 import BUCKET, ENVIRONMENT, fake_s3
from tests.support.fake_time import fake_time
from tests.support.fake_webhdfs import FakeWebHdfs, fake_webhdfs
from tests.support.sides import create_at_once
from tidegate.launcher.control import config_map, network, remote_folder
from tidegate.launcher.control.claims import Claims
from tidegate.launcher.control.config_map import JOB_LABEL, ConfigMapStore, object_name
from tidegate.launcher.control.files import Control, SizeOrder, Token
from tidegate.launcher.control.json_files import ControlError
from tidegate.launcher.control.store import Store, store_at
from tidegate.launcher.kubernetes.api import ApiRefused, ApiUnreachable
from tidegate.launcher.spark import hadoop
from tidegate.launcher.spark.hadoop import HadoopPath
from tidegate.remote.files import Files

Open = Callable[..., Store]
"""Opens a store of a job, by default `rates`, that has seen nothing yet: of an actuator, another one, or a driver."""


@pytest.fixture(params=["folder", "configmap", "hdfs", "s3"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """The stores of each kind."""
    with ExitStack() as stack:
        place, more = str(tmp_path), dict[str, Any]()
        if request.param == "configmap":
            place, more = "configmap:jobs", {"api": stack.enter_context(fake_kubernetes()).api}
        elif request.param == "hdfs":
            url = stack.enter_context(fake_webhdfs()).url
            place, more = "hdfs://nn:8020/control", {"open_folder": Files({"hdfs": {"url": url}}).remote}
        elif request.param == "s3":
            for name, value in ENVIRONMENT.items():
                monkeypatch.setenv(name, value)
            url = stack.enter_context(fake_s3()).url
            place = f"s3a://{BUCKET}/control"
            more = {"open_folder": Files({"s3a": {"endpoint_url": url}}).remote}
        yield lambda job_id="rates": store_at(place, job_id, **more)


class TestStore:
    """The contract."""

    def test_what_is_written_is_read_by_all(self, stores: Open) -> None:
        """A name that nobody wrote is absent; the last text wins; another job has texts of its own."""
        ours, theirs = stores(), stores()
        assert ours.read("fence") is None
        assert ours.names() == []
        ours.write("fence", "1")
        ours.write("running-5-1.json", "äöü")
        ours.write("fence", "2")
        assert ours.read("fence") == theirs.read("fence", newest=True) == "2"
        assert theirs.read("running-5-1.json", newest=True) == "äöü"
        assert sorted(ours.names()) == ["fence", "running-5-1.json"]
        assert stores("rates-2").names() == []

    def test_what_is_removed_is_absent(self, stores: Open) -> None:
        """Removing what is not there does no harm."""
        ours = stores()
        ours.remove(["fence"])
        for name in ("a", "b", "c"):
            ours.write(name, name)
        ours.remove(["a", "c", "d"])
        assert ours.names() == stores().names() == ["b"]

    def test_a_swap_needs_what_was_seen(self, stores: Open) -> None:
        """It writes only if the texts that were seen are still there, and the absent ones absent."""
        ours, theirs = stores(), stores()
        assert ours.swap({"fence": None}, "fence", "1")
        assert not theirs.swap({"fence": None}, "fence", "x")
        assert theirs.swap({"fence": "1", "size": None}, "fence", "2")
        ours.write("size", "3")
        assert not theirs.swap({"fence": "2", "size": None}, "fence", "x")
        assert ours.read("fence", newest=True) == "2"
        assert ours.swap({"fence": "2", "size": "3"}, "size", "4")
        assert theirs.read("size", newest=True) == "4"

    def test_only_one_creates(self, stores: Open) -> None:
        """Of many that create a text at once, one succeeds: a turn in a handover is taken once."""
        opened = [stores() for _ in range(8)]
        won = create_at_once(opened, "turn")
        assert won == [stores().read("turn")]

    @pytest.mark.parametrize("job_id", ["", "..", "a/b", "A", "a..b", "x" * 64])
    def test_a_job_id_names_a_place_of_its_own(self, stores: Open, job_id: str) -> None:
        """A job id that is not a plain name is refused before anything is asked."""
        with pytest.raises(ValueError, match="job_id"):
            stores(job_id)

    def test_claims_go_on_from_the_newest(self, stores: Open) -> None:
        """The fence of an actuator that was overtaken cannot come back, nor its order for a size (I4)."""
        first, second = Control(stores()), Control(stores())
        assert Claims(first).raise_fence(Token(5, 1), "a")
        assert Claims(second).order_size(SizeOrder(Token(5, 2), "b", Token(5, 1), 4), "c")
        assert not Claims(first).raise_fence(Token(5, 2), "a")
        assert not Claims(first).order_size(SizeOrder(Token(5, 2), "a", Token(5, 1), 2), "c")
        assert Claims(first).newest() == (Token(5, 2), "b")
        assert Claims(first).raise_fence(Token(6, 1), "a")
        assert second.fence(newest=True) == (Token(6, 1), "a")

    def test_a_claim_does_not_undo_a_newer_one_that_came_since_the_last_look(
        self, stores: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However old a view of the files may be, whoever writes a claim looks at what is there now (I4, I5)."""
        for module in (config_map, remote_folder):
            monkeypatch.setattr(module, "VIEW_SECONDS", 60.0)
        first, second = Control(stores()), Control(stores())
        assert Claims(first).raise_fence(Token(5, 1), "a")
        assert Claims(first).next_token(5) == Token(5, 2)
        assert Claims(second).raise_fence(Token(5, 3), "b")
        assert not Claims(first).raise_fence(Token(5, 2), "a")
        assert Control(stores()).fence() == (Token(5, 3), "b")
        assert Claims(first).newest() == (Token(5, 3), "b")

    def test_old_runs_are_tidied(self, stores: Open) -> None:
        """What a hundred runs leave stays small: a ConfigMap holds 1 MiB."""
        control = Control(stores())
        for run in range(1, 31):
            control.write_running(Token(5, run), {"error": "x" * 1000})
            control.write_stopped(Token(5, run), {})
        control.tidy()
        assert control.runs() == [Token(5, run) for run in range(11, 31)]
        assert len(stores().names()) == 40


class TestConfigMap:
    """What is peculiar to a ConfigMap."""

    def test_two_actuators_cannot_both_claim(self, server: FakeKubernetes) -> None:
        """A claim that another one overtook between look and write is not written: resource versions decide (I4)."""
        ours, theirs = Control(_store(server)), Control(_store(server))
        Claims(ours).raise_fence(Token(5, 1), "a")
        server.before_patch.append(lambda: Claims(theirs).order_size(SizeOrder(Token(5, 2), "b", Token(5, 1), 4), "c"))
        assert not Claims(ours).raise_fence(Token(5, 2), "a")
        assert Claims(theirs).newest() == (Token(5, 2), "b")
        assert theirs.fence(newest=True) == (Token(5, 1), "a")

    def test_other_keys_do_not_disturb_a_claim(self, server: FakeKubernetes) -> None:
        """A driver that writes its progress at the same time only makes the claim look again."""
        ours, driver = Control(_store(server)), Control(_store(server))
        Claims(ours).raise_fence(Token(5, 1), "a")
        server.before_patch.append(lambda: driver.write_progress(Token(5, 1), {"finished_tasks": 3}))
        assert Claims(ours).raise_fence(Token(5, 2), "a")
        assert driver.fence(newest=True) == (Token(5, 2), "a")

    def test_a_lost_answer_is_no_lost_claim(self, server: FakeKubernetes) -> None:
        """A write that was done but not answered counts as done when it is tried again."""
        store = _store(server)
        store.write("a", "b")
        server.loses_answers = 1
        assert store.swap({"fence": None}, "fence", "1")

    def test_looks_are_bounded(self, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
        """However often orders are looked for, the API server is asked a few times a second."""
        now = [100.0]
        fake_time(monkeypatch, config_map.__name__, monotonic=lambda: now[0])
        ours, theirs = _store(server), _store(server)
        ours.write("stop", "1")
        before = len(server.requests)
        for _ in range(200):
            now[0] += 1 / 200
            ours.read("stop")
        assert len(server.requests) - before <= 3
        theirs.write("stop", "2")
        assert ours.read("stop", newest=True) == "2"

    def test_a_view_grows_old(self, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
        """What others write is seen soon."""
        ours, theirs = _store(server), _store(server)
        ours.write("stop", "1")
        theirs.write("stop", "2")
        monkeypatch.setattr(config_map, "VIEW_SECONDS", 0.0)
        assert ours.read("stop") == "2"

    def test_a_patient_store_waits_for_the_server(
        self, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A driver does not fail because the API server is away for a while; what it writes then arrives later."""
        monkeypatch.setattr(network, "AGAIN_SECONDS", 0.02)
        store = ConfigMapStore(server.api, "jobs", "rates", patience_seconds=10)
        server.silent = True
        threading.Timer(0.2, lambda: setattr(server, "silent", False)).start()
        store.write("running-5-1.json", "{}")
        server.silent = True
        threading.Timer(0.2, lambda: setattr(server, "silent", False)).start()
        assert store.read("running-5-1.json", newest=True) == "{}"

    def test_silence_and_refusal_differ(self, server: FakeKubernetes) -> None:
        """Both are errors of the job's files, and neither says that a file is absent."""
        control = Control(_store(server))
        Claims(control).raise_fence(Token(5, 1), "a")
        server.silent = True
        with pytest.raises(ApiUnreachable, match="configmaps/tidegate-rates"):
            control.fence(newest=True)
        server.silent, server.broken = False, 503
        with pytest.raises(ApiUnreachable, match="503: the server is broken"):
            control.fence(newest=True)
        server.broken, server.forbidden = None, re.compile("PATCH")
        with pytest.raises(ApiRefused, match=r"403: User .* cannot PATCH .*docs/how-to/kubernetes.md"):
            Claims(control).raise_fence(Token(5, 2), "a")
        server.forbidden, server.broken = None, 401
        with pytest.raises(ApiRefused, match="the credentials of the test are not accepted"):
            control.fence(newest=True)

    def test_a_broken_key_is_named(self, server: FakeKubernetes) -> None:
        """The message names ConfigMap, key and what it holds."""
        store = _store(server)
        store.write("fence", "[]")
        with pytest.raises(ControlError, match=r"ConfigMap jobs/tidegate-rates/fence: expected a JSON object"):
            Control(store).fence()

    def test_a_config_map_of_another_job_is_refused(self, server: FakeKubernetes) -> None:
        """Two jobs never share one, whatever their names."""
        path = "/api/v1/namespaces/jobs/configmaps/tidegate-rates"
        server.put(path, metadata={"labels": {JOB_LABEL: "clicks"}})
        with pytest.raises(ApiRefused, match=r"label tidegate\.dev/job=clicks, not rates"):
            _store(server).read("fence")

    def test_it_comes_back(self, server: FakeKubernetes) -> None:
        """Somebody may delete the ConfigMap; the next write makes it again."""
        store = _store(server)
        store.write("a", "1")
        server.objects.clear()
        assert store.swap({"b": None}, "b", "2")
        server.objects.clear()
        store.write("c", "3")
        assert _store(server).names() == ["c"]


class TestHdfs:
    """What is peculiar to a folder in HDFS."""

    @pytest.fixture
    def hdfs(self) -> Iterator[FakeWebHdfs]:
        """A server."""
        with fake_webhdfs() as server:
            yield server

    def test_looks_are_bounded(self, hdfs: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
        """However often orders are looked for, the NameNode is asked a few times a second, and reads what is new."""
        now = [100.0]
        fake_time(monkeypatch, remote_folder.__name__, monotonic=lambda: now[0])
        ours, theirs = _in(hdfs), _in(hdfs)
        theirs.write("stop", "1")
        for name in ("stop", "hold", "go"):
            ours.read(name)
        now[0] += network.VIEW_SECONDS
        before = len(hdfs.requests)
        for _ in range(200):
            now[0] += 1 / 200
            assert (ours.read("stop"), ours.read("hold"), ours.read("go")) == ("1", None, None)
        assert len(hdfs.requests) - before <= 3
        theirs.write("stop", "2")
        assert ours.read("stop", newest=True) == "2"

    def test_a_view_grows_old(self, hdfs: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
        """What others write or remove is seen soon, also if it looks the same by size and time."""
        monkeypatch.setattr(remote_folder, "VIEW_SECONDS", 0.0)
        ours, theirs = _in(hdfs), _in(hdfs)
        for text in ("1", "2"):
            theirs.write("stop", text)
            assert ours.read("stop") == text
        theirs.remove(["stop"])
        assert ours.read("stop") is None

    def test_a_patient_store_waits_for_the_server(self, hdfs: FakeWebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
        """A driver does not fail because HDFS is away for a while; an actuator is told at once. Nothing is absent."""
        monkeypatch.setattr(network, "AGAIN_SECONDS", 0.02)
        _in(hdfs).write("fence", "1")
        hdfs.silent.set()
        with pytest.raises(OSError, match=r"hdfs://nn:8020/control/rates.* does not answer"):
            _in(hdfs, timeout_seconds=0.1).read("fence")
        threading.Timer(0.4, hdfs.silent.clear).start()
        assert _in(hdfs, timeout_seconds=0.1, patience_seconds=10).read("fence", newest=True) == "1"

    def test_nobody_waits_for_a_jvm_that_has_gone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A launcher whose JVM was killed ends at once, however patient it is: what it writes can arrive no more."""

        def gone(_uri: str) -> None:
            raise Py4JNetworkError("Answer from Java side is empty")

        monkeypatch.setattr(hadoop, "_system", gone)
        store = store_at("hdfs://nn/control", "rates", open_folder=HadoopPath, patience_seconds=60)
        started = time.monotonic()
        with pytest.raises(ConnectionResetError, match=r"hdfs://nn/control/rates/turn: the driver's JVM"):
            store.swap({"turn": None}, "turn", "x")
        with pytest.raises(ConnectionResetError):
            store.read("fence", newest=True)
        assert time.monotonic() - started < 30

    def test_a_write_of_the_driver_that_fails_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If HDFS is full, the driver removes the hidden file that it has made."""
        files: set[str] = set()

        class FullHdfs:
            files = property(lambda self: self)

            def path(self, uri: str) -> str:
                return uri

            def create(self, uri: str, _overwrite: bool) -> FullHdfs:
                files.add(uri)
                return self

            def write(self, _data: bytearray) -> None:
                raise Py4JError("The quota is exceeded")

            def close(self) -> None:
                pass

            def delete(self, uri: str, _recursive: bool) -> bool:
                files.discard(uri)
                return True

        monkeypatch.setattr(hadoop, "_system", lambda _uri: FullHdfs())
        for write in (HadoopPath("hdfs://nn/turn").create, HadoopPath("hdfs://nn/turn").replace):
            with pytest.raises(OSError, match="The quota is exceeded"):
                write(b"1")
            assert files == set()

    def test_a_lost_answer_is_no_lost_turn(self, hdfs: FakeWebHdfs) -> None:
        """A file that was created, but not answered for, is the writer's when it tries again; never somebody else's."""
        store = _in(hdfs)
        hdfs.put("/control/rates/turn", b"ours")
        assert store.swap({"turn": None}, "turn", "ours")
        assert not store.swap({"turn": None}, "turn", "theirs")


class TestS3:
    """What is peculiar to a folder on S3."""

    def test_a_lost_answer_is_no_lost_claim(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client writes again if S3 has written and did not say so; then the condition fails by its own write."""
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        with fake_s3() as server:
            files = Files({"s3a": {"endpoint_url": server.url}})
            store = store_at(f"s3a://{BUCKET}/control", "rates", open_folder=files.remote)
            server.loses_answers = 1
            assert store.swap({"fence": None}, "fence", "1")
            server.loses_answers = 1
            assert store.swap({"fence": "1"}, "fence", "2")
            assert not store.swap({"fence": "1"}, "fence", "3")
            assert server.loses_answers == 0


def _in(server: FakeWebHdfs, *, timeout_seconds: float = 10.0, patience_seconds: float = 0.0) -> Store:
    files = Files({"hdfs": {"url": server.url, "timeout_seconds": timeout_seconds}})
    return store_at("hdfs://nn:8020/control", "rates", open_folder=files.remote, patience_seconds=patience_seconds)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("rates",), "tidegate-rates"),
        (("rates", 1732332342, 2), "tidegate-rates-1732332342-2"),
        (("my_job.v2", 5, 1), "tidegate-my-job-v2-5-1-f25daf7f79"),
    ],
)
def test_names_are_readable(parts: tuple[object, ...], name: str) -> None:
    """A name tells the job and the run; where it cannot, it has a checksum."""
    assert object_name(*parts) == name


def test_names_differ() -> None:
    """Ids that look alike, or are long, have names of their own that Kubernetes and Spark take as a label."""
    ids = ["a.b", "a_b", "a-b", "x" * 63, "x" * 62 + "y", "a.-b", "0"]
    names = {object_name(job, 1732332342, 12) for job in ids}
    assert len(names) == len(ids)
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)


def _store(server: FakeKubernetes) -> ConfigMapStore:
    return ConfigMapStore(server.api, "jobs", "rates")
