"""The proposed job file: what the event log tells of a job is filled in; what it does not tell is named in comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tidegate.backtest.logs import Run
from tidegate.events.job import Backend, JobSpec
from tidegate.launcher.kubernetes.pods import mebibytes
from tidegate.remote.files import log_directory

LEAST_MEMORY_MB = 472
"""Spark refuses executors whose heap is below 450 MiB, and the JVM counts a little less than it was given."""
UNTOLD = "untold"
"""Stands for what the log does not tell, in a spec that only simulates."""

_NOT_CARRIED = re.compile(
    r"spark\.(app\.|eventLog\.|dynamicAllocation\.|submit\.|repl\.|executor\.(id|cores|memory)$|driver\.(host|port|memory)$"
    r"|master$|cores\.max$|jars$|files$|tidegate\.|rdd\.compress$|serializer\.objectStreamReset$|ui\.showConsoleProgress$"
    r"|sql\.warehouse\.dir$|hadoop\.fs\.s3a\.vectored\.|(driver|executor)\.extraJavaOptions$|executor\.instances$"
    r"|sql\.artifact\.|plugins\.internal"
    r"|org\.apache\.hadoop\.|ui\.(filters|port|proxyBase)$|yarn\.(app\.|dist\.|secondary\.|submit\.|isPython$|tags$|maxAppAttempts$)"
    r"|kubernetes\.(namespace|(executor\.|driver\.)?container\.image|authenticate\.driver\.serviceAccountName|driver\.pod\.name"
    r"|executor\.podNamePrefix|resource\.type|submitInDriver|pyspark\.|memoryOverheadFactor)$)"
)
"""Settings that Spark sets by itself, that Tidegate owns, or that have a field of their own."""
_ALWAYS = ("executor_cores", "executor_memory_mb", "driver_memory_mb")
_WITH_UNIT = re.compile(r"^(milliseconds?|seconds?|minutes?|hours?|days?|ms|s)$")
_REDACTED = "redacted"
_BACKENDS: dict[str, Backend] = {"local": "local", "yarn": "yarn", "k8s://": "kubernetes"}
_PODS = {
    "namespace": ("spark.kubernetes.namespace",),
    "image": ("spark.kubernetes.container.image", "spark.kubernetes.driver.container.image"),
    "service_account": ("spark.kubernetes.authenticate.driver.serviceAccountName",),
}
"""Fields of a job's pods, and the settings that tell them; the first one that is set counts."""
_NO_ID = re.compile(r"[^a-z0-9._-]+|\.{2,}")
LONGEST_ID = 63


@dataclass(frozen=True, slots=True)
class Told:
    """What a log tells of how a job is started; None or empty where it does not."""

    job_id: str
    topics: tuple[str, ...]
    script: str | None = None
    args: tuple[str, ...] = ()
    ambiguous_args: bool = False
    """Whether an argument may have held a space, which the log does not show."""
    master: str | None = None
    pods: Mapping[str, str] = field(default_factory=dict)
    """Fields of the job's pods on Kubernetes."""
    jars: tuple[str, ...] = ()
    py_files: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    redacted: tuple[str, ...] = ()
    """Fields whose values Spark hides in the log: names with `token` in them are enough for that."""
    checkpoint: str | None = None
    event_log_dir: str | None = None
    executor_cores: int = 1
    executor_memory_mb: int = 1024
    driver_memory_mb: int = 1024

    @property
    def backend(self) -> Backend:
        """The backend of the master that the job ran on; `standalone` where the log does not tell."""
        kind = re.match(r"local|yarn|k8s://", self.master or "")
        return _BACKENDS[kind.group()] if kind else "standalone"


def told_by(run: Run) -> Told:
    """Return what the newest run of a job tells."""
    spark = run.spark
    script, args, ambiguous = _command(run.command)
    cores = [cores for _, _, cores in run.executors if cores]
    conf = {k: v for k, v in spark.items() if not _NOT_CARRIED.match(k)}
    for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        own = _own_java_options(spark.get(name, ""))
        conf |= {name: own} if own else {}
    hidden = tuple(sorted(name for name, value in conf.items() if _REDACTED in value))
    master = spark.get("spark.master")
    master = "local[1]" if master == "local" else master  # Spark takes both
    conf = {name: value for name, value in conf.items() if (name, value) != ("spark.scheduler.mode", "FIFO")}
    jars = spark.get("spark.jars", "")
    jars_hidden = _REDACTED in jars
    return Told(
        job_id=job_id_of(run.name),
        script=script,
        args=args,
        ambiguous_args=ambiguous,
        master=master,
        pods={name: spark[key] for name, keys in _PODS.items() for key in reversed(keys) if key in spark},
        jars=() if jars_hidden else tuple(_path(jar) for jar in _listed(jars)),
        py_files=tuple(_path(file) for file in _listed(spark.get("spark.submit.pyFiles", ""))),
        conf={name: value for name, value in sorted(conf.items()) if name not in hidden},
        redacted=(*(["jars"] if jars_hidden else []), *(f"conf.{name}" for name in hidden)),
        checkpoint=_checkpoint(run, args),
        event_log_dir=_event_logs(spark["spark.eventLog.dir"]) if "spark.eventLog.dir" in spark else None,
        executor_cores=run.number("spark.executor.cores") or max(cores, default=1),
        executor_memory_mb=max(LEAST_MEMORY_MB, mebibytes(spark.get("spark.executor.memory"), 1024)),
        driver_memory_mb=max(LEAST_MEMORY_MB, mebibytes(spark.get("spark.driver.memory"), 1024)),
        topics=tuple(sorted({topic for batch in run.batches for topic in batch.end})),
    )


def job_id_of(name: str) -> str:
    """Return the id of a job that is as near to a name as an id may be."""
    return _NO_ID.sub("-", name.lower())[:LONGEST_ID].strip("-._") or "job"


def job_ids(names: Iterable[str]) -> dict[str, str]:
    """Return the id of each name; where several names would have the same one, all but the first get a number."""
    found: dict[str, str] = {}
    for name in names:
        job_id = base = job_id_of(name)
        number = 1
        while job_id in found.values():
            number += 1
            job_id = f"{base[: LONGEST_ID - 5]}-{number}"
        found[name] = job_id
    return found


def rendered(spec: JobSpec, told: Told | None, why: Mapping[str, str]) -> str:
    """Return a spec as YAML for `tidegate apply`; `why` has comments for single fields by their path."""
    data: dict[str, Any] = spec.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    scaling = spec.scaling
    shown = {
        "mode": scaling.mode.value,
        "policy": scaling.policy,
        "lag_objective_seconds": scaling.lag_objective_seconds,
    }
    data["scaling"] = {**shown, **data.get("scaling", {})}
    filled = spec.application.model_dump(mode="json", exclude_none=True)
    application = {**data["application"], **({name: filled[name] for name in _ALWAYS} if told else {})}
    if pods := application.get("kubernetes"):
        application["kubernetes"] = {name: value for name, value in pods.items() if value != UNTOLD}
    data["application"] = {name: value for name, value in application.items() if UNTOLD not in str(value).split("/")}
    if spec.pipeline_id == spec.job_id:
        del data["pipeline_id"]
    if spec.sources == (UNTOLD,):
        del data["sources"]
    lines = ["# A job under Tidegate, proposed by a backtest: `tidegate apply FILE`."]
    missing = _missing(spec, told)
    if missing:
        lines.append("# Fill in what is missing; without it the file is not complete:")
        lines += [f"#   {line}" for line in missing]
    for line in yaml.safe_dump(data, sort_keys=False, width=110, allow_unicode=True).splitlines():
        name = line.strip().split(":")[0]
        lines.append(f"{line}   # {why[name]}" if name in why and not line.endswith(":") else line)
    return "\n".join(lines) + "\n"


def _missing(spec: JobSpec, told: Told | None) -> list[str]:
    """Return a line for each thing that is not known."""
    app, found = spec.application, []
    if spec.sources == (UNTOLD,):
        found.append("sources: the topics that it reads")
    if app.script == UNTOLD:
        found.append("application.script and args: the PySpark script, as a path that every worker can read")
    if UNTOLD in app.checkpoint_location:
        found.append("application.checkpoint_location: see `checkpointLocation` in the script")
    if UNTOLD in app.event_log_dir:
        found.append("application.event_log_dir: where the job writes its event log")
    if UNTOLD in (app.control_dir or "").split("/"):
        found.append("application.control_dir: a new folder, for Tidegate and the drivers")
    if told is None:
        if app.script == UNTOLD:
            found.append("application.master, rest_url and master_ui_url: the cluster that it is to run on")
        return found
    if told.ambiguous_args:
        found.append("application.args: the log shows them without quotes; join those that belong together")
    found += [f"application.{name}: Spark has hidden its value in the log" for name in told.redacted]
    found += _missing_of_the_cluster(spec, told)
    found.append("sinks: the topics it writes, if other jobs under Tidegate read them")
    return found


def _missing_of_the_cluster(spec: JobSpec, told: Told) -> list[str]:
    """Return a line for each thing that the log does not tell of the cluster and of how Tidegate reaches it."""
    app = spec.application
    if app.backend == "yarn":
        return ["application.rest_url: the ResourceManager's web address, such as http://resourcemanager:8088"]
    if app.kubernetes is not None:
        wanted = {"namespace": "where its pods are", "image": "of driver and executors, with Spark's entry point"}
        found = [f"application.kubernetes.{name}: {text}" for name, text in wanted.items() if name not in told.pods]
        return [*found, "application.kubernetes.volumes: with script, checkpoint and event log, if they are paths"]
    if told.master is not None and not told.master.startswith(("spark://", "local")):
        return [f"application.master: the job ran on {told.master}, which Tidegate cannot run jobs on"]
    if app.backend == "local":
        return []
    host = re.sub(r"^spark://([^:,]+).*$", r"\1", app.master)
    return [
        f"application.rest_url: the master's REST endpoint, such as http://{host}:6066",
        f"application.master_ui_url: the master's web page, such as http://{host}:8080",
    ]


def _command(command: str | None) -> tuple[str | None, tuple[str, ...], bool]:
    """Return the script, its arguments, and whether they are ambiguous: the log joins words by spaces."""
    words = (command or "").split()
    place = next((i for i, word in enumerate(words) if _is_script(words, i)), None)
    if place is None:
        return None, (), False
    args: list[str] = []
    ambiguous = False
    for word in words[place + 1 :]:
        if args and _WITH_UNIT.match(word) and re.search(r"(^|=)\d+$", args[-1]):
            args[-1] += f" {word}"
            continue
        ambiguous |= len(args) > 1 and not word.startswith("-") and not args[-1].startswith("-")
        args.append(word)
    return words[place], tuple(args), ambiguous


def _is_script(words: list[str], place: int) -> bool:
    word, before = words[place], words[place - 1] if place else ""
    return (
        word.endswith(".py")
        and "," not in word
        and not word.startswith("-")
        and before not in ("--py-files", "--files", "--name")
    )


def _checkpoint(run: Run, args: tuple[str, ...]) -> str | None:
    """Return the checkpoint's folder: of the plan's state, of the settings, or of an argument of that name."""
    found = run.spark.get("spark.sql.streaming.checkpointLocation") or run.checkpoint
    if found:
        return _path(found)
    for place, word in enumerate(args):
        name, _, value = word.partition("=")
        if name.startswith("-") and "checkpoint" in name.lower():
            return _path(value or (args[place + 1] if place + 1 < len(args) else "")) or None
    return None


def _event_logs(location: str) -> str:
    """Return the directory of the event logs; a path stands for itself, but Spark decodes a URI."""
    return _path(log_directory(location)) if location.startswith("file:") else location


def _own_java_options(text: str) -> str:
    """Return the options that are not those which Spark adds by itself, to open modules and for its network."""
    spark = ("-Djava.net.preferIPv6", "-XX:+IgnoreUnrecognizedVMOptions", "-Djdk.reflect", "-Dio.netty", "--")
    return " ".join(word for word in text.split() if not word.startswith(spark))


def _listed(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


def _path(location: str) -> str:
    """Return a local path without its scheme; another location as it is."""
    return re.sub(r"^file:(//)?(?=/)", "", location)
