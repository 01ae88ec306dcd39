"""Spark standalone from the installed pyspark: a master with REST submission, and workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from tidegate.stack.class_data import light_jvm
from tidegate.stack.component import Component
from tidegate.stack.info import Ports, StackInfo
from tidegate.stack.ports import free_ports, is_free


def _master_view(info: StackInfo) -> dict[str, Any] | None:
    """Return the master's description of its cluster; None if it does not answer."""
    import httpx  # noqa: PLC0415 - few commands need it, and it takes long to import

    try:
        with httpx.Client(trust_env=False, timeout=2) as client:
            answer: dict[str, Any] = client.get(f"{info.spark_ui}/json/").raise_for_status().json()
            return answer
    except (httpx.HTTPError, ValueError):
        return None


class _SparkDaemon(Component):
    @override
    def environment(self, info: StackInfo) -> Mapping[str, str]:
        return {
            "SPARK_HOME": str(info.spark_home),
            "SPARK_CONF_DIR": str(self.work_dir / "spark" / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.work_dir / "spark" / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": light_jvm(),
            # Drivers and executors launched by a worker inherit these two.
            "PYSPARK_PYTHON": str(info.python),
            "PYSPARK_DRIVER_PYTHON": str(info.python),
        }

    @override
    def prepare(self, info: StackInfo) -> None:
        for folder in ("local", "events", "recovery", "work"):
            (self.work_dir / "spark" / folder).mkdir(parents=True, exist_ok=True)

    def _daemon(self, info: StackInfo, main_class: str, settings: Mapping[str, object]) -> list[str]:
        file = self.work_dir / "spark" / f"{self.name}.conf"
        file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
        command = [str(info.spark_home / "bin" / "spark-class"), main_class, "--host", "127.0.0.1"]
        return [*command, "--properties-file", str(file)]


class SparkMaster(_SparkDaemon):
    """The master. After a restart it still knows its workers, drivers and applications."""

    name = "spark-master"
    port_names = ("spark_master", "spark_rest", "spark_master_ui")

    @override
    def command(self, info: StackInfo) -> list[str]:
        settings = {
            "spark.master.rest.enabled": "true",
            "spark.master.rest.host": "127.0.0.1",
            "spark.master.rest.port": info.ports.spark_rest,
            "spark.deploy.recoveryMode": "FILESYSTEM",
            "spark.deploy.recoveryDirectory": self.work_dir / "spark" / "recovery",
            # A worker that is silent for this long counts as lost; the default is 60 s.
            "spark.worker.timeout": 20,
        }
        command = self._daemon(info, "org.apache.spark.deploy.master.Master", settings)
        return [*command, "--port", str(info.ports.spark_master), "--webui-port", str(info.ports.spark_master_ui)]

    @override
    def healthy(self, info: StackInfo) -> bool:
        view = _master_view(info)
        return view is not None and view.get("status") == "ALIVE"


class SparkWorker(_SparkDaemon):
    """One worker; `number` counts from 0."""

    def __init__(self, work_dir: Any, number: int) -> None:
        super().__init__(work_dir)
        self.number = number
        self.name = f"spark-worker-{number}"

    @override
    def command(self, info: StackInfo) -> list[str]:
        settings = {"spark.worker.cleanup.enabled": "true", "spark.worker.cleanup.appDataTtl": 86400}
        command = self._daemon(info, "org.apache.spark.deploy.worker.Worker", settings)
        command += ["--cores", str(info.worker_slots), "--memory", info.worker_memory]
        command += ["--work-dir", str(self.work_dir / "spark" / "work")]
        return [*command, "--webui-port", str(self._ui_port(info)), info.spark_master]

    @override
    def healthy(self, info: StackInfo) -> bool:
        view = _master_view(info) or {}
        address = f":{self._ui_port(info)}"
        return any(
            worker.get("state") == "ALIVE" and str(worker.get("webuiaddress", "")).endswith(address)
            for worker in view.get("workers", [])
        )

    @override
    def usable(self, ports: Ports) -> Ports:
        if is_free(ports.spark_worker_uis[self.number]):
            return ports
        uis = list(ports.spark_worker_uis)
        (uis[self.number],) = free_ports(1)
        return ports.model_copy(update={"spark_worker_uis": tuple(uis)})

    def _ui_port(self, info: StackInfo) -> int:
        return info.ports.spark_worker_uis[self.number]
