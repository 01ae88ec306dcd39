"""The embedded stack on real servers: it starts completely, can be broken and repaired, and leaves nothing running."""

import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from redis import AuthenticationError, Redis
from redis import TimeoutError as RedisTimeoutError

from demo.environment import LIGHT_JVMS
from tests.support.provider import StackProvider
from tests.support.proxy import TcpProxy
from tidegate.runtime.poll import wait_until
from tidegate.stack import StackError, StackInfo, down, status, up
from tidegate.stack.class_data import class_data
from tidegate.stack.info import info_path
from tidegate.stack.processes import marked

QUIET = {"log_level": 0}


@pytest.fixture
def work_dir(tmp_path: Path) -> Iterator[Path]:
    """A work folder for a stack of the test's own, which is ended even if the test fails."""
    folder = tmp_path / "own stack"
    yield folder
    down(folder, wait_seconds=30)


def start_up(work_dir: Path) -> subprocess.Popen[bytes]:
    """`tidegate up` in the background, in a group of its own."""
    command = [sys.executable, "-m", "tidegate", "up", "--work-dir", str(work_dir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def half_started(work_dir: Path) -> str:
    """Waits until some component of a starting stack runs; returns the stack's id."""
    assert wait_until(lambda: info_path(work_dir).exists() and bool(StackInfo.load(work_dir).processes), 30)
    info = StackInfo.load(work_dir)
    assert info.state == "starting"
    return info.stack_id


def new_topic(bootstrap_servers: str) -> str:
    """A topic of one partition."""
    topic = f"stack-{uuid.uuid4().hex}"
    # Kept in a variable: a client that is collected as garbage takes its requests with it.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=20)
    return topic


def produce(bootstrap_servers: str, topic: str, *values: bytes, timeout_seconds: float = 20.0) -> int:
    """Return how many records the broker did not acknowledge in time."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.timeout.ms": timeout_seconds * 1000, **QUIET})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _message: failures.append(error) if error else None)
    return int(producer.flush(timeout_seconds + 5)) + len(failures)


def consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes | None]:
    """The first `count` values of a topic."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    with closing(Consumer({**settings, **QUIET})) as consumer:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, timeout=20)]


def test_a_second_up_is_refused_and_down_leaves_no_process(work_dir: Path) -> None:
    """One work folder holds one stack; after `down` nothing of it runs, and its data can be started again."""
    info = up(work_dir, kafka=False, spark=False)
    with pytest.raises(StackError, match=r"already up in .*own stack \(redis\)"):
        up(work_dir, kafka=False, spark=False)
    assert {line.name: line.state for line in status(work_dir)} == {
        "kafka": "not started",
        "redis": "running",
        "spark-master": "not started",
        "spark-worker-0": "not started",
    }
    Redis(port=info.ports.redis, password=info.redis_password).set("kept", "yes")
    assert down(work_dir)
    assert marked(info.stack_id) == []
    assert status(work_dir) == []
    assert not down(work_dir)
    again = up(work_dir, kafka=False, spark=False)
    assert Redis(port=again.ports.redis, password=again.redis_password).get("kept") == b"yes"


def test_redis_wants_the_password_that_only_its_owner_can_read(work_dir: Path) -> None:
    """Without the password Redis refuses; password and settings files have mode 0600."""
    info = up(work_dir, kafka=False, spark=False)
    with pytest.raises(AuthenticationError):
        Redis(port=info.ports.redis).ping()
    for path in (info.redis_password_file, info.work_dir / "redis" / "redis.conf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_starting_ends_what_was_started(work_dir: Path, number: signal.Signals) -> None:
    """An interrupted `up` fails and leaves neither process nor record."""
    with start_up(work_dir) as starter:
        stack_id = half_started(work_dir)
        os.killpg(starter.pid, number)
        assert starter.wait(timeout=40) == 130
    assert marked(stack_id) == []
    assert not info_path(work_dir).exists()


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("step", ["starting redis", "redis is healthy"])
def test_a_ctrl_c_that_is_lost_on_its_way_ends_the_start_all_the_same(work_dir: Path, step: str) -> None:
    """If Python drops the interrupt, as in a `__del__`, `up` is interrupted a little later."""
    started: list[str] = []

    def lose_ctrl_c(text: str) -> None:
        if text == step:
            started.append(StackInfo.load(work_dir).stack_id)
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        up(work_dir, kafka=False, spark=False, on_progress=lose_ctrl_c)
    assert marked(*started) == []
    assert not info_path(work_dir).exists()


def test_kill_9_of_up_while_starting_ends_what_was_started(work_dir: Path) -> None:
    """If the starter is killed, the guardian cleans up."""
    with start_up(work_dir) as starter:
        stack_id = half_started(work_dir)
        starter.kill()
    assert wait_until(lambda: not info_path(work_dir).exists(), 30)
    assert marked(stack_id) == []


def test_up_clears_what_a_dead_starter_left(work_dir: Path) -> None:
    """Even without the guardian, the next `up` ends a half-started stack before its own start."""
    left = up(work_dir, kafka=False, spark=False).model_copy(update={"state": "starting"})
    left.save()
    new = up(work_dir, kafka=False, spark=False)
    assert marked(left.stack_id) == []
    assert new.stack_id != left.stack_id


def test_a_tied_stack_ends_with_its_owner(work_dir: Path) -> None:
    """A killed test run leaves no servers running."""
    program = (
        "import sys, time; from tidegate.stack import up\n"
        "print(up(sys.argv[1], kafka=False, spark=False, tied=True).stack_id, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, work_dir], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        stack_id = owner.stdout.readline().strip()
        assert marked(stack_id)
        owner.kill()
    assert wait_until(lambda: not info_path(work_dir).exists(), 30)
    assert marked(stack_id) == []


def test_a_component_that_cannot_start_is_named_with_its_log(work_dir: Path) -> None:
    """The error shows the end of the log, and nothing else of the stack keeps running."""
    (work_dir / "redis").mkdir(parents=True)
    (work_dir / "redis" / "appendonly.aof").write_text("this is no append-only file")
    with pytest.raises(
        StackError, match=r"redis ended while starting; .*redis\.log ends with:\n(.*\n)*.*[Bb]ad file format"
    ):
        up(work_dir, kafka=False, spark=False)
    assert not info_path(work_dir).exists()


@pytest.mark.parametrize("size", [{"workers": 0}, {"worker_slots": 0}])
def test_a_senseless_size_is_refused(work_dir: Path, size: dict[str, int]) -> None:
    """Numbers are checked before anything is started."""
    with pytest.raises(StackError, match="must be at least 1"):
        up(work_dir, workers=size.get("workers", 1), worker_slots=size.get("worker_slots", 1))
    assert not work_dir.exists()


def test_a_killed_broker_keeps_its_records_and_address(stack: StackProvider, kafka: str) -> None:
    """`kill` is a crash that acknowledged records survive, and `start` restarts the broker on the same port."""
    topic = new_topic(kafka)
    assert produce(kafka, topic, b"before") == 0
    stack.kafka.kill()
    assert produce(kafka, topic, b"lost", timeout_seconds=1) == 1
    stack.kafka.start()
    assert produce(kafka, topic, b"after") == 0
    assert consume(kafka, topic, 2) == [b"before", b"after"]


def test_a_paused_broker_hangs_and_goes_on(stack: StackProvider, kafka: str) -> None:
    """`pause` freezes without closing connections; after `resume` the broker answers again."""
    topic = new_topic(kafka)
    stack.kafka.pause()
    try:
        assert produce(kafka, topic, b"frozen", timeout_seconds=1) == 1
    finally:
        stack.kafka.resume()
    assert produce(kafka, topic, b"thawed") == 0


def test_topics_are_never_created_by_accident(kafka: str) -> None:
    """A misspelt topic is an error, not a new topic."""
    assert produce(kafka, f"misspelt-{uuid.uuid4().hex}", b"x", timeout_seconds=3) == 1


def test_clients_that_start_at_the_proxy_stay_behind_it(stack: StackProvider, kafka: str) -> None:
    """The broker's metadata sends clients back to the proxy, so that its faults affect every request."""
    info = stack.info
    topic = new_topic(kafka)
    with TcpProxy(info.ports.kafka_proxied, info.ports.kafka_proxy) as proxy:
        admin = AdminClient({"bootstrap.servers": info.proxied_bootstrap_servers, **QUIET})
        assert [broker.port for broker in admin.list_topics(timeout=10).brokers.values()] == [info.ports.kafka_proxy]
        assert produce(info.proxied_bootstrap_servers, topic, b"through") == 0
        proxy.down()
        assert produce(info.proxied_bootstrap_servers, topic, b"blocked", timeout_seconds=1) == 1
        assert produce(kafka, topic, b"direct") == 0
        proxy.clear()
        assert produce(info.proxied_bootstrap_servers, topic, b"again") == 0


def test_redis_comes_back_with_its_data(stack: StackProvider, redis_url: str) -> None:
    """Acknowledged writes survive a crash of Redis; a paused Redis times out."""
    key = f"stack-{uuid.uuid4().hex}"
    with Redis.from_url(redis_url, socket_timeout=5) as client:
        client.set(key, "kept", ex=300)
        stack.redis.pause()
        try:
            with pytest.raises(RedisTimeoutError):
                client.get(key)
        finally:
            stack.redis.resume()
        stack.redis.kill()
        stack.redis.start()
        assert client.get(key) == b"kept"


SCRIPT = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
topic, servers, answer = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
count = spark.read.format("kafka").options(**options).load().count()
workers = spark.sparkContext.parallelize(range(4), 4).map(lambda number: number + 1).sum()
Path(answer).write_text(f"{count} {workers}")
time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_submitted_driver_takes_no_slot_reads_kafka_and_ends_with_the_stack(work_dir: Path, tmp_path: Path) -> None:
    """All slots are for executors, the connector's jars read Kafka, and `down` ends drivers and executors too."""
    info = up(work_dir, redis=False, worker_slots=2, worker_memory="3g")
    topic = new_topic(info.bootstrap_servers)
    assert produce(info.bootstrap_servers, topic, b"1", b"2", b"3") == 0
    script, answer = tmp_path / "job.py", tmp_path / "answer"
    script.write_text(SCRIPT)
    submission = {
        "action": "CreateSubmissionRequest",
        "clientSparkVersion": "4.2.0",
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        "appResource": "",
        # Without --master the driver runs on local[*], whatever its properties say.
        "appArgs": ["--master", info.spark_master, str(script), topic, info.bootstrap_servers, str(answer)],
        "environmentVariables": {},
        "sparkProperties": {
            "spark.master": info.spark_master,
            "spark.app.name": "stack-test",
            "spark.submit.deployMode": "cluster",
            **LIGHT_JVMS,
            "spark.driver.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.jars": ",".join(str(jar) for jar in info.connector_jars),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": str(info.event_log_dir),
        },
    }
    with httpx.Client(trust_env=False, timeout=10) as client:
        created = client.post(f"{info.spark_rest}/v1/submissions/create", json=submission).json()
        assert created["success"], created
        assert wait_until(lambda: answer.exists() and bool(answer.read_text()), 200)
        cluster = client.get(f"{info.spark_ui}/json/").json()
    assert answer.read_text() == "3 10"
    assert (cluster["cores"], cluster["coresused"]) == (2, 2)
    assert [driver["cores"] for driver in cluster["activedrivers"]] == [0]
    assert list(info.event_log_dir.iterdir())
    mapped = [r for r in marked(info.stack_id) if class_data().name in Path(f"/proc/{r.pid}/maps").read_text()]
    if class_data().exists():  # Java 21 refuses it
        assert len(mapped) >= 5, "master, worker, driver and executors start with the archive of Spark's classes"
    components = {record.pid for record in StackInfo.load(work_dir).processes.values()}
    launched = [record for record in marked(info.stack_id) if record.pid not in components]
    # At least one driver, its Python and two executors.
    assert len(launched) >= 4
    assert down(work_dir)
    assert marked(info.stack_id) == []
    assert not any(record.alive for record in launched)


def test_a_lost_worker_comes_back_to_the_same_master(stack: StackProvider) -> None:
    """Worker and master can crash separately; each finds the other again."""
    info = stack.need(spark=True)
    stack.spark_worker.kill()
    stack.spark_worker.start()
    stack.spark_master.kill()
    with pytest.raises(httpx.TransportError), httpx.Client(trust_env=False, timeout=60) as client:
        client.get(info.spark_ui)  # refused, or reset while the kernel still winds up the socket
    stack.spark_master.start()
    stack.spark_worker.start()
    with httpx.Client(trust_env=False, timeout=60) as client:
        assert wait_until(lambda: info.worker_slots <= client.get(f"{info.spark_ui}/json/").json()["cores"], 60)


def test_kafka_errors_are_seen_while_it_is_down(stack: StackProvider, kafka: str) -> None:
    """A killed broker is reported as `dead`, and its clients get an error within their timeout."""
    stack.kafka.kill()
    try:
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": kafka, **QUIET}).list_topics(timeout=1)
    finally:
        stack.kafka.start()
    assert AdminClient({"bootstrap.servers": kafka, **QUIET}).list_topics(timeout=10).brokers
