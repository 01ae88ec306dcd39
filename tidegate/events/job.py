"""JobSpec: what to run, what it reads and writes, and how it may be scaled. Only a JobSpec says what to run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator

from tidegate.events.way import ALL_WAYS, WITHOUT_HANDOVER, Way
from tidegate.events.wire import (
    Deadline,
    Identifier,
    Instant,
    Parallelism,
    Positive,
    Scalar,
    TimeZone,
    TopicName,
    Wire,
    identity,
)

Path = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00\n\r]+$")]

DnsLabel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]
"""A name of Kubernetes, as of a namespace."""
DnsName = Annotated[
    str,
    StringConstraints(
        max_length=253, pattern=r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*$"
    ),
]
"""A name of Kubernetes that may have dots, as of an account."""

Master = (
    Annotated[str, StringConstraints(pattern=r"^(spark://[\w.,:\[\]-]+|local(-cluster)?\[.+\])$")]
    | Annotated[str, StringConstraints(pattern=r"^yarn$")]
    | Annotated[str, StringConstraints(pattern=r"^k8s://https?://[\w.:\[\]/-]+$")]
)
_MASTERS = {
    "standalone": "spark://127.0.0.1:7077",
    "kubernetes": "k8s://https://kubernetes.default.svc",
    "yarn": "yarn",
}

CLUSTER_FIELDS: Final[tuple[str, ...]] = ("backend", "master", "rest_url", "master_ui_url", "kubernetes.namespace")
"""Fields of an application that say on which cluster the job runs."""

_NOT_STARTED_WITH = {"rescale", "stop_deadline_seconds", "start_deadline_seconds"}
"""Fields of an application that only say how it is changed."""

_WRITTEN_BY_TIDEGATE = frozenset(
    {
        "arguments",
        "dynamicAllocation",
        "image",
        "mainApplicationFile",
        "mainClass",
        "mode",
        "restartPolicy",
        "suspend",
        "type",
    }
)
"""Fields of a SparkApplication's spec that a job cannot set."""


def _is_elsewhere(location: str) -> bool:
    """Return whether a location is a URI of another file system than the machine's own."""
    return "://" in location and not location.startswith("file:")


class Mode(StrEnum):
    """What Tidegate may do with the job's size."""

    ACTIVE = "active"
    ADVISE = "advise"
    PAUSED = "paused"


Backend = Literal["standalone", "local", "kubernetes", "yarn"]
"""Where a job runs: what starts, finds and ends its drivers."""


class Volume(Wire):
    """A volume that the driver and all executors of a job on Kubernetes mount."""

    name: DnsLabel
    """Any name, for the pods."""
    path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^\x00\n\r:]*$")]
    """Where it is mounted."""
    claim: DnsLabel | None = None
    """Its PersistentVolumeClaim, which many pods must be able to mount."""
    host_path: Annotated[str, StringConstraints(max_length=4096, pattern=r"^/[^\x00\n\r:]*$")] | None = None
    """Instead of a claim: a folder of the node, which must be the same one on each node."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.claim is None) == (self.host_path is None):
            raise ValueError(f"volume {self.name!r} needs either claim or host_path")
        return self


class KubernetesPods(Wire):
    """The pods of a job on Kubernetes."""

    namespace: DnsLabel
    """Where they are. The actuator and the service account need rights there."""
    image: Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\s]+$")]
    """The image of driver and executors: Spark, Python, the Kafka connector and the job's own packages. It needs the
    entry point of Spark's images, and nothing of Tidegate."""
    service_account: DnsName = "default"
    """The account of the driver: it makes and ends executors, and writes the control files."""
    volumes: tuple[Volume, ...] = ()
    """What driver and executors mount: checkpoints and event logs must be on one of them, or in HDFS."""
    driver_template: dict[str, JsonValue] = Field(default_factory=dict)
    """A pod, in part: what the driver's pod has besides, such as `{"spec": {"nodeSelector": {"disk": "ssd"}}}`. For the
    executors, `conf` has Spark's own settings `spark.kubernetes.…`."""
    spark_application: dict[str, JsonValue] | None = None
    """With this, the Spark operator starts the drivers: the `spec` of a SparkApplication, in part; `{}` suffices.
    Tidegate adds the rest. When absent, the actuator makes the driver's pod itself."""

    @field_validator("spark_application")
    @classmethod
    def _says_nothing_of_tidegates(cls, partial: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        if taken := sorted(_WRITTEN_BY_TIDEGATE & set(partial or ())):
            raise ValueError(f"Tidegate itself writes {', '.join(taken)} of a SparkApplication: leave that out")
        return partial


class Application(Wire):
    """How the job's Spark application is started. The size is not here: a command carries it."""

    backend: Backend = "standalone"
    """Where the job runs. `local` is `spark-submit` on the machine of the actuator, for tests."""
    script: Path
    """The user's PySpark script, or the jar that has `main_class`, as a path that every worker, or the driver's pod,
    can read."""
    main_class: (
        Annotated[str, StringConstraints(max_length=500, pattern=r"^[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*$")] | None
    ) = None
    """The main class of a job in Scala or Java, such as `com.example.Rates`. Absent for a PySpark script."""
    release: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """Any name for the version of the script's code, such as a git tag. Tidegate does not read the script: if its code
    changes under the same path, change the release, and the running job is handed over to the new code."""
    args: tuple[str, ...] = ()
    """Arguments of the program. Anyone who may read the topics sees them: no passwords."""
    master: Master = Field(
        default_factory=lambda fields: _MASTERS.get(str(fields.get("backend")), _MASTERS["standalone"])
    )
    """Spark's master: by default `spark://127.0.0.1:7077`, `k8s://https://kubernetes.default.svc` for the `kubernetes`
    backend, and `yarn` for that of this name."""
    rest_url: str | None = Field(default=None, pattern=r"^https?://[\w.:\[\]-]+/?$")
    """The master's REST submission endpoint, needed by the `standalone` backend; or the address of the
    ResourceManager's web page, such as `http://rm:8088`, needed by the `yarn` backend."""
    master_ui_url: str | None = Field(default=None, pattern=r"^https?://[\w.:\[\]-]+/?$")
    """The master's web UI, whose `/json/` tells capacity and who is alive; needed by the `standalone` backend."""
    jars: tuple[Path, ...] = ()
    """Further jars, as for `spark-submit --jars`."""
    py_files: tuple[Path, ...] = ()
    """Further Python files, as for `spark-submit --py-files`."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Further Spark settings, without passwords. Those that Tidegate sets (`spark.cores.max`, dynamic allocation, event
    log) win over them."""
    rescale: tuple[Way, ...] | None = Field(default=None, min_length=1)
    """The ways to change the size of the running job, in order of preference: all that are possible when absent."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the driver, without passwords."""
    checkpoint_location: Path
    """The folder of the query's checkpoint, or the one with those of several queries: a path, or a URI such as
    `hdfs://namenode:8020/checkpoints/orders`, as Spark has it. Nothing in it is decoded."""
    event_log_dir: Path
    """Where Spark writes the event log: a path, or a URI like `spark.eventLog.dir`, in which `%20` is a space. It must
    exist, but for one on S3."""
    control_dir: Path | None = None
    """A directory that the actuator and the drivers reach: stop markers, fences and acknowledgements. A path, or a URI
    in HDFS or on S3. When absent, they are in a ConfigMap of the job on Kubernetes; on other clusters in the folder
    `tidegate-control` next to a checkpoint that is not on this machine."""
    kubernetes: KubernetesPods | None = None
    """The job's pods; needed by the `kubernetes` backend."""
    executor_cores: Parallelism = 1
    """Task slots of an executor. Every size is a multiple of it."""
    executor_memory_mb: Annotated[int, Field(ge=450, le=1_048_576)] = 512
    """The heap of an executor, in MiB; on Kubernetes at least 466."""
    driver_memory_mb: Annotated[int, Field(ge=450, le=1_048_576)] = 512
    """The heap of the driver, in MiB; on Kubernetes at least 466."""
    stop_deadline_seconds: Deadline = 60.0
    """How long a stop may wait for a batch boundary before the driver is killed; half as long again if the running
    batch is nearly done. A handover waits as long before it is given up, and ten minutes if the spec allows nothing
    else and the job has one query."""
    start_deadline_seconds: Deadline = 180.0
    """How long a new run may go without progress, such as a finished task, before it is rolled back."""

    @field_validator("rescale")
    @classmethod
    def _ways_differ(cls, ways: tuple[Way, ...] | None) -> tuple[Way, ...] | None:
        if ways is not None and len(set(ways)) < len(ways):
            raise ValueError(f"each way may be listed once, found {', '.join(ways)}")
        return ways

    @model_validator(mode="after")
    def _program_is_of_one_kind(self) -> Self:
        if self.main_class is None:
            if self.script.endswith(".jar"):
                raise ValueError(f"script {self.script!r} is a jar: name the class to run in main_class")
            return self
        if not self.script.endswith(".jar"):
            raise ValueError(f"main_class {self.main_class!r} needs its jar as script, found {self.script!r}")
        if self.py_files:
            raise ValueError(f"main_class {self.main_class!r} takes no py_files: they are for scripts")
        if self.rescale is not None and Way.HANDOVER in self.rescale:
            raise ValueError(
                f"main_class {self.main_class!r} cannot be handed over: leave handover out of rescale,"
                f" found {', '.join(self.rescale)}"
            )
        return self

    @model_validator(mode="after")
    def _fits_the_backend(self) -> Self:
        on_kubernetes, on_yarn = self.backend == "kubernetes", self.backend == "yarn"
        if (self.kubernetes is not None) != on_kubernetes:
            needed = "needs the block kubernetes" if on_kubernetes else "takes no block kubernetes"
            raise ValueError(f"backend {self.backend!r} {needed}")
        if self.master.startswith("k8s://") != on_kubernetes or (self.master == "yarn") != on_yarn:
            raise ValueError(f"backend {self.backend!r} does not fit the master {self.master!r}")
        if on_kubernetes:
            for name in ("rest_url", "master_ui_url"):
                if getattr(self, name) is not None:
                    raise ValueError(f"backend 'kubernetes' takes no {name}: there is no standalone master")
        elif on_yarn and (self.rest_url is None or self.master_ui_url is not None):
            raise ValueError("backend 'yarn' needs rest_url, the ResourceManager's address, and takes no master_ui_url")
        elif self.control_dir is None and not _is_elsewhere(self.checkpoint_location):
            raise ValueError(f"backend {self.backend!r} needs control_dir, a directory that actuator and driver share")
        return self

    @property
    def cluster_place(self) -> str | None:
        """Who knows who runs, and capacity; None if nobody.

        The URL of a master's page, `kubernetes:NAMESPACE`, or `yarn:URL` of a ResourceManager.
        """
        if self.backend == "yarn":
            return f"yarn:{self.rest_url}"
        return self.master_ui_url if self.kubernetes is None else f"kubernetes:{self.kubernetes.namespace}"

    @property
    def cluster(self) -> dict[str, str]:
        """The values of `CLUSTER_FIELDS`, but for those that are absent: there a driver can be found and ended."""
        namespace = None if self.kubernetes is None else self.kubernetes.namespace
        values = (self.backend, self.master, self.rest_url, self.master_ui_url, namespace)
        return {name: value for name, value in zip(CLUSTER_FIELDS, values, strict=True) if value is not None}

    def moved_from(self, cluster: Mapping[str, str]) -> list[str]:
        """Return what tells that `cluster` is another one: a line per field, with the value there and the one here.

        A standalone cluster is told by its master alone. Its addresses may change, such as to those of a standby.
        """
        here, names = self.cluster, set(CLUSTER_FIELDS)
        if here["backend"] == cluster.get("backend") == "standalone":
            names = {"master"}
        return [
            f"application.{name}: {cluster.get(name, 'none')} -> {here.get(name, 'none')}"
            for name in CLUSTER_FIELDS
            if name in names and cluster.get(name) != here.get(name)
        ]

    @property
    def control_place(self) -> str:
        """Where the control files are: the path or the URI of a folder, or `configmap:NAMESPACE`."""
        if self.control_dir is not None:
            return self.control_dir
        if self.kubernetes is not None:
            return f"configmap:{self.kubernetes.namespace}"
        return f"{self.checkpoint_location.rstrip('/').rpartition('/')[0]}/tidegate-control"

    @property
    def ways(self) -> tuple[Way, ...]:
        """The allowed ways to change the size of the running job, in order of preference."""
        if self.rescale is not None:
            return self.rescale
        return ALL_WAYS if self.main_class is None else WITHOUT_HANDOVER

    @property
    def digest(self) -> str:
        """A checksum of all that a run is started with; two specs with the same one need no new run."""
        started_with = self.model_dump(mode="json", exclude=_NOT_STARTED_WITH, exclude_none=True)
        return identity("application", json.dumps(started_with, sort_keys=True))


class Tariff(Wire):
    """What the job costs in money."""

    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
    """ISO 4217 code, such as `EUR`."""
    slot_hour: Annotated[float, Field(gt=0)]
    """Price of one slot for an hour."""
    late_minute: Annotated[float, Field(ge=0)]
    """Price of a minute in which the delay is above the lag objective."""
    change: Annotated[float, Field(ge=0)] | None = None
    """Price of a change of size, whatever its way; when absent, that of the policy."""


class PriorSize(Wire):
    """What similar jobs have shown at one size: a batch of n records lasts `overhead_seconds + n * record_seconds`."""

    slots: Parallelism
    overhead_seconds: Annotated[float, Field(ge=0)]
    record_seconds: Annotated[float, Field(gt=0)]
    batches: Annotated[float, Field(ge=1)]
    """How many batches that is worth."""
    batch_records: Annotated[float, Field(gt=0)]
    """Mean records of these batches."""
    batch_deviation: Annotated[float, Field(ge=0)] = 0.0
    """Their standard deviation, in records."""


class PriorWay(Wire):
    """What changing the size in one way has cost similar jobs."""

    way: Way
    outage_seconds: Annotated[float, Field(ge=0)]
    delay_seconds: Annotated[float, Field(ge=0)]
    changes: Positive
    """How many changes that is the median of."""


class Prior(Wire):
    """What similar jobs have shown, which the job starts from until it has shown its own; see `tidegate priors`."""

    learned_from: tuple[Identifier, ...] = Field(min_length=1)
    """The jobs."""
    until: Instant
    """The newest decision that was looked at."""
    sizes: tuple[PriorSize, ...] = ()
    ways: tuple[PriorWay, ...] = ()


class Scaling(Wire):
    """How the job may be scaled."""

    mode: Mode = Mode.ACTIVE
    """`active`; `advise` to decide and explain, but start and change nothing; or `paused` to hold the size."""
    policy: Identifier = "tide"
    """The rule that proposes sizes; see docs/policies."""
    policy_options: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the policy; its page lists them."""
    guards: dict[str, dict[str, Scalar]] = Field(default_factory=dict)
    """Options of single guards by name, such as `{"cooldown": {"up_seconds": 30}}`; see docs/policies/guards.md."""
    min_parallelism: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """With 0 the job is stopped while nothing arrives, and started at the first record that waits."""
    max_parallelism: Parallelism = 16
    """The most task slots that the job may have."""
    initial_parallelism: Parallelism | None = None
    """Size of the first start. When absent, the minimum, or one executor where that is 0."""
    lag_objective_seconds: Deadline = 60.0
    """No record should wait longer than this until it is committed."""
    prices: Tariff | None = None
    """What slots and late records cost. The policy derives its prices from it, unless `policy_options` set them. When
    absent, prices are in slot-seconds."""
    prior: Prior | None = None
    """What similar jobs have shown; `tidegate apply --prior-from JOB` fills it in."""
    interactive: bool = False
    """True: the policy does not change the size; `tidegate scale` and autoscalers of Kubernetes do."""
    command_ttl_seconds: Deadline = 120.0
    """A command that no actuator has started after this time is refused."""
    time_zone: TimeZone | None = None
    """The time zone of periods and cron expressions in guards and policies, such as `Europe/Berlin`. When absent, UTC.
    """

    def utc_offset_seconds(self, at: datetime) -> int | None:
        """Return by how many seconds the time zone is ahead of UTC at an instant; None without a time zone."""
        offset = None if self.time_zone is None else at.astimezone(ZoneInfo(self.time_zone)).utcoffset()
        return None if offset is None else int(offset.total_seconds())

    @model_validator(mode="after")
    def _sizes_are_ordered(self) -> Self:
        if self.min_parallelism > self.max_parallelism:
            raise ValueError(f"min_parallelism {self.min_parallelism} is above max_parallelism {self.max_parallelism}")
        initial = self.initial_parallelism
        if initial is not None and not self.min_parallelism <= initial <= self.max_parallelism:
            raise ValueError(f"initial_parallelism {initial} is outside {self.min_parallelism}..{self.max_parallelism}")
        return self


class ManualScale(Wire):
    """An operator's request for a size; it passes the guards once, like any proposed size."""

    request_id: str = Field(min_length=1, max_length=64)
    """Tells two requests for the same size apart."""
    parallelism: Annotated[int, Field(ge=0, le=1_000_000)]
    """The requested size. With 0 the job is stopped until a record waits, if its spec allows that."""
    reason: str = Field(min_length=1, max_length=500)
    requested_at: Instant


class SpecChange(Wire):
    """Who asked for a version of a spec, and why."""

    by: str = Field(min_length=1, max_length=100)
    reason: str = Field(min_length=1, max_length=500)
    at: Instant


class JobSpec(Wire):
    """One job under Tidegate, versioned: the highest version on `tidegate.jobs` holds."""

    job_id: Identifier
    """The job's name: 1 to 63 of `a-z 0-9 . _ -`. Tidegate starts its application under this name. One that it did not
    start is known by this name too, or by the Spark setting `spark.tidegate.job_id`."""
    pipeline_id: Identifier = Field(default_factory=lambda fields: fields["job_id"])
    """Jobs that feed each other share it, and are planned as one. When absent, the job's name. It is the Kafka key of
    the job's events."""
    version: Positive = 1
    """Set by `tidegate apply`."""
    pool_id: Identifier = "default"
    """The cluster's pool of slots: the same for all jobs of a cluster, another one for each cluster."""
    pool_max_slots: Parallelism | None = None
    """How many slots the pool can have once a node autoscaler has added nodes for executors that wait. The job may grow
    up to that, and a change in place waits `start_deadline_seconds` for its executors. When absent, only slots that are
    free already count."""
    sources: tuple[TopicName, ...] = Field(min_length=1)
    """The topics that the job reads. Others that its queries read, such as new ones of a `subscribePattern`, are
    measured as well, but do not link the job to those that write them."""
    kafka_cluster: Identifier | None = None
    """The Kafka cluster that has `sources` and `sinks`, by its name in the collector's setting `kafka_clusters`. When
    absent, the one that has Tidegate's own topics."""
    read_committed: bool | None = None
    """True if the job reads only the records of committed transactions, that is, if its sources have the option
    `kafka.isolation.level` with the value `read_committed`. What an open transaction has written is then no lag."""
    sinks: tuple[TopicName, ...] = ()
    """The topics that the job writes. They link it to the jobs that read them."""
    running: bool = True
    """Whether the job is meant to run; Tidegate starts a job that is meant to run and does not."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """Time between two snapshots, and so between two decisions."""
    application: Application
    scaling: Scaling = Field(default_factory=Scaling)
    manual: ManualScale | None = None
    """The newest request for a size; `tidegate scale` writes it."""
    change: SpecChange | None = None
    """Who asked for this version, and why; absent if nobody said so. It is not kept in the next version."""

    @property
    def smallest_size(self) -> int:
        """The fewest slots of a running job: the spec's minimum, or one executor where that is 0."""
        return self.scaling.min_parallelism or self.application.executor_cores

    @property
    def shown_mode(self) -> str:
        """The mode, or `stopped` for a job that is not meant to run."""
        return self.scaling.mode.value if self.running else "stopped"

    @property
    def digest(self) -> str:
        """A checksum of all that the spec says: one that was removed and applied again may have the same version."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        return identity("spec", json.dumps(said, sort_keys=True))

    @model_validator(mode="after")
    def _executors_divide_sizes(self) -> Self:
        cores = self.application.executor_cores
        if self.scaling.min_parallelism % cores or self.scaling.max_parallelism % cores:
            raise ValueError(f"min_parallelism and max_parallelism must be multiples of executor_cores ({cores})")
        return self
