"""How the launcher finds the API server, who it is in a pod, and what it may change there."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.http_server import AnswersOk, QuietHandler, serving
from tests.support.secured_kafka import write_certificates
from tidegate.launcher.control.files import Control, Token
from tidegate.launcher.kubernetes.access import AccessError, ApiAccess
from tidegate.launcher.kubernetes.api import Api, ApiError, ApiRefused, ApiUnreachable
from tidegate.launcher.kubernetes.pods import memory_mb, unscheduled
from tidegate.launcher.queries.checkpoints import beside_checkpoints
from tidegate.launcher.reports.driver_log import DriverLog
from tidegate.launcher.reports.driver_run import DriverRun
from tidegate.launcher.spark.executors import SparkExecutors

CONFIG: dict[str, Any] = {
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://k:6443", "certificate-authority": "ca.crt"}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
}


def kubeconfig(folder: Path, **user: Any) -> dict[str, str]:
    """Write a kubeconfig; return the environment that names it."""
    (folder / "ca.crt").write_text("the authority")
    users = {"users": [{"name": "u", "user": user or {"token": "secret"}}]}
    (folder / "config").write_text(yaml.safe_dump(CONFIG | users))
    return {"KUBECONFIG": str(folder / "config")}


def test_a_kubeconfig_says_where_and_as_whom(tmp_path: Path) -> None:
    """Certificates may be in it or in other files; it wins over a pod's account."""
    found = ApiAccess.find(kubeconfig(tmp_path) | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    assert (found.server, found.ca_pem, found.bearer()) == ("https://k:6443", "the authority", "secret")
    data = {f"client-{kind}-data": base64.b64encode(kind.encode()).decode() for kind in ("certificate", "key")}
    found = ApiAccess.find(kubeconfig(tmp_path, **data))
    assert (found.cert_pem, found.key_pem, found.bearer()) == ("certificate", "key", None)


def test_a_kubeconfig_may_be_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyYAML is not installed, that is the way, and the message says so."""
    where = kubeconfig(tmp_path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(AccessError, match="config view --raw -o json"):
        ApiAccess.find(where)
    (tmp_path / "config").write_text(json.dumps(CONFIG))
    assert ApiAccess.find(where).token == "secret"


def test_a_certificate_without_a_key_identifier_is_trusted(tmp_path: Path) -> None:
    """As by kubectl; many clusters have such certificates, and Python 3.13 refuses them by default."""

    class Version(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - as the base class calls it
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    write_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "broker.pem")
    with serving(Version, tls=tls) as server:
        address, authority = f"https://127.0.0.1:{server.server_port}", (tmp_path / "ca.pem").read_text()
        api = Api(ApiAccess(address, "test", ca_pem=authority, token="secret"))
        assert api.get("/version") == {}
        api.close()


def test_a_pod_uses_its_account(tmp_path: Path, server: FakeKubernetes) -> None:
    """The token is read again for each request, because it is renewed; the kubeconfig of nobody is needed."""
    (tmp_path / "ca.crt").write_text("the authority")
    (tmp_path / "token").write_text("first\n")
    found = ApiAccess.find({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path)
    assert (found.server, found.ca_pem) == ("https://[fd00::1]:443", "the authority")
    api = Api(ApiAccess(f"http://127.0.0.1:{server.port}", "test", token_file=tmp_path / "token"))
    api.get("/api/v1/nodes/n")
    (tmp_path / "token").write_text("second\n")
    api.get("/api/v1/nodes/n")
    api.close()
    assert server.tokens == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"current-context": "there"}, "there is no context 'there'"),
        ({"clusters": []}, "there is no cluster 'c'"),
        ({"clusters": ["c"]}, "clusters must be a list of mappings"),
        ({"clusters": {"c": {"server": "https://k"}}}, "clusters must be a list of mappings"),
        ({"contexts": [None]}, "contexts must be a list of mappings"),
        ({"users": [{"name": "u", "user": "secret"}]}, "the user 'u' must be a mapping"),
        ({"users": [{"name": "u", "user": {"exec": {}}}]}, "logs in with a program"),
        ({"clusters": [{"name": "c", "cluster": {"insecure-skip-tls-verify": True}}]}, "name the authority"),
        ({"users": [{"name": "u", "user": {"client-key-data": "a"}}]}, "client-key-data is no PEM"),
        ({"users": [{"name": "u", "user": {"client-key-data": "/w=="}}]}, "client-key-data is no PEM"),
        ({"users": [{"name": "u", "user": {"client-key": "gone.pem"}}]}, "gone.pem"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """The message names the file and what is wrong in it."""
    kubeconfig(tmp_path)
    (tmp_path / "config").write_text(yaml.safe_dump(CONFIG | changes))
    with pytest.raises(AccessError, match=rf"KUBECONFIG {tmp_path}/config: .*{said}"):
        ApiAccess.find({"KUBECONFIG": str(tmp_path / "config")})


@pytest.mark.parametrize("text", ["[", "a", "- a"])
def test_a_broken_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    """So is one that is no mapping, or not there."""
    with pytest.raises(AccessError, match=f"KUBECONFIG {tmp_path}/config"):
        ApiAccess.find({"KUBECONFIG": str(tmp_path / "config")})
    (tmp_path / "config").write_text(text)
    with pytest.raises(AccessError, match=f"KUBECONFIG {tmp_path}/config"):
        ApiAccess.find({"KUBECONFIG": str(tmp_path / "config")})


def test_a_closed_connection_is_opened_again(server: FakeKubernetes) -> None:
    """A server may close a connection that is kept; a request is repeated on a new one, and only once."""
    api = server.api
    assert api.create("/api/v1/namespaces/jobs/configmaps", {"metadata": {"name": "a"}})
    server.loses_answers = 1
    assert not api.create("/api/v1/namespaces/jobs/configmaps", {"metadata": {"name": "b"}}), "it was created before"
    server.silent = True
    with pytest.raises(ApiUnreachable):
        api.get("/api/v1/nodes/n")
    assert server.requests.count("GET /api/v1/nodes/n") == 2


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, ApiRefused, "401: the server is broken; the credentials of the test are not accepted"),
        (403, ApiRefused, "403: the server is broken$"),
        (410, ApiRefused, "410: the server is broken$"),
        (429, ApiUnreachable, "429: the server is broken$"),
        (500, ApiUnreachable, "500: the server is broken$"),
    ],
)
def test_only_what_is_not_found_is_absent(server: FakeKubernetes, status: int, kind: type[ApiError], said: str) -> None:
    """A driver whose pod nobody may see would count as gone, and another one would be started next to it (I4)."""
    pod, api = "/api/v1/namespaces/jobs/pods/driver", server.api
    asked = (lambda: api.get(pod), lambda: api.text(f"{pod}/log"), lambda: api.delete(pod, grace_seconds=0))
    assert [ask() for ask in asked] == [None, "", False]
    server.put(pod)
    assert api.delete(pod, grace_seconds=0)
    server.broken = status
    for ask in asked:
        with pytest.raises(kind, match=said):
            ask()


@pytest.mark.parametrize("body", [b"[]", b"<html>"])
def test_who_answers_with_something_else_is_no_api_server(body: bytes) -> None:
    """Such as a proxy: nothing is absent because of that."""
    with serving(type("Proxy", (AnswersOk,), {"body": body})) as server:
        api = Api(ApiAccess(f"http://127.0.0.1:{server.server_port}", "t"))
        with pytest.raises(ApiUnreachable, match=r"/api/v1/nodes/n: (a JSON object is expected|not JSON): "):
            api.get("/api/v1/nodes/n")


DEEP = b'{"a": ' * 600 + b"{}" + b"}" * 600


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"type": "ADDED", "object": {"metadata": {"na', "JSONDecodeError"),
        (b"[]\n", "TypeError"),
        (b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}\n', "410: too old"),
        (b'{"type": "ERROR", "object": {"code": 504, "message": "etcd"}}\n', "504: etcd"),
        (b"", "TimeoutError"),
    ],
)
def test_a_watch_ends_by_an_error_unless_the_server_ends_it(line: bytes, said: str) -> None:
    """A line that breaks off, what is no event, an error that is told, and silence; what came before them counts."""

    class Watched(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # noqa: N802 - as the base class calls it
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for one in (b'{"type": "ADDED", "object": {"deep": %s}}\n' % DEEP, line):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(one), one) if one else b"")
            if not line:
                silent.wait(10)
            self.close_connection = True

    silent = threading.Event()
    with serving(Watched) as server:
        access, limit = ApiAccess(f"http://127.0.0.1:{server.server_port}", "t"), 30.0 if line else 2.0
        events = Api(access, timeout_seconds=limit).watch("/x", "7", 0)
        kind, found = next(events)
        assert kind == "ADDED"
        assert "deep" in found
        with pytest.raises(ApiError, match=rf"GET http://127.0.0.1:\d+/x: {said}") as told:
            next(events)
        silent.set()
    assert isinstance(told.value, ApiRefused) == ("410" in said)


def test_a_driver_in_a_pod_says_the_name_of_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by the actuator; its process id would name nothing."""
    monkeypatch.setenv("TIDEGATE_SUBMISSION_ID", "tidegate-rates-5-1")
    run = DriverRun(Control.at(tmp_path, "rates"), Token(5, 1), 2, DriverLog(print))
    assert run.get("submission_id") == "tidegate-rates-5-1"


@pytest.mark.parametrize(
    ("master", "conf", "limit"),
    [
        ("k8s://https://k:443", {"spark.decommission.enabled": "true"}, 3),
        ("k8s://https://k:443", {}, None),
        ("spark://m:7077", {"spark.decommission.enabled": "true"}, None),
        ("spark://m:7077", {"spark.decommission.enabled": "true", "spark.dynamicAllocation.enabled": "true"}, 3),
        ("yarn", {"spark.decommission.enabled": "true"}, 3),
        ("local[4]", {"spark.decommission.enabled": "true"}, None),
    ],
)
def test_where_executors_can_be_changed(master: str, conf: dict[str, str], limit: int | None) -> None:
    """On Kubernetes and YARN Spark takes requests at any time; on a standalone cluster only with dynamic allocation."""
    conf = {"spark.cores.max": "6", "spark.executor.cores": "2", **conf}
    java = types.SimpleNamespace(sc=lambda: None)
    context = types.SimpleNamespace(_jvm=None, _jsc=java, applicationId="a", _conf=conf, master=master)
    assert SparkExecutors(context).limit == limit


def test_rehearsals_are_beside_the_checkpoints() -> None:
    """Without a control directory that all executors see, they are in the checkpoint location, wherever it is."""
    assert beside_checkpoints("file:///data/ck") == beside_checkpoints("/data/ck") == Path("/data/ck/.tidegate")
    assert str(beside_checkpoints("hdfs://n/ck/")) == "hdfs://n/ck/.tidegate"


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        (None, None),
        ([{"type": "Ready", "status": "False", "message": "no"}, {"type": "PodScheduled", "status": "True"}], None),
        ([{"type": "PodScheduled", "status": "False", "reason": "R", "message": "no room"}], "no room"),
        ([{"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}], "SchedulerError"),
        ([{"type": "PodScheduled", "status": "False"}], "unschedulable"),
    ],
)
def test_the_scheduler_says_that_no_node_has_room(conditions: list[dict[str, str]] | None, why: str | None) -> None:
    """A driver that waits for room is left alone; one that has a node and does not come up is not."""
    assert unscheduled({"status": {"conditions": conditions}}) == why


@pytest.mark.parametrize(
    ("role", "heap", "conf", "python", "memory"),
    [
        ("executor", 512, {}, True, 896),
        ("executor", 2000, {}, True, 2800),
        ("executor", 2000, {}, False, 2384),
        ("executor", 2000, {"spark.executor.memoryOverheadFactor": "0.5"}, False, 3000),
        ("executor", 512, {"spark.executor.memoryOverhead": "1g"}, True, 1536),
        ("executor", 512, {"spark.executor.memoryOverhead": "100"}, True, 612),
        ("executor", 512, {"spark.executor.pyspark.memory": "256m"}, True, 1152),
        ("driver", 512, {"spark.executor.pyspark.memory": "256m"}, True, 896),
    ],
)
def test_memory_is_asked_for_as_spark_does(
    role: str, heap: int, conf: dict[str, str], python: bool, memory: int
) -> None:
    """The heap, an overhead of at least 384 MiB, and what the Python workers may have."""
    assert memory_mb(role, heap, conf, python=python) == memory
