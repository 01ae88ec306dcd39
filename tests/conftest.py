"""What all tests share: the servers, the tiers, and the rule that a logged ERROR fails a test."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.fake_kubernetes import FakeKubernetes, fake_kubernetes
from tests.support.provider import ProcessProvider, SparkCluster, StackProvider
from tests.support.quarantine import BadQuarantine, quarantined
from tests.support.redis_server import OwnCluster, running_cluster

TIERS = {
    "unit": "one module, no servers",
    "property": "properties of the pure core, with generated input",
    "contract": "the wire format and the files generated from it",
    "integration": "one hop against real servers",
    "faults": "the same with something broken on purpose",
    "kubernetes": "jobs on a real cluster of Kubernetes; only `make test-k8s` runs them",
    "yarn": "jobs on a real YARN; only `make test-yarn` runs them",
    "s3": "jobs whose files are all on a real S3 server; only `make test-s3` runs them",
    "e2e": "the whole loop on real Kafka, Redis and Spark",
}
OURS = ("tidegate", "services", "collector", "decider", "actuator", "operator", "keda", "console", "demo", "load")
TESTS = Path(__file__).parent
settings.register_profile("tidegate", deadline=None)  # no test is judged by the speed of the machine
settings.load_profile("tidegate")
ON_SPARK = (
    (
        "tests/e2e/",
        "tests/integration/test_handover.py",
    ),
    (
        "tests/faults/test_actuator_kill.py",
        "tests/faults/test_resize_kill.py",
        "tests/integration/test_actuator.py",
        "tests/integration/test_actuator_resize.py",
        "tests/integration/test_collector.py",
        "tests/integration/test_stack.py",
        "tests/integration/test_starts.py",
    ),
)
"""Where whole clusters start: with several workers (`-n 3`), one of them runs all of a group, one after the other."""
SHARED = tuple(
    f"tests/{name}.py"
    for name in ("contract/test_compose", "contract/test_console", "property/test_nearest", "unit/test_whatif")
)
"""Whose tests share what takes long to make: one worker runs all of a file."""
SERVERS = ("tests/integration/", "tests/faults/")
"""Where each worker starts servers of its own: further workers run the other tests first."""
ONE_SPARK = tuple(
    f"tests/integration/test_{name}.py"
    for name in ("archive", "audit", "backtest", "event_log_shipper", "replay_kafka", "secured_kafka")
)
"""What runs on the one Spark of its process: one worker runs all of it, since another Spark takes 26 CPU seconds more
to start and to warm up. It comes before the other files, so that it does not end last.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Lets the caller choose where the servers come from."""
    parser.addoption(
        "--stack",
        choices=("embedded", "containers", "attach"),
        default="embedded",
        help="servers as processes of this run (default), as containers, or the stack that runs in TIDEGATE_STACK_DIR",
    )
    parser.addoption(
        "--quarantine", type=Path, default=TESTS / "quarantine.toml", help="the list of tests known to be flaky"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers."""
    for tier, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {meaning} (set by the folder)")
    config.addinivalue_line("markers", "slow: minutes each; left to `make faults`")
    config.addinivalue_line("markers", "spark: on Spark; left to `make test-all` and `make test-spark`")
    config.addinivalue_line("markers", "expects_errors(reason): our code logs an ERROR in this test, for this reason")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Has a run that is told to end clean up, as after Ctrl-C: servers and namespaces of tests would stay."""

    def end(_number: int, _frame: object) -> None:
        session.shouldstop = "told to end"  # the test may catch what is raised
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def pytest_collection(session: pytest.Session) -> None:
    """Has each worker of a whole run import other tests first: in a fresh checkout it compiles these, not all."""
    given = getattr(session.config, "workerinput", None)
    if given is None or session.config.args != [TESTS.name]:
        return
    files = [file for tier in TIERS for file in sorted(TESTS.glob(f"{tier}/test_*.py"))]
    first = len(files) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception):  # the collection reports it
            importlib.import_module(f"tests.{file.parent.name}.{file.stem}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks each test with the tier whose folder it is in."""
    if tier := _tier(item.path):
        item.add_marker(tier)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests that are in quarantine; the longest come first."""
    try:
        flaky = quarantined(config.getoption("--quarantine"), date.today())  # noqa: DTZ011 - a date on a calendar
    except BadQuarantine as error:
        raise pytest.UsageError(str(error)) from None
    for item in items:
        if reason := flaky.get(item.nodeid):
            item.add_marker(pytest.mark.xfail(reason=f"quarantine: {reason}", strict=False))

    def later(item: pytest.Item) -> tuple[bool, ...]:
        return _group(item.nodeid) is None, not item.nodeid.startswith(ONE_SPARK), not item.nodeid.startswith(SERVERS)

    items.sort(key=later)


class ByServers(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Gives a group on one cluster or Spark to one worker, tests that share less by file, the others one by one."""

    def _assign_work_unit(self, node: object) -> None:
        if list(self.assigned_work).index(node) >= len(ON_SPARK):
            other = next((scope for scope in self.workqueue if not scope.startswith(("spark-", *SERVERS))), None)
            if other is not None:
                self.workqueue.move_to_end(other, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        if (group := _group(nodeid)) is not None:
            return f"spark-{group}"
        if nodeid.startswith(ONE_SPARK):
            return "spark-session"
        return nodeid.partition("::")[0] if nodeid.startswith((*SERVERS, *SHARED)) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByServers:
    """Shares the tests out among the workers."""
    config.option.loadscopereorder = False  # our order, not the largest number of tests first
    return ByServers(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test during which our code logged an ERROR, unless it is marked with `expects_errors`."""
    marker = item.get_closest_marker("expects_errors")
    if marker is not None and not (marker.args or marker.kwargs.get("reason")):
        raise pytest.UsageError(f"{item.nodeid}: expects_errors needs a reason")
    collector = _ErrorCollector()
    logging.getLogger().addHandler(collector)
    try:
        outcome = yield
    finally:
        logging.getLogger().removeHandler(collector)
    if collector.messages and marker is None:
        pytest.fail("logged as an ERROR: " + "; ".join(collector.messages), pytrace=False)
    return outcome


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints how many tests of each tier there were."""
    counts: dict[str, Counter[str]] = {tier: Counter() for tier in TIERS}
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, []):
            if tier := _tier(Path(terminalreporter.config.rootpath, report.nodeid.partition("::")[0])):
                counts[tier][outcome] += 1
    lines = [
        f"{tier:<12} {sum(count.values()):5}  " + ", ".join(f"{number} {outcome}" for outcome, number in count.items())
        for tier, count in counts.items()
        if count
    ]
    if lines:
        terminalreporter.section("tests per tier")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackProvider]:
    """Kafka, Redis and Spark for this run; nothing is started before `need` (or a fixture below) asks for it."""
    choice = request.config.getoption("--stack")
    provider: StackProvider
    if choice == "attach":
        work_dir = os.environ.get("TIDEGATE_STACK_DIR")
        if not work_dir:
            raise pytest.UsageError("--stack=attach needs the work folder of a running stack in TIDEGATE_STACK_DIR")
        provider = ProcessProvider(Path(work_dir), attach=True)
    elif choice == "containers":
        from tests.support import containers  # noqa: PLC0415 - needs Docker's client, which the others do not

        if reason := containers.why_no_docker():
            pytest.fail(reason, pytrace=False)
        provider = containers.ContainerProvider(tmp_path_factory.mktemp("stack"))
    else:
        provider = ProcessProvider(tmp_path_factory.mktemp("stack"), attach=False)
    yield provider
    provider.close()


@pytest.fixture(scope="session")
def docker(request: pytest.FixtureRequest) -> None:
    """Skip where `docker compose` cannot be used; fail there if the run asks for containers."""
    from tests.support import containers  # noqa: PLC0415 - needs Docker's client, which the others do not

    if reason := containers.why_no_compose():
        if request.config.getoption("--stack") == "containers":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Has this process and its children hear SIGINT, even in a run that a script started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def kafka(stack: StackProvider) -> str:
    """The bootstrap servers of a healthy broker."""
    return stack.need(kafka=True).bootstrap_servers


@pytest.fixture
def redis_url(stack: StackProvider) -> str:
    """The URL, password included, of a healthy Redis."""
    info = stack.need(redis=True)
    return info.redis_url.replace("redis://", f"redis://:{info.redis_password}@")


@pytest.fixture(scope="session")
def redis_cluster(stack: StackProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCluster]:
    """Three primaries of a Redis in cluster mode; no test may break them for good."""
    with running_cluster(stack.need(redis=True).redis_server, tmp_path_factory.mktemp("redis-cluster")) as cluster:
        yield cluster


@pytest.fixture
def spark(stack: StackProvider) -> SparkCluster:
    """A healthy standalone cluster."""
    info = stack.need(spark=True)
    return SparkCluster(
        master=info.spark_master,
        rest=info.spark_rest,
        ui=info.spark_ui,
        event_log_dir=info.event_log_dir,
        connector_jars=info.connector_jars,
        slots=info.worker_slots,
        python=info.python,
    )


class _ErrorCollector(logging.Handler):
    """Keeps the ERRORs of our own loggers."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in OURS:
            self.messages.append(f"{record.name}: {record.getMessage()}")


def _tier(path: Path) -> str | None:
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return folder if folder in TIERS else None


def _group(nodeid: str) -> int | None:
    """Return the number of the group in `ON_SPARK` that a test is in."""
    return next((number for number, group in enumerate(ON_SPARK) if nodeid.startswith(group)), None)


@pytest.fixture
def server() -> Iterator[FakeKubernetes]:
    """An API server of Kubernetes with nothing in it."""
    with fake_kubernetes() as server:
        yield server
