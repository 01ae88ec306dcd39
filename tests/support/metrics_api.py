"""An API server for external metrics, as KEDA's or a Prometheus adapter's: HPAs read their metrics here."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from tests.support.http_server import QuietHandler, serving

GROUP = "external.metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"

Metric = Callable[[], float]


@contextmanager
def metrics_api(host: str, metrics: dict[str, Metric], folder: Path) -> Iterator[int]:
    """Serve metrics by their names over HTTPS; yield the port."""
    certificate, key = folder / "metrics.crt", folder / "metrics.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=metrics"]
    command = [*words, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)

    class Request(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - as the base class calls it
            body = answer(urlsplit(self.path).path, metrics)
            text = json.dumps(body if body is not None else {"kind": "Status", "code": 404}).encode()
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with serving(Request, host, tls) as server:
        yield server.server_port


def answer(path: str, metrics: dict[str, Metric]) -> dict[str, Any] | None:
    """Return the body of an answer; None for what is not there."""
    if path == f"/apis/{VERSION}":
        names = [
            {"name": name, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]} for name in metrics
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": names}
    if path in {"/apis", f"/apis/{GROUP}"}:
        version = {"groupVersion": VERSION, "version": "v1beta1"}
        group = {"kind": "APIGroup", "name": GROUP, "versions": [version], "preferredVersion": version}
        return group | {"apiVersion": "v1"} if path != "/apis" else {"kind": "APIGroupList", "groups": [group]}
    name = path.rpartition("/")[2]
    if name not in metrics or not path.startswith(f"/apis/{VERSION}/namespaces/"):
        return None
    value = {
        "metricName": name,
        "metricLabels": {},
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": f"{round(1000 * metrics[name]())}m",
    }
    return {"kind": "ExternalMetricValueList", "apiVersion": VERSION, "metadata": {}, "items": [value]}


def reached(host: str) -> bool:
    """Return whether such a server answers at a host."""
    try:
        with urlopen(f"https://{host}/apis/{VERSION}", timeout=5, context=ssl._create_unverified_context()) as answered:  # noqa: S323
            return bool(json.load(answered).get("groupVersion") == VERSION)
    except (OSError, ValueError):
        return False


def registration(namespace: str, host: str, port: int) -> list[dict[str, Any]]:
    """Return the objects that make the API server ask this one: it reaches the machine through a Service.

    The last one, the APIService, must not be applied before the Service is `reached`: the API server keeps its first
    connection, which may have gone elsewhere before the node knew of the Service.
    """
    name = "external-metrics"
    where = {"name": name, "namespace": namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": where,
            "spec": {"ports": [{"port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Endpoints",  # an EndpointSlice alone is not seen by what checks an APIService
            "metadata": where,
            "subsets": [{"addresses": [{"ip": host}], "ports": [{"port": port}]}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": where,
            },
        },
    ]
