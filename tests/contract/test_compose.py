"""The deployment: compose.yaml against the specification and our own rules, and each service run as in its image."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Iterator
from compileall import compile_dir
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from jsonschema import Draft202012Validator
from redis.exceptions import NoPermissionError

from tests.support.http_server import AnswersOk, serving, set_dead_proxy
from tests.support.packages import modules_without, normal
from tests.support.programs import captured
from tests.support.provider import StackProvider
from tidegate.events.envelope import decode
from tidegate.events.job import JobSpec
from tidegate.events.topics import TOPICS
from tidegate.runtime.poll import retry, wait_until
from tidegate.runtime.settings import ServiceSettings
from tidegate.stack.ports import free_ports

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("collector", "decider", "actuator", "console")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
START_SECONDS = 90.0


IMAGES = (*OURS, "operator", "keda")
"""What has an image; the last two run on Kubernetes only."""
STAGES = {
    "operator": ("service", "fleet"),
    "keda": ("service", "fleet"),
    "console": ("service", "fleet", "console"),
}
"""The stages of the Dockerfile that an image consists of, where that is not `service` alone."""
MODULES = {
    "console": ("tidegate.console", "tidegate.fleet", "services.console"),
    "operator": ("tidegate.fleet", "tidegate.engine", "services.operator"),
    "keda": ("tidegate.fleet", "services.keda"),
}
"""What an image runs, where that is not all that it holds: a lab that can also draw, or a sender of traces."""


def stage(name: str) -> str:
    """Return the text of one stage of the Dockerfile."""
    return re.split(r"^FROM ", DOCKERFILE[DOCKERFILE.index(f"AS {name}\n") :], maxsplit=1, flags=re.MULTILINE)[0]


def test_compose_file_fits_the_specification() -> None:
    """compose.yaml is valid by the official JSON Schema of the Compose specification."""
    schema = json.loads((ROOT / "tests/support/compose_spec/compose-spec.json").read_text("utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(COMPOSE)] == []
    broken = {**COMPOSE, "services": {**SERVICES, "redis": {**SERVICES["redis"], "restrat": "always"}}}
    assert list(Draft202012Validator(schema).iter_errors(broken)) != []


@pytest.mark.parametrize("name", ["service", "fleet", "console"])
def test_an_image_holds_its_modules_compiled(name: str) -> None:
    """Each stage compiles what it has copied, as root, and leaves an ordinary user: the service may not write."""
    lines = [line for line in stage(name).splitlines() if re.match(r"(COPY|USER|RUN python -m compileall)", line)]
    assert lines[-2:] == ["RUN python -m compileall -q /app", "USER 185:185"]
    assert lines[0] == "USER root" or name == "service"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_kept_alive_and_kept_in_bounds(name: str) -> None:
    """Each has a health check, a restart policy, limits of CPU, memory and log, an ordinary user and no privileges."""
    service = SERVICES[name]
    assert service["restart"] in ({"on-failure"} if name == "init" else {"unless-stopped"})
    assert service["healthcheck"].get("test") or name == "init"
    assert set(service["deploy"]["resources"]["limits"]) >= {"cpus", "memory"}
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service.get("privileged", False) is False
    assert service["logging"]["driver"] == "json-file"
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


def test_the_limits_fit_a_machine_with_two_cores_and_8_gb() -> None:
    """Docker refuses a limit above the machine's cores, and all that runs together has limits below 8 GB of memory."""
    together = {name: service["deploy"] for name, service in SERVICES.items() if name not in {"init", "example-load"}}
    assert max(float(service["deploy"]["resources"]["limits"]["cpus"]) for service in SERVICES.values()) <= 2
    units = {"m": 2**20, "g": 2**30}
    memory = 0
    for deploy in together.values():  # `init` has ended before the others start, and the two loads are alike
        limit = deploy["resources"]["limits"]["memory"]
        memory += deploy.get("replicas", 1) * int(limit[:-1]) * units[limit[-1]]
    assert memory < 8e9


OBSERVE = ("prometheus", "alertmanager", "grafana")


@pytest.mark.parametrize("name", [*OURS, "redis", "init", "demo-load", "example-load", *OBSERVE])
def test_what_writes_nothing_has_a_read_only_root(name: str) -> None:
    """Only Kafka's and Spark's images write outside their volumes."""
    assert SERVICES[name]["read_only"] is True


def test_no_volume_is_anonymous() -> None:
    """Whatever an image declares as a volume is a named volume or in memory, so `down -v` leaves nothing."""
    declared = {
        "kafka": {"/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"},
        "redis": {"/data"},
        "prometheus": {"/prometheus"},
        "alertmanager": {"/alertmanager"},
    }
    for name, paths in declared.items():
        service = SERVICES[name]
        mounted = {volume.split(":")[1] for volume in service["volumes"]} | set(service.get("tmpfs", ()))
        assert paths <= mounted


def test_prometheus_reads_the_services_and_grafana_reads_prometheus() -> None:
    """Each target is a service of the file, at the port of its metrics; Grafana finds Prometheus by its name."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    (scraped,) = config["scrape_configs"]
    targets = {static["labels"]["service"]: static["targets"] for static in scraped["static_configs"]}
    assert "TIDEGATE_HEALTH_HOST=0.0.0.0 TIDEGATE_HEALTH_PORT=8081" in DOCKERFILE
    assert targets == {service: [f"{service}:8081"] for service in OURS if service != "console"}  # which has none
    (managers,) = config["alerting"]["alertmanagers"]
    assert [target.partition(":")[0] for each in managers["static_configs"] for target in each["targets"]] == [
        "alertmanager"
    ]
    text = (DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yaml").read_text("utf-8")
    (source,) = yaml.safe_load(text)["datasources"]
    assert (source["uid"], source["url"]) == ("prometheus", "http://prometheus:9090")
    text = (DEPLOY / "grafana" / "provisioning" / "dashboards" / "tidegate.yaml").read_text("utf-8")
    (provider,) = yaml.safe_load(text)["providers"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def test_what_observes_starts_only_when_asked_for() -> None:
    """Prometheus, Alertmanager and Grafana belong to the profile `observe` and are not needed by anything else."""
    assert {name for name, service in SERVICES.items() if "observe" in service.get("profiles", ())} == set(OBSERVE)
    others = [service for name, service in SERVICES.items() if name not in OBSERVE]
    assert not any(set(service.get("depends_on", ())) & set(OBSERVE) for service in others)


def test_each_image_is_built_once() -> None:
    """One service builds an image; the others that use it neither build it again nor look for it in a registry."""
    ours = [service for service in SERVICES.values() if service["image"].startswith("tidegate/")]
    for image in {service["image"] for service in ours}:
        users = [service for service in ours if service["image"] == image]
        assert sum("build" in service for service in users) == 1
        assert all(service["pull_policy"] == "never" for service in users if "build" not in service)


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
    assert [secret["target"] for secret in SERVICES["console"]["secrets"]] == ["tidegate_console_operators"]
    assert (DEPLOY / ".gitignore").read_text("utf-8").split() == ["secrets/"]


def test_environment_has_only_settings_that_exist() -> None:
    """Every TIDEGATE_ variable, in compose.yaml and the Dockerfile, is a setting of the service that gets it."""
    from services.actuator.settings import ActuatorSettings  # noqa: PLC0415
    from services.collector.settings import CollectorSettings  # noqa: PLC0415
    from services.decider.settings import DeciderSettings  # noqa: PLC0415
    from tidegate.console.settings import ConsoleSettings  # noqa: PLC0415

    settings: dict[str, type[ServiceSettings]] = {
        "collector": CollectorSettings,
        "decider": DeciderSettings,
        "actuator": ActuatorSettings,
        "console": ConsoleSettings,
    }
    for name, kind in settings.items():
        in_image = dict(re.findall(r"(TIDEGATE_\w+)=(\S+)", "".join(map(stage, STAGES.get(name, ("service",))))))
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
    for source in re.findall(r"^COPY ([^-]\S+) ", DOCKERFILE, re.MULTILINE):
        for service in IMAGES:
            path = source.replace("${SERVICE}", service)
            assert (ROOT / path).exists(), path
            assert any(path.startswith(line[1:]) for line in let_through if line.startswith("!")), path
    assert re.search(r"^USER 185:185$", DOCKERFILE, re.MULTILINE)
    assert "--require-hashes" in DOCKERFILE
    assert "HEALTHCHECK" in DOCKERFILE


def test_health_checks_take_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker gives every container the proxy of its client's settings, and none reaches a container's loopback."""
    checks = [
        json.loads(found) for found in re.findall(r"    CMD (\[.*\])$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    ]
    checks += [SERVICES[name]["healthcheck"]["test"][1:] for name in ("decider", "spark-master")]
    set_dead_proxy(monkeypatch)
    with serving(AnswersOk) as server:
        for python, *words in checks:
            assert python.startswith("python")
            ran = captured(
                sys.executable, *(re.sub(r"(?<=127\.0\.0\.1:)\d+", str(server.server_port), w) for w in words)
            )
            assert ran.returncode == 0, ran.stderr
    assert len(checks) == 3


def test_demo_and_example_are_jobs_that_share_nothing() -> None:
    """Tidegate accepts both jobs; their paths exist in the images, and each has its own topics and checkpoint."""
    demo = decode(JobSpec, (DEPLOY / "examples" / "demo.json").read_bytes())
    text = (DEPLOY / "examples" / "job.yaml").read_text("utf-8")
    example = decode(JobSpec, json.dumps(yaml.safe_load(text)).encode())
    for spec in (demo, example):
        app = spec.application
        assert app.script == "/app/examples/rates.py"
        assert (app.master, app.rest_url) == ("spark://spark-master:7077", "http://spark-master:6066")
        given = dict(word.split("=", 1) for word in app.args)
        assert (given["--input"], given["--output"]) == (*spec.sources, *spec.sinks)
        assert given["--checkpoint"] == app.checkpoint_location
        slots = SERVICES["spark-worker"]["command"][2]
        assert spec.scaling.max_parallelism <= SERVICES["spark-worker"]["deploy"]["replicas"] * int(slots)
    assert "COPY deploy/examples/rates.py /app/examples/rates.py" in DOCKERFILE
    assert demo.job_id != example.job_id
    assert not {*demo.sources, *demo.sinks} & {*example.sources, *example.sinks}
    assert demo.application.checkpoint_location != example.application.checkpoint_location
    assert SERVICES["demo-load"]["entrypoint"][2:] == ["--job", "/examples/demo.json"]
    assert SERVICES["example-load"]["entrypoint"][2:] == [*example.sources, *example.sinks]


def test_the_load_creates_its_topics_and_ends_on_sigterm(kafka: str, tmp_path: Path) -> None:
    """The load writes at its rate; SIGTERM ends it within a few seconds, with a last line that counts the records."""
    prefix = f"load-{uuid.uuid4().hex[:8]}"
    topics = [f"{prefix}.in", f"{prefix}.out"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TIDEGATE_BOOTSTRAP_SERVERS": kafka}
    log = tmp_path / "load.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, DEPLOY / "examples" / "load.py", *topics, "--rate", "300", "--seconds", "2"],
            env=environment,
            stderr=output,
        )
    try:
        wait_until(lambda: "100 records/s" in log.read_text("utf-8") or process.poll() is not None, 30)
        noticed = time.monotonic()
        assert "100 records/s" in log.read_text("utf-8"), log.read_text("utf-8")
        assert process.poll() is None, log.read_text("utf-8")
        process.terminate()
        assert process.wait(30) == 0
        late = time.monotonic() - noticed
    finally:
        process.kill()
        process.wait(10)
    lines = [json.loads(line)["message"] for line in log.read_text("utf-8").splitlines()]
    assert f"created {', '.join(topics)}" in lines
    assert lines[-1] == "stopped by a signal, exit code 0"
    wrote = re.fullmatch(r"wrote (\d+) records", lines[-2])
    assert wrote is not None
    assert 450 <= int(wrote[1]) <= 900 + 100 * late


def test_kafkas_health_check_tells_a_broker_from_others(stack: StackProvider) -> None:
    """The check passes on a broker; it fails on a closed port and on a server that is not Kafka."""
    ports = stack.need(kafka=True, redis=True).ports
    (closed,) = free_ports(1)
    for port, healthy in ((ports.kafka, True), (closed, False), (ports.redis, False)):
        command = ["bash", str(DEPLOY / "kafka" / "healthy.sh"), "127.0.0.1", str(port)]
        ran = subprocess.run(command, check=False, capture_output=True, timeout=60)
        assert (ran.returncode == 0) is healthy, ran.stderr


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Secrets as `make-secrets.sh` makes them."""
    subprocess.run([DEPLOY / "make-secrets.sh", tmp_path / "secrets"], check=True, timeout=120, capture_output=True)
    return tmp_path / "secrets"


def test_secrets_are_made_whole_or_not_at_all(tmp_path: Path) -> None:
    """Without a program that it needs the script fails and leaves no secret; the next run makes all, and they stay."""
    script, folder, programs = DEPLOY / "make-secrets.sh", tmp_path / "my secrets", tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "mkdir", "rm", "mv", "chmod", "cat", "head", "tr", "base64", "sha256sum"):
        (programs / name).symlink_to(str(shutil.which(name)))

    def made() -> int:
        ran = subprocess.run(
            [script, folder], env={"PATH": str(programs)}, check=False, timeout=30, capture_output=True
        )
        return ran.returncode

    for name in ("head", "base64", "tr", "sha256sum", "chmod", "mv"):
        hidden = (programs / name).rename(tmp_path / name)
        assert made() != 0, name
        assert not folder.exists() or list(folder.iterdir()) == [], name
        hidden.rename(programs / name)
    assert made() == 0
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    mounted = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert texts.keys() == mounted | {"client.env"}
    assert len(re.findall(r" #[0-9a-f]{64} ", texts["redis_acl"])) == 3
    assert made() == 0
    assert {path.name: path.read_text("utf-8") for path in folder.iterdir()} == texts


def test_redis_takes_our_configuration_and_holds_each_user_to_its_keys(
    secrets: Path, tmp_path: Path, stack: StackProvider
) -> None:
    """With redis.conf and the made user list, decider and actuator reach their own keys and nothing else (I13)."""
    server = stack.need(redis=True).redis_server
    (port,) = free_ports(1)
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

        assert retry(lambda: user("monitor").ping(), redis.ConnectionError, timeout_seconds=20, every=0.1)
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
        assert user("decider").info("server")["run_id"]  # by which it tells a server from one that took over
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def copied(name: str, service: str, folder: Path) -> None:
    """Copy into a folder what a stage of the Dockerfile copies from the repository into its working directory."""
    for source, target in re.findall(r"^COPY ([^-/]\S+) ([^/]\S+)$", stage(name), re.MULTILINE):
        original = ROOT / source.replace("${SERVICE}", service)
        there = folder / target.replace("${SERVICE}", service)
        there.parent.mkdir(parents=True, exist_ok=True)
        if original.is_dir():
            shutil.copytree(original, there)
        else:
            shutil.copy(original, there)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `/library` of the Dockerfile: the wheel of what services need, unpacked with its metadata."""
    assert "pip wheel" in DOCKERFILE
    assert "python -m zipfile -e /wheels/*.whl /library" in DOCKERFILE
    folder = tmp_path_factory.mktemp("image")
    copied("library", "", folder / "source")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "wheels", folder / "source"],
        check=True,
        timeout=100,
    )
    (wheel,) = (folder / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "library")
    compile_dir(folder / "library", quiet=1)  # once, and not in every process of every image
    return folder / "library"


def image_of(service: str, library: Path, folder: Path) -> Path:
    """Lay out a folder as the Dockerfile lays out `/app` for a service, with nothing that it does not copy."""
    assert "COPY --from=library /library /app\n" in DOCKERFILE
    app = folder / "app"
    shutil.copytree(library, app)
    for name in STAGES.get(service, ("service",)):
        copied(name, service, app)
    return app


ONLY_LOCKED = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (it is not in the service's lock)", name=name)

sys.meta_path.insert(0, Hide())
"""
IMPORT_ALL = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        # of these, a service imports what it needs
        partly_used = module.name.startswith(("tidegate.launcher.", "tidegate.remote.", "tidegate.sparklog."))
        if not (partly_used or module.name.endswith("__main__")):
            importlib.import_module(module.name)
ours = ("tidegate", "services", "demo", "bench", "tools", "tests")
files = {n: getattr(m, "__file__", None) for n, m in sys.modules.items() if n.partition(".")[0] in ours}
json.dump({name: file for name, file in files.items() if file}, sys.stdout)
"""


def environment_of(service: str, app: Path) -> dict[str, str]:
    """Return the environment of a service: the image's tree, this environment's packages less what its lock lacks."""
    lock = (DEPLOY / "requirements" / f"{service}.lock").read_text("utf-8")
    locked = {normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}
    site = app.parent / "site"
    site.mkdir()
    # Python runs a `sitecustomize` by itself at its start.
    hidden = modules_without(locked) - {path.name for path in app.iterdir()}
    (site / "sitecustomize.py").write_text(ONLY_LOCKED.format(hidden=hidden), "utf-8")
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{site}:{app}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SERVICE": service,
    }


@pytest.mark.parametrize("service", IMAGES)
def test_a_service_needs_only_what_its_image_has(service: str, library: Path, tmp_path: Path) -> None:
    """Every module of the image imports, from the image's own tree, with no package that the service's lock lacks."""
    app = image_of(service, library, tmp_path)
    modules = MODULES.get(service, ("tidegate", f"services.{service}"))
    environment = environment_of(service, app)
    ran = captured(sys.executable, "-c", IMPORT_ALL, *modules, cwd=app, env=environment, timeout=100)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, str] = json.loads(ran.stdout)
    assert {f"services.{service}.app", "tidegate.console.app"} & found.keys()
    assert {name for name, path in found.items() if not path.startswith(str(app))} == set()


KNOWN_POLICIES = """
import json, sys
from importlib.metadata import distribution
from pathlib import Path
from tidegate.installed import engine
json.dump([str(Path(distribution("tidegate").locate_file("")).resolve()), sorted(engine().policies)], sys.stdout)
"""


def test_the_image_knows_every_policy(library: Path, tmp_path: Path) -> None:
    """In the decider's image the published policies are found by the entry points of the image's own metadata."""
    app = image_of("decider", library, tmp_path)
    environment = environment_of("decider", app)
    asked = captured(sys.executable, "-c", KNOWN_POLICIES, cwd=tmp_path, env=environment)
    assert asked.returncode == 0, asked.stderr
    place, policies = json.loads(asked.stdout)
    assert Path(place) == app.resolve()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert {"keda", "tide", *declared["tidegate.policies"]} == set(policies)


def test_a_package_the_lock_lacks_is_hidden(library: Path, tmp_path: Path) -> None:
    """The check above can fail: with the collector's lock neither Spark nor Redis nor Faust can be imported."""
    app = image_of("collector", library, tmp_path)
    environment = environment_of("collector", app)
    for package in ("pyspark", "redis", "faust", "yaml", "typer"):
        command = [sys.executable, "-c", f"import {package}"]
        ran = subprocess.run(command, cwd=app, env=environment, capture_output=True, timeout=200, check=False)
        assert ran.returncode == 1, package


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


@pytest.mark.parametrize("service", [*OURS, "keda"])
def test_a_service_runs_as_in_its_image(service: str, library: Path, tmp_path: Path, stack: StackProvider) -> None:
    """From the image's tree and by its entry point a service gets healthy on real servers; SIGTERM ends it with 0."""
    info = stack.need(kafka=True, redis=True)
    (port,) = free_ports(1)
    prefix = f"image-{uuid.uuid4().hex[:8]}."
    app = image_of(service, library, tmp_path)
    environment = environment_of(service, app) | {
        "TIDEGATE_BOOTSTRAP_SERVERS": info.bootstrap_servers,
        "TIDEGATE_TOPIC_PREFIX": prefix,
        "TIDEGATE_HEALTH_PORT": str(port),
    }
    created = captured(
        sys.executable,
        DEPLOY / "kafka" / "create_topics.py",
        cwd=app,
        env={**environment, "PARTITIONS": "2"},
        timeout=100,
    )
    assert created.returncode == 0, created.stderr
    assert created.stderr.rpartition("created")[2].count(prefix) == len(TOPICS)
    if service == "console":
        environment["TIDEGATE_CONSOLE_PORT"] = str(port)
    if service == "keda":
        environment["TIDEGATE_KEDA_PORT"] = "0"
    if service in {"decider", "actuator"}:
        environment |= {
            "TIDEGATE_REDIS_URL": info.redis_url,
            "TIDEGATE_REDIS_PASSWORD": info.redis_password,
            "TIDEGATE_REDIS_PREFIX": f"{prefix}:",
        }
    log = tmp_path / "service.log"
    with running(service, app, environment) as process:
        wait_until(lambda: _healthy(port) or process.poll() is not None, START_SECONDS, every=0.5)
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
