"""A running stack as seen from outside: the endpoints and processes recorded in `stack.json`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate.events.invalid import first_problem
from tidegate.runtime.lock_file import lock_file
from tidegate.stack.errors import StackError
from tidegate.stack.processes import ProcessRecord


class Ports(BaseModel):
    """The loopback TCP ports of one stack, fixed for its lifetime, so that a component restarts on the same port."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kafka: int
    kafka_controller: int
    kafka_proxied: int
    kafka_proxy: int
    redis: int
    spark_master: int
    spark_rest: int
    spark_master_ui: int
    spark_worker_uis: tuple[int, ...]


class StackInfo(BaseModel):
    """Endpoints, files and processes of one stack; the password is only in its file.

    All addresses are loopback, but for Kafka's where the stack was started with another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stack_id: str
    state: Literal["starting", "up"]
    work_dir: Path
    ports: Ports
    kafka_address: str = "127.0.0.1"
    """The address of this machine at which Kafka listens."""
    java_home: Path
    spark_home: Path
    redis_server: Path
    kafka_jars: tuple[Path, ...]
    connector_jars: tuple[Path, ...]
    worker_slots: int
    """Cores that each worker offers; they may exceed the machine's."""
    worker_memory: str
    python: Path
    """The interpreter that PySpark drivers and executors use."""
    processes: dict[str, ProcessRecord] = {}
    """The started components by name."""

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's direct listener."""
        return f"{self.kafka_address}:{self.ports.kafka}"

    @property
    def proxied_bootstrap_servers(self) -> str:
        """The listener behind a test's proxy: the broker's metadata sends clients that start here back here.

        The proxy forwards to 127.0.0.1:`ports.kafka_proxied`.
        """
        return f"127.0.0.1:{self.ports.kafka_proxy}"

    @property
    def redis_url(self) -> str:
        """Redis, without its password."""
        return f"redis://127.0.0.1:{self.ports.redis}/0"

    @property
    def redis_password_file(self) -> Path:
        """A file of mode 0600 that holds only the password."""
        return self.work_dir / "redis" / "password"

    @property
    def redis_password(self) -> str:
        """The password, read from its file."""
        return self.redis_password_file.read_text(encoding="utf-8").strip()

    @property
    def spark_master(self) -> str:
        """The master for `--master`."""
        return f"spark://127.0.0.1:{self.ports.spark_master}"

    @property
    def spark_rest(self) -> str:
        """The master's REST submission server."""
        return f"http://127.0.0.1:{self.ports.spark_rest}"

    @property
    def spark_ui(self) -> str:
        """The master's web page; the path `/json/` has the cluster's state."""
        return f"http://127.0.0.1:{self.ports.spark_master_ui}"

    @property
    def event_log_dir(self) -> Path:
        """For `spark.eventLog.dir` of jobs."""
        return self.work_dir / "spark" / "events"

    @property
    def log_dir(self) -> Path:
        """The folder with one log file per component."""
        return self.work_dir / "logs"

    def save(self) -> None:
        """Write `stack.json` atomically."""
        path = info_path(self.work_dir)
        scratch = path.with_suffix(".json.new")
        summary = {
            "bootstrap_servers": self.bootstrap_servers,
            "proxied_bootstrap_servers": self.proxied_bootstrap_servers,
            "redis_url": self.redis_url,
            "redis_password_file": str(self.redis_password_file),
            "spark_master": self.spark_master,
            "spark_rest": self.spark_rest,
            "spark_ui": self.spark_ui,
            "event_log_dir": str(self.event_log_dir),
        }
        scratch.write_text(_StackFile(endpoints=summary, stack=self).model_dump_json(indent=2), encoding="utf-8")
        scratch.replace(path)

    @classmethod
    def load(cls, work_dir: Path | str) -> StackInfo:
        """Return the stack of `work_dir`. Raises StackError if there is none or its file cannot be read."""
        path = info_path(Path(work_dir))
        try:
            return _StackFile.model_validate_json(path.read_text(encoding="utf-8")).stack
        except FileNotFoundError:
            raise StackError(f"no stack in {work_dir}: there is no {path.name}") from None
        except ValidationError as error:
            raise StackError(f"{path} is not readable: {first_problem(error)}") from error


class _StackFile(BaseModel):
    """What `stack.json` holds: readable endpoints for people and tools, and the record that `load` reads."""

    endpoints: dict[str, str]
    stack: StackInfo


def info_path(work_dir: Path) -> Path:
    """Return the path of a work folder's record."""
    return work_dir / "stack.json"


def locked(work_dir: Path, name: str, *, wait_seconds: float) -> AbstractContextManager[None]:
    """Hold a lock file of a work folder; raise `StackError` if another process still holds it after `wait_seconds`."""
    work_dir.mkdir(parents=True, exist_ok=True)
    held = StackError(f"another process is changing the stack in {work_dir} just now")
    return lock_file(work_dir / name, wait_seconds, held)
