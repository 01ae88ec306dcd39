"""The deployment: compose.yaml against the specification and our own rules, and each service run as its image would."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from jsonschema import Draft202012Validator
from redis.exceptions import NoPermissionError

from tests.support.provider import StackProvider
from tidegate.events.envelope import decode
from tidegate.events.job import JobSpec
from tidegate.events.topics import TOPICS
from tidegate.runtime.settings import ServiceSettings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("collector", "decider", "actuator")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
START_SECONDS = 90.0


def test_compose_file_fits_the_specification() -> None:
    """compose.yaml is valid by the official JSON Schema of the Compose specification."""
    schema = json.loads((ROOT / "tests/support/compose_spec/compose-spec.json").read_text("utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(COMPOSE)] == []
    broken = {**COMPOSE, "services": {**SERVICES, "redis": {**SERVICES["redis"], "restrat": "always"}}}
    assert list(Draft202012Validator(schema).iter_errors(broken)) != []


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_kept_alive_and_kept_in_bounds(name: str) -> None:
    """Each has a health check, a restart policy, limits of CPU and memory, a user that is not root, no privileges."""
    service = SERVICES[name]
    assert service["restart"] in ({"on-failure"} if name == "init" else {"unless-stopped"})
    assert service["healthcheck"].get("test") or name == "init"
    assert set(service["deploy"]["resources"]["limits"]) >= {"cpus", "memory"}
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service.get("privileged", False) is False


@pytest.mark.parametrize("name", [*OURS, "redis", "init", "demo-load"])
def test_what_writes_nothing_has_a_read_only_root(name: str) -> None:
    """Only Kafka's and Spark's images write beside their volumes."""
    assert SERVICES[name]["read_only"] is True


def test_images_are_pinned() -> None:
    """Every image has a tag, none is `latest`, in compose.yaml and in the Dockerfile."""
    images = [service["image"] for service in SERVICES.values()]
    images += re.findall(r"^ARG \w+_IMAGE=(\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == len(SERVICES) + 2
    for image in images:
        tag = image.rpartition("/")[2].partition(":")[2]
        assert re.search(r"\d+\.\d+", tag), image


def test_ports_are_open_on_this_machine_only() -> None:
    """What is published is published on the loopback address."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_secrets_come_from_files() -> None:
    """No environment holds a password; each mounted secret is declared, and settings read it by its name."""
    for service in SERVICES.values():
        assert not [name for name in service.get("environment", {}) if re.search("PASSW|SECRET|TOKEN", name)]
        for secret in service.get("secrets", ()):
            source = secret if isinstance(secret, str) else secret["source"]
            assert COMPOSE["secrets"][source]["file"].startswith("./secrets/")
    for name in ("decider", "actuator"):
        assert [secret["target"] for secret in SERVICES[name]["secrets"]] == ["tidegate_redis_password"]
    assert (DEPLOY / ".gitignore").read_text("utf-8").split() == ["secrets/"]


def test_environment_has_only_settings_that_exist() -> None:
    """Every TIDEGATE_ variable, in compose.yaml and the Dockerfile, is a setting of the service that gets it."""
    from services.actuator.settings import ActuatorSettings  # noqa: PLC0415
    from services.collector.settings import CollectorSettings  # noqa: PLC0415
    from services.decider.settings import DeciderSettings  # noqa: PLC0415

    settings: dict[str, type[ServiceSettings]] = {
        "collector": CollectorSettings,
        "decider": DeciderSettings,
        "actuator": ActuatorSettings,
    }
    in_image = dict(re.findall(r"(TIDEGATE_\w+)=(\S+)", DOCKERFILE))
    for name, kind in settings.items():
        given = {**in_image, **SERVICES[name]["environment"]}
        unknown = {v for v in given if v.startswith("TIDEGATE_") and v[9:].lower() not in kind.model_fields}
        assert unknown == set()


def test_dependencies_lead_to_services_and_volumes_that_exist() -> None:
    """Each `depends_on`, named volume and mounted file is there, and files below deploy/ are mounted read-only."""
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", ()):
            source, _, rest = volume.partition(":")
            if source.startswith("./"):
                assert (DEPLOY / source).exists(), source
                assert rest.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_dockerfile_copies_what_is_there() -> None:
    """Each COPY has its source in the tree, and the ignore file lets it through."""
    let_through = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    for source in re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE):
        for service in OURS:
            path = source.replace("${SERVICE}", service)
            assert (ROOT / path).exists(), path
            assert any(path.startswith(line[1:]) for line in let_through if line.startswith("!")), path
    assert re.search(r"^USER 185:185$", DOCKERFILE, re.MULTILINE)
    assert "--require-hashes" in DOCKERFILE
    assert "HEALTHCHECK" in DOCKERFILE


def test_the_demo_job_is_a_job() -> None:
    """The demo profile's job is one Tidegate takes, and its paths are those of the images."""
    spec = decode(JobSpec, (DEPLOY / "demo" / "job.json").read_bytes())
    assert spec.application.script.removeprefix("/app/") == "examples/rates.py"
    assert (DEPLOY / "examples" / "rates.py").is_file()
    assert (spec.application.master, spec.application.rest_url) == (
        "spark://spark-master:7077",
        "http://spark-master:6066",
    )


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Secrets as `make-secrets.sh` makes them."""
    subprocess.run([DEPLOY / "make-secrets.sh", tmp_path / "secrets"], check=True, timeout=30, capture_output=True)
    return tmp_path / "secrets"


def test_redis_takes_our_configuration_and_holds_each_user_to_its_keys(
    secrets: Path, tmp_path: Path, stack: StackProvider
) -> None:
    """With redis.conf and the made user list, decider and actuator reach their own keys and nothing else (I13)."""
    server = stack.need(redis=True).redis_server
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = (DEPLOY / "redis" / "redis.conf").read_text("utf-8")
    conf = conf.replace("/run/secrets/redis_acl", str(secrets / "redis_acl")).replace("dir /data", f"dir {tmp_path}")
    (tmp_path / "redis.conf").write_text(f"{conf}\nport {port}\nbind 127.0.0.1\n", "utf-8")
    process = subprocess.Popen(
        [server, tmp_path / "redis.conf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:

        def user(name: str) -> redis.Redis:
            password = (secrets / f"redis_{name}").read_text("utf-8")
            return redis.Redis(port=port, username=name, password=password, socket_timeout=5)

        deadline = time.monotonic() + 20
        while True:
            try:
                assert user("monitor").ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "redis did not start"
                time.sleep(0.1)
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port, socket_timeout=5).ping()
        own = {"decider": ("cooldown:x", "pool:x", "view"), "actuator": ("fence:x",)}
        for name, keys in own.items():
            client = user(name)
            for key in keys:
                assert client.eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, f"tidegate:{key}", "1") == b"OK"
            for key in {k for ks in own.values() for k in ks} - set(keys) | {"other"}:
                with pytest.raises(NoPermissionError):
                    client.get(f"tidegate:{key}")
            for command in ("FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST", "SHUTDOWN"):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*command.split())  # type: ignore[no-untyped-call]
        with pytest.raises(NoPermissionError):
            user("monitor").get("tidegate:view")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def image_of(service: str, folder: Path) -> Path:
    """Lay out a folder as the Dockerfile lays out `/app` for a service: what it copies, and nothing else."""
    app = folder / "app"
    app.mkdir()
    stage = DOCKERFILE[DOCKERFILE.index("AS service") : DOCKERFILE.index("AS spark")]
    for source, target in re.findall(r"^COPY (\S+) (\S+)$", stage, re.MULTILINE):
        if not target.startswith("/tmp"):
            copied = ROOT / source.replace("${SERVICE}", service)
            there = app / target.replace("${SERVICE}", service)
            there.parent.mkdir(parents=True, exist_ok=True)
            if copied.is_dir():
                shutil.copytree(copied, there, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(copied, there)
    return app


ONLY_LOCKED = """
import re, sys
from importlib.metadata import packages_distributions
allowed = {allowed!r}
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
hidden = {{top for top, owners in packages_distributions().items() if not allowed & set(map(normal, owners))}} - {own!r}

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {{name!r}} (it is not in the service's lock)", name=name)

sys.meta_path.insert(0, Hide())
"""
IMPORT_ALL = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith(("__main__", "launcher.launch", "launcher.boundary")):  # run in a Spark driver
            importlib.import_module(module.name)
ours = ("tidegate", "services", "demo", "bench", "tools", "tests")
files = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n.partition(".")[0] in ours}
json.dump({name: file for name, file in files.items() if file}, sys.stdout)
"""


def environment_of(service: str, app: Path) -> dict[str, str]:
    """Return the environment of a service: the image's tree, this environment's packages less what its lock lacks."""
    lock = (DEPLOY / "requirements" / f"{service}.lock").read_text("utf-8")
    locked = {_normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}
    site = app.parent / "site"
    site.mkdir()
    # Python runs a `sitecustomize` by itself at its start.
    (site / "sitecustomize.py").write_text(
        ONLY_LOCKED.format(allowed=locked, own={path.name for path in app.iterdir()}), "utf-8"
    )
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{site}:{app}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SERVICE": service,
    }


@pytest.mark.parametrize("service", OURS)
def test_a_service_needs_only_what_its_image_has(service: str, tmp_path: Path) -> None:
    """Every module of the image imports, from the image's own tree, with no package that the service's lock lacks."""
    app = image_of(service, tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, "tidegate", f"services.{service}"],
        cwd=app,
        env=environment_of(service, app),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    assert f"services.{service}.app" in found
    assert {name for name, path in found.items() if not path.startswith(str(app))} == set()


def test_a_package_the_lock_lacks_is_hidden(tmp_path: Path) -> None:
    """The check above can fail: with the collector's lock neither Spark nor Redis nor Faust can be imported."""
    app = image_of("collector", tmp_path)
    environment = environment_of("collector", app)
    for package in ("pyspark", "redis", "faust", "yaml", "typer"):
        command = [sys.executable, "-c", f"import {package}"]
        ran = subprocess.run(command, cwd=app, env=environment, capture_output=True, timeout=60, check=False)
        assert ran.returncode == 1, package


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def running(service: str, app: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service as its image's entry point does, and end its process group."""
    entry = json.loads(re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)[0])
    log = (app.parent / "service.log").open("wb")
    process = subprocess.Popen(entry, cwd=app, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        log.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("service", OURS)
def test_a_service_runs_as_its_image_would(service: str, tmp_path: Path, stack: StackProvider) -> None:
    """From the image's tree and by its entry point a service gets healthy on real servers; SIGTERM ends it with 0."""
    info = stack.need(kafka=True, redis=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    prefix = f"image-{uuid.uuid4().hex[:8]}."
    app = image_of(service, tmp_path)
    environment = environment_of(service, app) | {
        "TIDEGATE_BOOTSTRAP_SERVERS": info.bootstrap_servers,
        "TIDEGATE_TOPIC_PREFIX": prefix,
        "TIDEGATE_HEALTH_PORT": str(port),
    }
    created = subprocess.run(
        [sys.executable, DEPLOY / "kafka" / "create_topics.py"],
        cwd=app,
        env={**environment, "PARTITIONS": "2"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert created.returncode == 0, created.stderr
    assert created.stdout.count(prefix) == len(TOPICS)
    if service != "collector":
        environment |= {
            "TIDEGATE_REDIS_URL": info.redis_url,
            "TIDEGATE_REDIS_PASSWORD": info.redis_password,
            "TIDEGATE_REDIS_PREFIX": f"{prefix}:",
        }
    log = tmp_path / "service.log"
    with running(service, app, environment) as process:
        deadline = time.monotonic() + START_SECONDS
        while not _healthy(port):
            assert process.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.5)
        time.sleep(3)  # healthy is not only the first moment
        assert _healthy(port), log.read_text("utf-8")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text("utf-8")
    assert info.redis_password not in log.read_text("utf-8")


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=4) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


@pytest.mark.timeout(1200)
def test_the_whole_file_comes_up_in_containers(secrets: Path) -> None:
    """With a Docker daemon every service of compose.yaml gets healthy; without one this is skipped."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("no Docker daemon on this machine")
    if subprocess.run([docker, "compose", "version"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("Docker has no compose command on this machine")
    if not (DEPLOY / "secrets").exists():
        shutil.copytree(secrets, DEPLOY / "secrets")
    compose = [docker, "compose", "-p", f"tidegate-{uuid.uuid4().hex[:8]}", "-f", str(DEPLOY / "compose.yaml")]
    try:
        subprocess.run([*compose, "up", "--build", "--wait", "--wait-timeout", "600", "-d"], check=True, timeout=1000)
    finally:
        subprocess.run([*compose, "down", "-v", "--timeout", "20"], check=False, timeout=120)
