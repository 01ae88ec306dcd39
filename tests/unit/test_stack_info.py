"""The record of a stack, its lock and its ports."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typing_extensions import override

from tidegate.cli.stack import next_steps
from tidegate.stack.component import Component
from tidegate.stack.errors import StackError
from tidegate.stack.info import Ports, StackInfo, info_path, locked
from tidegate.stack.kafka import Kafka
from tidegate.stack.ports import free_ports
from tidegate.stack.processes import ProcessRecord, end_all
from tidegate.stack.spark import SparkWorker


def sample(work_dir: Path) -> StackInfo:
    """A stack with one component."""
    ports = Ports(
        kafka=1,
        kafka_controller=2,
        kafka_proxied=3,
        kafka_proxy=4,
        redis=5,
        spark_master=6,
        spark_rest=7,
        spark_master_ui=8,
        spark_worker_uis=(9,),
    )
    return StackInfo(
        stack_id="s",
        state="up",
        work_dir=work_dir,
        ports=ports,
        java_home=Path("/java"),
        spark_home=Path("/spark"),
        redis_server=Path("/redis-server"),
        kafka_jars=(),
        connector_jars=(Path("/a.jar"),),
        worker_slots=8,
        worker_memory="6g",
        python=Path("/python"),
        processes={"kafka": ProcessRecord(pid=7, started_ticks=9)},
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    """`down` works in another process, from the record alone."""
    info = sample(tmp_path)
    info.save()
    assert StackInfo.load(tmp_path) == info
    assert [path.name for path in tmp_path.iterdir()] == ["stack.json"]


def test_the_next_steps_start_the_services_of_a_stack(tmp_path: Path) -> None:
    """Somebody who has just started it pastes lines, and looks up no address; the password is not printed."""
    text = next_steps(sample(tmp_path))
    lines = [line for line in text.splitlines() if "python -m services." in line]
    assert [line.rpartition(".")[2] for line in lines] == ["collector", "decider", "actuator"]
    assert all("TIDEGATE_BOOTSTRAP_SERVERS=127.0.0.1:1 " in line for line in lines)
    password = f'TIDEGATE_REDIS_PASSWORD="$(cat {tmp_path}/redis/password)"'
    assert [password in line and "TIDEGATE_REDIS_URL=redis://127.0.0.1:5/0" in line for line in lines] == [0, 1, 1]


def test_the_password_is_only_in_its_file(tmp_path: Path) -> None:
    """`stack.json` holds no secret."""
    info = sample(tmp_path)
    info.redis_password_file.parent.mkdir()
    info.redis_password_file.write_text("hunter2\n")
    info.save()
    assert info.redis_password == "hunter2"
    assert "hunter2" not in info_path(tmp_path).read_text()


def test_kafka_listens_where_it_is_told_to(tmp_path: Path) -> None:
    """Its clients find it at another address of this machine; its controller stays on loopback."""
    info = sample(tmp_path).model_copy(update={"kafka_address": "10.0.0.1"})
    assert info.bootstrap_servers == "10.0.0.1:1"
    settings = Kafka(tmp_path).write_settings(info).read_text().splitlines()
    assert "listeners=PLAINTEXT://10.0.0.1:1,PROXIED://127.0.0.1:3,CONTROLLER://127.0.0.1:2" in settings
    assert "advertised.listeners=PLAINTEXT://10.0.0.1:1,PROXIED://127.0.0.1:4" in settings


def test_kafka_keeps_its_data_below_any_folder(tmp_path: Path) -> None:
    """Java reads its settings as Latin-1: in UTF-8, the data would be elsewhere, and not be found again."""
    folder = tmp_path / "Zürich \\ 東京"
    folder.mkdir()
    settings = Kafka(folder).write_settings(sample(folder)).read_text("ascii")
    assert rf"log.dirs={tmp_path}/Z\u00fcrich \\ \u6771\u4eac/kafka/data" in settings.splitlines()


def test_kafkas_storage_is_formatted_without_the_users_settings_of_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own would contradict them. In the locale C, Java opens no file whose path has letters beyond ASCII."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    monkeypatch.setenv("LC_ALL", "C")
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nenv > {tmp_path}/environment\n")
    java.chmod(0o755)
    Kafka(tmp_path).prepare(sample(tmp_path).model_copy(update={"java_home": tmp_path / "java"}))
    lines = (tmp_path / "environment").read_text().splitlines()
    assert "LC_ALL=C.UTF-8" in lines
    assert not [line for line in lines if line.startswith("JAVA_TOOL_OPTIONS")]


def test_no_stack_is_said_plainly(tmp_path: Path) -> None:
    """The error of a missing stack names the folder."""
    with pytest.raises(StackError, match=f"no stack in {tmp_path}"):
        StackInfo.load(tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """File, field and reason are in the error."""
    sample(tmp_path).save()
    path = info_path(tmp_path)
    path.write_text(path.read_text().replace('"worker_slots": 8', '"worker_slots": "many"'))
    with pytest.raises(StackError, match=r"stack\.json is not readable: stack\.worker_slots: .*integer"):
        StackInfo.load(tmp_path)


def test_the_lock_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    """A crash never leaves a work folder locked; a live holder keeps it."""
    program = (
        "import sys, time; from pathlib import Path; from tidegate.stack.info import locked\n"
        "with locked(Path(sys.argv[1]), 'up.lock', wait_seconds=0): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(StackError, match="another process"), locked(tmp_path, "up.lock", wait_seconds=0.1):
                pass
        finally:
            holder.kill()
    with locked(tmp_path, "up.lock", wait_seconds=5):
        pass


def test_ports_are_distinct_free_and_not_those_of_outgoing_connections() -> None:
    """A killed server finds its port free again, because no client is ever assigned that port."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < first_ephemeral or first_ephemeral < 16000
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


class Sleeper(Component):
    """A component that only sleeps, at the ports of Kafka's broker and of Redis."""

    name = "sleeper"
    port_names = ("kafka", "redis")

    @override
    def prepare(self, info: StackInfo) -> None:
        (self.work_dir / "logs").mkdir(exist_ok=True)

    @override
    def command(self, info: StackInfo) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(60)", str(info.ports.kafka)]

    @override
    def healthy(self, info: StackInfo) -> bool:
        return True


def test_a_port_taken_before_the_first_start_is_replaced_and_kept_from_then_on(tmp_path: Path) -> None:
    """A stack chooses all its ports at once, and a component may start minutes later."""
    kafka, redis, controller = free_ports(3)
    chosen = {"kafka": kafka, "redis": redis, "kafka_controller": controller}
    ports = sample(tmp_path).ports.model_copy(update=chosen)
    sample(tmp_path).model_copy(update={"ports": ports, "processes": {}}).save()
    sleeper = Sleeper(tmp_path)
    with socket.create_server(("127.0.0.1", kafka)), socket.create_server(("127.0.0.1", controller)):
        try:
            sleeper.launch()
            info = sleeper.info
            assert info.ports.kafka != kafka
            assert info.ports.model_copy(update={"kafka": kafka}) == ports  # the controller's is another component's
            with socket.create_server(("127.0.0.1", redis)):
                sleeper.kill()
                sleeper.launch()
            assert sleeper.info.ports == info.ports  # its clients know them
        finally:
            end_all(lambda: [sleeper.process] if sleeper.process else [], 0.0)


def test_the_port_of_a_workers_page_is_replaced_as_well(tmp_path: Path) -> None:
    """Spark would take the next one, where nobody looks: the worker would count as not healthy."""
    first, second = free_ports(2)
    program = tmp_path / "spark" / "bin" / "spark-class"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    (tmp_path / "logs").mkdir()
    info = sample(tmp_path)
    ports = info.ports.model_copy(update={"spark_worker_uis": (first, second)})
    info.model_copy(update={"ports": ports, "spark_home": tmp_path / "spark"}).save()
    worker = SparkWorker(tmp_path, 1)
    with socket.create_server(("127.0.0.1", first)), socket.create_server(("127.0.0.1", second)):
        try:
            worker.launch()
            kept, other = worker.info.ports.spark_worker_uis
            assert kept == first  # it is another worker's
            assert other not in (first, second)
            assert str(other) in worker.command(worker.info)
        finally:
            end_all(lambda: [worker.process] if worker.process else [], 0.0)
