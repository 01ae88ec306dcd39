"""A real Prometheus on loopback, with the project's own configuration and rules, made fast."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import yaml

from tidegate.runtime.poll import wait_until
from tidegate.stack.ports import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"


class Prometheus:
    """Reads services at `targets` (name to port) every second.

    Its alerts look back 15 s, and wait for 3 s at most: one reading that is late on a busy machine is no alert.
    """

    def __init__(self, folder: Path, targets: Mapping[str, int]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.fail("there is no prometheus on PATH: `make prometheus` installs Debian's", pytrace=False)
        (self.port,) = free_ports(1)
        config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        del config["alerting"]
        (scrape,) = config["scrape_configs"]
        for static in scrape["static_configs"]:
            static["targets"] = [f"127.0.0.1:{targets[static['labels']['service']]}"]
        rules = (DEPLOY / "rules" / "tidegate.yaml").read_text("utf-8")
        (folder / "rules").mkdir(parents=True)
        (folder / "rules" / "tidegate.yaml").write_text(
            re.sub(r"\[\d+m\]", "[15s]", re.sub(r"for: [1-9]\d*m", "for: 3s", rules)), "utf-8"
        )
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10, trust_env=False)

    def ready(self) -> bool:
        """Return whether it answers."""
        assert self._process.poll() is None, self.log.read_text("utf-8")
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def instant(self, expr: str) -> list[dict[str, Any]]:
        """Return the present answer to a query."""
        found: list[dict[str, Any]] = self._asked("/api/v1/query", query=expr)["result"]
        return found

    def recent(self, expr: str) -> list[dict[str, Any]]:
        """Return the answer to a query over the last minute, as a panel asks."""
        now = datetime.now(UTC)
        since = now - timedelta(minutes=1)
        span = {"start": str(since.timestamp()), "end": str(now.timestamp()), "step": "1"}
        found: list[dict[str, Any]] = self._asked("/api/v1/query_range", query=expr, **span)["result"]
        return found

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Return the firing alerts by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self._asked("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found

    def wait_for(self, alert: str, seconds: float = 30.0, **labels: str) -> str:
        """Wait until an alert with these labels fires; return what the operator reads."""

        def fires() -> str | None:
            for each in self.alerts().get(alert, ()):
                if labels.items() <= each["labels"].items():
                    return f"{each['annotations']['summary']} {each['annotations']['description']}"
            return None

        told = wait_until(fires, seconds, 0.5)
        assert told, f"{alert} {labels} does not fire; firing: {self.alerts()}"
        return told

    def _asked(self, path: str, **parameters: str) -> Any:
        answer = self._client.get(path, params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def __enter__(self) -> Self:
        try:
            assert wait_until(self.ready, 30), self.log.read_text("utf-8")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(20)
